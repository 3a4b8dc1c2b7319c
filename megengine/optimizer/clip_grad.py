"""Limits on gradients."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from megengine.core.calls import shown
from megengine.core.errors import ArgumentError, OptionError
from megengine.dispatch.refusal import checked
from megengine.tensor import Tensor


def _gradients(tensors: Tensor | Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The tensors that have a gradient, with it."""
    items = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    wrong = [shown(t) for t in items if not isinstance(t, Tensor)]
    if wrong:
        raise ArgumentError(f"tensors holds {wrong[0]}; expected parameters")
    return [(t, t.grad) for t in items if t.grad is not None]


@checked
def clip_grad_norm(tensors: Tensor | Iterable[Tensor], max_norm: float, ord: float = 2.0) -> Tensor:
    """Scale gradients so that their joint norm is at most `max_norm`. Returns the norm before, a 0-d tensor."""
    if max_norm < 0 or ord <= 0:
        raise OptionError(f"clip_grad_norm: max_norm={max_norm}, ord={ord}; expected max_norm >= 0 and ord > 0")
    owners = _gradients(tensors)
    if not owners:
        return Tensor(0.0)
    norms = [np.linalg.norm(g.numpy().astype(np.float64).reshape(-1), ord) for _, g in owners]
    total = float(np.linalg.norm(norms, ord))
    if total > max_norm:
        for t, g in owners:
            _set(t, g, g.numpy() * np.float32(max_norm / (total + 1e-6)))
    return Tensor(total)


@checked
def clip_grad_value(tensors: Tensor | Iterable[Tensor], lower: float, upper: float) -> None:
    """Limit every element of the gradients to [lower, upper]."""
    if lower > upper:
        raise OptionError(f"clip_grad_value: lower={lower} is above upper={upper}")
    for t, g in _gradients(tensors):
        _set(t, g, np.clip(g.numpy(), lower, upper))


def _set(owner: Tensor, gradient: Tensor, value: np.ndarray) -> None:
    owner.grad = Tensor._wrap(np.asarray(value, gradient.numpy().dtype), owner.dtype, owner.device)
