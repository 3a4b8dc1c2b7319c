"""Ops written down as a recipe, which native code repeats on other tensors of the same specs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from megengine.core.spec import TensorSpec
from megengine.dispatch.apply import Interposer, infer
from megengine.dispatch.record import Op
from megengine.tensor import DeferredValueError, Tensor


class Notes(Interposer):
    """Writes down the ops of a call; each input is something given, a tensor that the call made, or an earlier result.

    Places count what is given (tensors or anything else), then the constants, then the results, those of an op with
    several one after the other.
    """

    def __init__(self, given: Sequence[Any]) -> None:
        self.given = len(given)
        self.known = {id(a): i for i, a in enumerate(given) if isinstance(a, Tensor)}
        self.constants: list[Tensor] = []
        self.steps: list[tuple[Op, dict[str, Any], tuple[Tensor, ...]]] = []
        self.results: list[Any] = []
        self._made: set[int] = set()

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """Run one op and write it down."""
        self.constants += [t for t in tensors if id(t) not in self.known and id(t) not in self._made]
        self.steps.append((op, dict(attrs), tensors))
        out = self.run(op, tensors, attrs, proceed)
        self.results.append(out)
        self._made.update(map(id, _flat(out)))
        return out

    def run(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """The result of one op."""
        return proceed()

    def keep(self, wanted: Collection[Tensor]) -> None:
        """Forget the ops that nothing wanted comes from."""
        used = {id(t) for t in wanted}
        kept = []
        for step, out in zip(reversed(self.steps), reversed(self.results), strict=True):
            if any(id(r) in used for r in _flat(out)):
                kept.append((step, out))
                used.update(id(t) for t in step[2])
        self.steps, self.results = [step for step, _ in reversed(kept)], [out for _, out in reversed(kept)]
        self.constants = [c for c in self.constants if id(c) in used]

    def places(self) -> dict[int, int]:
        """The place of everything that was seen, by id."""
        first = self.given + len(self.constants)
        results = [id(r) for out in self.results for r in _flat(out)]
        places = {id(c): self.given + i for i, c in enumerate(self.constants)}
        return places | {r: first + i for i, r in enumerate(results)} | self.known

    def written(self) -> tuple[tuple[Any, ...], ...]:
        """(op, attributes, places of the inputs, number of results or None for one that is no tuple) of each op."""
        places = self.places()
        return tuple(
            (op, attrs, tuple(places[id(t)] for t in tensors), len(out) if isinstance(out, tuple) else None)
            for (op, attrs, tensors), out in zip(self.steps, self.results, strict=True)
        )


class SpecNotes(Notes):
    """Notes of ops that are not run: what comes to its end with `valueless` tensors asks for no value."""

    LARGEST = 1 << 12  # elements of a constant; it is kept as long as what is known of the call

    def run(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """Tensors with the specs of the results."""
        specs = infer(op, [t.spec for t in tensors], attrs)
        return tuple(map(_without_value, specs)) if isinstance(specs, tuple) else _without_value(specs)

    def can_be_kept(self) -> bool:
        """Whether every constant is small and has a value."""
        return all(c._value is not None and c.spec.size <= self.LARGEST for c in self.constants)


def valueless(value: Any) -> Any:
    """A tensor of the same spec without a value for a tensor, anything else itself."""
    return _without_value(value.spec) if isinstance(value, Tensor) else value


def _without_value(spec: TensorSpec) -> Tensor:
    # with something to compute it: one without is taken for a value of a graph, which `detach` gives back itself
    return Tensor._deferred(spec, _refuse)


def _refuse() -> np.ndarray:
    raise DeferredValueError("a value was asked for where only specs are known")


def _flat(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)
