"""The QDQ graph for other runtimes: what is rounded there besides, and that reading it again takes that back."""

import numpy as np
import pytest

from megengine.convert import onnx
from megengine.core.dtype import quint8
from megengine.quantization import QuantConfig, quantize_model
from megengine.quantization.pipeline.exchange import exchange
from megengine.quantization.pipeline.fold import INSIDE, fold
from megengine.quantization.pipeline.integerize import integerize
from megengine.quantization.pipeline.settle import settle
from megengine.traced_module.ir.expr import Apply
from tests.helpers.onnx_runtime import session_of
from tests.helpers.quant_nets import Builder, gated_net, residual_net


def marked(graph):
    """Names and ops of what is marked, and the graph without the ends of pairs."""
    return {e.inputs[0].name: e.meta[INSIDE] for e in graph.exprs() if isinstance(e, Apply) and INSIDE in e.meta}


def ops(graph):
    return [e.op for e in graph.exprs() if isinstance(e, Apply)]


def quantized(net, **settings):
    b, graph = net
    return quantize_model(graph, b.data(), QuantConfig(**settings))


def test_the_branch_of_a_residual_sum_and_the_mean_are_rounded():
    model = quantized(residual_net())
    reasons = marked(model.exchange_graph())
    assert reasons["project"] == "the branch of a residual sum"
    assert reasons["pool_pooled"] == "a mean whose axes of one go"
    assert not marked(model.qdq_graph)


@pytest.mark.parametrize("net", [residual_net, gated_net])
def test_reading_takes_back_what_is_for_other_runtimes(net):
    model = quantized(net())
    again = integerize(fold(settle(fold(model.exchange_graph()))))
    assert ops(again) == ops(model.integer_graph)


def shuffled_net():
    """Channels of a picture and of its copy, shuffled in front of a layer, and rows of it."""
    b = Builder()
    n, c, h, w = b.x.shape
    y = b.conv(b.conv(b.x, c, label="first"), c, label="second")
    y = b.op("reshape", b.op("concat", y, y, axis=1, label="joined"), shape=(n, 2, c, h, w))
    y = b.op("reshape", b.op("transpose", y, perm=(0, 2, 1, 3, 4), label="shuffled"), shape=(n, 2 * c, h, w))
    y = b.conv(y, 4, label="last")
    return b, b.done(y)


@pytest.mark.parametrize("profile", ["x86", "openvino"])
def test_what_moves_is_not_rounded_again_but_behind_a_concatenation(profile):
    model = quantized(shuffled_net(), profile=profile)

    def rounded(graph):
        return [q.inputs[0].expr.callee[1] for q in graph.exprs() if isinstance(q, Apply) and q.op == "quantize"]

    moved = ("reshape", "transpose", "reshape")
    before, after = rounded(model.qdq_graph), rounded(model.exchange_graph())
    assert [op for op in before if op in moved] == list(moved)
    assert "concat" in after and not set(after) & set(moved)
    assert ops(integerize(fold(settle(fold(model.exchange_graph()))))) == ops(model.integer_graph)


def joined_net(reader):
    """The picture beside what a layer makes of it, in front of a convolution, of one behind a move, or of a product."""
    b = Builder()
    y = b.op("concat", b.conv(b.conv(b.x, 4, label="first"), 4, label="second"), b.x, axis=1, label="joined")
    if reader == "moved":
        y = b.op("transpose", y, perm=(0, 1, 3, 2))
    if reader == "matmul":
        weight = b.g.constant(np.linspace(-1, 1, y.shape[-1] * 5, dtype=np.float32).reshape(-1, 5))
        return b, b.done(b.op("matmul", y, weight, transpose_a=False, transpose_b=False, label="last"))
    return b, b.done(b.conv(y, 4, label="last"))


@pytest.mark.parametrize(("reader", "dtype"), [("conv2d", "quint8"), ("moved", "quint8"), ("matmul", "qint8")])
def test_openvino_gets_no_convolution_of_concatenated_int8(reader, dtype, tmp_path):
    openvino = pytest.importorskip("openvino")
    model = quantized(joined_net(reader), profile="openvino", precision="w7a8")  # no sum saturates without VNNI
    joined = next(q for q in model.qdq_graph.exprs() if isinstance(q, Apply) and q.inputs[0].name == "joined")
    assert joined.op == "quantize" and joined.outputs[0].dtype.name == dtype
    onnx.export_qdq(model, tmp_path / "q.onnx")
    (x,) = joined_net(reader)[0].data(1)
    network = openvino.Core().compile_model(tmp_path / "q.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    wanted = onnx.load(tmp_path / "q.onnx")(x).numpy()
    # a step is 0.4 % of the largest value; wrong sums are off by more than half of it
    np.testing.assert_allclose(network([x])[0], wanted, atol=0.05 * np.abs(wanted).max())


def test_a_profile_says_what_is_rounded_inside():
    every, few = (
        marked(quantized(gated_net(), profile=name).exchange_graph()) for name in ("x86-symmetric", "openvino")
    )
    assert set(few) < set(every)


def silu_net(target):
    """SiLU between integers; the input reaches from -6.4 to 6.35."""
    b = Builder()
    x = b.op("dequantize", b.op("quantize", b.x, dtype=quint8(0.05, 128)))
    y = b.op("silu", x, label="act")
    return b.done(b.op("dequantize", b.op("quantize", y, dtype=target)))


def test_the_gate_of_silu_is_rounded_where_that_is_at_most_a_step_away():
    coarse, fine = silu_net(quint8(0.026, 11)), silu_net(quint8(0.001, 255))
    made = [[op for op in ops(exchange(g, {})) if op in ("silu", "sigmoid", "mul")] for g in (coarse, fine)]
    assert made == [["sigmoid", "mul"], ["silu"]]
    assert ops(fold(exchange(coarse, {}))) == ops(coarse)


@pytest.mark.parametrize("number", [0.3, -7.25])
def test_a_number_beside_integers_is_an_integer_of_one_step(number):
    b = Builder()
    x = b.op("dequantize", b.op("quantize", b.x, dtype=quint8(0.02, 128)))
    y = b.op("mul", x, b.g.constant(np.float32(number)), label="scaled")
    g = b.done(b.op("dequantize", b.op("quantize", y, dtype=quint8(0.1, 128))))

    def factor(graph):
        return graph.outputs[0].expr.inputs[0].expr.inputs[0].expr.inputs[1].expr

    stored = factor(exchange(g, {}))
    assert stored.op == "dequantize" and stored.inputs[0].dtype.only_scale == np.float32(abs(number))
    assert factor(fold(exchange(g, {}))).value.numpy() == np.float32(number)


@pytest.mark.parametrize("opset", [13, 17, 18, 23])
@pytest.mark.parametrize("centred", [True, False])
def test_normalisations_are_written_at_every_opset(opset, centred, tmp_path):
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    b = Builder()
    attrs = {"axes": 2, "eps": 1e-5, "centred": centred, "reciprocal": False}
    shape = b.x.shape[2:]
    factors = [b.g.constant(rng.standard_normal(shape).astype(np.float32)) for _ in range(2)]
    y = [b.op("fused_norm", b.x, *factors[:n], **attrs) for n in range(3)]
    onnx.export(b.done(*y), tmp_path / "norm.onnx", opset=opset)
    x = b.data(1)[0]
    got = session_of(tmp_path / "norm.onnx").run(None, {"x": x})
    for a, w in zip(got, onnx.load(tmp_path / "norm.onnx")(x), strict=True):
        np.testing.assert_allclose(a, w.numpy(), rtol=1e-4, atol=1e-5)
