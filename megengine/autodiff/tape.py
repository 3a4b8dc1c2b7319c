"""The tape: ops in the order in which they were applied, and the sweep back over it."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from megengine.core.dtype import is_differentiable
from megengine.core.errors import GradientError
from megengine.dispatch import Observer, Op, apply
from megengine.dispatch.record import NoRule
from megengine.tensor import Tensor


class Context:
    """One op on a tape, as its vjp rule sees it: `needs` says which inputs want a gradient."""

    __slots__ = ("attrs", "inputs", "name", "needs", "outputs", "vjp")

    def __init__(
        self,
        inputs: tuple,
        outputs: tuple,
        attrs: dict[str, Any],
        needs: tuple[bool, ...],
        name: str = "",
        vjp: Callable[..., Any] | NoRule | None = None,
    ) -> None:
        self.inputs, self.outputs, self.attrs, self.needs = inputs, outputs, attrs, needs
        self.name, self.vjp = name, vjp


class Tape(Observer):
    """Records every op that touches a watched tensor; several tapes can record at once (higher order)."""

    def __init__(self) -> None:
        self.entries: list[Context] = []
        self.watched: dict[int, Tensor] = {}  # keeps tensors alive, so ids stay theirs
        self._sources: dict[int, Tensor] = {}  # tensors told to watch -> what stands for the value they had then

    def watch(self, tensor: Tensor) -> None:
        """Record what is computed from the tensor."""
        self.watched[id(tensor)] = self._sources[id(tensor)] = tensor

    def source(self, tensor: Tensor) -> Tensor:
        """What stands for the value that a watched tensor had at first: itself until it is changed in place."""
        return self._sources[id(tensor)]

    def observe(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], out: Any) -> None:
        """Write one op down if it depends on a watched tensor."""
        watched = self.watched
        needs = tuple([id(t) in watched for t in tensors])
        if True in needs:
            self.add(op.name, op.vjp, tensors, out if out.__class__ is tuple else (out,), attrs, needs)

    def add(
        self, name: str, vjp: Any, inputs: tuple, outputs: tuple[Tensor, ...], attrs: dict[str, Any], needs: tuple
    ) -> None:
        """Write one op down; its float results are watched from now on."""
        for t in outputs:
            if is_differentiable(t._dtype):
                break
        else:
            return
        for t in outputs:
            self.watched[id(t)] = t
        self.entries.append(Context(inputs, outputs, attrs, needs, name, vjp))

    def rebind(self, tensor: Tensor, new: Tensor) -> None:
        """From now on `tensor` stands for `new`; entries so far keep an alias of its old value."""
        old = tensor.detach()
        if self._sources.get(id(tensor)) is tensor:
            self._sources[id(tensor)] = old
        if id(tensor) in self.watched:
            self.watched[id(old)] = old
        for entry in self.entries:
            entry.inputs = tuple(old if t is tensor else t for t in entry.inputs)
            entry.outputs = tuple(tensor if t is new else old if t is tensor else t for t in entry.outputs)
        if id(new) in self.watched:
            self.watched[id(tensor)] = tensor

    def gradients(self, targets: Sequence[Tensor], seeds: Sequence[Tensor], keep: Container[int]) -> dict[int, Tensor]:
        """Cotangents of the values whose ids are in `keep`, by id; among them may be others.

        Uses the tape up: values and cotangents that no earlier entry needs are let go on the way.
        """
        cotangents: dict[int, Tensor] = {}
        for target, seed in zip(targets, seeds, strict=True):
            _accumulate(cotangents, target, seed)
        while self.entries:
            self._step_back(self.entries.pop(), cotangents, keep)
        return cotangents

    def _step_back(self, entry: Context, cotangents: dict[int, Tensor], keep: Container[int]) -> None:
        inputs, outputs, watched = entry.inputs, entry.outputs, self.watched
        cts = [cotangents.get(id(t)) for t in outputs]
        for ct in cts:
            if ct is not None:
                for t, grad in zip(inputs, pull_back(entry, cts), strict=True):
                    if grad is not None and id(t) in watched:
                        _accumulate(cotangents, t, grad)
                break
        for t in outputs:
            key = id(t)
            if key not in keep and key not in map(id, inputs):
                cotangents.pop(key, None)
                watched.pop(key, None)


def pull_back(entry: Context, cts: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Cotangents of an entry's inputs from those of its outputs."""
    if isinstance(entry.vjp, NoRule):
        if "piecewise constant" in entry.vjp.reason:
            return [None] * len(entry.inputs)
        raise GradientError(
            f"{entry.name} has no gradient: {entry.vjp.reason}; detach its input or leave it out of the loss"
        )
    assert entry.vjp is not None
    try:
        grads = entry.vjp(entry, *cts)
    except Exception as exc:
        exc.add_note(f"while computing the gradient of {entry.name}")
        raise
    return grads if isinstance(grads, tuple) else (grads,)


def _accumulate(cotangents: dict[int, Tensor], tensor: Tensor, grad: Tensor) -> None:
    got, expected = grad.spec, tensor.spec
    if got is not expected and got.shape != expected.shape:
        raise GradientError(f"a gradient has shape {got.shape}; expected {expected.shape} of the value it belongs to")
    have = cotangents.get(id(tensor))
    cotangents[id(tensor)] = grad if have is None else apply("add", have, grad)
