import dataclasses
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import megengine.module as M
from megengine.core.dtype import QuantizedDType, qint8, quantized, quint8
from megengine.core.errors import CalibrationError, OptionError, QuantizationError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.plan import compile
from megengine.quantization.checks.verify import verify
from megengine.quantization.pipeline.annotate import annotate
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.epilogue import epilogue
from megengine.quantization.pipeline.freeze import quantize_weight
from megengine.quantization.pipeline.judging import SAMPLES
from megengine.quantization.pipeline.profiles import Profile
from megengine.quantization.pipeline.quantize import quantize_model, requantize
from megengine.quantization.pipeline.spec import Fixed, Plain, Shared, Weight
from megengine.quantization.ranges.methods import RangeMethod
from megengine.tensor import Tensor
from megengine.traced_module import trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.editing.rewiring import set_input
from megengine.traced_module.formats.native import digest
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from tests.helpers.quant_nets import Builder, concat_net, gated_net, ops, residual_net, run, sqnr, transposed_net

R2 = Profile("r2", residual="quantized")


CONFIGS = {
    "default": QuantConfig(),
    "minmax": QuantConfig(bias_correction=False),
    "mse": QuantConfig(activations=RangeMethod("mse"), weight_method="mse"),
    "ema": QuantConfig(activations=RangeMethod("ema")),
    "kl": QuantConfig(activations=RangeMethod("kl")),
    "per_tensor": QuantConfig(weights="per_tensor"),
    "symmetric": QuantConfig(profile="x86-symmetric"),
    "r2": QuantConfig(profile=R2),
    "int_bias": QuantConfig(profile="onnx-qlinear"),
    "megengine": QuantConfig(profile="megengine"),
}


@pytest.mark.parametrize("net", [residual_net, concat_net, transposed_net, gated_net])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_networks_become_integers(net, config):
    b, graph = net()
    model = quantize_model(graph, b.data(8), config)
    for g in (model.float_graph, model.qdq_graph, model.integer_graph):
        g.lint()
    assert model.report.floating == ()
    x = b.data(1, seed=7)[0]
    exact, simulated, integer = (run(g, x)[0] for g in (graph, model.qdq_graph, model.integer_graph))
    assert sqnr(exact, simulated) > 20
    assert sqnr(exact, integer) > 20
    assert sqnr(simulated, integer) > sqnr(exact, integer)
    np.testing.assert_array_equal(model(Tensor(x)).numpy(), integer)


def test_float_graph_is_untouched():
    b, graph = residual_net()
    before = repr(graph)
    quantize_model(graph, b.data())
    assert repr(graph) == before


def test_residual_fused_or_quantized_first():
    _, graph = residual_net()
    fused, first = annotate(graph, QuantConfig()), annotate(graph, QuantConfig(profile=R2))
    assert "before rounding (R1)" in fused.explain("project")
    assert isinstance(first.edges["project"], Plain)
    b, graph = residual_net()
    models = [quantize_model(graph, b.data(), QuantConfig(profile=p)) for p in ("x86", R2)]
    assert "qadd" not in ops(models[0].integer_graph)
    assert "qadd" in ops(models[1].integer_graph)


def test_gates_and_spelled_out_activations():
    b, graph = gated_net()
    model = quantize_model(graph, b.data())
    made = ops(model.integer_graph)
    assert (made.count("qmul"), made.count("qtable"), made.count("qmean")) == (2, 4, 2)
    assert {"mul", "div", "add", "hsigmoid", "silu"}.isdisjoint(made)
    result = verify(model, [(b.data(1, seed=9)[0],)])
    assert result.exact and result.float_largest <= 1
    plan = compile(model.integer_graph)
    assert [s.kernel for s in plan.steps if s.op == "qmul"] == ["int8_gate", "int8_gate"]


def test_a_batch_norm_before_a_layer_is_a_layer_of_its_own():
    b = Builder()
    x = b.op("max_pool2d", b.relu(b.conv(b.x, 6, label="stem")), kernel=(2, 2), stride=(2, 2), padding=((0, 0),) * 2)
    gamma, beta, mean, variance = (b.rng.uniform(0.5, 2, 6).astype(np.float32) for _ in range(4))
    gamma[2] = 0
    numbers = [b.g.constant(v) for v in (gamma, beta, mean, variance)]
    x = b.relu(b.op("batch_norm", x, *numbers, eps=1e-5, label="norm"), label="norm_act")
    graph = b.done(b.conv(x, 4, 1, label="last"))
    model = quantize_model(graph, b.data(8))
    assert model.report.floating == () and ops(model.integer_graph).count("qconv2d") == 3
    x = b.data(1, seed=7)[0]
    assert sqnr(run(graph, x)[0], model(Tensor(x)).numpy()) > 25 and verify(model, [(x,)]).exact


def test_products_of_two_pictures():
    b = Builder()
    x, y = (b.relu(b.conv(b.x, 4, label=name)) for name in ("left", "right"))
    graph = b.done(b.conv(b.op("mul", x, y, label="both"), 3, 1, label="last"))
    model = quantize_model(graph, b.data())
    assert "mul" not in ops(model.integer_graph) and verify(model, [(b.data()[0],)]).exact
    assert [s.kernel for s in compile(model.integer_graph).steps if s.op == "qmul"] == ["int8_multiply"]


def test_edges_share_scales_where_integers_only_move():
    b, graph = concat_net()
    a = annotate(graph, QuantConfig())
    assert a.edges["down"] == Shared("stem_act", "max_pool2d moves the integers of stem_act")
    assert isinstance(a.edges["left_act"], Shared)
    assert a.edges["left_act"].source == "both"
    model = quantize_model(graph, b.data())
    assert "requantize" not in ops(model.integer_graph)
    assert ops(model.integer_graph).count("quantize") == 1


def test_concat_of_a_value_with_other_readers_changes_scale():
    b = Builder()
    stem = b.relu(b.conv(b.x, 4, label="stem"), label="stem_act")
    other = b.relu(b.conv(stem, 4, label="other"), label="other_act")
    graph = b.done(b.conv(b.op("concat", stem, other, axis=1, label="both"), 3, 1, label="last"))
    model = quantize_model(graph, b.data())
    assert model.report.floating == ()
    assert "requantize" in ops(model.integer_graph)


def test_known_ranges_and_tables():
    b = Builder()
    x = b.op("hswish", b.conv(b.x, 4, label="a"), label="act")
    x = b.op("sigmoid", b.conv(x, 4, label="b"), label="gate")
    graph = b.done(b.conv(x, 4, label="last"))
    a = annotate(graph, QuantConfig())
    assert isinstance(a.edges["gate"], Fixed)
    model = quantize_model(graph, b.data())
    assert ops(model.integer_graph).count("qtable") == 2
    x = b.data(1, seed=3)[0]
    assert sqnr(run(graph, x)[0], run(model.integer_graph, x)[0]) > 20


def test_op_without_rule_stays_in_float():
    b = Builder()
    y = b.relu(b.conv(b.x, 4, label="a"), label="act")
    y = b.op("exp", b.op("log_softmax", y, axis=1, label="log"), label="e")
    graph = b.done(b.conv(y, 4, label="last"))
    model = quantize_model(graph, b.data())
    reasons = {one.name: one.reason for one in model.report.floating}
    assert (reasons["log"], reasons["e"]) == ("no integer rule for log_softmax", "no integer rule for exp")
    assert {one.op for one in model.report.floating} == {"log_softmax", "exp", "relu"}
    x = b.data(1, seed=3)[0]
    assert sqnr(run(graph, x)[0], run(model.integer_graph, x)[0]) > 25


@pytest.mark.parametrize("rule", ["head", "net.head", "re:he.d", "op:matmul"])
def test_excluded_layers_stay_in_float(rule):
    b, graph = residual_net()
    model = quantize_model(graph, b.data(), QuantConfig(exclude=(rule,)))
    excluded = [one for one in model.report.floating if one.reason == f"excluded by {rule!r}"]
    assert [one.op for one in excluded] == ["conv2d" if rule != "op:matmul" else "matmul"]
    assert 0 < excluded[0].share < 1 and excluded[0].macs > 0 and excluded[0].module.startswith("net.")
    with pytest.raises(OptionError, match="selects no layer; nearest: head"):
        quantize_model(graph, b.data(), QuantConfig(exclude=("heade",)))


def test_intermediate_value_that_is_an_output():
    b = Builder()
    inner = b.conv(b.x, 4, label="inner")
    act = b.relu(inner, label="act")
    graph = b.done(inner, act, b.conv(act, 3, label="last"))
    model = quantize_model(graph, b.data())
    x = b.data(1, seed=5)[0]
    for exact, got in zip(run(graph, x), run(model.integer_graph, x), strict=True):
        assert exact.shape == got.shape
        assert got.dtype == np.float32
        assert sqnr(exact, got) > 25


def test_weight_used_by_two_layers():
    b = Builder(shape=(1, 4, 6, 6))
    w = b.constant((4, 4, 1, 1))
    attrs = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}
    y = b.relu(b.op("conv2d", b.x, w, label="first", **attrs), label="act")
    graph = b.done(b.op("conv2d", y, w, label="second", **attrs))
    model = quantize_model(graph, b.data())
    assert ops(model.integer_graph).count("qconv2d") == 2


def test_all_zero_channel_and_zero_bias():
    b = Builder()
    y = b.conv(b.x, 4, label="a")
    w = y.expr.inputs[1].expr.value.numpy().copy()
    w[1] = 0
    set_input(b.g, y.expr, 1, b.g.constant(w, before=y.expr))
    graph = b.done(b.conv(b.relu(y, label="act"), 3, label="last"))
    model = quantize_model(graph, b.data())
    scales = model.frozen.weights["a"].dtype.scale
    assert len(scales) == 4
    assert scales[1] == max(scales[:1] + scales[2:])
    assert not model.frozen.weights["a"].values[1].any()


def test_bias_correction_removes_the_mean_error():
    b = Builder()
    graph = b.done(b.conv(b.x, 4, label="layer"))
    data = [np.abs(x) ** 3 for x in b.data(8)]
    model = quantize_model(graph, data, QuantConfig(weights="per_tensor", bias_correction=False))
    better = requantize(model, model.config.changed(bias_correction=True))

    def mean_error(m):
        error = np.mean([run(graph, x)[0] - run(m.integer_graph, x)[0] for x in data], axis=(0, 1, 3, 4))
        return np.abs(error).max()

    assert mean_error(better) < 0.25 * mean_error(model)


def test_bias_correction_adds_a_bias_where_there_is_none():
    b = Builder()
    graph = b.done(b.conv(b.relu(b.conv(b.x, 4, bias=False, label="a"), label="act"), 3, label="last"))
    model = quantize_model(graph, b.data())
    layer = model.qdq_graph.node("a").expr
    assert len(layer.inputs) == 3


@pytest.mark.parametrize("shape", [(), (1,), (1, 6), (5, 1), (5, 6)], ids=str)
def test_bias_correction_takes_any_constant_that_is_added_to_a_product(shape):
    rng = np.random.default_rng(0)
    g = InternalGraph("positions")
    x = add_input(g, "x", TensorSpec((2, 5, 8), np.dtype(np.float32)))
    weight = g.constant(rng.normal(size=(8, 6)).astype(np.float32))
    product = g.apply("matmul", x, weight, attrs={"transpose_a": False, "transpose_b": False}, name="layer")
    set_outputs(g, [g.apply("add", product, g.constant(rng.normal(size=shape).astype(np.float32)), name="sum")])
    data = [rng.normal(size=(2, 5, 8)).astype(np.float32) for _ in range(4)]
    for corrected in (True, False):
        model = quantize_model(g, data, QuantConfig(bias_correction=corrected))
        assert np.abs(run(g, data[0])[0] - run(model.integer_graph, data[0])[0]).max() < 0.2


@pytest.mark.parametrize("int_bias", [False, True])
def test_bias_is_carried_once(int_bias):
    b, graph = residual_net()
    model = quantize_model(graph, b.data(), QuantConfig(profile=Profile("p", bias="int32" if int_bias else "float")))
    for expr in model.integer_graph.exprs():
        if isinstance(expr, Apply) and expr.op in ("qconv2d", "qlinear"):
            b32, big = expr.inputs[2].expr.value.numpy(), expr.inputs[4].expr.value.numpy()
            assert b32.any() == int_bias
            assert big.any() != int_bias


def test_requantize_needs_no_data():
    b, graph = concat_net()
    first = quantize_model(graph, iter(b.data()), CONFIGS["minmax"])
    again = requantize(first, CONFIGS["r2"].changed(bias_correction=False, exclude=("last",)))
    fresh = quantize_model(graph, b.data(), again.config)
    x = b.data(1, seed=5)[0]
    np.testing.assert_array_equal(run(again.integer_graph, x)[0], run(fresh.integer_graph, x)[0])
    corrected = requantize(first, CONFIGS["r2"].changed(exclude=("last",)))
    whole = quantize_model(graph, b.data(), corrected.config)
    np.testing.assert_array_equal(run(corrected.integer_graph, x)[0], run(whole.integer_graph, x)[0])
    with pytest.raises(CalibrationError, match="gptq needs data; give calibration=, or rounding='nearest'"):
        requantize(first, QuantConfig(rounding="gptq"))


def test_one_array_of_samples_is_data():
    """With the axes of the input it is a batch; with one more, as before, batches one after the other."""
    b, graph = residual_net()
    batches = b.data(3)
    listed = quantize_model(graph, batches, QuantConfig(rounding="gptq"))
    together = np.concatenate(batches)
    shapes = [graph.inputs[0].shape[0] * k for k in (1, 3)]
    assert [len(batches[0]), len(together)] == shapes
    for data in (np.stack(batches), Tensor(np.stack(batches))):
        same = quantize_model(graph, data, QuantConfig(rounding="gptq"))
        assert digest(same.integer_graph) == digest(listed.integer_graph)
    one = quantize_model(graph, batches[0], QuantConfig(rounding="gptq"))
    assert digest(one.integer_graph) == digest(quantize_model(graph, batches[:1], one.config).integer_graph)
    assert verify(one, batches[1]).exact
    assert one.analyze(batches[1]).output_sqnr_db == one.analyze([batches[1]]).output_sqnr_db


def test_the_report_is_readable_when_it_is_printed():
    b, graph = residual_net()
    model = quantize_model(graph, b.data(), QuantConfig(exclude=("stem",)))
    head, *rows = str(model.report).splitlines()
    assert len(rows) == len(model.report.floating)
    assert (
        head
        == f"{model.report.integer_layers} layers in integers, {counted(len(model.report.floating), 'op')} in float"
    )
    assert rows[0].startswith("conv2d stem ") and "% of the multiply-adds): " in rows[0]


def test_data_that_can_be_read_once():
    b, graph = residual_net()
    with pytest.raises(CalibrationError, match="can be read once"):
        quantize_model(graph, iter(b.data()), QuantConfig(rounding="gptq"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the data has no batch"),
        (
            [np.zeros((1, 3, 8, 8), np.float32)],
            r"expected shape \(2, 3, 8, 8\), got \(1, 3, 8, 8\); the network takes 2 samples at once: give batches of",
        ),
        ([np.zeros((3, 8, 8), np.float32)], r"got \(3, 8, 8\); add the axis of the batch: array\[None\]"),
        ([np.zeros((2, 8, 8, 3), np.float32)], r"got \(2, 8, 8, 3\); the channels are its last axis: give numpy.movea"),
        ([np.zeros((2, 3, 9, 8), np.float32)], r"got \(2, 3, 9, 8\); scale, crop or reshape the data, or trace"),
        ([(np.zeros((2, 3, 8, 8), np.float32),) * 2], r"batch 0 has 2 arrays; the model has 1 input \(x\)$"),
        ([(np.zeros((2, 3, 8, 8), np.float32), [1, 2])], r"1 input \(x\); leave labels out: \[x for x, _ in data\]$"),
        ("photos", "data: the path 'photos'; expected arrays, .* read by the command: mge-quantize ptq MODEL --data"),
        (Path("x.npy"), "data: the path 'x.npy'; expected arrays"),
        ([np.full((2, 3, 8, 8), np.nan, np.float32)], "values of 'x' are NaN"),
    ],
)
def test_unusable_data(data, message):
    _, graph = residual_net()
    with pytest.raises(CalibrationError, match=message):
        quantize_model(graph, data)


def test_batches_for_a_network_of_one_sample_are_divided():
    samples = np.random.default_rng(0).standard_normal((6, 3, 4, 4)).astype(np.float32)
    traced = trace_module(M.Conv2d(3, 2, 3), Tensor(samples[:1]))
    seen = []
    batches = quantize_model(traced, [samples[:4], samples[4:]], progress=lambda *a: seen.append(a))
    single = quantize_model(traced, [x[None] for x in samples])
    for ours, theirs in zip(batches.integer_graph.exprs(), single.integer_graph.exprs(), strict=True):
        assert str(ours) == str(theirs)
    assert seen[:2] == [("calibrate", 1, 2), ("calibrate", 2, 2)]
    assert verify(batches, [samples]).batches == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bias": 1e6, "s_w": 1e-9, "int_bias": True}, "layer: the bias of channel 0 can reach"),
        ({"s_w": 1e-30, "s_x": 1e-10}, "layer: multiplier of channel 0 is .*; expected a normal positive"),
        ({"bias": np.inf}, r"layer: bias of channel 0 is inf output .*\(it reads values from 0 to 25.5\)"),
        ({"taps": 200_000}, "layer: the accumulator of channel 0 can reach"),
    ],
)
def test_numbers_that_cannot_be_lowered(settings, message):
    given = {"bias": 1.0, "s_w": 0.1, "s_x": 0.1, "taps": 8, "int_bias": False} | settings
    with pytest.raises(QuantizationError, match=message):
        epilogue(
            "layer",
            np.full((1, given["taps"]), 127, np.int8),
            qint8(given["s_w"]),
            quint8(given["s_x"]),
            np.array([given["bias"]], np.float32),
            quint8(1.0),
            int_bias=given["int_bias"],
        )


def test_a_dead_channel_beside_others_gives_its_bias():
    """Its scale times that of the data is below the normal numbers, as in networks with dead channels."""
    scales = np.float32([0.1, 1e-30])
    given = epilogue(
        "layer",
        np.full((2, 8), 127, np.int8),
        quantized("qint8", scales, 0, 0),
        quint8(1e-10),
        np.float32([3.0, 5.0]),
        quint8(1.0),
        int_bias=False,
    )
    assert given.M[0] == np.float32(1e-11) and given.M[1] == np.finfo(np.float32).tiny
    largest = np.float64(2**31) * given.M[1] + given.B[1]  # of any accumulator
    assert largest == 5.0


def test_weight_that_is_not_finite():
    with pytest.raises(QuantizationError, match="conv7: its weight holds NaN or infinity"):
        quantize_weight("conv7", np.array([[1.0, np.nan]], np.float32), Weight(0, "mse"))


def test_progress_is_reported():
    b, graph = residual_net()
    seen = []
    quantize_model(graph, b.data(3), progress=lambda *a: seen.append(a))
    assert seen == [("calibrate", i, 3) for i in (1, 2, 3)]


def test_analysis_and_report_are_json():
    b, graph = residual_net()
    model = quantize_model(graph, b.data())
    result = model.analyze(b.data(2, seed=9))
    assert [e.name for e in result.edges] == [
        e.inputs[0].name for e in model.qdq_graph.exprs() if isinstance(e, Apply) and e.op == "quantize"
    ]
    assert all(e.sqnr_db > 10 and 0 <= e.cut < 0.2 for e in result.edges)
    assert result.worst(1)[0].sqnr_db == min(e.sqnr_db for e in result.edges)
    json.dumps(result.to_json(), allow_nan=False)
    json.dumps(dataclasses.asdict(model.report))


def test_integer_edges_have_quantized_dtypes():
    b, graph = concat_net()
    model = quantize_model(graph, b.data())
    for expr in model.integer_graph.exprs():
        if isinstance(expr, Apply) and expr.op in ("qconv2d", "concat", "max_pool2d") and expr.name != "pool_int":
            assert isinstance(expr.outputs[0].spec.dtype, QuantizedDType)
            assert expr.meta.get("module", "").startswith("net.")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gamma", [1.0, 0.0, -2.0])
def test_batch_norm_is_folded(bias, gamma):
    b = Builder()
    y = b.conv(b.x, 4, bias=bias, label="layer")
    numbers = [b.constant((4,)), b.constant((4,)), b.g.constant(np.array([0.5, 1, 2, 3], np.float32))]
    scale = b.g.constant(np.full(4, gamma, np.float32))
    graph = b.done(b.relu(b.op("batch_norm", y, scale, *numbers, eps=1e-5), label="act"))
    canonical = canonicalize(graph)
    assert ops(canonical) == ["conv2d", "relu"]
    x = b.data(1)[0]
    np.testing.assert_allclose(run(canonical, x)[0], run(graph, x)[0], rtol=1e-4, atol=1e-5)


def test_batch_norm_of_a_convolution_read_twice_is_not_folded():
    b = Builder()
    y = b.conv(b.x, 4, label="layer")
    one = [b.g.constant(np.ones(4, np.float32)) for _ in range(4)]
    graph = b.done(b.op("batch_norm", y, *one, eps=1e-5), b.relu(y))
    assert ops(canonicalize(graph)).count("conv2d") == 2
    x = b.data(1)[0]
    for want, got in zip(run(graph, x), run(canonicalize(graph), x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_bias_added_after_a_grouped_convolution_with_reshaped_weight():
    b = Builder(shape=(1, 4, 5, 5))
    w = b.op("reshape", b.constant((2, 3, 2, 1, 1)), shape=(6, 2, 1, 1))
    attrs = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 2}
    y = b.op("conv2d", b.x, w, label="layer", **attrs)
    graph = b.done(b.op("add", y, b.constant((1, 6, 1, 1)), label="biased"))
    canonical = canonicalize(graph)
    assert ops(canonical) == ["conv2d"]
    x = b.data(1)[0]
    np.testing.assert_allclose(run(canonical, x)[0], run(graph, x)[0], rtol=1e-5, atol=1e-6)


def test_memory_does_not_grow_with_the_data():
    b = Builder(shape=(4, 3, 32, 32))
    graph = b.done(b.relu(b.conv(b.x, 8, label="layer"), label="act"))

    def peak(count):
        class Stream:
            def __iter__(self):
                rng = np.random.default_rng(0)
                return (rng.normal(size=b.x.shape).astype(np.float32) for _ in range(count))

        tracemalloc.start()
        quantize_model(graph, Stream())
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(2)
    assert peak(40) < peak(SAMPLES) * 1.2


def test_split_moves_integers():
    b = Builder()
    x = b.relu(b.conv(b.x, 7, label="stem"), label="stem_act")
    left, right = b.op("split", x, sections=(3, 4), axis=-3, label="halves")
    both = b.op("concat", b.relu(b.conv(left, 4, label="left"), label="left_act"), right, axis=1, label="both")
    graph = b.done(b.conv(both, 5, 1, label="last"))
    model = quantize_model(graph, b.data())
    assert model.report.floating == ()
    assert "split" not in {e.op for e in model.integer_graph.exprs() if hasattr(e, "op")}
    x = b.data(1, seed=7)[0]
    assert sqnr(run(graph, x)[0], run(model.integer_graph, x)[0]) > 20
