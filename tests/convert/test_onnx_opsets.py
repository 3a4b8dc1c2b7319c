"""Every op that has an ONNX form is exported at the oldest and the newest opset; ONNX Runtime computes the same."""

import numpy as np
import onnx
import pytest

import megengine.functional  # noqa: F401
from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import GraphError
from megengine.core.spec import TensorSpec
from megengine.dispatch import NoRule, registry
from megengine.tensor import Tensor
from megengine.traced_module import InternalGraph, TracedModule, interpret
from megengine.traced_module.editing.expressions import add_input, set_outputs
from tests.helpers.onnx_runtime import session_of

runtime = pytest.importorskip("onnxruntime")

BOOLEAN = {"logical_and", "logical_not", "logical_or", "logical_xor"}
ELSEWHERE = {"quantize", "set_index", "if", "loop"}  # integers; only constant indices are written; graphs of their own
SHIFTS = {"left_shift", "right_shift"}  # of unsigned integers
NEWEST = 23  # that the runtime of the tests reads


def samples_of(name):
    """The samples without quantized tensors and attributes of such dtypes, which have tests of their own."""
    for sample in registry[name].samples():
        dtypes = [getattr(a, "dtype", None) for a in sample.inputs]
        if not any(isinstance(dtype, QuantizedDType) for dtype in (*dtypes, *sample.attrs.values())):
            yield sample


OPS = sorted(
    name
    for name, op in registry.items()
    if not isinstance(op.onnx, NoRule) and name not in ELSEWHERE and any(samples_of(name))
)


def graph_of(op, arrays, attrs):
    graph = InternalGraph("net")
    inputs = [add_input(graph, f"x{i}", TensorSpec(a.shape, a.dtype)) for i, a in enumerate(arrays)]
    made = graph.apply(op, *inputs, attrs=attrs, name="out")
    set_outputs(graph, list(made) if isinstance(made, list | tuple) else [made])
    return graph


def inputs_of(op, sample):
    arrays = [np.asarray(a) for a in sample.inputs]
    if op in BOOLEAN:
        return [np.asarray(a > 0) for a in arrays]
    if op in SHIFTS:
        return [a.astype(np.uint32) for a in arrays]
    return [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]


def first_opset(op, attrs):
    """The first opset in which an op can be written."""
    if op.startswith("scatter"):
        return {"none": 13, "add": 16, "mul": 16}.get(attrs["reduction"], 18)
    return {"bitwise": 18, "bitcast": 26}.get(op[:7], 13)


@pytest.mark.parametrize("opset", [13, 17, NEWEST])
@pytest.mark.parametrize("op", OPS)
def test_an_op_is_exported(op, opset):
    for sample in samples_of(op):
        arrays = inputs_of(op, sample)
        if op == "nonzero" and not arrays[0].ndim:
            continue  # the runtime gives one row of places for a number, where the standard has none
        graph = graph_of(op, arrays, dict(sample.attrs))
        if opset < (first := first_opset(op, sample.attrs)):
            with pytest.raises(GraphError, match=f"exists since opset {first}, and {opset} is written"):
                to_model(TracedModule.from_graph(graph), opset=opset)
            continue
        model = to_model(TracedModule.from_graph(graph), opset=opset)
        session = session_of(model)
        there = session.run(None, {node.name: a for node, a in zip(graph.inputs, arrays, strict=True)})
        for found, expected in zip(there, interpret(graph, [Tensor(a, dtype=a.dtype) for a in arrays]), strict=True):
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4)


def test_a_dtype_that_an_operator_lacks_is_refused():
    graph = graph_of("logical_not", [np.ones(3, np.float32)], {})
    with pytest.raises(GraphError, match=r"refuses the model at opset 17: .*node name: out.*; change the dtype"):
        to_model(TracedModule.from_graph(graph))


TRUTHS = ("add", "argmax", "argmin", "greater", "greater_equal", "less", "less_equal", "max", "maximum", "min")
TRUTHS += ("minimum", "mul", "prod", "sum", "topk", "where")


@pytest.mark.parametrize("op", TRUTHS)
def test_truth_values_are_computed_as_integers_where_an_operator_lacks_them(op):
    for sample in samples_of(op):
        arrays = [np.asarray(a > 0.7) if a.dtype.kind == "f" else np.asarray(a) for a in sample.inputs]
        graph = graph_of(op, arrays, dict(sample.attrs))
        there = session_of(to_model(graph)).run(
            None, {node.name: a for node, a in zip(graph.inputs, arrays, strict=True)}
        )
        for found, expected in zip(there, interpret(graph, [Tensor(a, dtype=a.dtype) for a in arrays]), strict=True):
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize("reduction", ["none", "max"])
def test_without_an_opset_the_first_that_has_all_operators_is_written(reduction):
    arrays = [np.zeros((2, 3), np.float32), np.zeros((1, 3), np.int64), np.ones((1, 3), np.float32)]
    model = to_model(graph_of("scatter_elements", arrays, {"axis": 0, "reduction": reduction}))
    assert model.opset_import[0].version == {"none": 17, "max": 18}[reduction]


def test_a_function_of_an_older_opset_is_brought_to_that_of_the_model():
    """Softmax of opset 11 is over all axes from the given one on."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17, "own": 1]> net (float[2,3,4] x) => (float[2,3,4] y) '
        '{ y = own.Share (x) } <domain: "own", opset_import: ["": 11]> Share (a) => (b) { b = Softmax <axis = 1> (a) }'
    )
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    shares = np.exp(x.astype(np.float64))
    wanted = shares / shares.sum(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(load(model)(x).numpy(), wanted, rtol=1e-5)
