"""The node suite of ONNX with open axes: each case with names in the place of lengths, run at other sizes.

`python tests/helpers/open_suite.py [part of a case's name ...]` prints what becomes of each operator, and what differs.
"""

import contextlib
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import node_suite
import numpy as np
import onnx
from onnx_runtime import session_of

from megengine.convert.onnx import load_graph
from megengine.core.errors import FileFormatError, IndexOutOfRangeError, MegEngineError, ShapeError
from megengine.tensor import Tensor
from megengine.traced_module import interpret

PASSED, REFUSED, NAMED, LATE, WRONG, CRASHED, UNKNOWN = STATES = (
    "passed",
    "refused",
    "named",
    "late",
    "wrong",
    "crashed",
    "unknown",
)
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}  # the cases' own data has four digits, and powers magnify the last bit
Names = dict[int, dict[int, str]]  # of the open axes of each input


@dataclass(frozen=True)
class Outcome:
    """What became of a case with some of its axes open; `unknown` where no reference takes another size."""

    name: str
    operator: str
    opened: str
    state: str
    reason: str = ""


def openings(arrays: list[np.ndarray]) -> Iterator[Names]:
    """Which axes are open: each one of the first input, alone and with those as long; the batches; and all axes."""
    places = [(i, axis, n) for i, array in enumerate(arrays) for axis, n in enumerate(array.shape) if n]
    if not places:
        return
    made = [{0: {axis: "n"}} for i, axis, _ in places if i == 0]
    made += [
        _together([(i, axis, "n") for i, axis, n in places if n == length])
        for length in dict.fromkeys(n for i, _, n in places if i == 0)
    ]
    made.append(_together([(i, axis, "n") for i, axis, n in places if axis == 0 and n == places[0][2]]))
    made.append(_together([(i, axis, f"n{n}") for i, axis, n in places]))
    made.append(_together([(i, axis, f"n{axis}_{n}") for i, axis, n in places]))
    yield from (names for k, names in enumerate(made) if names not in made[:k])


def _together(places: list[tuple[int, int, str]]) -> Names:
    names: Names = defaultdict(dict)
    for i, axis, name in places:
        names[i][axis] = name
    return dict(names)


def opened(model: onnx.ModelProto, names: Names) -> onnx.ModelProto:
    """The model with these axes open; its outputs have any shape."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for i, axes in names.items():
        for axis, name in axes.items():
            dim = made.graph.input[i].type.tensor_type.shape.dim[axis]
            dim.Clear()
            dim.dim_param = name
    for item in made.graph.output:
        item.type.tensor_type.ClearField("shape")
    return made


def at_sizes(arrays: list[np.ndarray], names: Names, sizes: dict[str, int], seed: int) -> list[np.ndarray]:
    """Inputs of other sizes whose values are of those of the case, in another order."""
    rng = np.random.default_rng(seed)
    made = []
    for i, array in enumerate(arrays):
        shape = tuple(sizes[names[i][a]] if a in names.get(i, {}) else n for a, n in enumerate(array.shape))
        if shape == array.shape:
            made.append(array)
            continue
        x = rng.choice(array.reshape(-1), shape) if array.size else np.zeros(shape, array.dtype)
        made.append(np.asarray(x, array.dtype))
    return made


def tried_sizes(arrays: list[np.ndarray], names: Names) -> Iterator[dict[str, int]]:
    """The example, and sizes beside it."""
    first = {name: arrays[i].shape[axis] for i, axes in names.items() for axis, name in axes.items()}
    yield first
    for step in (1, 3):
        yield {name: n + step + k for k, (name, n) in enumerate(first.items())}
    yield {name: 2 * n for name, n in first.items()}
    if min(first.values()) > 2:
        yield {name: n - 1 for name, n in first.items()}


class Reference:
    """ONNX Runtime, or ONNX's own evaluator where it lacks the operator or the types."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.session: Any = None
        try:
            self.session = session_of(model, log_severity_level=4)
        except ImportError:
            raise
        except Exception:  # operators and types that it lacks
            self.session = None

    def __call__(self, arrays: list[np.ndarray], *, lenient: bool = False) -> list[np.ndarray] | None:
        """The results of the runtime, or (if it has none, or `lenient`) of ONNX's evaluator; None without both."""
        given = {item.name: x for item, x in zip(self.model.graph.input, arrays, strict=True)}
        if self.session is not None and not lenient:
            with contextlib.suppress(Exception):  # sizes that it refuses
                return self.session.run(None, given)
        with contextlib.suppress(Exception):
            return [np.asarray(y) for y in onnx.reference.ReferenceEvaluator(self.model).run(None, given)]
        return None


def difference(got: list[np.ndarray], wanted: list[np.ndarray]) -> str:
    """What differs, "" if nothing."""
    for y, expected in zip(got, map(np.asarray, wanted), strict=True):
        wide = TOLERANCE if y.dtype.itemsize > 2 else {"rtol": 2e-2, "atol": 2e-2}
        if why := node_suite.apart(y, expected, **wide):
            return why
    return ""


def outcomes_of(name: str, *, last: int = 0) -> Iterator[Outcome]:
    """The outcomes of a case with each choice of open axes, or the last ones; none if fixed sizes are refused."""
    case = node_suite.cases()[name]
    operator = node_suite.operator_of(name)
    if operator in node_suite.RANDOM or node_suite.kind_of(case) not in ("array", "expanded"):
        return
    for model, inputs in node_suite.forms(case):
        arrays = [x._storage() for x in inputs]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load_graph(model.SerializeToString())
        except MegEngineError:
            continue
        if operator in node_suite.CONSTANT:
            return
        for names in list(openings(arrays))[-last:]:
            state, reason = _state(opened(model, names), arrays, names)
            yield Outcome(name, operator, str(names), state, reason)
        return


def _state(model: onnx.ModelProto, arrays: list[np.ndarray], names: Names) -> tuple[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = Reference(model)
        sizes = list(tried_sizes(arrays, names))
        tried = [(s, given, reference(given)) for s, given in ((s, at_sizes(arrays, names, s, 0)) for s in sizes)]
        known = [one for one in tried if one[2] is not None]
        if not any(s != sizes[0] for s, *_ in known):
            return UNKNOWN, "no reference takes another size"
        try:
            graph = load_graph(model.SerializeToString(), example_sizes=sizes[0])
            graph.lint()
        except FileFormatError as error:
            return REFUSED, str(error)
        except Exception as error:
            return CRASHED, f"while importing: {type(error).__name__}: {error}"
        late = named = ""
        for s, given, wanted in known:
            try:
                got = [y._storage() for y in interpret(graph, [Tensor._wrap(x) for x in given])]
            except ShapeError as error:
                if "does not take inputs with" not in str(error):
                    late = late or f"at {s}: {type(error).__name__}: {error}"
                named = named or str(error)
                continue
            except IndexOutOfRangeError:  # places drawn for the example's length
                continue
            except MegEngineError as error:
                late = late or f"at {s}: {type(error).__name__}: {error}"
                continue
            except Exception as error:
                return CRASHED, f"at {s}: {type(error).__name__}: {error}"
            if why := difference(got, wanted):  # where the two references differ, either will do
                other = reference(given, lenient=True)
                if other is None or difference(got, other):
                    return WRONG, f"at {s}: {why}"
        return (LATE, late) if late else (NAMED, named) if named else (PASSED, "")


def main() -> None:
    """Print a table of operators, and what is not as it should be."""
    parts = sys.argv[1:]
    found = [
        one
        for name in node_suite.cases()
        if not parts or any(part in name for part in parts)
        for one in outcomes_of(name)
    ]
    node_suite.print_states(found, STATES, STATES[1:-1])


if __name__ == "__main__":
    main()
