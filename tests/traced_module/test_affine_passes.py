"""Constant arithmetic beside layers becomes part of them; what does nothing is left out. Measured against float64."""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError
from megengine.core.spec import TensorSpec
from megengine.plan import compile as compile_plan
from megengine.tensor import tensor
from megengine.traced_module import interpret, lower, record, trace_module
from megengine.traced_module.passes import run_passes

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 255, (2, 4, 9, 8)).astype(np.float32)
ROWS = RNG.standard_normal((3, 4)).astype(np.float32)
MEAN, STD = (np.reshape(v, (1, 4, 1, 1)).astype(np.float32) for v in ([124, 117, 104, 90], [58, 57, 55.5, 60]))
GAIN = np.linspace(0.6, -2, 6).reshape(1, 6, 1, 1).astype(np.float32)


def drawn(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape)


def conv(x, w, *b, **attrs):
    return F.conv2d(x, cast(w), *[cast(v.reshape(1, -1, 1, 1)) for v in b], **attrs)


def cast(value):
    return tensor(np.asarray(value, np.float32))


W, B, GROUPED, LINEAR = drawn(6, 4, 3, 3), drawn(6), drawn(2, 3, 2, 3, 3), drawn(4, 5)
UP = drawn(4, 6, 3, 3)

# what is computed, its input, ops that are left
FOLDED = {
    "a factor and an addition behind": (lambda x: conv(x, W) * 3 + 1, X, ["conv2d"]),
    "by channels": (lambda x: (conv(x, W, B, padding=1) - cast(GAIN)) * cast(GAIN) / 2, X, ["conv2d"]),
    "turned around": (lambda x: 1 - conv(x, W, B), X, ["conv2d"]),
    "negated": (lambda x: -(2 * conv(x, W, groups=1)), X, ["conv2d"]),
    "groups": (lambda x: F.conv2d(x, cast(GROUPED), groups=2) * cast(GAIN) + 1, X, ["conv2d"]),
    "transposed": (lambda x: F.conv_transpose2d(x, cast(UP), stride=2) * cast(GAIN) + 1, X, ["conv_transpose2d"]),
    "normalisation": (lambda x: conv((x - cast(MEAN)) / cast(STD), W, B), X, ["conv2d"]),
    "normalisation by numbers": (lambda x: conv((x / 255 - 0.5) / 0.25, W), X, ["conv2d"]),
    "normalisation and a border": (lambda x: conv((x - cast(MEAN)) / cast(STD), W, padding=1), X, ["add", "conv2d"]),
    "a factor and a border": (lambda x: conv(x / 255, W, B, padding=(1, 2), stride=2), X, ["conv2d"]),
    "normalisation and groups": (
        lambda x: F.conv2d((x - cast(MEAN)) / cast(STD), cast(GROUPED), groups=2, padding=1),
        X,
        ["add", "conv2d"],
    ),
    "in front of a transposed one": (
        lambda x: F.conv_transpose2d((x - 3) / cast(STD), cast(UP)),
        X,
        ["add", "conv_transpose2d"],
    ),
    "both sides": (lambda x: conv((x - cast(MEAN)) / cast(STD), W) * 2 + cast(GAIN), X, ["conv2d"]),
    "linear": (lambda x: (F.matmul(x, cast(LINEAR)) + 1) * cast(np.arange(1, 6)) - 3, ROWS, ["matmul", "add"]),
    "in front of linear": (lambda x: F.matmul((x - cast([1, 2, 3, 4])) / 3, cast(LINEAR)) + 1, ROWS, ["matmul", "add"]),
    "linear with weights turned": (
        lambda x: F.linear(x / 3 - 1, cast(drawn(5, 4)), cast(drawn(5))) * 2,
        ROWS,
        ["matmul", "add"],
    ),
    "a batch norm behind a factor": (
        lambda x: F.batch_norm(conv(x, W) * 2, cast(GAIN), cast(GAIN**2), cast(GAIN), cast(GAIN), training=False),
        X,
        ["conv2d"],
    ),
}


def graph_of(function, *inputs):
    return record(function, [TensorSpec(x.shape, x.dtype) for x in inputs])


def ops_of(graph):
    return [e.op for e in graph.exprs() if e.kind == "Apply"]


def in_float64(graph, *inputs):
    """What the graph computes, by the references of its ops on float64."""
    from megengine.dispatch import get_op

    values = {id(n): np.asarray(x, np.float64) for n, x in zip(graph.inputs, inputs, strict=True)}
    for expr in graph.exprs():
        if expr.kind == "Constant":
            values[id(expr.output)] = expr.value.numpy().astype(np.float64)
        elif expr.kind == "Apply":
            values[id(expr.output)] = get_op(expr.op).reference(*[values[id(n)] for n in expr.inputs], **expr.attrs)
    return [values[id(n)] for n in graph.outputs]


@pytest.mark.parametrize("name", FOLDED)
def test_constant_arithmetic_becomes_part_of_the_layer(name):
    function, x, left = FOLDED[name]
    graph = graph_of(function, x)
    (want,) = in_float64(graph, x)
    run_passes(graph)
    assert ops_of(graph) == left
    graph.lint()
    for got in (in_float64(graph, x)[0], interpret(graph, [x])[0].numpy()):
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())
    before = str(graph)
    assert run_passes(graph) == [] and str(graph) == before
    np.testing.assert_allclose(compile_plan(graph_of(function, x))(x)[0], want, rtol=0, atol=3e-6 * np.abs(want).max())


KEPT = {
    "a value that is used elsewhere": lambda x: (lambda y: [y * 2, F.relu(y)])(conv(x, W)),
    "an input that is used elsewhere": lambda x: (lambda y: [conv(y, W), y])(x / 255),
    "an output": lambda x: (lambda y: [y + 1, y])(conv(x, W)),
    "a constant that differs by place": lambda x: conv(x, W) * cast(drawn(1, 1, 7, 6)),
    "a shift at a border of zeros": lambda x: conv(x + 1, W, padding=1),
    "a shift that grows without its scale": lambda x: conv(
        x * cast(np.geomspace(1e-4, 1, 4)[:, None, None]) + 3, W, padding=1
    ),
    "a constant that broadens": lambda x: conv(x[:1], W) * cast(drawn(2, 1, 1, 1)),
    "a factor of nothing": lambda x: conv(x, W) * 0,
    "rounding on purpose": lambda x: conv(x, W) + 2.0**23 - 2.0**23,
    "a quotient by the layer": lambda x: 1 / conv(x, W),
    "weights that are computed": lambda x: F.conv2d(x, x[:, :, :3, :3]) * 2,
}


@pytest.mark.parametrize("name", KEPT)
def test_what_would_not_stay_the_same_is_left_alone(name):
    graph = graph_of(KEPT[name], X)
    run_passes(graph, [p for p in registered_op_passes() if p.name != "fold_affine"])
    before, want = ops_of(graph), [v.numpy() for v in interpret(graph, [X])]
    run_passes(graph)
    assert ops_of(graph) == before
    for got, expected in zip(interpret(graph, [X]), want, strict=True):
        np.testing.assert_array_equal(got.numpy(), expected)


def registered_op_passes():
    from megengine.traced_module.passes import registered_passes

    return registered_passes("ops")


def test_a_weight_that_two_layers_share_is_scaled_for_one():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.conv = M.Conv2d(4, 4, 3)

        def forward(self, x):
            return self.conv(x) * 2 + F.relu(self.conv(x))

    traced = trace_module(Net().eval(), tensor(X))
    want = traced(tensor(X)).numpy()
    graph = lower(traced).graph
    run_passes(graph)
    assert ops_of(graph) == ["conv2d", "conv2d", "relu", "add"]
    np.testing.assert_allclose(interpret(graph, [X])[0].numpy(), want, rtol=0, atol=3e-6 * np.abs(want).max())


NOTHING = {
    "x + 0": lambda x: x + 0,
    "0 + x": lambda x: 0 + x,
    "x - 0": lambda x: x - 0,
    "x * 1": lambda x: x * 1,
    "1 * x": lambda x: 1 * x,
    "x / 1": lambda x: x / 1,
    "all": lambda x: F.add(F.mul(F.sub(x, 0.0), 1.0), 0) / 1,
}


class Calls(M.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return F.relu(self.function(x))


@pytest.mark.parametrize("name", NOTHING)
def test_arithmetic_that_does_nothing_is_left_out(name):
    traced = trace_module(Calls(NOTHING[name]), tensor(ROWS))
    assert len(mge.traced_module.optimize(traced, "DropIdentities").graph.exprs(recursive=False)) == 3  # two inputs
    graph = lower(traced).graph
    run_passes(graph)
    assert ops_of(graph) == ["relu"]


STAYS = {
    "0 - x": (lambda x: 0 - x, ROWS),
    "1 / x": (lambda x: 1 / x, ROWS),
    "another dtype": (lambda x: x + 0.0, np.arange(3, dtype=np.int32)),
    "a division of integers": (lambda x: x / 1, np.arange(3, dtype=np.int32)),
    "a larger shape": (lambda x: x + F.zeros((2, 1, 1)), ROWS),
    "another axis": (lambda x: x * F.ones((1, 1, 1)), ROWS),
}


@pytest.mark.parametrize("name", STAYS)
def test_arithmetic_that_changes_shape_or_dtype_stays(name):
    function, x = STAYS[name]
    traced = trace_module(Calls(function), tensor(x))
    want = traced(tensor(x))
    made = mge.traced_module.optimize(traced, "DropIdentities")
    graph = lower(traced).graph
    run_passes(graph)
    assert len(ops_of(graph)) > 1 and "arithmetic" not in ops_of(graph)
    for got in (made(tensor(x)), interpret(graph, [x])[0]):
        assert got.spec == want.spec
        np.testing.assert_array_equal(got.numpy(), want.numpy())


class Trained(M.Module):
    """Factors and offsets that are parameters, neutral before training."""

    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(4, 6, 3)
        self.gain, self.shift = mge.Parameter([1.0]), mge.Parameter(0.0)
        self.by_channel = mge.Parameter(np.ones((1, 6, 1, 1), np.float32))

    def forward(self, x):
        return F.relu(self.conv(x - 3) * self.by_channel) * self.gain + self.shift


def test_folds_are_replayed_on_other_weights_as_if_they_had_run_there():
    """Also where what did nothing in the one model does something in the other: that is no silent change."""
    net, x = trace_module(Trained().eval(), tensor(X)), tensor(X)
    other = net.clone()
    for i, (_, value) in enumerate(other.named_parameters()):
        value[...] = value * 1.5 + 0.25 * i
    want = other(x).numpy()
    done, made = lower(net), lower(other)
    done.graph.keep_edits()
    run_passes(done.graph)
    try:
        done.edit_log.replay(made)
    except GraphError:
        made = lower(other)
    np.testing.assert_allclose(made(x).numpy(), want, rtol=0, atol=3e-6 * np.abs(want).max())
