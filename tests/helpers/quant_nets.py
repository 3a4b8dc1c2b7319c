"""Small float graphs for the tests of quantization."""

import numpy as np

from megengine.core.spec import TensorSpec
from megengine.quantization import quantize_model, verify
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph

F32 = np.dtype(np.float32)


def run(graph, x):
    return [t.numpy() for t in interpret(graph, [Tensor(x)])]


def ops(graph):
    return [e.op for e in graph.exprs() if isinstance(e, Apply)]


def sqnr(exact, got):
    noise = float(np.square(exact.astype(np.float64) - got).sum())
    return 10 * np.log10(float(np.square(exact, dtype=np.float64).sum()) / noise) if noise else np.inf


def checked(b, graph, *, least, config=None):
    """The network quantized on data of its builder: near the float one, and exactly its specification."""
    model = quantize_model(graph, b.data(), config)
    x = b.data(1, seed=9)[0]
    assert sqnr(run(graph, x)[0], run(model.integer_graph, x)[0]) > least
    result = verify(model, [x])
    assert result.exact, result
    assert result.float_largest <= 1
    return model


class Builder:
    """Adds layers with random weights to a graph."""

    def __init__(self, shape=(2, 3, 8, 8), seed=0):
        self.rng = np.random.default_rng(seed)
        self.g = InternalGraph("net")
        self.x = add_input(self.g, "x", TensorSpec(shape, F32))

    def constant(self, shape, scale=0.5):
        return self.g.constant(self.rng.normal(size=shape).astype(np.float32) * np.float32(scale))

    def op(self, name, *inputs, label="", **attrs):
        return self.g.apply(name, *inputs, attrs=attrs, name=label, meta={"module": f"net.{label or name}"})

    def conv(self, x, channels, kernel=3, *, stride=1, groups=1, bias=True, label="conv"):
        pad = ((kernel // 2, kernel // 2),) * 2
        w = self.constant((channels, x.shape[1] // groups, kernel, kernel))
        more = [self.constant((channels,))] if bias else []
        attrs = {"stride": (stride, stride), "padding": pad, "dilation": (1, 1), "groups": groups}
        return self.op("conv2d", x, w, *more, label=label, **attrs)

    def transposed(self, x, channels, kernel=3, *, stride=2, pad=((1, 1), (1, 1)), extra=0, groups=1, label="up"):
        w = self.constant((x.shape[1], channels // groups, kernel, kernel))
        attrs = {"stride": (stride, stride), "padding": pad, "dilation": (1, 1), "groups": groups}
        attrs["output_padding"] = (extra, extra)
        return self.op("conv_transpose2d", x, w, self.constant((channels,)), label=label, **attrs)

    def relu(self, x, label="relu"):
        return self.op("relu", x, label=label)

    def linear(self, x, features, label="fc"):
        y = self.op("matmul", x, self.constant((features, x.shape[1])), transpose_a=False, transpose_b=True)
        return self.op("add", y, self.constant((features,)), label=label)

    def done(self, *outputs):
        set_outputs(self.g, outputs)
        self.g.lint()
        return self.g

    def data(self, count=4, seed=1):
        rng = np.random.default_rng(seed)
        return [rng.normal(size=self.x.shape).astype(np.float32) for _ in range(count)]


def residual_net():
    """Stem, a bottleneck with a residual, pooling, a classifier: float logits."""
    b = Builder()
    x = b.op("relu6", b.conv(b.x, 8, stride=2, label="stem"), label="stem_act")
    y = b.op("relu6", b.conv(x, 8, groups=8, label="dw"), label="dw_act")
    y = b.conv(y, 8, 1, label="project")
    x = b.op("add", x, y, label="sum")
    x = b.relu(b.conv(x, 16, 1, label="head"), label="head_act")
    x = b.op("mean", x, axis=(2, 3), keepdims=False, label="pool")
    return b, b.done(b.linear(x, 10, label="logits"))


def concat_net():
    """Max pooling, two branches that are concatenated, a mean at the end."""
    b = Builder()
    window = {"kernel": (2, 2), "stride": (2, 2), "padding": ((0, 0), (0, 0))}
    x = b.op("max_pool2d", b.relu(b.conv(b.x, 6, label="stem"), label="stem_act"), label="down", **window)
    left = b.relu(b.conv(x, 4, 1, label="left"), label="left_act")
    right = b.relu(b.conv(x, 4, 3, label="right"), label="right_act")
    x = b.op("concat", left, right, axis=1, label="both")
    x = b.relu(b.conv(x, 5, 1, label="last"), label="last_act")
    return b, b.done(b.op("mean", x, axis=(2, 3), keepdims=False, label="pool"))


def transposed_net():
    """Down and up again: transposed convolutions with groups, one-sided padding, and cuts; float result."""
    b = Builder()
    x = b.relu(b.conv(b.x, 6, stride=2, label="down"), label="down_act")
    x = b.relu(b.transposed(x, 4, extra=1), label="up_act")
    x = b.transposed(x, 6, 2, stride=3, pad=((0, 1), (0, 0)), groups=2, label="up_groups")
    x = b.relu(b.transposed(x, 5, 1, stride=1, pad=((1, 0), (0, 2)), label="cut"), label="cut_act")
    return b, b.done(b.transposed(x, 3, 2, stride=2, pad=((0, 0), (0, 0)), label="picture"))


def signed_net():
    """A transposed convolution of values around zero: what stands between them, and around them, is the zero point."""
    b = Builder()
    x = b.conv(b.x, 6, stride=2, label="down")
    return b, b.done(b.transposed(x, 3, 2, stride=2, pad=((0, 0), (0, 0)), label="picture"))


def gated_net():
    """Squeeze-and-excitation blocks: activations, gates and a hard swish spelled out in elementary operations."""
    b = Builder()
    x = b.op("silu", b.conv(b.x, 8, label="stem"), label="stem_act")
    x = b.op("mul", x, _gate(b, x, "sigmoid", "first"), label="first_gated")
    y = b.conv(x, 8, groups=8, label="dw")
    ramp = b.op("relu6", b.op("add", y, b.g.constant(np.float32(3))))
    y = b.op("div", b.op("mul", y, ramp), b.g.constant(np.float32(6)), label="dw_act")
    y = b.op("mul", _gate(b, y, "hsigmoid", "second"), y, label="second_gated")
    y = b.op("add", x, b.conv(y, 8, 1, label="project"), label="sum")
    return b, b.done(b.conv(y, 4, 1, label="head"))


def _gate(b, x, activation, label):
    y = b.op("mean", x, axis=(2, 3), keepdims=True, label=f"{label}_pool")
    y = b.relu(b.conv(y, 4, 1, label=f"{label}_down"), label=f"{label}_down_act")
    return b.op(activation, b.conv(y, x.shape[1], 1, label=f"{label}_up"), label=f"{label}_gate")


_ACTIVATIONS = ("relu", "relu6", "silu", "sigmoid", "hsigmoid", "tanh", "relu")


def drawn_net(seed):
    """A random network: layers with and without batch norm, activations, sums, products, concatenations, pools."""
    b = Builder(shape=(2, 3, 8, 8), seed=seed)
    pick = np.random.default_rng([seed, 7])
    values = [_drawn_layer(b, pick, b.x)]
    for _ in range(pick.integers(2, 7)):
        x = values[pick.integers(len(values))]
        values.append(_DRAWN[pick.integers(len(_DRAWN))](b, pick, x, values))
    y = values[-1]
    if pick.integers(2):
        y = b.op("mean", y, axis=(2, 3), keepdims=False)
        y = b.linear(y, 5) if pick.integers(2) else y
    return b, b.done(y, *([values[-2]] if pick.integers(4) == 0 else []))


def _drawn_layer(b, pick, x, values=()):
    channels = int(pick.choice([4, 6]))
    kind = pick.integers(5)
    if kind == 0:
        x = b.conv(x, x.shape[1], groups=x.shape[1])
    elif kind == 1 and x.shape[2] < 16:
        x = b.transposed(x, channels, 2, stride=2, pad=((0, 0), (0, 0)))
    else:
        window, stride = int(pick.choice([1, 3])), int(pick.choice([1, 1, 2]))
        x = b.conv(x, channels, window, stride=stride, bias=bool(pick.integers(2)))
    if pick.integers(2):
        c = (x.shape[1],)
        spread = b.g.constant(np.square(b.rng.normal(size=c)).astype(np.float32) + np.float32(0.3))
        x = b.op("batch_norm", x, b.constant(c, 1.0), b.constant(c), b.constant(c), spread, eps=1e-5)
    return b.op(str(pick.choice(_ACTIVATIONS)), x) if pick.integers(3) else x


def _drawn_pair(b, pick, x, values):
    same = [v for v in values if v.shape == x.shape]
    return b.op(str(pick.choice(["add", "add", "mul", "maximum"])), x, same[pick.integers(len(same))])


def _drawn_concat(b, pick, x, values):
    same = [v for v in values if v.shape[0] == x.shape[0] and v.shape[2:] == x.shape[2:]]
    return b.op("concat", x, same[pick.integers(len(same))], axis=1)


def _drawn_pool(b, pick, x, values):
    if x.shape[2] < 4:
        return b.op(str(pick.choice(_ACTIVATIONS)), x)
    window = {"kernel": (2, 2), "stride": (2, 2), "padding": ((0, 0), (0, 0))}
    return b.op("max_pool2d", x, **window)


_DRAWN = (_drawn_layer, _drawn_layer, _drawn_layer, _drawn_pair, _drawn_pair, _drawn_concat, _drawn_pool)
