"""Reductions, pictures in other sizes, functions with constants a channel, choices: integers, exact in every run."""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.traced_module import trace_module
from megengine.traced_module.ir.expr import Apply
from tests.helpers.quant_nets import Builder, checked, ops, sqnr


class Between(M.Module):
    """A function of values between two layers."""

    def __init__(self, function, channels):
        super().__init__()
        self.function = function
        self.first, self.last = M.Conv2d(3, 6, 3, padding=1), M.Conv2d(channels, 4, 1)
        self.slope = mge.Parameter(np.linspace(-0.2, 0.6, 6, dtype=np.float32))
        self.chosen = mge.tensor(np.arange(48).reshape(8, 6) % 3 > 0)

    def forward(self, x):
        return self.last(self.function(self, self.first(x)))


def largest(y):
    return F.concat([F.max(y, axis=1, keepdims=True), F.min(y, axis=1, keepdims=True), y], axis=1)


CASES = {  # function, channels of its result, integer ops between the layers
    "max": (lambda net, y: largest(y), 8, {"max", "min", "concat"}),
    "max-over-pictures": (lambda net, y: y + F.max(y, axis=(2, 3), keepdims=True), 6, {"max", "qadd"}),
    "sum": (lambda net, y: F.sum(y, axis=3, keepdims=True) * 0.1 + y, 6, {"qsum", "qadd", "qtable"}),
    "bilinear": (lambda net, y: F.vision.interpolate(y, (13, 11)), 6, {"resize"}),
    "corners": (lambda net, y: F.vision.interpolate(y, (4, 9), align_corners=True), 6, {"resize"}),
    "nearest": (lambda net, y: F.vision.interpolate(y, scale_factor=2.0, mode="nearest"), 6, {"resize"}),
    "bicubic": (lambda net, y: F.vision.interpolate(y, (10, 10), mode="bicubic"), 6, {"resize"}),
    "prelu": (lambda net, y: F.prelu(y, net.slope), 6, {"qtable"}),
    "spelled-elu": (lambda net, y: F.where(y > 0, y, F.exp(F.minimum(y, 0)) - 1), 6, {"qtable"}),
    "hard-choice": (lambda net, y: F.where(F.abs(y) < 0.3, y * 0.0, y), 6, {"qtable"}),
    "neg": (lambda net, y: F.concat([-y, y], 1), 12, {"qtable", "concat"}),
    "abs": (lambda net, y: F.abs(y), 6, {"qtable"}),
    "softplus": (lambda net, y: F.softplus(y), 6, {"qtable"}),
    "pixel-shuffle": (lambda net, y: F.pixel_shuffle(F.concat([y, y], 1), 2), 3, {"concat", "reshape", "transpose"}),
    "pad-with-value": (lambda net, y: F.nn.pad(y, ((0, 0), (0, 0), (1, 1), (2, 0)), constant_value=0.3), 6, {"pad"}),
    "choice": (lambda net, y: F.where(net.chosen, y, net.slope.reshape(1, 6, 1, 1)), 6, {"where"}),
}


def pictures(count=3):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 3, 8, 6)).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("case", CASES)
def test_between_two_layers(case):
    function, channels, expected = CASES[case]
    net, xs = Between(function, channels), pictures()
    net.eval()
    model = quantize_model(trace_module(net, mge.tensor(xs[0])), xs)
    assert expected <= set(ops(model.integer_graph)) <= expected | {"quantize", "qconv2d", "requantize", "reshape"}
    assert not model.report.floating
    result = verify(model, xs[:1])
    assert result.exact and result.float_largest <= 1, result
    want = net(mge.tensor(xs[0])).numpy()
    assert sqnr(want, model(mge.tensor(xs[0])).numpy()) > 20


def enlarged(y):
    return F.vision.interpolate(y, (19, 17))


ENDS = {  # functions of what a layer reads and of its result; the network ends there
    "logits": lambda y, z: enlarged(z),
    "clamped": lambda y, z: enlarged(F.relu(z)),
    "clamped-behind": lambda y, z: F.relu(enlarged(z)),
    "sum": lambda y, z: enlarged(y + z),
    "pooled": lambda y, z: enlarged(F.avg_pool2d(y, 2, 2)),
    "twice": lambda y, z: F.vision.interpolate(enlarged(z), (30, 30)),
    "laid-out": lambda y, z: enlarged(z).reshape(2, 6, -1),
    "joined": lambda y, z: F.concat([enlarged(y), enlarged(z)], 1),
    "chosen": lambda y, z: F.argmax(enlarged(z), 1),
}


class Ending(M.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.first, self.last = M.Conv2d(3, 6, 3, padding=1), M.Conv2d(6, 6, 1)

    def forward(self, x):
        y = F.relu(self.first(x))
        return self.function(y, self.last(y))


@pytest.mark.parametrize("end", ENDS)
def test_pictures_in_other_sizes_at_the_end_of_a_network_are_float(end):
    net, xs = Ending(ENDS[end]), pictures()
    net.eval()
    model = quantize_model(trace_module(net, mge.tensor(xs[0])), xs)
    made = [e for e in model.integer_graph.exprs() if isinstance(e, Apply) and e.op == "resize"]
    assert made and all(e.inputs[0].dtype == e.output.dtype == np.float32 for e in made)
    assert ops(model.integer_graph).count("quantize") == 1
    assert verify(model, xs[:1]).exact


@pytest.mark.parametrize("function", ["sigmoid", "tanh", "gelu"])
def test_a_function_that_ends_a_network_is_not_rounded(function):
    """Probabilities near 0 are no multiples of 1/256; the layer before gives floats."""
    b = Builder()
    graph = b.done(b.op(function, b.conv(b.relu(b.conv(b.x, 8)), 4), label="end"))
    model = quantize_model(graph, b.data())
    assert not {"qtable", "dequantize"} & set(ops(model.integer_graph))
    assert verify(model, b.data(2, seed=5), threads=(1,)).exact
    stored = quantize_model(graph, b.data(), QuantConfig(profile="tflite"))
    assert "qtable" in ops(stored.integer_graph)


@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["mean", "sum"])
def test_a_total_over_pictures_that_ends_a_network_is_not_rounded(name, keepdims, precision):
    b = Builder()
    y = b.op(name, b.conv(b.relu(b.conv(b.x, 6)), 4, 1), axis=(2, 3), keepdims=keepdims, label="total")
    model = checked(b, b.done(y), least=25, config=QuantConfig(precision=precision))
    assert ops(model.integer_graph)[-1] == ("qconv2d" if keepdims else "reshape")


@pytest.mark.parametrize("layers", [("conv", "rows"), ("rows", "conv")])
def test_a_value_whose_readers_sum_along_different_axes(layers):
    """A convolution and a product along W: the means of the value are known along one axis alone."""
    b = Builder((2, 3, 8, 8))
    made = {
        "conv": lambda: b.conv(b.x, 4, label="conv"),
        "rows": lambda: b.op("matmul", b.x, b.constant((8, 6)), transpose_a=False, transpose_b=False, label="rows"),
    }
    checked(b, b.done(*(made[name]() for name in layers)), least=30)


def test_a_small_factor_before_a_border_leaves_the_integers_that_there_are():
    """1e-4 * x + 3 is 1e-4 * (x + 30000), of which all other channels would have a step of hundreds: 0 dB."""
    b = Builder((2, 3, 8, 8))
    factors, added = (b.g.constant(np.float32(v).reshape(3, 1, 1)) for v in ([1, 1e-4, 2], [3, 3, 2]))
    checked(b, b.done(b.conv(b.op("add", b.op("mul", b.x, factors), added), 4)), least=35)
