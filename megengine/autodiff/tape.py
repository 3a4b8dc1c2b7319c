"""The tape: ops in the order in which they were applied, and the sweep back over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from megengine.autodiff.context import Context, pull_back
from megengine.autodiff.rules import learn
from megengine.core import _engine
from megengine.core.dtype import is_differentiable
from megengine.core.errors import GradientError
from megengine.dispatch import Listener, Op
from megengine.dispatch.apply import end
from megengine.tensor import Tensor

if TYPE_CHECKING:

    class _Base:
        """The native part: entries, watched tensors and the sweep; it records the ops that run natively."""

        def watch(self, tensor: Tensor) -> None: ...
        def watches(self, tensor: Tensor) -> bool: ...
        def gradients(self, targets: list, seeds: list, tensors: list) -> list[Tensor | None]: ...
        def _add(self, entry: Context) -> None: ...
        def _rebind(self, tensor: Tensor, new: Tensor, old: Tensor) -> None: ...
else:
    _Base = _engine.TapeBase


class Tape(_Base, Listener):
    """Records every op that touches a watched tensor; several tapes can record at once (higher order).

    `gradients` consumes the tape: it frees values and cotangents that no earlier entry needs.
    A tape records the backward sweeps of tapes of a higher level.
    """

    def __init__(self, level: int = 0) -> None:
        super().__init__()
        self.level, self.over = level, False

    def stop(self) -> None:
        """Stop recording."""
        self.over = True
        end(self)

    def observe(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], out: Any) -> None:
        """Record one op that did not run natively, if it depends on a watched tensor."""
        needs = tuple(map(self.watches, tensors))
        if any(needs):
            self.add(op.name, op.vjp, tensors, out if isinstance(out, tuple) else (out,), attrs, needs)

    def add(self, name: str, vjp: Any, inputs: tuple, outputs: tuple, attrs: dict[str, Any], needs: tuple) -> None:
        """Record one op; its float results are watched from now on."""
        if any(is_differentiable(t.dtype) for t in outputs):
            self._add(Context(inputs, outputs, attrs, needs, name, vjp))

    def rebind(self, tensor: Tensor, new: Tensor) -> None:
        """From now on `tensor` stands for `new`; entries so far keep an alias of its old value."""
        self._rebind(tensor, new, tensor.detach())


def _pull_back(
    entry: Op | Context, inputs: tuple, outputs: tuple, attrs: dict[str, Any] | None, needs: tuple, cts: tuple
) -> Sequence[Tensor | None]:
    if isinstance(entry, Op):
        return pull_back(Context(inputs, outputs, attrs or {}, needs, entry.name, entry.vjp), cts)
    entry.inputs, entry.outputs = inputs, outputs  # a changed value is represented by another tensor
    return pull_back(entry, cts)


def _refuse(grad: Tensor, tensor: Tensor) -> None:
    if grad.shape != tensor.shape:
        raise GradientError(f"a gradient has shape {grad.shape}; expected {tensor.shape} of the value it belongs to")


_engine.set_tape(learn=learn, pull_back=_pull_back, refuse=_refuse)
