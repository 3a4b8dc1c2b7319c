"""Normalisations spelled out in ops are one step of a plan, and batch norms join the arithmetic around them."""

import copy

import numpy as np
import pytest
from plan_kernels import check

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.core.dtype import bfloat16
from megengine.dispatch import apply
from megengine.kernels.half_conversion import HALVES
from megengine.plan.norms import name_norms
from megengine.tensor import Parameter, tensor
from megengine.traced_module import lower, record, trace_module


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


class Net(M.Module):
    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def steps(function, x, **parts):
    """The ops of a plan's steps but those that only move; results are those of eager calls, bit for bit."""
    net = Net(function, **parts).eval()
    made = plan.compile(trace_module(net, tensor(x)))
    np.testing.assert_array_equal(made(x)[0], net(tensor(x)).numpy())
    return [info.op for info in made.steps if info.op not in ("to_result", "to_rows", "to_channels_last")]


def spelled(net, x):
    centred = x - F.mean(x, axis=-1, keepdims=True)
    deviation = F.sqrt(F.mean(centred**2, axis=-1, keepdims=True) + 1e-6)
    return centred / deviation * net.w + net.b


def root_mean_square(net, x):
    root = F.sqrt(F.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return x * (1 / root) * net.w


@pytest.mark.parametrize("shape", [(5, 24), (2, 7, 24), (2, 3, 5, 24)])
@pytest.mark.parametrize("function", [spelled, root_mean_square])
def test_norms_of_the_last_axis(function, shape):
    assert steps(function, draw(*shape), w=Parameter(draw(24)), b=Parameter(draw(24))) == ["fused_norm"]


@pytest.mark.parametrize("affine", [True, False])
def test_layers(affine):
    assert steps(lambda net, x: net.norm(x), draw(2, 6, 16), norm=M.LayerNorm(16, affine=affine)) == ["fused_norm"]
    got = steps(lambda net, x: net.norm(x), draw(2, 6, 4, 5), norm=M.GroupNorm(3, 6, affine=affine))
    assert got == ["fused_channel_norm" if affine else "fused_norm"]


@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (1, 6, 31), (2, 6, 2, 3, 4)])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_channels_take_weights_and_biases_behind_a_norm(shape, groups):
    """Those of groups and of channels, in the order of the ops: the bits of eager calls."""

    def several(net, x):
        y = F.group_norm(x, groups, affine=True, weight=net.w, bias=net.b) * net.more
        return F.relu(y + net.last if groups > 1 else y)

    ones = (1,) * (len(shape) - 2)
    parts = {"w": draw(6), "b": draw(6), "more": draw(6, *ones), "last": draw(1, 6, *ones)}
    got = steps(several, draw(*shape) + 3, **{name: Parameter(value) for name, value in parts.items()})
    assert got[0] == "fused_channel_norm"
    assert len(got) == 2


def test_what_is_no_factor_of_channels_stays_behind_a_norm():
    row, x = Parameter(draw(5)), draw(2, 6, 4, 5)
    assert "fused_channel_norm" not in steps(lambda net, x: F.group_norm(x, 3, affine=False) * net.row, x, row=row)
    assert "fused_channel_norm" not in steps(lambda net, x: F.instance_norm(x, affine=False) * x, x)
    many = [Parameter(draw(6, 1, 1, seed=k)) for k in range(3)]

    def thrice(net, x):
        y = F.instance_norm(x, affine=False)
        for k in range(3):
            y = y * getattr(net, f"w{k}")
        return y

    got = steps(thrice, x, **{f"w{k}": w for k, w in enumerate(many)})
    assert got == ["fused_channel_norm", "mul"]


@pytest.mark.parametrize("read", [lambda y: F.split(y, 2, 1)[1], lambda y: F.topk(y, 2)[0], lambda y: F.sort(y)[0]])
def test_what_gives_several_values_stays_behind_a_norm(read):
    """It was taken for a factor, and the plan was not made."""
    norm = M.GroupNorm(3, 6)
    assert steps(lambda net, x: read(net.norm(x)), draw(2, 6, 4, 5), norm=norm)[0] == "fused_channel_norm"


def test_norms_of_channels_of_halves_round_once():
    x = draw(2, 6, 4, 5).astype("bfloat16")
    net = Net(
        lambda net, x: F.group_norm(x, 3, affine=True, weight=net.w, bias=net.b),
        w=Parameter(draw(6).astype("bfloat16")),
        b=Parameter(draw(6).astype("bfloat16")),
    ).eval()
    made = plan.compile(trace_module(net, tensor(x)))
    assert [info.op for info in made.steps] == ["fused_channel_norm"]
    wide = [np.asarray(p.numpy()).astype("f8").reshape(1, 6, 1, 1) for p in (net.w, net.b)]
    grouped = x.astype("f8").reshape(2, 3, -1)
    centred = grouped - grouped.mean(-1, keepdims=True)
    want = (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape) * wide[0] + wide[1]
    np.testing.assert_allclose(made(x)[0].astype("f8"), want, rtol=2**-8, atol=1e-6)


def test_other_axes_and_other_means_stay():
    def two_axes(net, x):
        centred = x - F.mean(x, axis=1, keepdims=True)
        return centred / F.sqrt(F.mean(centred * centred, axis=1, keepdims=True) + 1e-6)

    assert "fused_norm" not in steps(two_axes, draw(2, 7, 7))


def test_a_batch_norm_alone_joins_its_activation():
    norm = M.BatchNorm2d(6)
    norm.running_mean[...] = tensor(draw(1, 6, 1, 1))
    norm.running_var[...] = tensor(np.abs(draw(1, 6, 1, 1)))
    assert steps(lambda net, x: F.relu(net.norm(x)), draw(2, 6, 5, 4), norm=norm) == ["elementwise"]


def normed(dtype=np.float32):
    norm = M.BatchNorm2d(6)
    norm.weight[...], norm.bias[...] = (tensor(draw(1, 6, 1, 1, seed=seed)) for seed in (2, 3))
    norm.running_mean[...] = tensor(draw(1, 6, 1, 1))
    norm.running_var[...] = tensor(np.abs(draw(1, 6, 1, 1)) + 0.5)
    for one in norm.tensors():
        one.set_value(one.astype(dtype))
    return norm


def channels(seed, dtype=np.float32):
    return Parameter(draw(6, 1, 1, seed=seed).astype(dtype))


def arithmetic(function, x, **parts):
    """The ops of the chain of a plan; results are near those of eager calls in float64 or, of halves, float32."""
    net = Net(function, **copy.deepcopy(parts)).eval()
    made = plan.compile(trace_module(net, tensor(x)))
    (chain,) = (e for e in made.graph.exprs() if getattr(e, "op", "") == "elementwise")
    got = made(x)[0].astype(np.float64)
    wide = np.float64 if x.dtype == np.float32 else np.float32
    for one in net.tensors():
        one.set_value(one.astype(wide))
    step = 2.0**-22 if x.dtype == np.float32 else 2.0**-7
    want = net(tensor(x.astype(wide))).numpy()
    np.testing.assert_allclose(got, want, rtol=2 * step, atol=8 * step)
    return [op for op, *_ in chain.attrs["program"] if op != "cast"]


@pytest.mark.parametrize("dtype", [np.float32, bfloat16], ids=str)
def test_factors_and_terms_behind_a_batch_norm_are_its_own(dtype):
    x, parts = draw(2, 6, 5, 4).astype(dtype), {"norm": normed(dtype), "a": channels(4, dtype), "b": channels(5, dtype)}
    one = ["sub", "mul", "add", "relu"]
    assert arithmetic(lambda net, x: F.relu(net.norm(x) * net.a + net.b), x, **parts) == one
    assert arithmetic(lambda net, x: F.relu(net.b + net.norm(x)), x, **parts) == one
    assert arithmetic(lambda net, x: F.relu(net.a * net.norm(x)), x, **parts) == one
    assert arithmetic(lambda net, x: F.relu(net.norm(x) * 3 + 1), x, **parts) == one


def test_what_is_beside_a_batch_norm_and_no_part_of_it():
    x, parts = draw(2, 6, 5, 4), {"norm": normed(), "rows": Parameter(draw(5, 4)), "huge": channels(4)}
    parts["huge"][...] = 2.0**23
    kept = ["sub", "mul", "add", "mul", "relu"]
    assert arithmetic(lambda net, x: F.relu(net.norm(x) * net.rows), x, **parts) == kept
    assert steps(lambda net, x: F.relu(net.norm(x) + net.huge - net.huge), x, **parts) == ["elementwise"]
    assert steps(lambda net, x: F.concat([net.norm(x), net.norm(x) * 2]), x, norm=normed()).count("elementwise") >= 1


def test_a_batch_norm_of_wider_numbers_stays():
    assert steps(lambda net, x: net.norm(x) * net.a, draw(2, 6, 5, 4), norm=normed(np.float64), a=channels(4))


def test_integer_networks_keep_the_bits_of_a_scaled_batch_norm():
    norm, a = normed(), channels(4)
    g = trace_module(Net(lambda net, x: net.norm(x) * net.a, norm=norm, a=a).eval(), tensor(draw(2, 6, 5, 4)))
    for exact, count in ((True, 2), (False, 1)):
        graph = lower(g).graph.clone()
        name_norms(graph, exact=exact)
        assert sum(getattr(e, "op", "") == "mul" for e in graph.exprs()) == count


def test_rows_of_any_rank_take_bias_and_activation():
    net = Net(lambda net, x: F.gelu(net.fc(x)), fc=M.Linear(16, 24)).eval()
    for shape in ((3, 16), (2, 5, 16), (2, 3, 5, 16)):
        x = draw(*shape)
        made = plan.compile(trace_module(net, tensor(x)))
        assert [i.op for i in made.steps if i.op != "to_result"] == ["fused_linear"]
        np.testing.assert_allclose(made(x)[0], net(tensor(x)).numpy(), rtol=1e-5, atol=1e-5)


def test_a_bias_along_another_axis_is_no_bias():
    x, w, b = draw(4, 4), Parameter(draw(4, 4)), Parameter(draw(4, 1))
    net = Net(lambda net, x: F.matmul(x, net.w) + net.b, w=w, b=b)
    made = plan.compile(trace_module(net, tensor(x)))
    np.testing.assert_allclose(made(x)[0], net(tensor(x)).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 33, 3, 4), (1, 1, 5, 5), (1, 3, 1, 1), (2, 16, 4, 1)])
@pytest.mark.parametrize(("window", "before"), [(5, 2), (4, 1), (1, 0), (40, 20)])
def test_means_over_neighbouring_channels(shape, window, before):
    def response(x, **changed):
        n, c, h, w = x.shape
        attrs = {"kernel": (window, 1), "stride": (1, 1), "padding": ((before, window - 1 - before), (0, 0))}
        plane = apply("reshape", x * x, shape=(n, 1, c, h * w))
        mean = apply("avg_pool2d", plane, count_include_pad=True, **{**attrs, **changed})
        return apply("reshape", mean, shape=shape)

    x = draw(*shape)
    made = plan.compile(record(response, [tensor(x).spec]))
    assert "fused_channel_mean" in [i.op for i in made.steps]
    np.testing.assert_array_equal(made(x)[0], response(tensor(x)).numpy())
    padded = np.pad(x.astype("f8") ** 2, ((0, 0), (before, window - 1 - before), (0, 0), (0, 0)))
    want = sum(padded[:, k : k + shape[1]] for k in range(window)) / window
    np.testing.assert_allclose(made(x)[0], want, rtol=1e-6)
    check("fused_channel_mean", [x], {"window": window, "before": before})


@pytest.mark.parametrize("dtype", sorted(HALVES, key=str), ids=str)
def test_means_over_channels_of_halves(dtype):
    """Pooling of planes of halves took a hundred times as long."""

    def response(x):
        plane = apply("reshape", x * x, shape=(2, 1, 9, 20))
        attrs = {"kernel": (5, 1), "stride": (1, 1), "padding": ((2, 2), (0, 0))}
        mean = apply("avg_pool2d", plane, count_include_pad=True, **attrs)
        return x / (apply("reshape", mean, shape=(2, 9, 4, 5)) * 0.5 + 1) ** 0.75

    x = draw(2, 9, 4, 5).astype(dtype)
    made = plan.compile(record(response, [tensor(x).spec]))
    assert "fused_channel_mean" in [i.op for i in made.steps]
    np.testing.assert_array_equal(made(x)[0].view("u2"), response(tensor(x)).numpy().view("u2"))


def test_means_that_leave_padding_out_stay():
    def response(x):
        plane = apply("reshape", x, shape=(1, 1, 6, 4))
        attrs = {"kernel": (3, 1), "stride": (1, 1), "padding": ((1, 1), (0, 0)), "count_include_pad": False}
        return apply("reshape", apply("avg_pool2d", plane, **attrs), shape=(1, 6, 2, 2))

    x = draw(1, 6, 2, 2)
    made = plan.compile(record(response, [tensor(x).spec]))
    assert "avg_pool2d" in [i.op for i in made.steps]
    np.testing.assert_array_equal(made(x)[0], response(tensor(x)).numpy())
