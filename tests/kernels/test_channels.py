"""Convolutions of channels by themselves and of small groups in bfloat16, channels-last, against float64."""

import numpy as np
import pytest

import megengine.module as M
from megengine import plan, tensor
from megengine.core.dtype import bfloat16
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op
from megengine.kernels import _core, grouped, isa
from megengine.kernels.problem import Problem
from megengine.quantization import to_half
from megengine.traced_module import trace_module
from tests.kernels.test_grouped import GUARD, case

needs_bf16 = pytest.mark.skipif("bf16" not in isa.available(), reason="the CPU has no AVX512-BF16")


def half_case(channels, size, group=1, **places):
    """The problem of float32 with its arrays rounded to bfloat16."""
    problem, arrays = case(channels // group, group, group, size, **places)
    specs = [TensorSpec(s.shape, bfloat16) for s in (*problem.inputs, *problem.outputs)]
    return Problem("fused_conv2d", specs[:-1], specs[-1:], problem.attrs), [a.astype(bfloat16) for a in arrays]


def run(problem, arrays, threads=1):
    """The result, whose neighbours stay as they are, in planes."""
    n, c, h, w = problem.outputs[0].shape
    buffer = np.full(n * c * h * w + 32, GUARD, bfloat16)
    out = buffer[16:-16].reshape(n, h, w, c)
    x = np.ascontiguousarray(arrays[0].transpose(0, 2, 3, 1))
    step = grouped.own_channels_conv2d.make_step(problem, {1: arrays[1], 2: arrays[2]}, threads)
    _core.run_step(step, [x.view(np.uint16), out.view(np.uint16)])
    assert (buffer[:16] == GUARD).all()
    assert (buffer[-16:] == GUARD).all()
    return out.transpose(0, 3, 1, 2)


def check(problem, arrays):
    """Within half a step of bfloat16, and what sums of float32 are off."""
    want = get_op("fused_conv2d").reference(*(a.astype(np.float64) for a in arrays), **problem.attrs)
    np.testing.assert_allclose(run(problem, arrays).astype(np.float64), want, rtol=2.0**-8, atol=1e-5)


@needs_bf16
@pytest.mark.parametrize("kernel", [(3, 3), (5, 5), (2, 3), (7, 5)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("padding", [((0, 0), (0, 0)), ((1, 1), (1, 1)), ((2, 0), (0, 3)), ((6, 6), (4, 7))])
def test_places(kernel, stride, padding):
    check(*half_case(17, (9, 8), kernel=kernel, stride=stride, padding=padding, batch=2))


@needs_bf16
@pytest.mark.parametrize("channels", [16, 17, 31, 32, 33, 48, 61, 64, 95, 100])
@pytest.mark.parametrize("width", [3, 4, 7, 8, 9, 16, 17, 25])
def test_channels_and_widths(channels, width):
    check(*half_case(channels, (4, width), padding=((1, 1), (1, 1))))


@needs_bf16
@pytest.mark.parametrize("group", [4, 8])
@pytest.mark.parametrize("kernel", [(3, 3), (5, 5), (1, 3)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
def test_groups(group, kernel, stride):
    for channels in (16, 16 + group, 32, 64 + 3 * group):
        for size in ((4, 3), (5, 8), (3, 9), (2, 17)):
            padding = ((kernel[0] // 2,) * 2, (kernel[1] // 2,) * 2)
            check(*half_case(channels, size, group, kernel=kernel, stride=stride, padding=padding))
    check(*half_case(32, (9, 8), group, kernel=kernel, stride=stride, padding=((2, 0), (4, 7)), batch=2))


@needs_bf16
@pytest.mark.parametrize("activation", ["none", "relu", "relu6", "silu", "hswish"])
@pytest.mark.parametrize("group", [1, 8])
def test_activations(activation, group):
    problem, arrays = half_case(40, (7, 9), group, padding=((1, 1), (1, 1)), activation=activation)
    check(problem, arrays)
    for threads in (2, 3, 20):
        np.testing.assert_array_equal(run(problem, arrays, threads), run(problem, arrays))


@needs_bf16
def test_what_it_is_for():
    usable = grouped.own_channels_conv2d.usable
    assert usable(half_case(16, (8, 8))[0]) is None
    assert "expected at least 16" in usable(half_case(15, (8, 8))[0])
    assert "expected 3 or 5" in usable(half_case(16, (8, 8), kernel=(3, 7))[0])
    assert "no dilation" in usable(half_case(16, (8, 8), dilation=(1, 2))[0])
    assert "steps of 1 or 2" in usable(half_case(16, (8, 8), stride=(1, 3))[0])
    assert "bfloat16 only, got float32" in usable(case(16, 1, 1, (8, 8))[0])
    assert "each channel by itself" in usable(half_case(16, (8, 8), residual=True)[0])
    assert usable(half_case(24, (8, 8), 8)[0]) is None
    assert "groups of 4 or 8" in usable(half_case(64, (8, 8), 16)[0])
    with isa.capped("bf16"):
        assert usable(half_case(32, (8, 8), 8)[0]) is None
    assert "groups of 4 or 8" in usable(half_case(18, (8, 8), 6)[0])
    assert "each channel by itself" in usable(case(16, 2, 1, (8, 8))[0])
    with isa.capped("vnni"):
        assert "needs AVX512-BF16" in usable(half_case(16, (8, 8))[0])


@needs_bf16
def test_plans_take_it():
    net = M.Sequential(M.Conv2d(3, 24, 1), M.ReLU(), M.Conv2d(24, 24, 3, 2, 1, groups=24), M.ReLU6()).eval()
    x = case(3, 1, 1, (12, 12))[1][0]
    made = plan.compile(to_half(trace_module(net, tensor(x)), "bf16"))
    assert "own_channels_conv2d" in [s.kernel for s in made.steps]
    np.testing.assert_allclose(made(x)[0].astype(np.float32), net(tensor(x)).numpy(), rtol=0.02, atol=0.05)


def test_wrong_arguments():
    arrays = case(16, 1, 1)[1]
    rest = {"in_size": (7, 9), "out_size": (5, 7), "before": (0, 0), "clamp": "none", "after": None, "threads": 1}
    rest |= {"weights": arrays[1], "bias": arrays[2]}
    for sizes, stride in (((1, 17), (1, 1)), ((1, 16), (1, 3)), ((0, 16), (1, 1))):
        with pytest.raises(ValueError, match="channel_step: weights"):
            _core.channel_step(sizes=sizes, stride=stride, **rest)
    with isa.capped("base"), pytest.raises(ValueError, match="all with AVX512-BF16"):
        _core.channel_step(sizes=(1, 16), stride=(1, 1), **rest | {"weights": case(2, 8, 8)[1][1]})
