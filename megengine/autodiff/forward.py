"""Forward mode: tangents travel with the values.

A vjp rule is linear in its cotangents. Its transpose is the jvp: the rule is recorded on cotangents of zero, and the
tangents of the inputs are pulled back through that record. So every op with a gradient has a forward rule too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from megengine.autodiff.context import Context, pull_back
from megengine.autodiff.tape import Tape
from megengine.core.calls import shown
from megengine.core.dtype import is_differentiable, storage_of
from megengine.core.errors import ArgumentError, GradientError, ShapeError
from megengine.core.text import counted
from megengine.dispatch import Interposer, Op, apply, interpose
from megengine.dispatch.refusal import checked
from megengine.tensor import Tensor


def _zeros(like: Tensor) -> Tensor:
    return Tensor(np.zeros(like.spec.shape, storage_of(like.dtype)), dtype=like.dtype, device=like.device)


class Forward(Interposer):
    """Keeps a tangent for every value that depends on a value with a tangent."""

    def __init__(self) -> None:
        self._tangents: dict[int, tuple[Tensor, Tensor]] = {}  # keeps values alive, so ids stay theirs

    def give(self, value: Tensor, tangent: Tensor) -> None:
        """Set the tangent of a value. Raises ShapeError if its shape differs from that of the value."""
        if tangent.spec.shape != value.spec.shape:
            raise ShapeError(f"jvp: a tangent has shape {tangent.shape}; expected {value.shape} of its value")
        self._tangents[id(value)] = value, tangent

    def tangent(self, value: Tensor) -> Tensor | None:
        """The tangent of a value; None if it does not depend on the inputs."""
        return self._tangents.get(id(value), (value, None))[1]

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """Run one op and compute the tangents of its results."""
        out = proceed()
        self.push(op.name, op.vjp, tensors, out if isinstance(out, tuple) else (out,), attrs)
        return out

    def push(self, name: str, vjp: Any, inputs: tuple, outputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> None:
        """Tangents of results from those of the inputs, by the transpose of a vjp rule."""
        tangents = [self.tangent(t) for t in inputs]
        if all(t is None for t in tangents) or not any(is_differentiable(o.dtype) for o in outputs):
            return
        cts = [_zeros(o) if is_differentiable(o.dtype) else None for o in outputs]
        tape = Tape()
        for ct in cts:
            if ct is not None:
                tape.watch(ct)
        needs = tuple(t is not None for t in tangents)
        with interpose(tape):
            grads = pull_back(Context(inputs, outputs, attrs, needs, name, vjp), cts)
        pairs = [(g, t) for g, t in zip(grads, tangents, strict=True) if g is not None and t is not None]
        moving = [(out, ct) for out, ct in zip(outputs, cts, strict=True) if ct is not None]
        pulled = tape.gradients([g for g, _ in pairs], [t for _, t in pairs], [ct for _, ct in moving])
        for (out, _), tangent in zip(moving, pulled, strict=True):
            if tangent is not None:
                self.give(out, tangent)

    def rebind(self, tensor: Tensor, new: Tensor) -> None:
        """`tensor` takes the value `new`, and its tangent."""
        tangent = self.tangent(new)
        self._tangents.pop(id(tensor), None)
        if tangent is not None:
            self._tangents[id(tensor)] = tensor, tangent


@checked
def jvp(function: Callable[..., Any], primals: Sequence[Tensor], tangents: Sequence[Tensor]) -> tuple[Any, Any]:
    """The value of a function and its derivative in a direction.

    Args:
        function: takes the primals, returns a tensor or a tuple of tensors.
        primals: float tensors at which it is called.
        tangents: the direction: a tensor of the same shape for each primal.

    Returns:
        (outputs, tangents of the outputs), each a tensor or a tuple, as the function returns.

    Raises:
        GradientError: the numbers of tangents and primals differ, or an op has no gradient.
        ShapeError: a tangent has another shape than its primal.

    Example:
        >>> y, dy = jvp(F.sin, [x], [F.ones_like(x)])  # doctest: +SKIP
    """
    if not callable(function):
        raise ArgumentError(f"jvp: function is {shown(function)}; expected something to call")
    for name, tensors in (("primals", primals), ("tangents", tangents)):
        wrong = [shown(t) for t in tensors if not isinstance(t, Tensor)]
        if wrong:
            raise ArgumentError(f"jvp: {name} hold {wrong[0]}; expected tensors")
    if len(primals) != len(tangents):
        raise GradientError(f"jvp: {counted(len(primals), 'primal')} and {counted(len(tangents), 'tangent')}")
    forward = Forward()
    # copies, since one tensor may be passed twice; recorded, so that outer tapes see their origin
    inputs = [apply("reshape", p, shape=p.spec.shape) for p in primals]
    for value, tangent in zip(inputs, tangents, strict=True):
        forward.give(value, tangent)
    with interpose(forward):
        out = function(*inputs)
    outputs = out if isinstance(out, tuple) else (out,)
    wrong = [shown(o) for o in outputs if not isinstance(o, Tensor)]
    if wrong:
        raise ArgumentError(f"jvp: function returned {wrong[0]}; expected a tensor or a tuple of tensors")
    changes = tuple(_zeros(o) if (t := forward.tangent(o)) is None else t for o in outputs)
    return out, changes if isinstance(out, tuple) else changes[0]
