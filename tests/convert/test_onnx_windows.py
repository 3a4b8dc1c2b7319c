"""Convolutions and pooling over one to three axes: graph, plan and export beside ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import helper

from megengine import plan
from megengine.convert.onnx import load_graph
from megengine.convert.onnx.exporter import to_model
from megengine.traced_module import interpret
from tests.helpers.onnx_runtime import session_of

runtime = pytest.importorskip("onnxruntime")

POOL3 = {"kernel_shape": [2, 3, 2], "strides": [1, 2, 1], "pads": [0, 1, 1, 1, 1, 0]}
# operator, shape of x, shape of the weight, attributes
CASES = {
    "conv1": ("Conv", (2, 3, 11), (4, 3, 3), {"pads": [2, 1], "dilations": [2]}),
    "conv3": ("Conv", (1, 4, 5, 6, 7), (6, 2, 3, 2, 3), {"group": 2, "strides": [1, 2, 1], "pads": [1, 0, 1, 0, 1, 2]}),
    "conv3_same": ("Conv", (2, 3, 5, 6, 7), (4, 3, 3, 2, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 1, 2]}),
    "transposed1": ("ConvTranspose", (2, 3, 6), (3, 4, 3), {"strides": [2], "output_padding": [1]}),
    "transposed2": ("ConvTranspose", (2, 4, 5, 6), (4, 3, 3, 2), {"strides": [2, 2], "group": 2}),
    "transposed3": (
        "ConvTranspose",
        (1, 3, 3, 4, 2),
        (3, 2, 2, 3, 3),
        {"strides": [2, 1, 2], "pads": [0, 1, 1, 1, 0, 0]},
    ),
    "max3": ("MaxPool", (2, 3, 5, 6, 7), None, POOL3),
    "max3_ceil": ("MaxPool", (2, 3, 5, 6, 7), None, {**POOL3, "strides": [2, 3, 2], "ceil_mode": 1}),
    "max1_gaps": ("MaxPool", (2, 3, 11), None, {"kernel_shape": [3], "dilations": [2], "pads": [2, 1]}),
    "max2_gaps": ("MaxPool", (2, 3, 9, 8), None, {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [2, 1]}),
    "mean3": ("AveragePool", (2, 3, 5, 6, 7), None, POOL3),
    "mean3_borders": ("AveragePool", (2, 3, 5, 6, 7), None, {**POOL3, "count_include_pad": 1}),
    "global_max3": ("GlobalMaxPool", (2, 3, 5, 6, 7), None, {}),
    "norm2": ("LpPool", (2, 3, 7, 6), None, {"kernel_shape": [2, 3], "p": 3, "strides": [2, 1]}),
}


def model_of(op, x, weight, attrs, outputs=("y",)):
    rng = np.random.default_rng(3)
    stored = []
    if weight:
        channels = weight[0] if op == "Conv" else weight[1] * attrs.get("group", 1)
        stored = [("w", rng.standard_normal(weight)), ("b", rng.standard_normal(channels))]
    inits = [onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in stored]
    node = helper.make_node(op, ["x", *(n for n, _ in stored)], list(outputs), **attrs)
    infos = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x)]
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64)
    results = [helper.make_tensor_value_info(n, kind, None) for n, kind in zip(outputs, kinds, strict=False)]
    graph = helper.make_graph([node], "g", infos, results, inits)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return model, rng.standard_normal([n if isinstance(n, int) else 1 for n in x]).astype(np.float32)


def by_runtime(model, x):
    session = session_of(model)
    return session.run(None, {session.get_inputs()[0].name: x})


@pytest.mark.parametrize("case", CASES)
def test_graph_plan_and_export_agree_with_the_runtime(case):
    model, x = model_of(*CASES[case])
    (wanted,) = by_runtime(model, x)
    graph = load_graph(model.SerializeToString())
    graph.lint()
    (y,) = interpret(graph, [x])
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-5)
    compiled = plan.compile(graph)
    if case not in ("norm2", "global_max3"):
        assert not [step for step in compiled.steps if step.kernel.startswith(("reference", "python"))]
    np.testing.assert_allclose(compiled(x)[0], wanted, rtol=1e-5, atol=1e-5)
    again = to_model(graph)
    np.testing.assert_allclose(by_runtime(again, x)[0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns_first", [0, 1])
def test_places_of_maxima(columns_first):
    attrs = {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [1, 1, 0, 1], "storage_order": columns_first}
    model, x = model_of("MaxPool", (2, 3, 6, 7), None, attrs, ("y", "places"))
    wanted = by_runtime(model, x)
    graph = load_graph(model.SerializeToString())
    for got, want in zip(interpret(graph, [x]), wanted, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    for got, want in zip(by_runtime(to_model(graph), x), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_maxima_go_back_to_their_places():
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 6)).astype(np.float32)
    nodes = [
        helper.make_node("MaxPool", ["x"], ["y", "places"], **window),
        helper.make_node("MaxUnpool", ["y", "places"], ["z"], **window),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", onnx.TensorProto.FLOAT, x.shape)], [info("z", onnx.TensorProto.FLOAT, x.shape)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    (got,) = interpret(load_graph(model.SerializeToString()), [x])
    np.testing.assert_array_equal(got.numpy(), by_runtime(model, x)[0])


OPEN = {
    "mean": ("AveragePool", {"kernel_shape": [3], "strides": [3], "count_include_pad": 1, "ceil_mode": 1}),
    "mean_in_borders": (
        "AveragePool",
        {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1, "ceil_mode": 1},
    ),
    "mean3_in_borders": (
        "AveragePool",
        {"kernel_shape": [3] * 3, "strides": [3] * 3, "pads": [1] * 6, "count_include_pad": 1, "ceil_mode": 1},
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_the_example_decides_nothing_where_axes_are_open(name):
    """At the example's 16 no window goes beyond the end; at other lengths one does."""
    op, attrs = OPEN[name]
    dims = len(attrs["kernel_shape"])
    model, _ = model_of(op, ("batch", 2, *"hwd"[:dims]), None, attrs)
    graph = load_graph(model)
    for sizes in ((8, 8, 8), (9, 10, 11), (13, 7, 10)):
        x = np.random.default_rng(1).standard_normal((2, 2, *sizes[:dims])).astype(np.float32)
        (want,) = by_runtime(model, x)
        np.testing.assert_allclose(plan.compile(graph)(x)[0], want, atol=1e-5)
