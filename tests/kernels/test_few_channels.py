"""Convolutions of bfloat16 with few input channels in tiles (AMX), over two and three axes, against float64."""

import numpy as np
import pytest

import megengine.module as M
from megengine import plan, tensor
from megengine.core.dtype import bfloat16
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.kernels import _core, isa, tiles
from megengine.kernels.problem import Problem
from megengine.quantization import to_half
from megengine.traced_module import trace_module

needs_amx = pytest.mark.skipif("amx" not in isa.available(), reason="a CPU without AMX")
GUARD = 77


def case(channels, outputs, size, kernel, *, batch=1, activation="none", **places):
    """The problem of a convolution over as many axes as `size` has, and its arrays."""
    draw = np.random.default_rng([channels, outputs, *size, *kernel]).standard_normal
    shapes = (batch, channels, *size), (outputs, channels, *kernel), (outputs,)
    arrays = [draw(shape).astype(bfloat16) for shape in shapes]
    axes = len(size)
    attrs = {"stride": (1,) * axes, "padding": ((0, 0),) * axes, "dilation": (1,) * axes, "groups": 1, **places}
    attrs |= {"activation": activation}
    op, specs = f"fused_conv{axes}d", [TensorSpec(a.shape, bfloat16) for a in arrays]
    return Problem(op, specs, [infer(op, specs, attrs)], attrs), arrays


def run(problem, arrays, threads=1):
    """The result, whose neighbours stay as they are."""
    x, out = arrays[0], problem.outputs[0].shape
    kernel = tiles.own_tiled_conv2d if len(out) == 4 else tiles.own_tiled_conv3d
    step = kernel.make_step(problem, {1: arrays[1], 2: arrays[2]}, threads)
    buffer = np.full(problem.outputs[0].size + 32, GUARD, np.uint16)
    lying = x.transpose(0, 2, 3, 1) if len(out) == 4 else x
    _core.run_step(step, [np.ascontiguousarray(lying).view(np.uint16), buffer[16:-16]])
    assert (buffer[:16] == GUARD).all()
    assert (buffer[-16:] == GUARD).all()
    got = buffer[16:-16].view(bfloat16)
    return got.reshape(out[0], *out[2:], out[1]).transpose(0, 3, 1, 2) if len(out) == 4 else got.reshape(out)


def check(problem, arrays, threads=1):
    """Within half a step of bfloat16, and what sums of float32 are off; functions take rounded sums."""
    assert tiles.own_tiled_conv2d.usable(problem) is None
    want = get_op(problem.op).reference(*(a.astype(np.float64) for a in arrays), **problem.attrs)
    got = run(problem, arrays, threads).astype(np.float64)
    clamped = problem.attrs.activation in ("none", "relu", "relu6")
    np.testing.assert_allclose(got, want, rtol=2.0**-8 if clamped else 2.0**-6, atol=2e-5 if clamped else 2.0**-7)


@needs_amx
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 31, 32, 33, 70])
def test_widths(channels, width):
    check(*case(channels, 16, (3, width), (3, 3), padding=((1, 1), (1, 1))))
    check(*case(channels, 16, (2, 3, width), (3, 2, 3), padding=((1, 1), (1, 0), (1, 1))))


@needs_amx
@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 31, 32, 33, 48, 49, 64, 80])
def test_outputs(outputs):
    check(*case(3, outputs, (5, 37), (3, 3), padding=((1, 1), (1, 1))))
    check(*case(3, outputs, (3, 4, 18), (2, 3, 3), padding=((0, 0), (1, 1), (1, 1)), batch=2))


@needs_amx
@pytest.mark.parametrize("kernel", [(1, 1), (2, 3), (3, 1), (7, 7), (4, 11), (1, 30)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (4, 4), (1, 3)])
@pytest.mark.parametrize("padding", [((0, 0), (0, 0)), ((3, 3), (5, 5)), ((9, 1), (0, 9)), ((2, 7), (40, 50))])
def test_places(kernel, stride, padding):
    for channels in (1, 3, 4):
        check(*case(channels, 20, (9, 34), kernel, stride=stride, padding=padding, batch=2))


@needs_amx
@pytest.mark.parametrize("stride", [(1, 1, 1), (2, 2, 2), (1, 2, 3)])
@pytest.mark.parametrize("dilation", [(1, 1, 1), (2, 3, 1)])
@pytest.mark.parametrize("padding", [((1, 1),) * 3, ((4, 0), (0, 5), (7, 2))])
def test_places_of_volumes(stride, dilation, padding):
    check(*case(3, 18, (5, 7, 20), (3, 3, 5), stride=stride, dilation=dilation, padding=padding, batch=2))


@needs_amx
@pytest.mark.parametrize("size", [(300, 200), (6, 120, 60), (40, 30, 20), (2, 3, 3000)])
def test_more_than_one_copy(size):
    """Parts of a picture or a volume, some of which begin within a slice."""
    axes = len(size)
    problem, arrays = case(3, 8, size, (3,) * axes, padding=((1, 1),) * axes, batch=2)
    check(problem, arrays)
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(run(problem, arrays, threads), run(problem, arrays))


@needs_amx
@pytest.mark.parametrize("activation", ["none", "relu", "relu6", "silu", "hswish"])
def test_activations(activation):
    check(*case(3, 40, (9, 30), (3, 3), padding=((1, 1), (1, 1)), activation=activation))
    check(*case(3, 24, (3, 4, 30), (3, 3, 3), activation=activation))


@needs_amx
def test_what_is_not_finite_stays_in_its_windows():
    """Of an even number of neighbours; of an odd one the instruction reads one more."""
    problem, arrays = case(4, 16, (8, 40), (3, 3))
    arrays[0][0, 1, 3, 20] = np.inf
    finite = np.isfinite(run(problem, arrays).astype(np.float32)).all((0, 1))
    assert not finite[1:4, 18:21].any()
    assert finite[4:].all() and finite[0].all() and finite[:, :18].all() and finite[:, 21:].all()


@needs_amx
def test_what_it_is_for():
    usable = tiles.own_tiled_conv2d.usable
    assert usable(case(3, 16, (8, 8), (3, 3))[0]) is None
    assert "expected at most 4" in usable(case(5, 16, (8, 8), (3, 3))[0])
    assert "expected neighbours" in usable(case(3, 16, (8, 8), (3, 3), dilation=(1, 2))[0])
    assert usable(case(3, 16, (8, 8), (3, 3), dilation=(2, 1))[0]) is None
    assert "shorter" in usable(case(1, 16, (1, 20000), (1, 3))[0])
    with isa.capped("bf16"):
        assert "needs AMX" in usable(case(3, 16, (8, 8), (3, 3))[0])


@needs_amx
@pytest.mark.parametrize("axes", [2, 3])
def test_plans_take_it(axes):
    conv = M.Conv2d if axes == 2 else M.Conv3d
    net = M.Sequential(conv(3, 24, 3, 2, 1), M.ReLU()).eval()
    x = np.random.default_rng(0).standard_normal((2, 3, *(12,) * axes)).astype(np.float32)
    made = plan.compile(to_half(trace_module(net, tensor(x)), "bf16"))
    assert f"own_tiled_conv{axes}d" in [s.kernel for s in made.steps]
    np.testing.assert_allclose(made(x)[0].astype(np.float32), net(tensor(x)).numpy(), rtol=0.02, atol=0.05)


def test_wrong_arguments():
    one = (1, 1, 1)
    rest = {"in_size": (1, 7, 9), "out_size": (1, 5, 7), "stride": one, "before": (0, 0, 0), "clamp": "none"}
    rest |= {"after": None, "in_rows": True, "threads": 1, "bias": np.zeros(16, np.float32)}
    rest |= {"weights": np.zeros((16, 3, 1, 3, 3), np.uint16)}
    for sizes, dilation in (((1, 4, 16), one), ((1, 3, 17), one), ((0, 3, 16), one), ((1, 3, 16), (1, 1, 2))):
        with pytest.raises(ValueError, match="tiled_conv_step: weights"):
            _core.tiled_conv_step(sizes=sizes, dilation=dilation, **rest)
    with isa.capped("bf16"), pytest.raises(ValueError, match="all with AMX"):
        _core.tiled_conv_step(sizes=(1, 3, 16), dilation=one, **rest)
