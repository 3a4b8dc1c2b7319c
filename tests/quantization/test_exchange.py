"""The QDQ graph for other runtimes: what is rounded there besides, and that reading it again takes that back."""

import numpy as np
import pytest

from megengine.convert import onnx
from megengine.convert.onnx.exporter import to_model
from megengine.core.dtype import quint8
from megengine.core.spec import TensorSpec
from megengine.quantization import quantize_model, verify
from megengine.quantization.pipeline.exchange import exchange
from megengine.quantization.pipeline.fold import INSIDE, fold
from megengine.quantization.pipeline.integerize import integerize
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.editing.expressions import add_input
from megengine.traced_module.ir.expr import Apply
from tests.helpers.quant_nets import Builder, gated_net, residual_net, sqnr


def marked(graph):
    """Names and ops of what is marked, and the graph without the ends of pairs."""
    return {e.inputs[0].name: e.meta[INSIDE] for e in graph.exprs() if isinstance(e, Apply) and INSIDE in e.meta}


def ops(graph):
    return [e.op for e in graph.exprs() if isinstance(e, Apply)]


def quantized(net):
    b, graph = net
    return quantize_model(graph, b.data())


def test_the_branch_of_a_residual_sum_and_the_mean_are_rounded():
    model = quantized(residual_net())
    reasons = marked(model.exchange_graph())
    assert reasons["project"] == "the branch of a residual sum"
    assert reasons["pool_pooled"] == "a mean whose axes of one go"
    assert not marked(model.qdq_graph)


@pytest.mark.parametrize("net", [residual_net, gated_net])
def test_reading_takes_back_what_is_for_other_runtimes(net):
    model = quantized(net())
    again = integerize(fold(model.exchange_graph()))
    assert ops(again) == ops(model.integer_graph)


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
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    b = Builder()
    attrs = {"axes": 2, "eps": 1e-5, "centred": centred, "reciprocal": False}
    shape = b.x.shape[2:]
    factors = [b.g.constant(rng.standard_normal(shape).astype(np.float32)) for _ in range(2)]
    y = [b.op("fused_norm", b.x, *factors[:n], **attrs) for n in range(3)]
    onnx.export(b.done(*y), tmp_path / "norm.onnx", opset=opset)
    x = b.data(1)[0]
    got = runtime.InferenceSession(tmp_path / "norm.onnx").run(None, {"x": x})
    for a, w in zip(got, onnx.load(tmp_path / "norm.onnx")(x), strict=True):
        np.testing.assert_allclose(a, w.numpy(), rtol=1e-4, atol=1e-5)


def masked_net():
    """Attention of two layers: rows have a bias by position, and one mask of -3.4e38 from an input joins both."""
    b, shape = Builder((2, 8, 16)), {"transpose_a": False, "transpose_b": True}
    kept = add_input(b.g, "kept", TensorSpec((2, 1, 8), np.dtype(np.float32)))
    mask = b.op("mul", b.op("sub", kept, b.g.constant(np.float32(1))), b.g.constant(np.float32(3.4e38)), label="mask")
    x = b.x
    for i in range(2):
        q = b.op("matmul", x, b.constant((16, 16), 0.2), label=f"q{i}", **shape)
        scores = b.op("matmul", q, x, label=f"scores{i}", **shape)
        by_place = b.op("add", b.constant((8, 8)), mask, label=f"by_place{i}")
        weights = b.op("softmax", b.op("add", scores, by_place, label=f"masked{i}"), axis=-1, label=f"weights{i}")
        x = b.op("matmul", weights, x, transpose_a=False, transpose_b=False, label=f"mixed{i}")
    return b.done(b.op("matmul", x, b.constant((4, 16)), label="end", **shape))


def test_a_mask_that_is_computed_has_the_range_that_its_sums_need():
    runtime = pytest.importorskip("onnxruntime")
    graph, rng = masked_net(), np.random.default_rng(0)
    data = [(rng.normal(size=(2, 8, 16)).astype(np.float32), np.ones((2, 1, 8), np.float32)) for _ in range(3)]
    for _, kept in data:
        kept[1, :, 5:] = 0
    model = quantize_model(graph, data)
    for name in ("by_place0", "by_place1"):
        dtype = model.frozen.edges[name]
        assert 1 < dtype.qmax * dtype.only_scale < 100, name
    session = runtime.InferenceSession(to_model(model.exchange_graph()).SerializeToString())
    (want,) = (t.numpy() for t in interpret(model.float_graph, [Tensor(x) for x in data[0]]))
    for (got,) in (session.run(None, dict(zip(("x", "kept"), data[0], strict=True))), [model(*data[0]).numpy()]):
        assert sqnr(want, got) > 25
    assert verify(model, data[:1]).exact
