"""Planted faults are named with layer and cause; healthy networks have none; dangers are seen before conversion."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from quant_nets import Builder, concat_net, gated_net, residual_net

from megengine.core.errors import QuantizationError
from megengine.quantization import QuantConfig, audit, quantize_model, verify
from megengine.quantization.checks import CAUSES, diagnose
from megengine.traced_module import TracedModule

PATH = Path(__file__).resolve().parents[2] / "bench" / "planted_faults.py"
SPEC = importlib.util.spec_from_file_location("planted_faults", PATH)
bench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bench)


def norm_net():
    """Convolutions with batch norms that have the statistics of the data."""
    b = Builder((1, 3, 8, 8))
    x = b.x
    for label in ("one", "two", "three"):
        x = b.conv(x, 8, bias=False, label=label)
        stats = [np.ones(8), np.zeros(8), np.zeros(8), np.full(8, float(np.prod(x.expr.inputs[1].shape[1:])) * 0.25)]
        constants = [b.g.constant(s.astype(np.float32)) for s in stats]
        x = b.op("batch_norm", x, *constants, eps=1e-5, label=f"{label}_norm")
    return b, b.done(b.conv(x, 4, label="last"))


def subject(net):
    b, graph = net()
    data = [(x,) for x in b.data(8)]
    return bench.Subject.of(net.__name__, TracedModule.from_graph(graph), data, [(x,) for x in b.data(2, seed=9)])


@pytest.fixture(scope="module", params=[residual_net, concat_net], ids=lambda net: net.__name__)
def one(request):
    return subject(request.param)


@pytest.mark.parametrize("net", [residual_net, concat_net, gated_net, norm_net])
@pytest.mark.parametrize("settings", [{}, {"weights": "per_tensor"}, {"profile": "onnx-qlinear"}])
def test_nothing_is_found_in_a_healthy_network(net, settings):
    b, graph = net()
    model = quantize_model(graph, b.data(8), QuantConfig(**settings))
    data = [(x,) for x in b.data(2, seed=9)]
    assert diagnose(model.float_graph, model.qdq_graph, data, source=graph) == ()


@pytest.mark.parametrize("kind", [k for k in bench.KINDS if k is not bench.wrong_norm], ids=lambda k: k.__name__)
def test_a_planted_fault_is_named_first(kind, one):
    planted = kind(one, np.random.default_rng(0))
    first = diagnose(planted.exact, planted.rounded, one.data)[0]
    assert (first.layer, first.cause) == (planted.layer, planted.cause), str(first)
    assert first.cause in CAUSES and first.to_json()["text"] in str(first)


@pytest.mark.parametrize(("narrower", "found"), [(1, []), (8, [("gate_in", "clipping")])])
def test_a_function_that_saturates_is_named_where_its_range_is_cut_on_purpose_too(narrower, found):
    """Ranges of arguments end where functions are flat; one that ends before is a fault."""
    b = Builder((1, 3, 8, 8))
    y = b.op("sigmoid", b.conv(b.x, 8, label="gate_in"), label="gate")
    one = bench.Subject.of("gate", TracedModule.from_graph(b.done(b.conv(y, 4, label="last"))),
                           [(x,) for x in b.data(8)], [(x,) for x in b.data(2, seed=9)])  # fmt: skip
    edge = next(e for e in one.model.float_graph.exprs() if getattr(e, "op", "") == "sigmoid").inputs[0].name
    dtype = one.model.frozen.edges[edge]
    planted = one.planted("", "", edges={edge: replace(dtype, scale=dtype.only_scale / narrower)})
    told = diagnose(planted.exact, planted.rounded, one.data)
    assert [(x.layer, x.cause) for x in told] == found


def test_a_batch_norm_with_other_statistics_is_named_by_the_data():
    one = subject(norm_net)
    planted = bench.wrong_norm(one, np.random.default_rng(0))
    first = diagnose(planted.exact, planted.rounded, one.data, source=planted.source)[0]
    assert (first.layer, first.cause, first.gain) == (planted.layer, "batch norm", None)


def test_data_that_contradicts_the_first_norm_is_named_though_it_calibrated():
    b, graph = norm_net()
    data = [(x * 30 + 100,) for x in b.data(8)]
    model = quantize_model(graph, data)
    first = diagnose(model.float_graph, model.qdq_graph, data, source=graph)[0]
    assert (first.layer, first.cause) == ("x", "preprocessing") and "as its statistics say" in first.text


@pytest.mark.parametrize("seed", range(4))
def test_a_wrong_scale_is_named_though_rounding_blurs_weak_channels(seed, monkeypatch):
    monkeypatch.setattr(bench, "CONFIG", QuantConfig(weights="per_tensor", bias_correction=False))
    weak = np.random.default_rng(seed).normal(size=(3, 3, 3)).astype(np.float32) * 0.012
    one = subject(lambda: planted_weight({0: weak}))
    planted = bench.wrong_scale(one, np.random.default_rng(0))
    first = diagnose(planted.exact, planted.rounded, one.data)[0]
    assert (first.layer, first.cause) == ("layer", "scale"), str(first)


def risks(graph, stats=None):
    return {(one.name, one.kind): one for one in audit(graph, stats)}


def planted_weight(rows):
    b = Builder((1, 3, 8, 8))
    w = b.rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    for at, value in rows.items():
        w[at] = value
    attrs = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    y = b.op("conv2d", b.x, b.g.constant(w), label="layer", **attrs)
    return b, b.done(b.relu(y, label="act"))


@pytest.mark.parametrize(
    ("rows", "kind", "text"),
    [
        ({1: 0.0}, "dead channels", "1 of 4 output channels have weights of 0"),
        ({2: 1e-38}, "tiny scale", "the weights of channel 2 reach 1e-38"),
        ({0: np.nan}, "not finite", "27 weights of 108 NaN or infinite"),
    ],
)
def test_dangerous_weights_are_named(rows, kind, text):
    b, graph = planted_weight(rows)
    one = risks(graph)["layer", kind]
    assert text in one.text and text in str(one) and ("refuses" in str(one)) == (not one.handled)
    if one.handled:
        model = quantize_model(graph, b.data())
        assert verify(model, b.data()[:1]).exact and model.analyze(b.data()).output_sqnr_db > 30
    else:
        with pytest.raises(QuantizationError, match="layer"):
            quantize_model(graph, b.data())


def test_a_zero_gamma_is_named_and_converts():
    rows = [np.float32([1, 0, 1, 0]), np.zeros(4), np.zeros(4), np.ones(4)]
    b = Builder((1, 3, 8, 8))
    y = b.conv(b.x, 4, label="layer")
    y = b.op("batch_norm", y, *(b.g.constant(r.astype(np.float32)) for r in rows), eps=1e-5, label="norm")
    graph = b.done(b.relu(y, label="act"))
    assert "gamma of 2 channels is 0" in risks(graph)["norm", "zero gamma"].text
    quantize_model(graph, b.data())


def test_sums_that_int32_does_not_hold_are_named():
    b = Builder((1, 70000))
    graph = b.done(b.op("relu", b.linear(b.x, 2), label="act"))
    assert not any(kind == "accumulator" for _, kind in risks(graph))  # random weights do not reach it
    b = Builder((1, 70000))
    w = b.g.constant(np.ones((2, 70000), np.float32))
    y = b.op("matmul", b.x, w, transpose_a=False, transpose_b=True, label="wide")
    assert "more than int32 holds" in risks(b.done(b.op("relu", y, label="act")))["wide", "accumulator"].text


def test_biases_dead_channels_and_constant_values_are_seen_in_calibration():
    b = Builder((1, 3, 8, 8))
    attrs = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    w = np.full((4, 3, 3, 3), 1e-4, np.float32)
    bias = np.float32([1e8, 0, -1e9, 0])
    y = b.op("conv2d", b.x, b.g.constant(w), b.g.constant(bias), label="layer", **attrs)
    y = b.op("relu6", y, label="act")
    graph = b.done(b.conv(y, 2, label="last"))
    model = quantize_model(graph, b.data(), QuantConfig(bias_correction=False))
    found = risks(model.float_graph, model.stats)
    assert "more than int32 holds" in found["layer", "bias"].text and found["layer", "bias"].handled
    assert "2 of 4 channels never change" in found["act", "dead channels"].text
    b, graph = residual_net()
    still = quantize_model(graph, [np.full((2, 3, 8, 8), 2.0, np.float32)] * 2)
    assert "values are 2" in risks(still.float_graph, still.stats)["x", "zero range"].text
