"""Networks of few bits as Brevitas writes them: QuantizeLinear, Clip, DequantizeLinear (QCDQ), and QONNX."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from megengine.convert.onnx import export, load
from megengine.core.errors import FileFormatError
from megengine.quantization import integer_network, verify
from tests.helpers.onnx_runtime import answers, session_of

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (2, 3, 6, 6)).astype(np.float32)
WEIGHT = RNG.integers(-7, 8, (4, 3, 3, 3)).astype(np.int8)
SCALES = RNG.uniform(0.01, 0.1, 4).astype(np.float32)
QONNX = "qonnx.custom_op.general"


def model(nodes, x=X, domain=QONNX, **stored):
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in stored.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def qcdq(kind, zero, low, high):
    """A convolution between triples; empty names for a bound that is left out."""

    def triple(x, y, scale):
        return [
            helper.make_node("QuantizeLinear", [x, scale, "z"], [f"{y}_q"]),
            helper.make_node(
                "Clip", [f"{y}_q", "low" if low is not None else "", "high" if high is not None else ""], [f"{y}_c"]
            ),
            helper.make_node("DequantizeLinear", [f"{y}_c", scale, "z"], [y]),
        ]

    nodes = [
        *triple("x", "d", "s"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=0),
        helper.make_node("Conv", ["d", "v"], ["c"]),
        *triple("c", "y", "t"),
    ]
    ends = {name: kind(end) for name, end in (("low", low), ("high", high)) if end is not None}
    own = {"s": np.float32(0.1), "t": np.float32(0.21), "z": kind(zero), "w": WEIGHT, "ws": SCALES}
    return model(nodes, wz=np.zeros(4, np.int8), **own, **ends)


@pytest.mark.parametrize(
    ("kind", "zero", "low", "high"),
    [(np.int8, 0, -8, 7), (np.uint8, 0, 0, 15), (np.uint8, 5, 1, 14), (np.int8, -3, -7, None), (np.int8, 0, None, 3)],
)
def test_integers_between_bounds_are_integers_of_the_network(kind, zero, low, high, tmp_path):
    file = qcdq(kind, zero, low, high)
    network, session = load(file), session_of(file)
    (wanted,) = answers(session, [X])
    np.testing.assert_array_equal(network(X).numpy(), wanted)
    integers = integer_network(network)
    assert verify(integers, [X], threads=(1,)).exact
    assert "qconv2d" in {expr.op for expr in integers.graph.exprs() if hasattr(expr, "op")}
    assert np.abs(integers(X).numpy() - wanted).max() <= 0.211
    export(network, tmp_path / "again.onnx")
    np.testing.assert_array_equal(answers(session_of(tmp_path / "again.onnx"), [X])[0], wanted)


@pytest.mark.parametrize(("low", "high"), [("z", "z"), ("many", "z")])
def test_bounds_of_other_forms(low, high):
    """The caller sees the integers; a bound may be computed."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("ReduceMin", ["q"], ["many"], keepdims=0),
        helper.make_node("Clip", ["q", low, high], ["y"]),
    ]
    file = model(nodes, s=np.float32(0.1), z=np.int8(2))
    (wanted,) = answers(session_of(file), [X])
    got = load(file)(X).numpy()
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def quant(x, scale, zero, bits, signed, narrow, rounding=np.rint):
    """QONNX's definition, in NumPy."""
    low, high = (-(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1 - narrow)
    steps = rounding(np.clip(x / scale + np.float32(zero), low, high))
    return ((steps - np.float32(zero)) * scale).astype(np.float32)


CASES = [
    (4, 1, 0, 0.0),
    (4, 1, 1, 0.0),
    (8, 1, 1, 0.0),
    (3, 0, 0, 2.0),
    (8, 0, 0, 128.0),
    (8, 0, 1, 0.0),
    (1, 0, 0, 0.0),
    (12, 1, 0, 0.0),
]


@pytest.mark.parametrize(("bits", "signed", "narrow", "zero"), CASES)
@pytest.mark.parametrize("domain", [QONNX, "onnx.brevitas"])
def test_quant_nodes_give_their_definition(bits, signed, narrow, zero, domain):
    node = helper.make_node("Quant", ["x", "s", "z", "b"], ["y"], domain=domain, signed=signed, narrow=narrow)
    file = model([node], domain=domain, s=np.float32(0.15), z=np.float32(zero), b=np.float32(bits))
    wanted = quant(X, np.float32(0.15), zero, bits, signed, narrow)
    np.testing.assert_array_equal(load(file)(X).numpy(), wanted)


@pytest.mark.parametrize(("mode", "rounding"), [("CEIL", np.ceil), ("floor", np.floor)])
def test_quant_nodes_with_scales_of_channels_and_other_roundings(mode, rounding):
    scale = SCALES[:3].reshape(1, 3, 1, 1)
    for options, how in (({}, np.rint), ({"rounding_mode": mode}, rounding)):
        node = helper.make_node("Quant", ["x", "s", "z", "b"], ["y"], domain=QONNX, **options)
        file = model([node], s=scale, z=np.float32(0), b=np.float32(6))
        np.testing.assert_allclose(load(file)(X).numpy(), quant(X, scale, 0, 6, 1, 0, how), rtol=1e-6)


def test_layers_between_quant_nodes_become_integers():
    nodes = [
        helper.make_node("Quant", ["x", "s", "z", "b"], ["d"], domain=QONNX, signed=0),
        helper.make_node("Quant", ["w", "ws", "z", "b"], ["v"], domain=QONNX, narrow=1),
        helper.make_node("Conv", ["d", "v"], ["c"]),
        helper.make_node("Quant", ["c", "t", "z", "b"], ["y"], domain=QONNX, signed=0),
    ]
    numbers = {"s": np.float32(0.1), "t": np.float32(0.21), "z": np.float32(0), "b": np.float32(4)}
    scale = SCALES.reshape(4, 1, 1, 1)
    weight = (WEIGHT * scale).astype(np.float32)
    network = load(model(nodes, w=weight, ws=scale, **numbers))
    integers = integer_network(network)
    assert verify(integers, [X], threads=(1,)).exact
    assert "qconv2d" in {expr.op for expr in integers.graph.exprs() if hasattr(expr, "op")}
    d = quant(X, np.float32(0.1), 0, 4, 0, 0).astype(np.float64)
    columns = np.lib.stride_tricks.sliding_window_view(d, (3, 3), axis=(2, 3))
    sums = np.einsum("nchwij,ocij->nohw", columns, quant(weight, scale, 0, 4, 1, 1).astype(np.float64))
    wanted = quant(sums.astype(np.float32), np.float32(0.21), 0, 4, 0, 0)
    for one in (network, integers):
        far = np.abs(one(X).numpy() - wanted)
        assert far.max() <= 0.211 and (far > 0.01).mean() < 0.01  # a sum at a half may round to either side


def test_weights_of_one_bit():
    node = helper.make_node("BipolarQuant", ["x", "s"], ["y"], domain=QONNX)
    got = load(model([node], s=np.float32(0.3)))(X).numpy()
    np.testing.assert_array_equal(got, np.where(X >= 0, np.float32(0.3), np.float32(-0.3)))


@pytest.mark.parametrize(
    ("bits", "options", "text"),
    [
        (40, {}, "expected one number from 1 to 32 of bits"),
        (4, {"rounding_mode": "ROUND_TO_ZERO"}, "rounding_mode is 'ROUND_TO_ZERO'; expected one of ROUND, CEIL, FLOOR"),
    ],
)
def test_quant_nodes_that_are_refused(bits, options, text):
    node = helper.make_node("Quant", ["x", "s", "z", "b"], ["y"], domain=QONNX, **options)
    with pytest.raises(FileFormatError, match=text):
        load(model([node], s=np.float32(0.1), z=np.float32(0), b=np.float32(bits)))


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2"])
@pytest.mark.parametrize("form", ["a number", "of channels", "stated"])
def test_activations_of_few_bits(kind, form):
    """`QuantizeLinear` to 4 and 2 bits: integers of 8 bits hold those of fewer."""
    dtype, zero = getattr(ml_dtypes, kind), 0 if form == "stated" else 1
    scale, zeros = np.float32(0.3), np.array(zero)
    if form == "of channels":
        scale, zeros = np.float32([0.3, 0.4, 0.5]), np.array([1, 0, 1])
    names, more = ["s"] if form == "stated" else ["s", "z"], {}
    if form == "stated":
        more = {"output_dtype": getattr(TensorProto, kind.upper())}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *names], ["q"], **more),
        helper.make_node("DequantizeLinear", ["q", *names], ["y"]),
    ]
    made = model(nodes, s=scale, z=zeros.astype(dtype))
    made.opset_import[0].version = 25
    shape, ends = (1, -1, 1, 1), ml_dtypes.iinfo(dtype)
    step, offset = scale.reshape(shape), zeros.reshape(shape)
    steps = np.clip(np.rint(X / step) + offset, float(ends.min), float(ends.max))
    np.testing.assert_allclose(load(made)(X).numpy(), (steps - offset) * step, atol=1e-6)


def test_activations_of_floats_of_8_bits_are_refused_with_a_way_out():
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    made = model(nodes, s=np.float32(0.3), z=np.array(0, ml_dtypes.float8_e4m3fn))
    with pytest.raises(FileFormatError, match="quantizes to float8_e4m3fn; expected integers. Write the file without"):
        load(made)


def test_results_of_few_bits_are_refused():
    """Their integers would come in 8 bits, another type than the file states."""
    made = model(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])], s=np.float32(0.3), z=np.array(1, ml_dtypes.int4)
    )
    made.opset_import[0].version = 25
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.INT4
    with pytest.raises(FileFormatError, match="result 'y' is of INT4, which tensors do not hold"):
        load(made)
