"""Limits on gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from megengine.core.calls import shown
from megengine.core.dtype import is_float
from megengine.core.errors import ArgumentError, OptionError
from megengine.dispatch import apply
from megengine.dispatch.refusal import checked
from megengine.kernels import cuda
from megengine.kernels.cuda.placing import on_gpu
from megengine.tensor import Tensor


def _gradients(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """The gradients that the tensors have; one that several share stands for each."""
    items = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    wrong = [shown(t) for t in items if not isinstance(t, Tensor)]
    if wrong:
        raise ArgumentError(f"tensors holds {wrong[0]}; expected parameters")
    return [t.grad for t in items if t.grad is not None]


@checked
def clip_grad_norm(tensors: Tensor | Iterable[Tensor], max_norm: float, ord: float = 2.0) -> Tensor:
    """Scale gradients in place to a joint norm of at most `max_norm`. Returns the norm before, a 0-d tensor."""
    if max_norm < 0 or ord <= 0:
        raise OptionError(f"clip_grad_norm: max_norm={max_norm}, ord={ord}; expected max_norm >= 0 and ord > 0")
    gradients = _gradients(tensors)
    if not gradients:
        return Tensor(0.0)
    if _on_one_gpu(gradients):
        return _limit_on_gpu(gradients, max_norm, ord)
    norms = [np.linalg.norm(g.numpy().astype(np.float64).reshape(-1), ord) for g in gradients]
    total = float(np.linalg.norm(norms, ord))
    if total > max_norm:
        _change(gradients, lambda values: values * np.float32(max_norm / (total + 1e-6)))
    return Tensor(total)


@checked
def clip_grad_value(tensors: Tensor | Iterable[Tensor], lower: float, upper: float) -> None:
    """Limit every element of the gradients to [lower, upper], in place."""
    if lower > upper:
        raise OptionError(f"clip_grad_value: lower={lower} is above upper={upper}")
    gradients = _gradients(tensors)
    if _on_one_gpu(gradients):
        for g in {id(g): g for g in gradients}.values():
            g._reset(apply("clip", g.detach(), lo=float(lower), hi=float(upper)))
        return
    _change(gradients, lambda values: np.clip(values, lower, upper))


def _on_one_gpu(gradients: list[Tensor]) -> bool:
    devices = {g.spec.device for g in gradients}
    return len(devices) == 1 and on_gpu(devices.pop()) and all(is_float(g.dtype) for g in gradients)


def _limit_on_gpu(gradients: list[Tensor], max_norm: float, order: float) -> Tensor:
    once = list({id(g): g for g in gradients}.values())
    arrays, measured = ([g._storage() for g in some] for some in (once, gradients))
    new, norm = cuda.updates.limited(arrays, measured, max_norm, order)
    for g, array in zip(once, new, strict=True):
        g._reset(Tensor._wrap(array, g.dtype, g.spec.device))
    return Tensor._wrap(norm, None, once[0].spec.device)


def _change(gradients: list[Tensor], rule: Callable[[np.ndarray], np.ndarray]) -> None:
    """Give gradients other values, each once."""
    for g in {id(g): g for g in gradients}.values():
        values = g.numpy()
        g[...] = Tensor._wrap(np.asarray(rule(values), values.dtype), g.dtype, g.device)
