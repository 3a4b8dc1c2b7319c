"""GradManager: which tensors want gradients, recording, and the backward pass."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import numpy as np

from megengine.autodiff.tape import Tape
from megengine.core import _engine
from megengine.core.calls import shown
from megengine.core.dtype import is_differentiable, storage_of
from megengine.core.errors import ArgumentError, GradientError
from megengine.core.text import counted
from megengine.dispatch import apply, mixed
from megengine.dispatch.apply import begin, hidden
from megengine.dispatch.refusal import explains
from megengine.logger import get_logger
from megengine.tensor import Tensor

_log = get_logger(__name__)
GradCallback = Callable[[Tensor, Tensor], Tensor | None]  # None keeps the gradient


_levels = itertools.count()  # of managers that begin to record: the earlier, the lower
_backwarding: ContextVar[GradManager | None] = ContextVar("megengine_backwarding", default=None)


def get_backwarding_grad_manager() -> GradManager | None:
    """The manager whose `backward` is running now, for callbacks; None outside."""
    return _backwarding.get()


class GradManager:
    """Reverse-mode gradients of what is computed between `record()` and `backward()`.

    ```python
    gm = GradManager().attach(net.parameters())
    with gm:
        loss = F.cross_entropy(net(x), y)
        gm.backward(loss)          # net.parameters() now have .grad
    ```
    Gradients are added to `.grad`. A manager that began to record earlier records the backward pass, so that it can be
    differentiated again; managers that began later, or together in a group (`gm1 | gm2`), do not, as in MegEngine.
    Attached tensors are held by weak references, so inputs can be attached step after step.
    """

    def __init__(self) -> None:
        self._attached: dict[int, tuple[weakref.ref[Tensor], list[GradCallback]]] = {}
        self._tape: Tape | None = None

    @explains
    def attach(
        self, tensors: Tensor | Iterable[Tensor], callbacks: GradCallback | Sequence[GradCallback] | None = None
    ) -> GradManager:
        """Ask for gradients of tensors; `callback(tensor, grad)` may replace each gradient. Returns the manager."""
        if not isinstance(tensors, (Tensor, list)) and not isinstance(tensors, Iterable):
            remedy = "; give it net.parameters()" if hasattr(tensors, "parameters") else ""
            raise ArgumentError(f"attach: tensors is {shown(tensors)}; expected tensors or parameters{remedy}")
        items = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        for t in items:
            if not isinstance(t, Tensor) or not is_differentiable(t.dtype):
                raise ArgumentError(f"attach: got {shown(t)}; expected tensors or parameters of a floating-point dtype")
        added = [] if callbacks is None else [callbacks] if callable(callbacks) else list(callbacks)
        if not all(map(callable, added)):
            raise ArgumentError(f"attach: callbacks is {shown(callbacks)}; expected something to call, or several")
        if self._attached:  # the id of a dead tensor may belong to another by now
            self._attached = {number: entry for number, entry in self._attached.items() if entry[0]() is not None}
        for t in items:
            _, have = self._attached.setdefault(id(t), (weakref.ref(t), []))
            if added:
                have.extend(added)
            if self._tape is not None:
                self._tape.watch(t)
        return self

    def attached_tensors(self) -> list[Tensor]:
        """Tensors that want gradients."""
        return [t for t, _ in self._alive()]

    def _alive(self) -> list[tuple[Tensor, list[GradCallback]]]:
        return [(t, callbacks) for reference, callbacks in self._attached.values() if (t := reference()) is not None]

    def record(self) -> None:
        """Begin to record; `with gm:` does it too."""
        self._record(next(_levels))

    def _record(self, level: int) -> None:
        if self._tape is not None:
            raise GradientError("GradManager records already; call backward() or release() first")
        tape = self._tape = Tape(level)
        for t, _ in self._alive():
            tape.watch(t)
        begin(tape)

    def release(self) -> None:
        """Stop recording and forget what was recorded."""
        if self._tape is not None:
            self._tape.stop()
        self._tape = None

    @explains
    def backward(self, y: Any = None, dy: Any = None) -> None:
        """Gradients of y (a tensor, or several) are added to `.grad` of attached tensors; recording stops.

        dy is the cotangent of each y; without it, ones: the gradient of the sum of all elements.
        """
        tape = self._tape
        if tape is None:
            raise GradientError("backward: nothing was recorded; use 'with gm:' or gm.record() around the computation")
        targets = [y] if isinstance(y, Tensor) else [] if y is None else tensors_of("y", y)
        seeds = self._seeds(targets, dy)
        tape.stop()  # the backward pass is not recorded by its own tape
        token = _backwarding.set(self)
        try:
            with hidden(lambda other: isinstance(other, Tape) and other.level >= tape.level and not other.over):
                grads = self._gradients(tape, targets, seeds, {id(seed) for seed in seeds} if dy is not None else set())
            for tensor, grad in grads:
                tensor.grad = grad if tensor.grad is None else apply("add", tensor.grad, grad)
            if targets and not grads and self._alive():
                _log.warning(
                    "backward: y does not depend on any attached tensor, so no gradient was computed; "
                    "compute it from them within 'with gm:'"
                )
        finally:
            _backwarding.reset(token)
            self._tape = None

    def _gradients(self, tape: Tape, targets: list, seeds: list, taken: set[int]) -> list[tuple[Tensor, Tensor]]:
        """Each attached tensor that the targets depend on, and its gradient as the callbacks leave it."""
        attached, results = self._alive(), []
        with mixed.kept():  # the recorded operands were cast as the forward asked for
            grads = tape.gradients(targets, seeds, [t for t, _ in attached])
        for (tensor, callbacks), grad in zip(attached, grads, strict=True):
            if grad is None:
                continue
            if id(grad) in taken:  # another owner may change it in place
                grad = apply("copy", grad, device=grad.device)
            taken.add(id(grad))
            for callback in callbacks:
                changed = callback(tensor, grad)
                grad = grad if changed is None else changed
            results.append((tensor, grad))
        return results

    @staticmethod
    def _seeds(targets: list[Tensor], dy: Any) -> list[Tensor]:
        if dy is None:
            return list(map(_ones, targets))
        seeds = tensors_of("dy", dy)
        if len(seeds) != len(targets):
            raise GradientError(f"backward: {counted(len(targets), 'target')} and {counted(len(seeds), 'cotangent')}")
        return seeds

    def __enter__(self) -> GradManager:
        self.record()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        return GradManagerGroup([self]).merge_with(other)


def _ones(like: Tensor) -> Tensor:
    if like._value is not None:
        return _engine.ones_like(like)
    return Tensor._of_spec(np.ones(like.spec.shape, storage_of(like.dtype)), like.spec)


def tensors_of(name: str, value: Any) -> list[Tensor]:
    """A tensor, or several, as a list. Raises ArgumentError, with the name of the argument, for anything else."""
    items = list(value) if isinstance(value, (tuple, list)) else [value]
    wrong = [t for t in items if not isinstance(t, Tensor)]
    if wrong:
        raise ArgumentError(f"backward: {name} is {shown(wrong[0])}; expected a tensor, or several")
    return items


class AttachSpec:
    """An entry of `attach`: a tensor and the callbacks of its gradient."""

    __slots__ = ("callbacks", "tensor")

    def __init__(self) -> None:
        self.tensor: Tensor | None = None
        self.callbacks: list[GradCallback] = []


class GradManagerGroup:
    """`with gm1 | gm2:` records with both; more can be added with `|`. None records the `backward` of another."""

    def __init__(self, gms: Iterable[GradManager]) -> None:
        self._gms = list(gms)

    def merge_with(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        """A group of all managers of both. Raises GradientError for anything that is no manager."""
        if not isinstance(other, (GradManager, GradManagerGroup)):
            raise GradientError(f"merge_with: got {type(other).__name__}; expected a GradManager or a group of them")
        return GradManagerGroup([*self._gms, *(other._gms if isinstance(other, GradManagerGroup) else [other])])

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        return self.merge_with(other)

    def __enter__(self) -> GradManagerGroup:
        with ExitStack() as undo:  # one that records already leaves none of the others recording
            level = next(_levels)
            for m in self._gms:
                m._record(level)
                undo.callback(m.release)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for m in reversed(self._gms):
            m.release()
