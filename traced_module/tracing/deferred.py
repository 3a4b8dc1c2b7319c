"""Values that are computed only when Python asks for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from megengine.core import hooks
from megengine.core.sizes import is_open
from megengine.core.spec import TensorSpec
from megengine.dispatch import Interposer, Op, apply, infer
from megengine.dispatch.apply import no_interposers
from megengine.kernels.cuda.placing import placed
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import SHAPE_OF
from megengine.traced_module.tracing.calls import alias
from megengine.traced_module.tracing.lengths import provisional
from megengine.traced_module.tracing.sized import Sized, sized_result


class Pending:
    """An op that was applied but not computed. It keeps its operands as they are now: they may be assigned to."""

    __slots__ = ("attrs", "op", "results", "tensors")

    def __init__(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any]) -> None:
        self.op, self.tensors, self.attrs = op, tuple(map(alias, tensors)), attrs
        self.results: tuple[np.ndarray, ...] | None = None

    def value(self, index: int) -> np.ndarray:
        """One result; everything it depends on is computed first, without recursion."""
        waiting: list[Pending] = [self]
        while waiting:
            at = waiting[-1]
            needed = [p for t in at.tensors if (p := pending(t)) is not None and p.results is None]
            if needed and at.results is None:
                waiting.extend(needed)
                continue
            waiting.pop()
            at._compute()
        assert self.results is not None
        return self.results[index]

    def _compute(self) -> None:
        if self.results is not None:
            return
        with no_interposers():
            out = apply(self.op, *[Tensor._of_spec(t._storage(), t.spec) for t in self.tensors], **self.attrs)
        self.results = tuple(t._storage() for t in (out if isinstance(out, tuple) else (out,)))


class PendingCall(Pending):
    """The call of a layer that was not made: its result is a tensor of a known spec."""

    __slots__ = ("arguments", "run")

    def __init__(self, run: Callable[[], Tensor], tensors: tuple[Tensor, ...]) -> None:
        self.run, self.arguments, self.tensors, self.results = run, tensors, tuple(map(alias, tensors)), None

    def result(self, spec: TensorSpec) -> Tensor:
        """The tensor; without a way to a value if one of the arguments has none."""
        known = all(t._value is not None or t._thunk is not None for t in self.tensors)
        return Tensor._deferred(spec, _thunk(self, 0) if known else None)

    def _compute(self) -> None:
        if self.results is not None:
            return
        with no_interposers(), hooks.unheard():
            for tensor in self.tensors:
                tensor._storage()
            with _standing_for(self.arguments, self.tensors):
                self.results = (self.run()._storage(),)


@contextmanager
def _standing_for(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """In the body these tensors have other values: those that they had before they were assigned to."""
    now = list(map(alias, tensors))
    for tensor, value in zip(tensors, values, strict=True):
        tensor._reset(value)
    try:
        yield
    finally:
        for tensor, value in zip(tensors, now, strict=True):
            tensor._reset(value)


def pending(tensor: Tensor) -> Pending | None:
    """The op that a tensor waits for."""
    thunk = tensor._thunk
    if tensor._value is not None or not isinstance(thunk, functools.partial):
        return None
    return thunk.args[0]


def _thunk(waiting: Pending, index: int) -> Callable[[], np.ndarray]:
    return functools.partial(Pending.value, waiting, index)


class Deferring(Interposer):
    """Ops on tensors without a value give tensors without a value; their specs are known.

    A length that values tell is an open one, under a provisional name, where the values are not known; so is a shape.
    """

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """Defer the op unless all its inputs are known."""
        if all(t._value is not None for t in tensors):
            return proceed()
        unknown = any(t._value is None and t._thunk is None for t in tensors)
        stated = {**attrs, "count": provisional()} if op.counts and unknown else attrs
        specs_or_spec = infer(op, [t.spec for t in tensors], stated)
        specs = (specs_or_spec,) if isinstance(specs_or_spec, TensorSpec) else specs_or_spec
        if op.name == SHAPE_OF and not is_open(tensors[0].spec.shape):  # known from the spec
            shape, device = np.array(tensors[0].spec.shape, np.int32), specs[0].device
            return Tensor._deferred(specs[0], lambda: placed(shape, device))
        if op.counts and not unknown:  # lengths that values tell
            with no_interposers():
                return apply(op, *[Tensor._of_spec(t._storage(), t.spec) for t in tensors], **attrs)
        if op.name == SHAPE_OF:
            return Sized.of(tensors[0].spec.shape, specs[0])
        if (known := sized_result(op, tensors, attrs, specs_or_spec)) is not None:
            return known
        if unknown:
            results = tuple(Tensor._deferred(s) for s in specs)
        else:
            waiting = Pending(op, tensors, attrs)
            results = tuple(Tensor._deferred(s, _thunk(waiting, i)) for i, s in enumerate(specs))
        return results[0] if isinstance(specs_or_spec, TensorSpec) else results
