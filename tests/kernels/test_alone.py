"""Own convolutions of channels by themselves: in rows, and transposed in both layouts, at every instruction set."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan, tensor
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.kernels import _core, grouped, isa, memory
from megengine.kernels.native import to_step
from megengine.kernels.problem import Problem
from megengine.quantization import to_half
from megengine.traced_module import trace_module

TYPES = [np.dtype(np.float32), np.dtype("bfloat16")]
TOLERANCE = {TYPES[0]: 1e-5, TYPES[1]: 2**-8}
PLACES = {
    "plain": {},
    "apart": {"stride": (2, 3), "padding": ((1, 0), (0, 1))},
    "dilated": {"dilation": (2, 3), "padding": ((2, 2), (1, 3))},
    "dilated apart": {"stride": (3, 2), "dilation": (2, 2), "padding": ((0, 1), (2, 0))},
}


def draw(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def case(op, dtype, channels, size=(6, 7), kernel=(3, 4), bias=True, **places):
    """The problem of a convolution of two images, and its arrays."""
    arrays = [draw(2, channels, *size), draw(channels, 1, *kernel), draw(channels)][: 2 + bias]
    arrays = [a.astype(dtype) for a in arrays]
    attrs = {"stride": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": channels, **places}
    if op == "conv_transpose2d":
        attrs.setdefault("output_padding", (0, 0))
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    return Problem(op, specs, [infer(op, specs, attrs)], attrs), arrays


def check(kernel, problem, arrays, threads=1):
    """The result is near the float64 reference, and what lies around it stays."""
    assert kernel.usable(problem) is None
    spec, dtype = problem.outputs[0], arrays[0].dtype
    want = get_op(problem.op).reference(*(a.astype(np.float64) for a in arrays), **problem.attrs)
    x = arrays[0] if kernel.in_rows else to_step(arrays[0])
    buffer = np.full(spec.size + 32, 77, memory.bits(x).dtype)
    step = kernel.make_step(problem, dict(enumerate(arrays[1:], 1)), threads)
    _core.run_step(step, [memory.bits(x), buffer[16:-16]])
    assert (buffer[:16] == 77).all()
    assert (buffer[-16:] == 77).all()
    n, c, h, w = spec.shape
    got = buffer[16:-16].view(dtype)
    got = got.reshape(n, c, h, w) if kernel.in_rows else got.reshape(n, h, w, c).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=TOLERANCE[dtype], atol=3e-5)
    return got


TRANSPOSED = [grouped.own_transposed_channels, grouped.own_transposed_planes]


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("places", PLACES)
def test_planes_are_near_the_float64_reference(places, dtype, level):
    with isa.capped(level):
        for channels in (2, 5):
            check(grouped.own_planes_conv2d, *case("conv2d", dtype, channels, **PLACES[places]))
        check(grouped.own_planes_conv2d, *case("conv2d", dtype, 3, (1, 50), (1, 5), bias=False))


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("side", [3, 5, 7])
def test_square_kernels_over_lines_of_any_length(side, dtype, level):
    with isa.capped(level):
        for size in ((1, 15), (4, 16), (5, 17), (9, 31), (13, 33), (6, 70)):
            for dilation in ((1, 1), (2, 3)):
                around = tuple((d * (side // 2),) * 2 for d in dilation)
                places = {"dilation": dilation, "padding": around, "kernel": (side, side)}
                check(grouped.own_planes_conv2d, *case("conv2d", dtype, 2, size, **places), threads=2)


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("places", PLACES)
def test_transposed_ones_are_near_the_float64_reference(places, dtype, level):
    with isa.capped(level):
        for channels in (1, 15, 16, 17, 64, 70):
            problem, arrays = case("conv_transpose2d", dtype, channels, **PLACES[places])
            results = [check(kernel, problem, arrays, threads) for kernel in TRANSPOSED for threads in (1, 3)]
            for other in results[1:]:
                np.testing.assert_array_equal(results[0].astype(np.float32), other.astype(np.float32))


def test_output_padding_and_places_that_nothing_reaches():
    problem, arrays = case("conv_transpose2d", TYPES[0], 5, stride=(4, 5), kernel=(2, 1), output_padding=(3, 2))
    for kernel in TRANSPOSED:
        check(kernel, problem, arrays)
    problem, arrays = case("conv_transpose2d", TYPES[0], 5, (1, 1), (3, 3), bias=False)
    for kernel in TRANSPOSED:
        check(kernel, problem, arrays)


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.down = M.Conv2d(5, 5, 3, padding=2, dilation=2, groups=5)
        self.up = M.ConvTranspose2d(5, 5, 4, stride=2, padding=1, groups=5)

    def forward(self, x):
        return self.up(F.relu(self.down(x)))


def test_plans_compute_them_in_rows():
    """Between the input of a plan and its result, which lie in rows, nothing is turned."""
    x = draw(2, 5, 9, 8)
    net = trace_module(Net(), tensor(x))
    made = plan.compile(net)
    assert [info.kernel for info in made.steps] == ["own_planes_conv2d", "own_transposed_planes"]
    want = net(tensor(x)).numpy()
    np.testing.assert_allclose(made(x)[0], want, rtol=1e-4, atol=1e-5)
    half = plan.compile(to_half(net, "bf16"))
    np.testing.assert_allclose(half(x)[0], want, atol=0.05)


@pytest.mark.parametrize(
    ("kernel", "op", "channels", "shape", "reason"),
    [
        (grouped.own_planes_conv2d, "conv2d", 4, (8, 1, 3, 3), "only each channel by itself"),
        (grouped.own_transposed_channels, "conv_transpose2d", 4, (4, 2, 3, 3), "only each channel by itself"),
    ],
)
def test_channels_that_have_several_results_are_left_to_others(kernel, op, channels, shape, reason):
    attrs = {"stride": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": channels}
    if op == "conv_transpose2d":
        attrs["output_padding"] = (0, 0)
    specs = [TensorSpec((1, channels, 5, 5), TYPES[0]), TensorSpec(shape, TYPES[0])]
    assert reason in kernel.usable(Problem(op, specs, [infer(op, specs, attrs)], attrs))


def test_wrong_weights_are_refused():
    with pytest.raises(ValueError, match="transposed_step: weights"):
        pair, weights = (1, 1), np.zeros((2, 1, 1, 1), np.float32)
        _core.transposed_step((1, 3), pair, pair, pair, pair, (0, 0), weights, weights[:, 0, 0, 0], False, False, 1)
