"""What stays in float is listed with reason and cost; networks that cannot be quantized are refused before any work."""

from pathlib import Path

import numpy as np
import pytest
from quant_nets import Builder, residual_net

import megengine as mge
import megengine.module as M
from megengine.convert import onnx
from megengine.core.errors import OptionError, QuantizationError
from megengine.quantization import (
    QuantConfig,
    annotate,
    quantize,
    quantize_model,
    quantize_qat,
    requantize,
    tqt_qconfig,
    verify,
)
from megengine.traced_module import TracedModule, load_tm, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs

GRAPHS = Path(__file__).parents[1] / "data" / "megengine" / "graphs"


@pytest.fixture(scope="module")
def residual():
    b, graph = residual_net()
    return b, graph, quantize_model(graph, b.data())


def test_nothing_is_left_in_float(residual):
    assert residual[2].report.floating == ()


def test_what_is_left_has_its_reason_and_its_share_of_the_work(residual):
    b, graph, _ = residual
    model = quantize_model(graph, b.data(), QuantConfig(exclude=("head",)))
    left = {one.name: one for one in model.report.floating}
    macs = {"stem": 8 * 27 * 16, "dw": 8 * 9 * 16, "project": 64 * 16, "head": 128 * 16, "matmul": 160}
    assert left["head"].macs == 2 * macs["head"]  # a batch of 2
    assert left["head"].share == pytest.approx(macs["head"] / sum(macs.values()))
    assert (left["head"].op, left["head"].reason, left["head"].module) == ("conv2d", "excluded by 'head'", "net.head")
    assert left["head_act"].share == 0 and "no integer layer" in left["head_act"].reason


def test_a_quantized_network_is_not_quantized_again(residual, tmp_path):
    b, _, model = residual
    onnx.export_qdq(model, tmp_path / "q.onnx")
    for again, how in (
        (model.integer_graph, "it computes in integers"),
        (model.traced(), "it computes in integers"),
        (model.qdq_graph, "quantize / dequantize pairs around its layers"),
        (onnx.load(tmp_path / "q.onnx"), "quantize / dequantize pairs around its layers"),
    ):
        with pytest.raises(QuantizationError, match=f"is quantized already: .*{how}.*the float network that it was"):
            quantize_model(again, b.data())


@pytest.mark.parametrize(
    ("name", "how"),
    [("res_fused_q", "it computes in integers"), ("res_fused_qat", "it holds fake quantization")],
)
@pytest.mark.parametrize("flat", ["", "_flat"])
def test_quantized_networks_of_megengine_are_not_quantized_again(name, how, flat):
    model = load_tm(GRAPHS / f"{name}{flat}.tm")
    with pytest.raises(QuantizationError, match=f"is quantized already: {how}"):
        quantize_model(model, [])


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.into, self.layer, self.back = M.QuantStub(), M.ConvRelu2d(3, 4, 3), M.DequantStub()

    def forward(self, x):
        return self.back(self.layer(self.into(x)))


def test_learnt_fake_quantizers_are_found_though_they_are_ordinary_ops():
    net = quantize_qat(Net(), qconfig=tqt_qconfig)
    traced = trace_module(Net().eval(), mge.tensor(np.zeros((1, 3, 8, 8), np.float32)))
    traced.inner = net  # beside the graph: as a layer of a traced network is
    with pytest.raises(QuantizationError, match=r"it holds fake quantization.*inner\.layer\.act_fake_quant"):
        quantize_model(traced, [])


def test_integers_that_modules_make_are_found():
    x = mge.tensor(np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32))
    net = quantize_qat(Net())
    net(x)
    traced = trace_module(quantize(net).eval(), x)
    with pytest.raises(QuantizationError, match="it computes in integers"):
        quantize_model(traced, [x])


def test_a_network_without_layers_has_nothing_to_quantize():
    b = Builder()
    graph = b.done(b.relu(b.op("exp", b.x)))
    with pytest.raises(
        QuantizationError, match=r"'net' has nothing to quantize: no layer with weights .*only exp, relu"
    ):
        quantize_model(graph, b.data())


def test_products_of_computed_values_are_no_layers_with_weights():
    b = Builder((2, 4, 4))
    graph = b.done(b.op("matmul", b.op("relu", b.x), b.x, transpose_a=False, transpose_b=True, label="pairs"))
    message = r"nothing to quantize: no layer with weights .*; products of two computed values alone \(pairs\) stay in"
    with pytest.raises(QuantizationError, match=message):
        quantize_model(graph, [np.ones((2, 4, 4), np.float32)])


def test_a_network_whose_layers_are_all_excluded(residual):
    b, graph, model = residual
    everything = QuantConfig(exclude=("op:conv2d", "op:matmul"))
    message = r"would stay in float, all 5 layers with weights: stem \(excluded by 'op:conv2d'\), .*; exclude fewer"
    with pytest.raises(QuantizationError, match=message):
        quantize_model(graph, b.data(), everything)
    with pytest.raises(QuantizationError, match=message):
        requantize(model, everything.changed(bias_correction=False))


def test_verify_of_a_network_without_integers(residual):
    b, graph, model = residual
    with pytest.raises(
        QuantizationError, match=r"network 'net' has no integer value; quantize it first: quantize_model"
    ):
        verify(graph, b.data(1))
    with pytest.raises(QuantizationError, match="no integer value"):
        verify(TracedModule.from_graph(graph), b.data(1))
    with pytest.raises(QuantizationError, match="pairs around float layers"):
        verify(model.qdq_graph, b.data(1))


def test_explain_answers_for_nodes_of_the_graph_only(residual):
    _, graph, _ = residual
    annotation = annotate(graph, QuantConfig(exclude=("head",)))
    assert annotation.explain("stem_act").startswith("stem_act: plain")
    assert annotation.explain("head") == "head: float (excluded by 'head')"
    assert annotation.explain("x") == "x: plain (graph input)"
    with pytest.raises(OptionError, match=r"no node 'stem_atc' among the \d+ of the graph.*; nearest: stem_act"):
        annotation.explain("stem_atc")
    with pytest.raises(OptionError, match=r"no node 'no_such' among the \d+ of the graph that was annotated$"):
        annotation.explain("no_such")


# ---------------------------------------------------------------- dtypes of the data


def lookup_net(dtype):
    """Rows of a table by index, then a layer."""
    from megengine.core.spec import TensorSpec
    from megengine.traced_module.ir.graph import InternalGraph

    rng = np.random.default_rng(0)
    g = InternalGraph("lookup")
    ids = add_input(g, "ids", TensorSpec((2, 5), np.dtype(dtype)))
    table = g.constant(rng.standard_normal((20, 8)).astype(np.float32))
    rows = g.apply("index", table, ids, attrs={"pattern": ("i", (None, None, None))})
    w = g.constant(rng.standard_normal((8, 4)).astype(np.float32))
    set_outputs(g, [g.apply("matmul", rows, w, attrs={"transpose_a": False, "transpose_b": False})])
    return g


@pytest.mark.parametrize("wanted", [np.int64, np.int32])
@pytest.mark.parametrize("given", [np.int64, np.int32, np.uint8, np.float32])
def test_indices_take_the_dtype_of_the_input(wanted, given):
    rng = np.random.default_rng(1)
    data = [rng.integers(0, 20, (2, 5)).astype(given) for _ in range(3)]
    model = quantize_model(lookup_net(wanted), data)
    assert verify(model, data, threads=(1,)).exact
    assert model.analyze(data).output_sqnr_db > 25


@pytest.mark.parametrize(
    ("value", "wanted", "message"),
    [
        (np.float32(0.5), np.int64, r"expected int64, got float32 with values such as 0\.5"),
        (np.int64(2**40), np.int32, "expected int32, got int64 with values such as 1099511627776"),
        (np.float32("nan"), np.int64, "expected int64, got float32 with values such as nan"),
        (np.str_("a"), np.int64, "expected int64, got <U1 with values such as a"),
    ],
)
def test_data_that_an_input_does_not_hold_is_refused(value, wanted, message):
    graph = lookup_net(wanted)
    with pytest.raises(QuantizationError, match=f"batch 0, input 'ids': {message}, which cannot be converted exactly"):
        quantize_model(graph, [np.full((2, 5), value)])
    with pytest.raises(QuantizationError, match="batch 0, input 'ids'"):
        verify(quantize_model(graph, [np.zeros((2, 5), np.int8)]), [np.full((2, 5), value)])
