"""Files of opsets before 7: NumPy says what their operators give."""

import numpy as np
import pytest
from onnx import TensorShapeProto, helper, numpy_helper

from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import FileFormatError
from tests.helpers.onnx_runtime import answers, session_of

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
C = RNG.uniform(0.5, 2, 3).astype(np.float32)
COLUMN = C[:, None, None]
HW = RNG.uniform(0.5, 2, (4, 5)).astype(np.float32)


def model(nodes, opset, **constants):
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, X.shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def node(op, inputs="x", outputs="y", **attrs):
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def norm(x, at):
    return (x - C.reshape(at)) / np.sqrt(C.reshape(at) + 1e-5) * C.reshape(at) + C.reshape(at)


CASES = {
    "channels": (6, [node("Add", "x c", broadcast=1, axis=1)], {"c": C}, X + COLUMN),
    "from the end": (6, [node("Mul", "x c", broadcast=1, axis=-3)], {"c": C}, X * COLUMN),
    "last axes": (5, [node("Div", "x h", broadcast=1)], {"h": HW}, X / HW),
    "one number": (3, [node("Sub", "x s", broadcast=1)], {"s": np.float32(2)}, X - 2),
    "constants": (
        6,
        [node("Mul", "c2 c", "k", broadcast=1, axis=0), node("Add", "x k", broadcast=1, axis=1)],
        {"c2": np.ones((3, 4), np.float32) * 2, "c": C},
        X + (2 * C[:, None, None]),
    ),
    "slopes": (6, [node("PRelu", "x c")], {"c": C}, np.where(X < 0, X * COLUMN, X)),
    "shape": (1, [node("Reshape", shape=[0, -1])], {}, X.reshape(2, -1)),
    "axis of concat": (1, [node("Concat", "x x")], {}, np.concatenate([X, X], 1)),
    "type": (1, [node("Cast", "x", "i", to="INT32"), node("Cast", "i", to="FLOAT")], {}, np.trunc(X)),
    "paddings": (1, [node("Pad", paddings=[0, 0, 1, 0, 0, 0, 0, 2])], {}, np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2)))),
    "sizes of parts": (1, [node("Split", "x p", "y z", axis=1)], {"p": np.array([1, 2])}, X[:, :1]),
    "repeats": (1, [node("Tile", "x t a")], {"t": np.array([2]), "a": np.array([1])}, np.tile(X, (1, 2, 1, 1))),
    "scales": (1, [node("Upsample", height_scale=2.0, width_scale=1.0)], {}, X.repeat(2, 2)),
    "norm": (
        6,
        [node("BatchNormalization", "x c c c c", is_test=1, consumed_inputs=[0, 0, 0, 1, 1])],
        {"c": C},
        norm(X, (3, 1, 1)),
    ),
    "k as attribute": (9, [node("TopK", "x", "y i", k=2, axis=2)], {}, -np.sort(-X, 2)[:, :, :2]),
    "dropped": (6, [node("Dropout", is_test=1, ratio=0.5)], {}, X),
    "product": (
        6,
        [node("Flatten", "x", "f"), node("Gemm", "f w b", broadcast=1)],
        {"w": np.ones((60, 3), np.float32), "b": C},
        X.reshape(2, -1).sum(1, keepdims=True) + C,
    ),
    "spread": (1, [node("Affine", alpha=2.0, beta=1.0)], {}, X * 2 + 1),
    "picture": (1, [node("ImageScaler", scale=2.0, bias=C.tolist())], {}, X * 2 + COLUMN),
    "factor": (1, [node("Scale", scale=3.0)], {}, X * 3),
    "curve": (1, [node("ScaledTanh", alpha=2.0, beta=0.5)], {}, 2 * np.tanh(0.5 * X)),
    "soft": (1, [node("ParametricSoftplus", alpha=2.0, beta=3.0)], {}, 2 * np.log1p(np.exp(3 * X))),
    "part": (1, [node("Crop", border=[1, 1, 2, 0])], {}, X[:, :, 1:, 1:3]),
    "part of a size": (1, [node("Crop", border=[1, 2, 0, 0], scale=[2, 3])], {}, X[:, :, 2:4, 1:4]),
    "selu": (1, [node("Selu")], {}, 1.0507 * np.where(X > 0, X, 1.6732 * np.expm1(np.minimum(X, 0)))),
}


@pytest.mark.parametrize("name", CASES)
def test_old_forms(name):
    opset, nodes, constants, wanted = CASES[name]
    net = load(model(nodes, opset, **constants))
    np.testing.assert_allclose(net(X).numpy(), wanted, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(answers(session_of(to_model(net)), [X])[0], wanted, rtol=2e-5, atol=1e-6)


def test_statistics_of_every_element():
    stored = {n: RNG.uniform(0.5, 2, X.shape[1:]).astype(np.float32) for n in "abcd"}
    net = load(model([node("BatchNormalization", "x a b c d", spatial=0)], 7, **stored))
    a, b, c, d = stored.values()
    np.testing.assert_allclose(net(X).numpy(), (X - c) / np.sqrt(d + 1e-5) * a + b, rtol=1e-5, atol=1e-6)


def test_an_unknown_type():
    with pytest.raises(FileFormatError, match="Cast node .*: casts to 'HUGE'; expected one of FLOAT, "):
        load(model([node("Cast", to="HUGE")], 1))


def test_an_operator_before_its_first_opset():
    """Converters wrote ThresholdedRelu, which opset 10 brought, at opset 9; ONNX Runtime takes it."""
    proto = model([node("ThresholdedRelu", alpha=0.5)], 9)
    (want,) = answers(session_of(proto), [X])
    np.testing.assert_array_equal(load(proto)(X).numpy(), want)


@pytest.mark.parametrize("factors", [(2.0, 2.5), (1.0, 0.6)])
@pytest.mark.parametrize("rounding", ["floor", "ceil"])
@pytest.mark.parametrize("lengths", [(4, 5), ("h", "w")])
def test_places_of_tensorflow(factors, rounding, lengths):
    """A way of opsets 11 and 12; an axis with a factor of 1 stays as it is."""
    ways = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "mode": "nearest", "nearest_mode": rounding}
    stored = {"roi": np.zeros(0, np.float32), "scales": np.float32([1, 1, *factors])}
    proto = model([node("Resize", "x roi scales", **ways)], 11, **stored)
    for axis, length in zip(proto.graph.input[0].type.tensor_type.shape.dim[2:], lengths, strict=True):
        axis.CopyFrom(TensorShapeProto.Dimension(**{"dim_value" if length in (4, 5) else "dim_param": length}))
    (want,) = answers(session_of(proto), [X])
    np.testing.assert_array_equal(load(proto)(X).numpy(), want)
