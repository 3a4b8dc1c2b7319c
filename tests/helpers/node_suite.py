"""The node suite of ONNX (the cases that the onnx package carries), run through import and interpretation.

`python tests/helpers/node_suite.py [part of a case's name ...]` prints what becomes of each operator and why cases are
refused; `make onnx-suite` does the same.
"""

import functools
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from kept import kept

from megengine.convert.onnx import load_graph
from megengine.convert.onnx.reading import is_held
from megengine.core.dtype import is_float
from megengine.core.errors import MegEngineError
from megengine.tensor import Tensor
from megengine.traced_module import interpret

KINDS = {
    "array": "operators on arrays",
    "expanded": "operators on arrays, written as the functions that define them",
    "other": "with strings, complex numbers and floats or integers of fewer than 8 bits",
    "sequence": "with sequences or optional values",
}
PASSED, REFUSED, WRONG, CRASHED = STATES = ("passed", "refused", "wrong", "crashed")
# what they make has a size, or is known at all, only where their inputs are constants: computed while importing
CONSTANT = ("Constant", "ConstantOfShape", "MelWeightMatrix", "NonZero", "Range", "Unique")
CONSTANT += ("BlackmanWindow", "HammingWindow", "HannWindow")
# the standard leaves their results open: only shape and dtype of each are compared
RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    name: str
    operator: str
    kind: str  # one of KINDS
    state: str
    reason: str = ""


@functools.cache
def cases() -> dict[str, Any]:
    """The cases of the standard's own domain by name. The onnx package takes 6 s to compute them."""
    return kept("onnx-node-suite", ("onnx", "numpy", "protobuf"), _computed)


def _computed() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they overflow on purpose
        found = load_model_tests(kind="node")
    return {case.name: case for case in found if {item.domain for item in case.model.opset_import} == {""}}


def value(item: Any) -> Any:
    """A value of a case: some are written as protos, since NumPy lacks their dtype."""
    return onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def operator_of(name: str) -> str:
    """The operator that a case is about; an expanded one is counted where its function is."""
    original = cases().get(name.removesuffix("_expanded").removesuffix("_expanded_ver18"), cases()[name])
    return next((n.op_type for n in original.model.graph.node if n.op_type != "Constant"), "Constant")


def kind_of(case: Any) -> str:
    """One of KINDS."""
    values = [value(v) for pair in case.data_sets for side in pair for v in side]
    if not all(isinstance(v, (np.ndarray, np.generic)) for v in values):
        return "sequence"
    if not all(is_held(v.dtype) for v in values):
        return "other"
    return "expanded" if "_expanded" in case.name else "array"


def stored(model: onnx.ModelProto, arrays: list[Any], given: range) -> onnx.ModelProto:
    """The model with its inputs stored, as weights and shapes are in files, but those at the places `given`."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for place, (item, array) in enumerate(zip(list(made.graph.input), arrays, strict=False)):
        if place not in given and item.type.HasField("tensor_type"):
            made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), item.name))
            made.graph.input.remove(item)
    return made


def forms(case: Any) -> Iterator[tuple[onnx.ModelProto, list[Tensor]]]:
    """A case with all inputs open, with all but the first or the last stored, and of some operators with all stored.

    Sequences and optional values are neither: `lists_of` has them.
    """
    arrays = [value(v) for v in case.data_sets[0][0]]
    lists = lists_of(case)
    if operator_of(case.name) not in CONSTANT and arrays:
        pairs = list(zip([item.name for item in case.model.graph.input], arrays, strict=False))
        last = len(arrays) - 1
        for given in dict.fromkeys((range(last + 1), range(1), range(last, last + 1))):
            values = [np.asarray(v) for name, v in (pairs[i] for i in given) if name not in lists]
            yield stored(case.model, arrays, given), [Tensor._wrap(v) for v in values]
        if kind_of(case) != "sequence":
            return
    made = stored(case.model, arrays, range(0))
    made.graph.input.append(onnx.helper.make_tensor_value_info("unused", onnx.TensorProto.FLOAT, [1]))
    yield made, [Tensor._wrap(np.zeros(1, np.float32))]


def lists_of(case: Any) -> dict[str, Any]:
    """The inputs of a case that are sequences or optional values, which are given while importing."""
    pairs = zip(case.model.graph.input, map(value, case.data_sets[0][0]), strict=False)
    return {item.name: one for item, one in pairs if not item.type.HasField("tensor_type")}


def outcome(name: str) -> Outcome:
    """Run the first form of a case that is not refused."""
    case = cases()[name]
    state, reason = REFUSED, ""
    for model, inputs in forms(case):
        state, reason = _run(case, model, inputs)
        if state != REFUSED:
            break
    return Outcome(name, operator_of(name), kind_of(case), state, reason)


def _run(case: Any, model: onnx.ModelProto, inputs: list[Tensor]) -> tuple[str, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = load_graph(model.SerializeToString(), input_values=lists_of(case))
            graph.lint()
            sides = [v if isinstance(v, list) else [v] for v in case.data_sets[0][1]]  # of a sequence, its values
            wanted = [value(v) for side in sides for v in side]
            why = _difference(case, [y._storage() for y in interpret(graph, inputs)], wanted)
    except MegEngineError as error:
        return REFUSED, str(error)
    except Exception as error:
        return CRASHED, f"{type(error).__name__}: {error}"
    return (WRONG, why) if why else (PASSED, "")


def _difference(case: Any, got: list[np.ndarray], wanted: list[Any]) -> str:
    """What differs from the expected results, "" if nothing."""
    if len(got) != len(wanted):
        return f"{len(got)} results for {len(wanted)}"
    drawn = any(node.op_type in RANDOM for node in case.model.graph.node)
    for y, expected in zip(got, map(np.asarray, wanted), strict=True):
        # some expected values are written with four digits
        step = float(ml_dtypes.finfo(y.dtype).eps) if is_float(y.dtype) else 0
        why = apart(y, expected, rtol=max(case.rtol, 5e-4, 2 * step), atol=max(case.atol, 1e-5), values=not drawn)
        if why:
            return why
    return ""


def apart(y: np.ndarray, expected: np.ndarray, *, rtol: float, atol: float, values: bool = True) -> str:
    """What differs of a result, "" if nothing: shape, dtype and values (those of integers exactly)."""
    if y.shape != expected.shape or y.dtype != expected.dtype:
        return f"{y.dtype}{list(y.shape)} for {expected.dtype}{list(expected.shape)}"
    if is_float(expected.dtype):
        near = np.allclose(y.astype(np.float64), expected.astype(np.float64), rtol, atol, equal_nan=True)
    else:
        near = np.array_equal(y, expected)
    return "" if near or not values else f"values differ: {y.reshape(-1)[:4]} for {expected.reshape(-1)[:4]}"


def outcomes(parts: list[str]) -> Iterator[Outcome]:
    """The outcomes of all cases whose name has one of the parts; of all without parts."""
    for name in cases():
        if not parts or any(part in name for part in parts):
            yield outcome(name)


def print_states(found: Sequence[Any], states: Sequence[str], told: Sequence[str]) -> None:
    """Print how many outcomes of each operator have each state, then the outcomes of the states that are told."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for one in found:
        rows[one.operator][one.state] += 1
    print(f"{'operator':32}" + "".join(f"{state:>9}" for state in states))
    for operator in sorted(rows):
        print(f"{operator:32}" + "".join(f"{rows[operator][state] or '-':>9}" for state in states))
    for state in told:
        print(f"\n{state}")
        for one in sorted((o for o in found if o.state == state), key=lambda o: (o.operator, o.name)):
            opened = getattr(one, "opened", "")
            print(f"  {one.operator} {one.name} {opened}: {' '.join(one.reason.split())[:330]}")


def main() -> None:
    """Print a table of operators, the reasons of refusals, and the share of each kind of case."""
    found = list(outcomes(sys.argv[1:]))
    print_states(found, STATES, STATES[1:])
    print()
    for kind, meaning in KINDS.items():
        states = Counter(one.state for one in found if one.kind == kind)
        counts = ", ".join(f"{states[state]} {state}" for state in STATES)
        print(f"{meaning}: {counts} of {states.total()}")


if __name__ == "__main__":
    main()
