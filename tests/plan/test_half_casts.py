"""Plans of float16 and bfloat16 networks: native steps alone, and the results of the eager run."""

import numpy as np
import pytest
from zoo import ZOO

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.core.dtype import bfloat16
from megengine.kernels import isa
from megengine.quantization import to_half
from megengine.tensor import tensor
from megengine.traced_module import lower, trace_module

TYPES = [np.dtype(np.float16), bfloat16]


class Net(M.Module):
    """Convolutions with a batch norm, an activation and a residual, pooling, and a tail of functions."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = M.Conv2d(3, 16, 3, padding=1), M.BatchNorm2d(16)
        self.deep, self.last = M.Conv2d(16, 16, 3, padding=1, groups=16), M.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        y = F.max_pool2d(F.silu(self.deep(x)) + x, 2)
        y = F.gelu(self.last(F.flatten(F.avg_pool2d(y, 4), 1)))
        return F.softmax(y) * 2 - 1


def halved(dtype):
    net = Net().eval()
    for one in net.tensors():
        one.set_value(one.astype(dtype))
    x = np.random.default_rng(0).normal(0, 1, (1, 3, 8, 8)).astype(dtype)
    return trace_module(net, tensor(x)), x


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_network_of_halves(dtype, level):
    net, x = halved(dtype)
    with isa.capped(level):
        made = plan.compile(net)
        assert {s.kernel for s in made.steps} & {"reference"} == set()
        got = made(x)[0]
    assert got.dtype == dtype
    eager = net(tensor(x)).numpy().astype(np.float32)
    np.testing.assert_allclose(got.astype(np.float32), eager, atol=8 * 2.0 ** (-8 if dtype == bfloat16 else -11))


class Chain(M.Module):
    def forward(self, x, y):
        return F.relu(x * y + x) / 3 - F.sigmoid(y)


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_chain_is_one_pass_with_the_bits_of_the_ops(dtype, level):
    rng = np.random.default_rng(0)
    x, y = rng.normal(0, 2, (3, 40)).astype(dtype), rng.normal(0, 2, (3, 40)).astype(dtype)
    net = trace_module(Chain(), tensor(x), tensor(y))
    with isa.capped(level):
        made = plan.compile(net)
        assert [s.op for s in made.steps] == ["elementwise"]
        np.testing.assert_array_equal(made(x, y)[0].view(np.uint16), net(tensor(x), tensor(y)).numpy().view(np.uint16))


class Clamps(M.Module):
    """Of numbers that are rounded already; the bounds of the clip are no numbers of 16 bits."""

    def forward(self, x, y):
        return F.relu(x + y), F.relu6(F.relu(x * y)), F.clip(x - y, -1.0 - 2.0**-12, 1.0 + 2.0**-12) + x, F.relu(x) * y


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_clamps_of_rounded_numbers_equal_the_ops(dtype, level):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(0, 2, (3, 41)).astype(dtype) for _ in range(2))
    x[0, :7], y[0, :4] = [np.nan, np.inf, -np.inf, 0, -0.0, 1e-40, -1e-40], [1, np.nan, -1, -0.0]
    net = trace_module(Clamps(), tensor(x), tensor(y))
    with isa.capped(level):
        got = plan.compile(net)(x, y)
    for one, want in zip(got, net(tensor(x), tensor(y)), strict=True):
        np.testing.assert_array_equal(one.astype(np.float32), want.numpy().astype(np.float32))


class Gate(M.Module):
    def forward(self, x):
        return F.mean(x, 1, True) * x


def test_a_chain_reads_what_a_mean_widens_as_it_is():
    x = np.random.default_rng(0).normal(0, 1, (1, 8, 5, 6)).astype(bfloat16)
    net = trace_module(Gate(), tensor(x))
    made = plan.compile(net)
    chains = [e for e in made.graph.exprs() if getattr(e, "op", "") == "elementwise"]
    assert [n.dtype for e in chains for n in e.inputs if n.shape == x.shape] == [bfloat16]
    np.testing.assert_array_equal(made(x)[0].view(np.uint16), net(tensor(x)).numpy().view(np.uint16))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", [name for name in ZOO if name != "autoencoder"])  # takes an argument by name
def test_every_step_of_the_zoo_is_native(name, dtype):
    net, arguments = ZOO[name]()
    made = plan.compile(to_half(trace_module(net, *arguments), dtype))
    assert sorted({s.op for s in made.steps if s.kernel == "reference" or s.kernel.startswith("python:")}) == []


def test_a_batch_norm_rounds_once():
    norm = M.BatchNorm2d(3).eval()
    for seed, one in enumerate((norm.weight, norm.bias, norm.running_mean, norm.running_var)):
        one.set_value(tensor(np.random.default_rng(seed).uniform(0.5, 2, one.shape).astype(bfloat16)))
    x = np.random.default_rng(1).normal(0, 1, (2, 3, 4, 4)).astype(bfloat16)
    net = trace_module(norm, tensor(x))
    np.testing.assert_allclose(
        plan.compile(net)(x)[0].astype(np.float32), net(tensor(x)).numpy().astype(np.float32), rtol=2.0**-8
    )


def test_tuned_plans_and_profiles_take_bfloat16():
    net, x = halved(bfloat16)
    made = plan.compile(lower(net), tune=True)
    assert len(made.profile(x, repeat=1)) == len(made.steps)
    assert made(x)[0].dtype == bfloat16


@pytest.mark.skipif("bf16" not in isa.available(), reason="no instructions for bfloat16")
@pytest.mark.parametrize(("kernel", "casts"), [((1, 13), 2), ((15, 1), 2), ((3, 14), 4)])
def test_wide_depthwise_kernels_compute_in_float32(kernel, casts):
    layer = M.Conv2d(8, 8, kernel, 1, tuple(k // 2 for k in kernel), groups=8)
    net = M.Sequential(M.Conv2d(8, 8, 1), layer, M.Conv2d(8, 8, 1))
    x = np.random.default_rng(0).standard_normal((1, 8, 20, 20)).astype(np.float32)
    want = net(tensor(x)).numpy()
    made = plan.compile(to_half(trace_module(net, tensor(x)), "bf16"))
    assert "reference" not in [step.kernel for step in made.steps]
    assert [step.kernel for step in made.steps].count("own_elementwise") == casts
    np.testing.assert_allclose(np.asarray(made(x)[0], np.float32), want, atol=0.05)


def test_batch_norms_of_halves_are_a_product_and_a_sum():
    """The mean joins the term: also of channels whose mean is far from 0."""
    rng = np.random.default_rng(3)
    norm = M.BatchNorm2d(6)
    norm.running_mean = tensor(np.array([[0, 1, -3, 40, -500, 9e4]], "float32").reshape(1, 6, 1, 1))
    norm.running_var = tensor(np.array([1, 1e-3, 4, 9, 100, 1e6], "float32").reshape(1, 6, 1, 1))
    norm.weight[...] = rng.standard_normal((1, 6, 1, 1)).astype("float32")
    norm.eval()
    deviation = np.sqrt(norm.running_var.numpy())
    x = (norm.running_mean.numpy() + deviation * rng.standard_normal((2, 6, 9, 8))).astype("float32")
    half = to_half(trace_module(M.Sequential(norm, M.ReLU()).eval(), tensor(x)), "bf16")
    made = plan.compile(half)
    ops = [op for e in made.graph.exprs() if getattr(e, "op", "") == "elementwise" for op, *_ in e.attrs["program"]]
    assert "sub" not in ops
    params = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    weight, bias, mean, var = (p.numpy().reshape(1, 6, 1, 1).astype(bfloat16).astype(np.float64) for p in params)
    want = (x.astype(bfloat16).astype(np.float64) - mean) * weight / np.sqrt(var + norm.eps) + bias
    np.testing.assert_allclose(made(x)[0].astype(np.float64), np.maximum(want, 0), rtol=2.0**-8, atol=1e-3)
