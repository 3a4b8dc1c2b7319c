"""Convolutions and their gradients on a GPU, in rows and channels-last, by tiles and by tensor cores."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, problem_of, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import bfloat16
from megengine.dispatch import get_op
from megengine.kernels.cuda import conv_geometry, convolution, tensor_cores
from megengine.kernels.cuda.conv_geometry import divisor
from megengine.kernels.cuda.runtime import installed

_RNG = np.random.default_rng(0)
_FORMS = ("conv{}d", "conv{}d_backward_data", "conv{}d_backward_weight", "conv_transpose{}d")
OPS = [form.format(axes) for axes in (2, 3) for form in _FORMS]


def whole(dtype, *shape):
    """Small whole numbers: their sums are exact in every order."""
    return _RNG.integers(-3, 4, shape).astype(dtype)


def _attrs(stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), groups=1):
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


# shapes of x and w, attributes
CASES = {
    "odd channels": ((2, 9, 11, 10), (17, 9, 3, 3), _attrs()),
    "strides and groups": ((1, 16, 9, 9), (40, 8, 3, 2), _attrs((2, 3), ((2, 1), (0, 1)), (1, 2), 2)),
    "one tap": ((3, 72, 6, 5), (66, 72, 1, 1), _attrs(padding=((0, 0), (0, 0)))),
    "no channels": ((1, 0, 4, 4), (9, 0, 3, 3), _attrs()),
    "depthwise": ((2, 16, 7, 7), (16, 1, 3, 3), _attrs((2, 2), groups=16)),
    "small groups": ((1, 6, 5, 5), (27, 2, 3, 3), _attrs(groups=3)),
    "volume": ((1, 8, 3, 6, 5), (16, 8, 2, 3, 3), _attrs((1, 2, 1), ((1, 1), (1, 0), (1, 1)), (1, 1, 1))),
}


def calls(case, dtype):
    """Every op of a case: its inputs, attributes, and which inputs are activations."""
    x_shape, w_shape, attrs = CASES[case]
    op = f"conv{len(x_shape) - 2}d"
    x, w, b = whole(dtype, *x_shape), whole(dtype, *w_shape), whole(dtype, w_shape[0])
    (y,) = by_reference(op, (x.astype(np.float64), w.astype(np.float64)), attrs)
    ct = whole(dtype, *y.shape)
    yield op, (x, w, b), attrs, (0,)
    if len(x_shape) == 4:
        yield f"fused_{op}", (x, w, b, ct), {**attrs, "activation": "relu"}, (0, 3)
    yield f"{op}_backward_data", (ct, w), {**attrs, "size": x_shape[2:]}, (0,)
    yield f"{op}_backward_weight", (x, ct), {**attrs, "kernel": w_shape[2:]}, (0, 1)
    transposed = {**attrs, "output_padding": (0,) * len(attrs["stride"])}
    yield op.replace("conv", "conv_transpose"), (ct, w), transposed, (0,)


def exact(op, inputs, attrs):
    """The result in float64, rounded once."""
    (wanted,) = by_reference(op, [x.astype(np.float64) for x in inputs], attrs)
    return wanted.astype(inputs[0].dtype)


def last(array):
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def check(case, dtype, gpu=None):
    for op, inputs, attrs, _ in calls(case, dtype):
        same(on_gpu(op, inputs, attrs, gpu=gpu), (exact(op, inputs, attrs),))


def check_last(case, dtype):
    for op, inputs, attrs, activations in calls(case, dtype):
        wanted = exact(op, inputs, attrs)
        with installed(EmulatedGpu()) as gpu:
            arrays = [gpu.upload(last(x) if i in activations else x) for i, x in enumerate(inputs)]
            found = convolution.channels_last(problem_of(op, inputs, attrs), *arrays).numpy()
        same((found,), (wanted if op.endswith("weight") else last(wanted),))


@pytest.fixture
def tf32(monkeypatch):
    monkeypatch.setattr(tensor_cores.Precision, "tf32", True)


@pytest.mark.parametrize("op", [*OPS, "fused_conv3d"])
def test_samples(op):
    for sample in get_op(op).samples():
        inputs = [narrowed(x) for x in sample.inputs]
        same(on_gpu(op, inputs, sample.attrs), by_reference(op, inputs, sample.attrs), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("op", [*OPS, "fused_conv2d", "fused_conv3d"])
def test_samples_in_float64(op):
    for sample in get_op(op).samples():
        same(
            on_gpu(op, sample.inputs, sample.attrs),
            by_reference(op, sample.inputs, sample.attrs),
            rtol=1e-12,
            atol=1e-12,
        )


@pytest.mark.parametrize("case", CASES)
def test_float32(case):
    check(case, np.float32)


@pytest.mark.parametrize("case", CASES)
def test_channels_last(case):
    check_last(case, np.float32)


@pytest.mark.parametrize("case", CASES)
def test_tensor_cores(case):
    check(case, np.float16)
    check_last(case, np.float16)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [bfloat16, np.float32], ids=str)
def test_more_dtypes_on_tensor_cores(tf32, case, dtype):
    check(case, dtype)
    check_last(case, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int8], ids=str)
def test_more_dtypes(case, dtype):
    for op, inputs, attrs, _ in calls(case, dtype):
        if not (dtype != np.float64 and op.startswith("fused")):
            same(on_gpu(op, inputs, attrs), by_reference(op, inputs, attrs))


@pytest.mark.parametrize("order", ORDERS)
def test_thread_orders(order):
    for dtype in (np.float32, np.float16):
        check("strides and groups", dtype, EmulatedGpu(order=order))
        check("depthwise", dtype, EmulatedGpu(order=order))


def test_older_gpus_take_halves_without_tensor_cores():
    gpu = EmulatedGpu(architecture=75)
    check("odd channels", np.float16, gpu)
    assert not any(file.startswith("tensor") for file, _ in gpu.launched)


@pytest.mark.slow
@pytest.mark.parametrize("tile", tensor_cores.TILES, ids=str)
def test_every_tile(monkeypatch, tile):
    for memo in (convolution._plan, convolution._weighing):
        memo.cache_clear()
    monkeypatch.setattr(convolution, "tile_for", lambda *_: tile)
    for order in ORDERS:
        check("one tap", np.float16, EmulatedGpu(order=order))
        check("strides and groups", np.float16, EmulatedGpu(order=order))
    check_last("odd channels", np.float16)
    for memo in (convolution._plan, convolution._weighing):
        memo.cache_clear()


@pytest.mark.parametrize(
    "op", ["ordered_conv2d", "ordered_conv3d", "ordered_conv_transpose2d", "ordered_conv_transpose3d"]
)
def test_ordered_ones_have_the_bits_of_the_reference(op):
    for sample in get_op(op).samples():
        for inputs in (sample.inputs, [narrowed(x) for x in sample.inputs]):
            same(on_gpu(op, inputs, sample.attrs), by_reference(op, inputs, sample.attrs))


def test_ordered_ones_by_tiles_have_the_bits_of_the_reference():
    x, w = (_RNG.standard_normal(shape).astype(np.float32) for shape in ((2, 24, 9, 9), (20, 24, 3, 3)))
    attrs = _attrs((2, 1))
    same(on_gpu("ordered_conv2d", (x, w), attrs), by_reference("ordered_conv2d", (x, w), attrs))


def test_ordered_transposed_ones_take_no_products_with_what_lies_outside():
    x, w = np.ones((1, 9, 3, 3), np.float32), np.full((9, 9, 3, 3), np.inf, np.float32)
    attrs = {**_attrs((1, 1), ((0, 0), (0, 0))), "output_padding": (0, 0)}
    same(on_gpu("ordered_conv_transpose2d", (x, w), attrs), by_reference("ordered_conv_transpose2d", (x, w), attrs))


def test_depthwise_ones_have_a_kernel_of_neighbouring_channels():
    x, w = whole(np.float16, 1, 5, 5, 8), whole(np.float16, 8, 1, 3, 3)
    problem = problem_of("conv2d", (np.moveaxis(x, -1, 1), w), _attrs(groups=8))
    with installed(EmulatedGpu()) as gpu:
        convolution.channels_last(problem, gpu.upload(x), gpu.upload(w))
    assert gpu.launched[-1] == ("few_channels.cu", "convolve_depthwise")


def test_weights_are_packed_once_while_they_live():
    x, w, _ = (whole(np.float16, *shape) for shape in ((1, 8, 4, 4), (8, 8, 3, 3), (8,)))
    problem = problem_of("conv2d", (x, w), _attrs())
    with installed(EmulatedGpu()) as gpu:
        of_x, of_w = gpu.upload(x), gpu.upload(w)
        for _ in range(2):
            convolution._run(problem, of_x, of_w)
    assert [kernel for _, kernel in gpu.launched].count("channels_last") == 3  # x twice, w once


@pytest.mark.parametrize("by", [0, 1, 2, 3, 7, 49, 65537, (1 << 31) - 1])
def test_divisors(by):
    magic, shift, number = divisor(by)
    assert number == max(by, 1)
    for n in (0, 1, by - 1, by, 2 * by + 1, 10**9, (1 << 31) - 1):
        if 0 <= n < 1 << 31:
            assert ((n * magic >> 32) + n) >> shift == n // max(by, 1)


def _drawn(rng):
    """Shapes of x and w and attributes of a random convolution."""
    axes = int(rng.choice([2, 2, 3]))
    groups, each, given = (
        int(rng.choice(numbers)) for numbers in ([1, 1, 2, 3, 8], [1, 2, 8, 9, 16], [1, 3, 8, 9, 33])
    )
    kernel, stride, dilation = (tuple(map(int, rng.integers(1, most, axes))) for most in (5, 4, 4))
    halves = (d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True))
    padding = tuple(tuple(map(int, rng.integers(0, most + 1, 2))) for most in halves)
    least = [d * (k - 1) + 1 - sum(p) for d, k, p in zip(dilation, kernel, padding, strict=True)]
    size = tuple(max(1, n + int(rng.integers(0, 5))) for n in least)
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return (int(rng.integers(1, 4)), groups * each, *size), (groups * given, each, *kernel), attrs


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_random_ones(monkeypatch, seed, dtype):
    monkeypatch.setitem(CASES, "drawn", _drawn(np.random.default_rng(seed)))
    check("drawn", dtype)
    check_last("drawn", dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
def test_far_elements(monkeypatch, dtype):
    """Arrays whose places take 64 bits, which those of the test do not need."""
    monkeypatch.setattr(conv_geometry, "_FARTHEST", 1)
    for memo in (convolution._plan, convolution._weighing):
        memo.cache_clear()
    for case in ("strides and groups", "depthwise"):
        check(case, dtype)
        check_last(case, dtype)
    for memo in (convolution._plan, convolution._weighing):
        memo.cache_clear()
