"""Nodes of which all inputs are stored give ONNX Runtime's values, as those that are computed at run time do."""

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from megengine.convert.onnx import load
from tests.helpers.onnx_runtime import answers, session_of

RNG = np.random.default_rng(0)


def drawn(*shape):
    return RNG.normal(0, 1, shape).astype(np.float32)


ROW = np.float32([1, 2, 4]).reshape(1, 1, 1, 3)
HALF = np.float32([1, 1, 1, 0.5])
LENGTHS = np.int32([2, 1])
CELLS = {"RNN": 1, "GRU": 3, "LSTM": 4}
CASES = {
    **{
        f"{cell}, {name}": (cell, 14, [drawn(3, 2, 4), drawn(1, 2 * gates, 4), drawn(1, 2 * gates, 2), *more], attrs)
        for cell, gates in CELLS.items()
        for name, more, attrs in (("clipped", [], {"clip": 0.3}), ("lengths", [None, LENGTHS], {}))
    },
    "LSTM, all states": ("LSTM", 14, [drawn(3, 2, 4), drawn(1, 8, 4), drawn(1, 8, 2)], {}),
    "GlobalMaxPool, one axis": ("GlobalMaxPool", 16, [drawn(5, 2, 3)], {}),
    "LogSoftmax, matrices": ("LogSoftmax", 9, [drawn(2, 3, 2)], {"axis": 0}),
    "Softmax, matrices": ("Softmax", 11, [drawn(2, 3, 2)], {}),
    "Hardmax, matrices": ("Hardmax", 9, [drawn(2, 3, 2)], {}),
    "LpNormalization, signs": ("LpNormalization", 22, [drawn(5)], {"p": 1}),
    "LRN, borders": ("LRN", 13, [drawn(2, 3, 2, 4)], {"size": 3, "alpha": 0.5}),
    "BatchNormalization": ("BatchNormalization", 13, [drawn(2, 3, 1, 1), *drawn(3, 3), np.float32([1e-4, 1, 2])], {}),
    "OneHot, fractions": ("OneHot", 13, [np.float32([-1.5, 0.5, 2]), np.float32(3), np.float32([2, -3])], {}),
    "ReduceSumSquare, int32": ("ReduceSumSquare", 13, [np.int32([[1, 2], [3, 4]])], {"axes": [1]}),
    "Unsqueeze, axes out of order": ("Unsqueeze", 11, [drawn(1, 3, 2, 2)], {"axes": [4, 3]}),
    "Resize, one pixel": (
        "Resize",
        14,
        [ROW, None, HALF],
        {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"},
    ),
    "Celu, a scalar": ("Celu", 13, [np.array(-1, np.float32)], {"alpha": 0.5}),
    "DynamicQuantizeLinear": ("DynamicQuantizeLinear", 13, [drawn(2, 3)], {}),
    "ConvTranspose": ("ConvTranspose", 16, [drawn(1, 4, 5), drawn(4, 1, 3), drawn(1)], {"strides": [2]}),
}
RESULTS = {"RNN": 2, "GRU": 2, "LSTM": 3, "DynamicQuantizeLinear": 3}


def model(op_type, opset, values, attrs, *, is_stored):
    names = ["" if value is None else f"v{place}" for place, value in enumerate(values)]
    attrs = {**attrs, "hidden_size": 2} if op_type in CELLS else attrs
    made = [f"y{place}" for place in range(RESULTS.get(op_type, 1))]
    given = {name: value for name, value in zip(names, values, strict=True) if name}
    tensors = [numpy_helper.from_array(value, name) for name, value in given.items()]
    lengths = {"v2"} if op_type == "Resize" else {"v1"} if op_type == "OneHot" else set()
    inputs = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in tensors if t.name not in lengths] * (
        not is_stored
    )
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]), *inputs]
    kept = [t for t in tensors if t.name not in {item.name for item in inputs}]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, made, **attrs)], "net", ends, [ValueInfoProto(name=y) for y in made], kept
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return proto, [np.zeros(1, np.float32), *(given[item.name] for item in inputs)]


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_node_of_stored_values_gives_the_runtimes(case, is_stored):
    pytest.importorskip("onnxruntime")
    proto, inputs = model(*CASES[case], is_stored=is_stored)
    wanted = answers(session_of(proto, log_severity_level=4), inputs)
    made = load(proto)(*inputs)
    for got, value in zip(made if isinstance(made, (list, tuple)) else [made], wanted, strict=True):
        assert got.numpy().dtype == value.dtype
        np.testing.assert_allclose(got.numpy(), value, rtol=1e-5, atol=1e-5)
