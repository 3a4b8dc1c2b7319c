"""Integers of quantized tensors in ONNX: what QuantizeLinear gives is integers to every operator behind it."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.convert.onnx import load_graph
from megengine.convert.onnx.exporter import to_model
from megengine.core.dtype import quantized
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.ir.graph import InternalGraph
from tests.helpers.onnx_runtime import answers, session_of

pytest.importorskip("onnxruntime")

X = np.random.default_rng(0).normal(0, 2, (2, 3, 4)).astype(np.float32)
S, Z = np.float32(0.03), np.uint8(120)
TABLE = np.random.default_rng(1).normal(size=256).astype(np.float32)


def behind_quantize(*nodes, **stored):
    """A model whose `nodes` read the integers `q` of `x`, and make `y`."""
    arrays = {"s": S, "z": Z, **stored}
    made = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), *(helper.make_node(*n, **a) for n, a in nodes)]
    graph = helper.make_graph(
        made,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


BACK = (("DequantizeLinear", ["p", "s", "z"], ["y"]), {})
NARROW = np.array([0, 0, 1, 0, 2, 0], np.int64)
READERS = {
    "cast": [(("Cast", ["q"], ["y"]), {"to": TensorProto.FLOAT})],
    "less": [(("Less", ["q", "z"], ["y"]), {})],
    "largest": [(("ReduceMax", ["q"], ["y"]), {"axes": [1]})],
    "place": [(("ArgMax", ["q"], ["y"]), {"axis": 2})],
    "clip": [(("Clip", ["q", "low", "high"], ["y"]), {})],
    "table": [(("Cast", ["q"], ["i"]), {"to": TensorProto.INT32}), (("Gather", ["table", "i"], ["y"]), {})],
    "clip and back": [(("Clip", ["q", "low", "high"], ["p"]), {}), BACK],
    "pad and back": [(("Pad", ["q", "narrow", "z"], ["p"]), {}), BACK],
    "pad with 7 and back": [(("Pad", ["q", "narrow", "low"], ["p"]), {}), BACK],
    "pad without a value and back": [(("Pad", ["q", "narrow"], ["p"]), {}), BACK],
    "join with others": [(("Clip", ["q", "low", "high"], ["p"]), {}), (("Concat", ["q", "p"], ["y"]), {"axis": 1})],
    "join of two scales": [
        (("QuantizeLinear", ["x", "s2", "z"], ["p"]), {}),
        (("Concat", ["q", "p"], ["y"]), {"axis": 1}),
    ],
    "transpose and back": [(("Transpose", ["q"], ["p"]), {"perm": [2, 0, 1]}), BACK],
    "pad, and read": [(("Pad", ["q", "narrow", "z"], ["p"]), {}), (("Cast", ["p"], ["y"]), {"to": TensorProto.INT32})],
}
STORED = {"low": np.uint8(7), "high": np.uint8(130), "s2": np.float32(0.05), "table": TABLE, "narrow": NARROW}


@pytest.mark.parametrize("reader", READERS)
def test_an_operator_reads_the_integers_that_quantize_linear_gives(reader):
    proto = behind_quantize(*READERS[reader], **STORED)
    (wanted,) = answers(session_of(proto), [X])
    (got,) = interpret(load_graph(proto), [Tensor(X)])
    np.testing.assert_array_equal(got.numpy(), wanted)


def test_integers_that_are_only_moved_keep_their_scale():
    for reader in ("transpose and back", "pad and back"):
        graph = load_graph(behind_quantize(*READERS[reader], **STORED))
        assert [e.op for e in graph.exprs() if hasattr(e, "op")] == ["quantize", reader.split()[0], "dequantize"]


def one_op(op, dtype, **attrs):
    """A graph of one op on a quantized input."""
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec((2, 64), dtype, "cpu0"))
    set_outputs(graph, [graph.apply(op, x, attrs=attrs, name="y")])
    return graph


@pytest.mark.parametrize("value", [0.0, 1.5, -100.0])
@pytest.mark.parametrize("dtype", [quantized("quint8", 0.05, 90), quantized("qint8", 0.05, -3)])
def test_a_border_of_integers_is_written_as_the_integer_of_its_value(dtype, value):
    attrs = {"widths": ((0, 1), (2, 0)), "mode": "constant", "value": value}
    proto = to_model(one_op("pad", dtype, **attrs))
    x = np.random.default_rng(0).integers(dtype.qmin, dtype.qmax, (2, 64)).astype(dtype.storage)
    wanted = apply("pad", Tensor._wrap(x, dtype), **attrs)._storage()
    np.testing.assert_array_equal(answers(session_of(proto), [x])[0], wanted)
