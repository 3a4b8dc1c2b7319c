"""Integer products of files are written as such again: ONNX Runtime has no float64 convolution."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.convert.onnx import export, load
from tests.helpers.onnx_runtime import answers, session_of

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
PICTURE = RNG.normal(0, 2, (2, 3, 7, 7)).astype(np.float32)
ROWS = RNG.normal(0, 2, (2, 5, 6)).astype(np.float32)
FILTERS = {
    kind: RNG.integers(*ends, (4, 3, 3, 3)).astype(kind) for kind, ends in (("int8", (-128, 128)), ("uint8", (0, 256)))
}
MATRIX = {kind: RNG.integers(*ends, (6, 4)).astype(kind) for kind, ends in (("int8", (-128, 128)), ("uint8", (0, 256)))}


def product(op_type, x, *operands, before="DynamicQuantizeLinear", **attrs):
    """A product of what is quantized by the range at hand, or of integers that are given, with operands."""
    stored = [numpy_helper.from_array(np.asarray(v), f"w{i}") for i, v in enumerate(operands)]
    names = [t.name for t in stored]
    made = [helper.make_node(before, ["x"], ["q", "s", "z"])] if before else []
    read = ["q", names[0], "z", *names[1:]] if before else ["x", *names]
    nodes = [*made, helper.make_node(op_type, read, ["i"], **attrs), helper.make_node("Cast", ["i"], ["y"], to=1)]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    x_info = helper.make_tensor_value_info("x", kind, x.shape)
    graph = helper.make_graph(nodes, "net", [x_info], [onnx.ValueInfoProto(name="y")], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


BYTES = RNG.integers(0, 256, PICTURE.shape).astype(np.uint8)
FILES = {
    "a convolution of int8": (product("ConvInteger", PICTURE, FILTERS["int8"], pads=[1, 1, 1, 1]), PICTURE),
    "a convolution of uint8": (
        product("ConvInteger", PICTURE, FILTERS["uint8"], np.uint8(131), strides=[2, 2]),
        PICTURE,
    ),
    "a product of int8": (product("MatMulInteger", ROWS, MATRIX["int8"]), ROWS),
    "a product of uint8": (product("MatMulInteger", ROWS, MATRIX["uint8"], np.uint8(120)), ROWS),
    "integers that are given": (product("ConvInteger", BYTES, FILTERS["int8"], before=""), BYTES),
    "integers less a number": (
        product("ConvInteger", BYTES, FILTERS["int8"], np.uint8(200), before="", pads=[1, 0, 2, 1]),
        BYTES,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_products_of_integers_are_written_as_such(name, tmp_path):
    file, x = FILES[name]
    (wanted,) = answers(session_of(file), [x])
    network = load(file)
    np.testing.assert_array_equal(network(x).numpy(), wanted)
    export(network, tmp_path / "again.onnx")
    again = onnx.load(tmp_path / "again.onnx")
    assert {"ConvInteger", "MatMulInteger"} & {node.op_type for node in again.graph.node}
    np.testing.assert_array_equal(answers(session_of(again), [x])[0], wanted)
    second = load(tmp_path / "again.onnx")
    np.testing.assert_array_equal(second(x).numpy(), wanted)
    export(second, tmp_path / "third.onnx")
    np.testing.assert_array_equal(load(tmp_path / "third.onnx")(x).numpy(), wanted)


SIGNED = RNG.integers(-128, 128, (2, 5, 6)).astype(np.int8)


@pytest.mark.parametrize("zeros", [(), (np.int8(-7),), (np.int8(5), np.int8(-3))])
def test_signed_values_are_written_without_a_sign(zeros, tmp_path):
    file = product("MatMulInteger", SIGNED, MATRIX["int8"], *zeros, before="")
    z, w = (*(int(v) for v in zeros), 0, 0)[:2]
    wanted = (SIGNED.astype(np.int64) - z) @ (MATRIX["int8"].astype(np.int64) - w)
    export(load(file), tmp_path / "again.onnx")
    again = onnx.load(tmp_path / "again.onnx")
    assert "MatMulInteger" in {node.op_type for node in again.graph.node}
    np.testing.assert_array_equal(answers(session_of(again), [SIGNED])[0], wanted)


def written(*operands, x=BYTES, to=TensorProto.DOUBLE):
    """The operators of what is written of a float64 convolution of casts."""
    weight, *more = operands
    stored = [numpy_helper.from_array(np.asarray(weight, np.float64), "w")]
    stored += [numpy_helper.from_array(np.asarray(v, np.float64), "b") for v in more]
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=to),
        helper.make_node("Conv", ["c", *(t.name for t in stored)], ["y"]),
    ]
    x_info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    graph = helper.make_graph(nodes, "net", [x_info], [onnx.ValueInfoProto(name="y")], stored)
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize(
    "operands",
    [(FILTERS["int8"] * 0.5,), (FILTERS["int8"] * 2.0,), (FILTERS["int8"], np.ones(4))],
    ids=["fractions", "nine bits", "a bias"],
)
def test_other_float64_convolutions_stay_such(operands, tmp_path):
    export(written(*operands), tmp_path / "net.onnx")
    assert "Conv" in {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}


def test_sums_beyond_int32_stay_in_float64(tmp_path):
    wide = np.zeros((1, 40_000, 1, 1), np.uint8)
    export(written(np.full((1, 40_000, 1, 1), 255.0), x=wide), tmp_path / "net.onnx")
    assert "Conv" in {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
