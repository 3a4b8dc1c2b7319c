"""Ops that run graphs: one of two branches, and rounds of a body. The graphs are attributes: `traced_module.bodies`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import DTypeError, ShapeError
from megengine.core.sizes import counted_size, is_open, names_of
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import ONNX_WRITER, Sample, apply, define, not_differentiable
from megengine.dispatch.apply import no_interposers
from megengine.ops.common import as_tensor
from megengine.tensor import Tensor

_NO_GRADIENT = not_differentiable("which of its graphs run, and how often, depends on values; compute it outside")
MOST_ROUNDS = 1 << 20  # of a loop without a limit of its own


class Runs(Protocol):
    """A graph that an op runs."""

    def specs(self, given: Sequence[TensorSpec]) -> list[TensorSpec]:
        """Specs of its results for inputs of these; raises ShapeError and DTypeError where they do not fit."""
        ...

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Its results, on the device of the arrays."""
        ...


def _results(made: Sequence[Any]) -> Any:
    return made[0] if len(made) == 1 else tuple(made)


def _either(op: str, count: str, place: int, specs: Sequence[TensorSpec], given: Sequence[TensorSpec]) -> TensorSpec:
    """The spec of a result that several graphs may give: a length that differs depends on values.

    It lies where the operands do, wherever the graphs were made.
    """
    known = _names(given)
    first = specs[0]
    if len({s.ndim for s in specs}) > 1 or len({s.dtype for s in specs}) > 1:
        texts = " or ".join(map(str, specs))
        raise ShapeError(f"{op}: result {place} is {texts}; expected one dtype and number of axes")
    lengths = []
    for axis, sizes in enumerate(zip(*(s.shape for s in specs), strict=True)):
        same = all(n == sizes[0] for n in sizes) and names_of(sizes) <= known
        lengths.append(sizes[0] if same else counted_size(f"{count}_{place}_{axis}"))
    return TensorSpec(tuple(lengths), first.dtype, _device(given))


def _device(specs: Sequence[TensorSpec]) -> str:
    return specs[0].device if specs else "cpu0"


def _names(specs: Sequence[TensorSpec]) -> set[str]:
    return names_of([s.shape for s in specs])


def _check_condition(op: str, what: str, spec: TensorSpec, kind: str) -> None:
    if spec.size != 1 or storage_of(spec.dtype).kind not in kind:
        wanted = "one truth value" if kind == "b" else "one integer"
        raise DTypeError(f"{op}: {what} is {spec}; expected {wanted}")


def _if_infer(condition: TensorSpec, *given: TensorSpec, then: Runs, otherwise: Runs, count: str = "count") -> Any:
    _check_condition("if", "the condition", condition, "b")
    branches = [branch.specs(given) for branch in (then, otherwise)]
    if len(branches[0]) != len(branches[1]):
        texts = [counted(len(specs), "result") for specs in branches]
        raise ShapeError(f"if: its branches give {texts[0]} and {texts[1]}; expected as many of both")
    given = (condition, *given)
    return _results([_either("if", count, i, pair, given) for i, pair in enumerate(zip(*branches, strict=True))])


def _if(condition: np.ndarray, *given: np.ndarray, then: Runs, otherwise: Runs, count: str = "") -> Any:
    return _results((then if condition.reshape(-1)[0] else otherwise).run(given))


class _Scaled:
    """For the tests of records: a graph that multiplies what comes last."""

    def __init__(self, factor: float, states: int = 0) -> None:
        self.factor, self.states = factor, states

    def specs(self, given: Sequence[TensorSpec]) -> list[TensorSpec]:
        return [*given[1 : 1 + self.states], given[-1]]

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        with no_interposers():
            last = Tensor._wrap(arrays[-1])
            scaled = apply("mul", last, as_tensor(self.factor, like=last))
        return [*arrays[1 : 1 + self.states], scaled._storage()]


def _if_samples() -> Iterator[Sample]:
    branches = {"then": _Scaled(2.0), "otherwise": _Scaled(-1.0)}
    for condition in (True, False):
        yield Sample((np.array(condition), np.arange(6.0).reshape(2, 3)), branches, False)


define("if", _if_infer, _if, _NO_GRADIENT, ONNX_WRITER, _if_samples, counts=True)


def _parts(values: Sequence[Any], states: int, limited: bool, asked: bool) -> tuple[Any, Any, list[Any], list[Any]]:
    """Limit and condition (None without), states, and what the body reads besides."""
    rest = list(values)
    limit = rest.pop(0) if limited else None
    condition = rest.pop(0) if asked else None
    return limit, condition, rest[:states], rest[states:]


_ROUND = (TensorSpec((), np.dtype(np.int64)), TensorSpec((), np.dtype(np.bool_)))


def _loop_infer(
    *given: TensorSpec,
    body: Runs,
    states: int,
    limited: bool,
    asked: bool,
    rounds: int | None = None,
    count: str = "count",
) -> Any:
    """`rounds` is their number where it follows from open sizes."""
    limit, condition, first, outer = _parts(given, states, limited, asked)
    if limit is not None:
        _check_condition("loop", "the number of rounds", limit, "iu")
    if condition is not None:
        _check_condition("loop", "the condition", condition, "b")
    going, *made = body.specs([*_ROUND, *first, *outer])
    _check_condition("loop", "what its body says of another round", going, "b")
    if len(made) < states:
        raise ShapeError(
            f"loop: its body gives {counted(len(made), 'value')}; expected {counted(states, 'state')} first"
        )
    known = _names(given)
    results = [_either("loop", count, i, pair, given) for i, pair in enumerate(zip(first, made[:states], strict=True))]
    length = counted_size(f"{count}_rounds") if rounds is None else rounds
    for i, spec in enumerate(made[states:], states):
        inner = [counted_size(f"{count}_{i}_{a + 1}") if names_of([n]) - known else n for a, n in enumerate(spec.shape)]
        results.append(TensorSpec((length, *inner), spec.dtype, _device(given)))
    return _results(results)


def _loop(
    *given: np.ndarray, body: Runs, states: int, limited: bool, asked: bool, rounds: int | None = None, count: str = ""
) -> Any:
    limit, condition, values, outer = _parts(given, states, limited, asked)
    most = MOST_ROUNDS if limit is None else int(limit.reshape(-1)[0])
    going, done, columns = condition is None or bool(condition.reshape(-1)[0]), 0, None
    while going and done < most:
        more, *made = body.run([np.array(done, np.int64), np.array(True), *values, *outer])
        going, values, done = bool(more.reshape(-1)[0]), made[:states], done + 1
        columns = [[] for _ in made[states:]] if columns is None else columns
        for column, value in zip(columns, made[states:], strict=True):
            column.append(value)
    if limit is None and done == MOST_ROUNDS:
        raise ShapeError(f"loop: it goes on after {MOST_ROUNDS} rounds")
    stacked = _empty(body, given, states, limited, asked) if columns is None else map(np.stack, columns)
    return _results([*values, *stacked])


def _empty(body: Runs, given: Sequence[np.ndarray], states: int, limited: bool, asked: bool) -> list[np.ndarray]:
    """Results of no round."""
    specs = [TensorSpec(a.shape, a.dtype) for a in given]
    _, _, first, outer = _parts(specs, states, limited, asked)
    made = body.specs([*_ROUND, *first, *outer])[1 + states :]
    return [np.zeros((0, *(0 if is_open(n) else n for n in s.shape)), storage_of(s.dtype)) for s in made]


def _loop_samples() -> Iterator[Sample]:
    attrs = {"body": _Scaled(2.0, states=1), "states": 1, "limited": True, "asked": False}
    for limit in (0, 3):
        yield Sample((np.array(limit), np.arange(3.0)), attrs, False)


define("loop", _loop_infer, _loop, _NO_GRADIENT, ONNX_WRITER, _loop_samples, counts=True)
