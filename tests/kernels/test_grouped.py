"""Own convolutions of small groups: every vector and its edges, at every instruction set."""

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
# groups, channels of a group, results of a group: around vectors of 4, 8 and 16 lanes, one and two loads, and none
GROUPS = [
    (2, 1, 2),
    (3, 1, 5),
    (8, 1, 2),
    (16, 2, 1),
    (17, 2, 2),
    (32, 4, 4),
    (5, 3, 3),
    (4, 8, 8),
    (3, 8, 1),
    (9, 6, 10),
]
PLACES = {
    "plain": {},
    "apart": {"stride": (2, 3), "padding": ((1, 1), (1, 1))},
    "dilated": {"dilation": (2, 3), "padding": ((2, 2), (3, 3))},
    "dilated apart": {"stride": (2, 1), "dilation": (2, 1), "padding": ((3, 0), (0, 2))},
    "far apart": {"stride": (5, 5)},
    "nothing but padding": {"padding": ((4, 5), (5, 4))},
}


def draw(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def case(groups, taken, given, size=(7, 9), kernel=(3, 3), batch=1, activation="none", residual=False, **places):
    """The problem of a convolution, and its arrays."""
    outputs = groups * given
    arrays = [draw(batch, groups * taken, *size), draw(outputs, taken, *kernel), draw(outputs)]
    attrs = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": groups, **places}
    attrs |= {"activation": activation}
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    if residual:
        arrays.append(draw(*infer("fused_conv2d", specs, attrs).shape))
        specs.append(TensorSpec(arrays[3].shape, arrays[3].dtype))
    return Problem("fused_conv2d", specs, [infer("fused_conv2d", specs, attrs)], attrs), arrays


def run(problem, arrays, threads=1, kernel=grouped.own_fused_grouped_conv2d):
    """The result of the kernel, whose neighbours stay as they are, in planes."""
    n, c, h, w = problem.outputs[0].shape
    buffer = np.full(n * c * h * w + 32, GUARD, np.float32)
    out = buffer[16:-16].reshape(n, h, w, c)
    moving = [np.ascontiguousarray(arrays[0].transpose(0, 2, 3, 1)), out]
    if len(arrays) == 4:
        out[...] = arrays[3].transpose(0, 2, 3, 1)
        moving.insert(1, out)
    step = kernel.make_step(problem, {1: arrays[1], 2: arrays[2]}, threads)
    _core.run_step(step, moving)
    assert (buffer[:16] == GUARD).all()
    assert (buffer[-16:] == GUARD).all()
    return out.transpose(0, 3, 1, 2)


def check(problem, arrays):
    assert grouped.own_fused_grouped_conv2d.usable(problem) is None
    want = get_op("fused_conv2d").reference(*(a.astype(np.float64) for a in arrays), **problem.attrs)
    np.testing.assert_allclose(run(problem, arrays), want, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("residual", [False, True])
def test_every_group_is_near_the_float64_reference(level, residual):
    with isa.capped(level):
        for groups in GROUPS:
            check(*case(*groups, residual=residual))


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("name", PLACES)
def test_steps_and_paddings(level, name):
    with isa.capped(level):
        for groups in ((8, 1, 2), (6, 4, 4)):
            check(*case(*groups, batch=2, **PLACES[name]))


@pytest.mark.parametrize("level", isa.available())
def test_widths_and_kernels(level):
    with isa.capped(level):
        for width in (1, 2, 7, 8, 9, 13, 14, 15, 29, 300):
            check(*case(4, 2, 2, (3, width), (3, 1)))
        for kernel in ((1, 1), (1, 7), (7, 1), (5, 4)):
            check(*case(4, 2, 3, (8, 17), kernel))


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(level, activation):
    with isa.capped(level):
        check(*case(4, 4, 5, activation=activation))
        check(*case(4, 4, 5, activation=activation, residual=True))


@pytest.mark.parametrize("size", [(40, 3), (3, 400)])
def test_threads_give_the_same_bits(size):
    problem, arrays = case(12, 4, 4, size, batch=3, padding=((1, 1), (1, 1)), residual=True, activation="gelu")
    one = run(problem, arrays)
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(run(problem, arrays, threads), one)


def test_eager_calls_and_what_is_left_to_others():
    x, w = draw(2, 12, 6, 5), draw(24, 3, 3, 3)
    want = get_op("conv2d").reference(
        x.astype(np.float64), w.astype(np.float64), stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), groups=4
    )
    np.testing.assert_allclose(F.conv2d(tensor(x), tensor(w), None, 1, 1, groups=4).numpy(), want, atol=2e-5)
    usable = grouped.own_fused_grouped_conv2d.usable
    assert usable(case(6, 1, 1)[0]) == "each channel by itself"
    assert "2 groups of 9 channels" in str(usable(case(2, 9, 9)[0]))
    assert "a kernel of 3 rows, 40 apart" in str(usable(case(2, 2, 2, (90, 4), dilation=(40, 1))[0]))


def test_steps_check_what_they_get():
    arguments = {"in_size": (4, 4), "out_size": (4, 4), "stride": (1, 1), "dilation": (1, 1), "before": (0, 0)}
    rest = {"bias": draw(4), "residual": False, "clamp": "none", "after": None, "threads": 1}
    with pytest.raises(ValueError, match="grouped_step: weights"):
        _core.grouped_step(sizes=(1, 8, 4, 4), weights=draw(4, 3, 1, 1), **arguments, **rest)
    with pytest.raises(ValueError, match="no clamp soft"):
        _core.grouped_step(sizes=(1, 8, 4, 4), weights=draw(4, 2, 1, 1), **arguments, **{**rest, "clamp": "soft"})


def test_plans_take_it_first():
    net = M.Sequential(M.Conv2d(16, 32, 3, 1, 1, groups=8), M.ReLU())
    made = plan.compile(trace_module(net, tensor(draw(1, 16, 5, 5))))
    assert "own_fused_grouped_conv2d" in [step.kernel for step in made.steps]
