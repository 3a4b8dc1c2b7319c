"""Ops recorded as a recipe, which native code repeats on other tensors of the same specs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from megengine.core.spec import TensorSpec
from megengine.dispatch.apply import Interposer, infer
from megengine.dispatch.record import Op
from megengine.tensor import DeferredValueError, Tensor


class Notes(Interposer):
    """Records the ops of a call without running them: their results have only specs.

    Each input of an op is an argument of the call, a constant (a tensor that the call made), or an earlier result.
    Places number the arguments (tensors or anything else), then the constants, then all results.
    """

    LARGEST = 1 << 12  # elements of a constant; it is kept as long as the recipe

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.inputs = len(arguments)
        self.known = {id(a): i for i, a in enumerate(arguments) if isinstance(a, Tensor)}
        self.constants: list[Tensor] = []
        self.steps: list[tuple[Op, dict[str, Any], tuple[Tensor, ...]]] = []
        self.results: list[Any] = []
        self.result_ids: set[int] = set()

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """Record one op; returns tensors with the specs of the results."""
        self.constants += [t for t in tensors if id(t) not in self.known and id(t) not in self.result_ids]
        self.steps.append((op, dict(attrs), tensors))
        specs = infer(op, [t.spec for t in tensors], attrs)
        if op.counts:
            _refuse()  # what follows depends on lengths that values tell
        out = tuple(map(_deferred, specs)) if isinstance(specs, tuple) else _deferred(specs)
        self.results.append(out)
        self.result_ids.update(map(id, _flat(out)))
        return out

    def keep(self, wanted: Collection[Tensor]) -> None:
        """Drop the ops on which no wanted tensor depends; a wanted tensor that is no result becomes a constant."""
        self.constants += [t for t in wanted if id(t) not in self._places()]
        used = {id(t) for t in wanted}
        kept = []
        for step, out in zip(reversed(self.steps), reversed(self.results), strict=True):
            if any(id(r) in used for r in _flat(out)):
                kept.append((step, out))
                used.update(id(t) for t in step[2])
        self.steps, self.results = [step for step, _ in reversed(kept)], [out for _, out in reversed(kept)]
        self.constants = [c for c in self.constants if id(c) in used]

    def recipe(self, out: Tensor | Sequence[Tensor | None]) -> tuple | None:
        """(constants, ops, the place of `out`, or a tuple of places with None for None) for native code.

        An op is (op, attributes, places of the inputs, number of results or None for one that is no tuple). None where
        a constant has no value or is too large to be kept.
        """
        if any(c._value is None or c.spec.size > self.LARGEST for c in self.constants):
            return None
        places = self._places()
        steps = tuple(
            (op, attrs, tuple(places[id(t)] for t in tensors), len(result) if isinstance(result, tuple) else None)
            for (op, attrs, tensors), result in zip(self.steps, self.results, strict=True)
        )
        if isinstance(out, Tensor):
            return tuple(self.constants), steps, places[id(out)]
        return tuple(self.constants), steps, tuple(None if t is None else places[id(t)] for t in out)

    def _places(self) -> dict[int, int]:
        """Id of each tensor -> its place."""
        first = self.inputs + len(self.constants)
        results = [id(r) for out in self.results for r in _flat(out)]
        places = {id(c): self.inputs + i for i, c in enumerate(self.constants)}
        return places | {r: first + i for i, r in enumerate(results)} | self.known


def without_value(argument: Any) -> Any:
    """For a tensor one of the same spec without a value; anything else is returned as it is."""
    return _deferred(argument.spec) if isinstance(argument, Tensor) else argument


def _deferred(spec: TensorSpec) -> Tensor:
    # with a thunk: `detach` takes a tensor without one for a value of a graph and returns it itself
    return Tensor._deferred(spec, _refuse)


def _refuse() -> np.ndarray:
    raise DeferredValueError("a value is read where only specs are known")


def _flat(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)
