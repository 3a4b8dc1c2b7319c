"""Own convolutions over three axes whose groups have few channels, at every instruction set."""

import ml_dtypes
import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan, tensor
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.kernels import _core, grouped, isa
from megengine.kernels.problem import Problem
from megengine.ops.fused import ACTIVATIONS
from megengine.traced_module import trace_module

GUARD = 77
# groups, channels of a group, results of a group
GROUPS = [(2, 1, 1), (5, 1, 2), (3, 2, 1), (2, 4, 3)]
PLACES = {
    "plain": {},
    "apart": {"stride": (2, 3, 2), "padding": ((1, 1), (1, 0), (0, 1))},
    "dilated": {"dilation": (2, 3, 2), "padding": ((2, 2), (3, 3), (1, 2))},
    "dilated apart": {"stride": (2, 1, 3), "dilation": (2, 2, 2), "padding": ((3, 0), (0, 2), (2, 0))},
    "far apart": {"stride": (4, 5, 5)},
    "nothing but padding": {"padding": ((4, 5), (5, 4), (9, 12))},
}


def draw(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def case(groups, taken, given, size=(4, 7, 9), kernel=(3, 3, 3), activation="none", dtype=np.float32, **places):
    """The problem of a convolution of two samples, and its arrays."""
    outputs = groups * given
    arrays = [draw(2, groups * taken, *size), draw(outputs, taken, *kernel), draw(outputs)]
    arrays = [a.astype(dtype) for a in arrays]
    attrs = {"stride": (1, 1, 1), "padding": ((0, 0),) * 3, "dilation": (1, 1, 1), "groups": groups, **places}
    attrs |= {"activation": activation}
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    return Problem("fused_conv3d", specs, [infer("fused_conv3d", specs, attrs)], attrs), arrays


def run(problem, arrays, threads=1):
    """The result of the kernel, whose neighbours stay as they are."""
    x, out = arrays[0], problem.outputs[0]
    bits = x.view(np.uint16) if x.dtype == ml_dtypes.bfloat16 else x
    buffer = np.full(out.size + 32, GUARD, bits.dtype)
    step = grouped.own_fused_grouped_conv3d.make_step(problem, {1: arrays[1], 2: arrays[2]}, threads)
    _core.run_step(step, [bits, buffer[16:-16]])
    assert (buffer[:16] == GUARD).all()
    assert (buffer[-16:] == GUARD).all()
    return buffer[16:-16].view(x.dtype).reshape(out.shape)


def check(problem, arrays):
    assert grouped.own_fused_grouped_conv3d.usable(problem) is None
    want = get_op("fused_conv3d").reference(*(a.astype(np.float64) for a in arrays), **problem.attrs)
    got = run(problem, arrays)
    if got.dtype == np.float32:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=3e-5)
    else:
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=2**-8, atol=3e-5)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("level", isa.available())
def test_groups_and_places_are_near_the_float64_reference(level, dtype):
    with isa.capped(level):
        for groups in GROUPS:
            check(*case(*groups, dtype=dtype))
        for places in PLACES.values():
            check(*case(3, 2, 2, dtype=dtype, **places))
            check(*case(3, 1, 1, kernel=(2, 1, 4), dtype=dtype, **places))


@pytest.mark.parametrize("level", isa.available())
def test_widths(level):
    with isa.capped(level):
        for width in (1, 2, 7, 8, 9, 15, 16, 17, 43, 300):
            check(*case(2, 1, 1, (2, 3, width), (2, 3, 1)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation):
    check(*case(4, 1, 1, activation=activation))
    check(*case(4, 1, 1, activation=activation, dtype=ml_dtypes.bfloat16))


def test_threads_give_the_same_bits():
    problem, arrays = case(7, 1, 2, padding=((1, 1),) * 3, activation="gelu")
    one = run(problem, arrays)
    for threads in (2, 3, 20):
        np.testing.assert_array_equal(run(problem, arrays, threads), one)


def test_bfloat16_that_is_no_number_stays_none():
    problem, arrays = case(2, 1, 1, kernel=(1, 1, 1), dtype=ml_dtypes.bfloat16)
    arrays[0][0, 0, 0, 0, 0] = np.nan
    assert np.isnan(run(problem, arrays)[0, 0, 0, 0, 0])


def test_eager_calls_and_what_is_left_to_others():
    x, w = draw(1, 6, 4, 5, 6), draw(6, 1, 3, 3, 3)
    attrs = {"stride": (1, 1, 1), "padding": ((1, 1),) * 3, "dilation": (1, 1, 1), "groups": 6}
    want = get_op("conv3d").reference(x.astype(np.float64), w.astype(np.float64), **attrs)
    got = F.conv3d(tensor(x), tensor(w.reshape(6, 1, 1, 3, 3, 3)), None, 1, 1, groups=6)
    np.testing.assert_allclose(got.numpy(), want, atol=3e-5)
    usable = grouped.own_fused_grouped_conv3d.usable
    assert usable(case(1, 1, 4)[0]) == "1 group of 1 channel; expected several of at most 4"
    assert "2 groups of 5 channels" in str(usable(case(2, 5, 5)[0]))
    assert "float32 only" in str(usable(case(2, 1, 1, dtype=np.float16)[0]))


def test_steps_check_what_they_get():
    three = (1, 1, 1)
    rest = {"stride": three, "dilation": three, "before": (0, 0, 0), "bias": draw(4), "after": None, "half": False}
    rest |= {"in_size": three, "out_size": three, "sizes": (1, 8, 4, 4), "threads": 1}
    with pytest.raises(ValueError, match="volume_step: weights"):
        _core.volume_step(weights=draw(4, 3, 1, 1, 1), clamp="none", **rest)
    with pytest.raises(ValueError, match="no clamp soft"):
        _core.volume_step(weights=draw(4, 2, 1, 1, 1), clamp="soft", **rest)


def test_plans_take_it_first():
    net = M.Sequential(M.Conv3d(16, 16, 3, 1, 1, groups=16), M.ReLU())
    made = plan.compile(trace_module(net, tensor(draw(1, 16, 3, 5, 5))))
    assert "own_fused_grouped_conv3d" in [step.kernel for step in made.steps]
