"""Activations of uint16 in files: ONNX Runtime's values, integer networks, and int16 where they are written again."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.convert.onnx import export, load
from megengine.quantization import integer_network, verify
from tests.helpers.onnx_runtime import answers, session_of

pytest.importorskip("onnxruntime")

X = np.random.default_rng(0).normal(0, 2, (2, 3, 6, 6)).astype(np.float32)
MS = "com.microsoft"


def layer(zero, *more, domain="", opset=21, outputs=("y",), **stored):
    """A convolution between pairs of uint16, whose zero points are given."""
    rng = np.random.default_rng(1)
    arrays = {
        "s": np.float32(0.0002),
        "z": np.uint16(zero),
        "t": np.float32(0.001),
        "w": rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
        "ws": rng.uniform(0.001, 0.01, 4).astype(np.float32),
        "wz": np.zeros(4, np.int8),
        **stored,
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain=domain),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], domain=domain),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=0),
        helper.make_node("Conv", ["d", "v"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "t", "z"], ["p"], domain=domain),
        helper.make_node("DequantizeLinear", ["p", "t", "z"], ["y"], domain=domain),
        *more,
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in arrays.items()],
        value_info=[helper.make_tensor_value_info("q", TensorProto.UINT16, X.shape)],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("zero", [32768, 0, 65535, 30001])
@pytest.mark.parametrize(("domain", "opset"), [("", 21), (MS, 17)])
def test_layers_between_pairs_of_uint16_become_integers(zero, domain, opset, tmp_path):
    file = layer(zero, domain=domain, opset=opset)
    (wanted,) = answers(session_of(file), [X])
    network = load(file)
    np.testing.assert_array_equal(network(X).numpy(), wanted)
    integers = integer_network(network)
    assert verify(integers, [X]).exact
    assert np.abs(integers(X).numpy() - wanted).max() <= 1.001 * np.float32(0.001)
    export(network, tmp_path / "again.onnx")
    again = onnx.load(tmp_path / "again.onnx")
    assert {t.data_type for t in again.graph.initializer} >= {TensorProto.INT16, TensorProto.INT8}
    np.testing.assert_array_equal(answers(session_of(again), [X])[0], wanted)


def test_zero_points_that_a_node_leaves_out():
    file = layer(0)
    for node in file.graph.node:
        if node.op_type == "QuantizeLinear":
            node.attribute.append(helper.make_attribute("output_dtype", TensorProto.UINT16))
        if [*node.input[2:]] == ["z"]:
            del node.input[2]
    (wanted,) = answers(session_of(file), [X])
    network = load(file)
    np.testing.assert_array_equal(network(X).numpy(), wanted)
    assert verify(integer_network(network), [X]).exact


OTHERS = {
    "a cast": [helper.make_node("Cast", ["q"], ["k"], to=TensorProto.INT32)],
    "another zero point": [helper.make_node("DequantizeLinear", ["q", "s", "other"], ["k"])],
    "a computed zero point": [
        helper.make_node("Add", ["z", "other"], ["m"]),
        helper.make_node("DequantizeLinear", ["q", "s", "m"], ["k"]),
    ],
    "the caller": [],
    "a branch": [
        helper.make_node(
            "If",
            ["flag"],
            ["k"],
            **{
                name: helper.make_graph(
                    [helper.make_node("Cast", ["q"], [name], to=TensorProto.FLOAT)],
                    name,
                    [],
                    [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
                )
                for name in ("then_branch", "else_branch")
            },
        )
    ],
}


@pytest.mark.parametrize("reader", OTHERS)
def test_integers_that_others_read_stay_as_they_are(reader):
    outputs = ("y", "k" if OTHERS[reader] else "q")
    stored = {"other": np.uint16(7), "flag": np.array(True)}
    file = layer(40000, *OTHERS[reader], outputs=outputs, **stored)
    made = load(file)(X)
    for got, wanted in zip(made, answers(session_of(file), [X]), strict=True):
        assert got.numpy().dtype == wanted.dtype
        np.testing.assert_array_equal(got.numpy(), wanted)
