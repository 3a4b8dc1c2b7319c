"""Weights that are rounded together, and layers that are equalized, against exhaustive search and the float network."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quant_nets import Builder, gated_net, residual_net, transposed_net

from megengine import plan
from megengine.core.errors import CalibrationError, OptionError
from megengine.quantization import QuantConfig, RangeMethod, quantize_model, requantize
from megengine.quantization.pipeline import equalize, gptq, moments, refine
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.quantization.pipeline.equalize import equalized
from megengine.traced_module import interpret
from megengine.traced_module.ir.expr import Apply, Constant

BALANCED = QuantConfig.of("balanced")


def covariance(rng, width, groups=1):
    x = rng.normal(size=(groups, 3 * width, width)) @ rng.normal(size=(groups, width, width))
    return np.einsum("gni,gnj->gij", x, x) / (3 * width)


def error(integers, steps, c):
    e = integers - steps
    return np.einsum("gri,gij,grj->gr", e, c, e)


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_no_row_is_worse_than_nearest_and_most_are_close_to_the_best(seed, width):
    rng = np.random.default_rng(seed)
    c, steps = covariance(rng, width), rng.uniform(-3, 3, (1, 4, width))
    nearest = np.rint(steps)
    damped = c + gptq.DAMPING * np.trace(c[0]) / width * np.eye(width)
    chosen = gptq.round_together(steps, damped, -3, 3, nearest)
    assert (error(chosen, steps, damped) <= error(nearest, steps, damped) * (1 + 1e-9)).all()
    grid = np.array(list(itertools.product((0, 1), repeat=width)))
    around = np.floor(steps)[:, :, None] + grid
    best = np.min([error(np.clip(around[:, :, i], -3, 3), steps, damped) for i in range(len(grid))], axis=0)
    assert error(chosen, steps, damped).mean() <= 4 * best.mean() + 1e-12


def test_many_columns_are_rounded_block_by_block(monkeypatch):
    rng = np.random.default_rng(0)
    c, steps = covariance(rng, 40, groups=3), rng.uniform(-9, 9, (3, 5, 40))
    whole = gptq.round_together(steps, c, -127, 127, np.rint(steps))
    monkeypatch.setattr(gptq, "BLOCK", 7)
    np.testing.assert_array_equal(gptq.round_together(steps, c, -127, 127, np.rint(steps)), whole)
    assert error(whole, steps, c).sum() < 0.5 * error(np.rint(steps), steps, c).sum()


def test_inputs_that_never_change_leave_the_nearest_integers():
    steps = np.random.default_rng(0).uniform(-9, 9, (1, 3, 4))
    c = gptq.damped(np.zeros((1, 4, 4)), gptq.DAMPING)
    np.testing.assert_array_equal(gptq.round_together(steps, c, -127, 127, np.rint(steps)), np.rint(steps))


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_are_what_the_weight_meets(groups, stride):
    b = Builder((2, 4, 7, 6))
    y = b.conv(b.x, 8, stride=stride, groups=groups)
    layer = b.done(y).outputs[0].expr
    x = np.random.default_rng(1).integers(-9, 9, (2, 4, 7, 6)).astype(np.float32)
    windows = moments.windows_of(layer, x, 0.0)
    weight = layer.inputs[1].expr.value.numpy().reshape(groups, 8 // groups, -1)
    products = np.einsum("gnk,gok->ngo", windows, weight).reshape(-1, 8) + layer.inputs[2].expr.value.numpy()
    (expected,) = interpret(b.g, [x])
    np.testing.assert_allclose(products, expected.numpy().transpose(0, 2, 3, 1).reshape(-1, 8), rtol=1e-4, atol=1e-4)


def test_products_are_exact_sums_of_integers():
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (2, 2100, 9)).astype(np.float32)
    products = moments.Products(2, 9)
    products.update(x[:, :1200])
    products.update(x[:, 1200:])
    products.add()
    exact = x.astype(np.int64)
    np.testing.assert_array_equal(products.products, np.einsum("gni,gnj->gij", exact, exact))
    np.testing.assert_array_equal(products.sums, exact.sum(1))


def test_a_shift_of_the_integers_changes_no_covariance():
    _, g = residual_net()
    edge = next(e for e in g.exprs() if getattr(e, "op", "") == "conv2d")
    for zero in (0.0, -128.0):
        x = np.random.default_rng(1).integers(0, 128, edge.inputs[0].shape).astype(np.float32)
        products = moments.Products(*moments.groups_and_width(edge))
        products.update(moments.windows_of(edge, x + np.float32(zero), zero))
        if not zero:
            plain = products.covariance
    np.testing.assert_allclose(products.covariance, plain, rtol=1e-9)


def output_error(model, data):
    graphs = plan.compile(model.float_graph), plan.compile(model.integer_graph)
    return np.mean([np.square(np.subtract(*(np.asarray(g(x)[0]) for g in graphs))).mean() for x in data])


@pytest.mark.parametrize("weights", ["per_channel", "per_tensor"])
@pytest.mark.parametrize("net", [residual_net, gated_net, transposed_net])
def test_networks_with_every_setting_become_integers(net, weights):
    b, g = net()
    data = b.data(6)
    plain = quantize_model(g, data, QuantConfig(weights=weights, activations=RangeMethod("mse")))
    balanced = quantize_model(g, data, BALANCED.changed(weights=weights))
    assert balanced.report.integer_layers == plain.report.integer_layers
    assert output_error(balanced, data) < 1.3 * output_error(plain, data)  # random weights have little to gain


def test_any_order_and_size_of_batches_gives_the_same_integers():
    b, g = residual_net()
    data = b.data(6)
    config = QuantConfig(rounding="gptq")
    first = quantize_model(g, data, config)
    second = quantize_model(g, [data[i] for i in (3, 0, 5, 1, 4, 2)], config)
    for name, weight in first.frozen.weights.items():
        np.testing.assert_array_equal(weight.values, second.frozen.weights[name].values)


def test_products_beyond_the_budget_are_read_in_parts(monkeypatch):
    b, g = residual_net()
    data, stages = b.data(3), []
    whole = quantize_model(g, data, QuantConfig(rounding="gptq"))
    monkeypatch.setattr(moments, "BUDGET", 1)
    parts = quantize_model(g, data, QuantConfig(rounding="gptq"), progress=lambda stage, *_: stages.append(stage))
    assert stages.count("rounding") == 3 * len(parts.frozen.weights)
    for name, weight in whole.frozen.weights.items():
        np.testing.assert_array_equal(weight.values, parts.frozen.weights[name].values)


def uneven_conv(b, channels=8, scale=1.0):
    """A convolution whose channels have very different ranges."""
    spread = np.geomspace(0.005, 1, channels, dtype=np.float32) * np.float32(scale)
    w, bias = (
        b.g.constant(b.rng.normal(size=(channels, *rest)).astype(np.float32) * spread.reshape(-1, *(1,) * len(rest)))
        for rest in ((3, 3, 3), ())
    )
    attrs = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    return b.op("conv2d", b.x, w, bias, label="first", **attrs)


def uneven_net(act="relu6", groups=1, scale=1.0):
    """Two convolutions between which channels have very different ranges."""
    b = Builder((2, 3, 8, 8))
    y = uneven_conv(b, scale=scale)
    y = b.op(act, y, label="act") if act else y
    y = b.conv(y, 8, groups=groups, label="second")
    return b, b.done(y)


@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("act", ["relu", "relu6", ""])
@pytest.mark.parametrize("per_channel", [True, False])
def test_equalized_networks_compute_what_they_did(act, groups, per_channel, monkeypatch):
    monkeypatch.setattr(equalize, "GAIN", 1.0)  # the least gain is enough
    b, g = uneven_net(act, groups)
    config = QuantConfig(weights="per_channel" if per_channel else "per_tensor")
    model = quantize_model(g, b.data(8), config)
    even, changed = equalized(model.float_graph, model.stats, model.annotation)
    assert changed == 1
    for x in b.data(8):
        (expected,), (value,) = interpret(model.float_graph, [x]), interpret(even, [x])
        np.testing.assert_allclose(value.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)
    noise = [output_error(quantize_model(net, b.data(8), config), b.data(8)) for net in (g, even)]
    assert noise[1] < (1.0 if act == "relu6" else 0.7) * noise[0]


def test_channels_that_reach_the_limit_of_relu6_are_left(monkeypatch):
    monkeypatch.setattr(equalize, "GAIN", 1.0)
    b, g = uneven_net("relu6", scale=40.0)
    model = quantize_model(g, b.data(8), QuantConfig())
    even, _ = equalized(model.float_graph, model.stats, model.annotation)
    before, after = (
        next(e for e in net.exprs() if isinstance(e, Apply)).inputs[1].expr.value.numpy()
        for net in (model.float_graph, even)
    )
    largest = model.stats["act"].channel_maximum
    factors = np.abs(after).max((1, 2, 3)) / np.abs(before).max((1, 2, 3))
    assert (factors[largest == 6] == 1).all() and (largest == 6).any()
    assert (factors >= 1 - 1e-6).all() and (factors * largest <= 6).all()


def test_layers_with_other_readers_are_not_equalized():
    b = Builder((2, 3, 8, 8))
    y = b.conv(b.x, 8, label="first")
    g = b.done(b.conv(y, 8, label="second"), y)
    model = quantize_model(g, b.data(2), QuantConfig())
    assert equalized(model.float_graph, model.stats, model.annotation)[1] == 0


def test_a_value_read_by_two_layers_is_equalized_for_both():
    b = Builder((2, 3, 8, 8))
    y = b.relu(uneven_conv(b))
    g = b.done(b.conv(y, 8, label="second"), b.conv(y, 4, 1, label="third"))
    model = quantize_model(g, b.data(4), QuantConfig())
    even, changed = equalized(model.float_graph, model.stats, model.annotation)
    assert changed == 1
    for x in b.data(3):
        for expected, got in zip(interpret(model.float_graph, [x]), interpret(even, [x]), strict=True):
            np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)


def stage_net(act="", other=None):
    """A stage of residuals: two layers make values that a sum ties, with channels of very different ranges."""
    b = Builder((2, 3, 8, 8))
    x = uneven_conv(b)
    y = b.conv(b.relu(b.conv(x, 16, 1, label="up")), 8, 1, label="down")
    y = b.op("mul", y, b.g.constant(np.geomspace(0.002, 0.2, 8, dtype=np.float32).reshape(1, 8, 1, 1)))
    y = b.op("add", x, y if other is None else other(b, x, y), label="sum")
    y = b.op(act, y, label="act") if act else y
    return b, b.done(b.conv(b.relu(b.conv(y, 16, 1, label="second")), 4, 1, label="last"))


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("act", ["", "relu", "relu6"])
def test_residuals_are_equalized_with_all_layers_of_their_stage(act, per_channel, monkeypatch):
    monkeypatch.setattr(equalize, "GAIN", 1.0)
    b, g = stage_net(act)
    config = QuantConfig(weights="per_channel" if per_channel else "per_tensor")
    model = quantize_model(g, b.data(8), config)
    even, changed = equalized(model.float_graph, model.stats, model.annotation)
    assert changed
    factors = [weight_of(even, name) / weight_of(model.float_graph, name) for name in ("first", "up", "second")]
    wrote, *read = factors[0][:, 0, 0, 0], *(f[0, :, 0, 0] / f[0, 0, 0, 0] for f in factors[1:])
    assert np.ptp(wrote) > 1
    for one in read:  # up to factors of the layers' own channels
        np.testing.assert_allclose(one * wrote / wrote[0], 1, rtol=1e-4)
    for x in b.data(8):
        (expected,), (value,) = interpret(model.float_graph, [x]), interpret(even, [x])
        np.testing.assert_allclose(value.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)
    noise = [output_error(quantize_model(net, b.data(8), config), b.data(8)) for net in (g, even)]
    assert noise[1] < (1.0 if act == "relu6" else 0.5) * noise[0]


@pytest.mark.parametrize(("precision", "pays"), [("w8a8", True), ("w8a16", False), ("w4a16", False), ("w8", False)])
def test_factors_that_help_values_of_8_bits_only_are_left_where_they_have_more(precision, pays):
    b, g = stage_net()
    config = QuantConfig(precision=precision)
    model = quantize_model(g, b.data(8), config)
    even, changed = equalized(model.float_graph, model.stats, model.annotation)
    assert bool(changed) == pays
    noise = [output_error(quantize_model(net, b.data(8), config), b.data(8)) for net in (g, even)]
    assert noise[1] <= noise[0]


def weight_of(graph, name):
    return next(e for e in graph.exprs() if e.outputs[0].name == name).inputs[1].expr.value.numpy()


@pytest.mark.parametrize(
    "other",
    [
        lambda b, x, y: b.op("sigmoid", y),  # no factor passes
        lambda b, x, y: b.op("mean", y, axis=(2, 3), keepdims=True),  # another shape
        lambda b, x, y: b.constant(x.shape),
        lambda b, x, y: b.conv(x, 8, groups=2),  # a reader that mixes some channels
    ],
)
def test_residuals_of_other_values_are_not_equalized(other):
    b, g = stage_net(other=other)
    model = quantize_model(g, b.data(4))
    even, _ = equalized(model.float_graph, model.stats, model.annotation)
    np.testing.assert_array_equal(weight_of(even, "first"), weight_of(model.float_graph, "first"))


def test_settings_that_read_data_twice_say_so():
    b, g = residual_net()
    once = iter(b.data(2))
    with pytest.raises(CalibrationError, match="gptq reads the data a second time"):
        quantize_model(g, once, QuantConfig(rounding="gptq", bias_correction=False))
    with pytest.raises(CalibrationError, match="equalization reads the data a second time"):
        quantize_model(g, iter(b.data(2)), BALANCED)
    model = quantize_model(g, b.data(2))
    with pytest.raises(CalibrationError, match="requantize: gptq needs data"):
        requantize(model, QuantConfig(rounding="gptq"))


def test_efforts_are_settings_by_name():
    assert QuantConfig.of("fast") == QuantConfig()
    assert QuantConfig.of("balanced", rounding="nearest").equalize
    with pytest.raises(OptionError, match="effort: expected one of fast, balanced, best, got 'balance'; did you mean"):
        QuantConfig.of("balance")
    with pytest.raises(OptionError, match="rounding: expected one of nearest, gptq, gptaq, adaround, got 'adarond'"):
        QuantConfig(rounding="adarond")


def test_canonical_graphs_are_not_changed():
    b, g = uneven_net()
    graph = canonicalize(g)
    model = quantize_model(g, b.data(4), BALANCED)
    (expected,), (value,) = interpret(graph, [b.data(1)[0]]), interpret(model.float_graph, [b.data(1)[0]])
    np.testing.assert_allclose(value.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)


def test_fitted_scales_leave_less_error_in_every_row():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(1, 400, 12)) @ rng.normal(size=(12, 12))
    covariance = np.matmul(inputs.transpose(0, 2, 1), inputs) / 400
    steps = rng.normal(size=(1, 6, 12)) * 4
    start = np.clip(np.rint(steps), -8, 7)
    found, factors = gptq.scales_fitted(steps, start, covariance, -8, 7)

    def error(integers, scales):
        e = integers * scales[None, :, None] - steps
        return np.einsum("gri,gij,grj->r", e, covariance, e)

    before, after = error(start, np.ones(6)), error(found, factors)
    assert np.all(after < before)
    assert found.min() >= -8
    assert found.max() <= 7


def test_products_are_those_of_the_network_with_float_weights(monkeypatch):
    b, g = residual_net()
    seen = []
    real = refine.observe_products
    monkeypatch.setattr(
        refine, "observe_products", lambda layers, qdq, *a, **k: seen.append(qdq) or real(layers, qdq, *a, **k)
    )
    quantize_model(g, b.data(3), QuantConfig(rounding="gptq", precision="w4a8"))
    (graph,) = seen
    assert {e.op for e in graph.exprs() if getattr(e, "op", None)} >= {"quantize", "dequantize"}
    assert all(e.value.dtype == np.float32 for e in graph.exprs() if isinstance(e, Constant))
