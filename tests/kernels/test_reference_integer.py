"""The executable specification against plain int64 sums, scalar float32 steps, and ONNX Runtime."""

import numpy as np
import pytest

from megengine.kernels.reference import integer
from megengine.kernels.reference.integer import Output, f32
from tests.helpers.onnx_runtime import session_of

RNG = np.random.default_rng


def plain_conv(x, w, stride, padding, dilation, groups, z_x):
    (top, bottom), (left, right) = padding
    x = np.pad(x.astype(np.int64) - z_x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, _, h, wd = x.shape
    o, ci, kh, kw = w.shape
    oh, ow = ((s - d * (k - 1) - 1) // t + 1 for s, k, t, d in zip((h, wd), (kh, kw), stride, dilation, strict=True))
    out = np.zeros((n, o, oh, ow), np.int64)
    for k in range(o):
        g = k // (o // groups)
        for i in range(oh):
            for j in range(ow):
                a, b = i * stride[0], j * stride[1]
                win = x[:, g * ci : (g + 1) * ci, a : a + dilation[0] * kh : dilation[0], b:]
                win = win[..., : dilation[1] * kw : dilation[1]][:, :, :kh, :kw]
                out[:, k, i, j] = (win * w[k].astype(np.int64)).sum((1, 2, 3))
    return out


CONVS = [
    ((2, 3, 7, 6), (4, 3, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1, 0),
    ((1, 4, 9, 9), (6, 2, 3, 2), (2, 1), ((0, 1), (1, 0)), (1, 2), 2, 13),
    ((1, 6, 8, 7), (6, 1, 3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 6, 128),
    ((1, 700, 2, 2), (3, 700, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1, 0),
]


@pytest.mark.parametrize("case", CONVS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_accumulators_are_exact(case, dtype):
    xs, ws, stride, padding, dilation, groups, z = case
    info = np.iinfo(dtype)
    x = RNG(1).integers(info.max - 3, info.max + 1, xs).astype(dtype)  # near the bound: 700 * 255 * 127 > 2**24
    w = RNG(2).integers(100, 128, ws).astype(np.int8)
    z = min(z, info.max)
    got = integer.conv_acc(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups, z_x=z)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, plain_conv(x, w, stride, padding, dilation, groups, z))


def test_linear_is_a_1x1_convolution():
    x, w = RNG(3).integers(0, 256, (5, 37)).astype(np.uint8), RNG(4).integers(-128, 128, (6, 37)).astype(np.int8)
    conv = integer.conv_acc(x[..., None, None], w[..., None, None], stride=(1, 1), padding=((0, 0), (0, 0)), z_x=3)
    np.testing.assert_array_equal(integer.linear_acc(x, w, z_x=3), conv[..., 0, 0])


def test_epilogue_is_the_written_sequence():
    rng = RNG(5)
    acc = rng.integers(-(10**6), 10**6, (1, 8, 4, 4)).astype(np.int32)
    b = rng.integers(-(10**5), 10**5, 8).astype(np.int32)
    M, B = (rng.random(8) * 1e-4).astype(f32), rng.normal(0, 9, 8).astype(f32)
    r, ratio = rng.integers(-255, 256, acc.shape).astype(np.int32), integer.cut16(0.37)
    got = integer.epilogue(acc, b, M, B, Output(lo=-5, hi=120, z_y=7), residual=r, ratio=ratio)
    for index in np.ndindex(acc.shape):
        c = index[1]
        t = f32(f32(f32(acc[index] + b[c]) * M[c]) + B[c])
        t = f32(t + f32(f32(r[index]) * ratio))
        want = round(min(max(float(t), -5.0), 120.0)) + 7  # Python's round is half even
        assert got[index] == want


def test_float_output_is_neither_clamped_nor_rounded():
    acc = np.array([[1 << 20, -3]], np.int32)
    out = integer.epilogue(acc, np.zeros(2, np.int32), f32([0.3, 0.5]), f32([1, 2]), Output(dtype=np.float32))
    np.testing.assert_array_equal(out, np.array([[f32(1 << 20) * f32(0.3) + f32(1), 0.5]], f32))


def test_cut16_makes_products_with_8_bits_exact():
    for value in RNG(6).random(200) * 4 + 1e-3:
        ratio = integer.cut16(value)
        assert abs(float(ratio) / value - 1) < 2**-16
        k = np.arange(-255, 256)
        np.testing.assert_array_equal(k.astype(f32) * ratio, k * np.float64(ratio))


def test_quantize_divides_rounds_half_even_and_sends_nan_to_the_bottom():
    x = f32([0.5, 1.5, -0.5, 2.5, np.nan, np.inf, -np.inf, 1e30])
    np.testing.assert_array_equal(integer.quantize(x, 1.0, 10, 0, 255, np.uint8), [10, 12, 10, 12, 0, 255, 0, 255])
    s = f32(0.1)
    x = RNG(7).normal(0, 5, 4096).astype(f32)
    np.testing.assert_array_equal(integer.quantize(x, s, 0, -128, 127), np.clip(np.rint(x / s), -128, 127))


def test_real_values_beyond_32_bits_become_the_ends():
    x = np.array([-3e9, -(2.0**31), 0.5, 2.0**31, 3e9, np.inf, np.nan], np.float32)
    low, high = -(2**31), 2**31 - 1
    expected = [low, low, 0, high, high, high, low]
    np.testing.assert_array_equal(integer.quantize(x, 1.0, 0, low, high), expected)


def test_average_counts_inside_or_all():
    x = np.full((1, 1, 4, 4), 9, np.uint8)
    args = {"kernel": (3, 3), "stride": (1, 1), "padding": ((1, 1), (1, 1)), "s_x": 0.5, "s_y": 0.5}
    inside = integer.avg_pool2d(x, Output(), count_include_pad=False, **args)
    every = integer.avg_pool2d(x, Output(), count_include_pad=True, **args)
    assert (inside == 9).all()
    assert every[0, 0, 0, 0] == 4
    np.testing.assert_array_equal(
        integer.mean(x, Output(), axis=(2, 3), keepdims=True, s_x=1.0, s_y=2.0),
        [[[[4]]]],  # 4.5 goes to even
    )


def test_a_table_is_read_at_the_stored_integer():
    table = np.random.default_rng(3).integers(-128, 128, 256).astype(np.int8)
    x = np.arange(-128, 128).astype(np.int8)
    np.testing.assert_array_equal(integer.lookup(x, table), table)
    np.testing.assert_array_equal(integer.lookup(x.view(np.uint8), table), np.roll(table, 128))


def test_convolution_equals_onnx_runtime():
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    rng = RNG(8)
    x = rng.integers(0, 256, (1, 16, 12, 12)).astype(np.uint8)
    w = rng.integers(-127, 128, (24, 16, 3, 3)).astype(np.int8)
    b = rng.integers(-20000, 20000, 24).astype(np.int32)
    s_x, s_y, s_w = f32(0.021), f32(0.05), (rng.random(24) * 0.004 + 1e-4).astype(f32)
    consts = {"sx": s_x, "zx": np.uint8(13), "w": w, "sw": s_w, "zw": np.zeros(24, np.int8)}
    consts |= {"sy": s_y, "zy": np.uint8(37), "b": b}
    node = helper.make_node("QLinearConv", ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"], ["y"], pads=[1] * 4)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in consts.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    want = session_of(model).run(None, {"x": x})[0]
    acc = integer.conv_acc(x, w, stride=(1, 1), padding=((1, 1), (1, 1)), z_x=13)
    out = Output(lo=-37, hi=218, z_y=37)
    got = integer.epilogue(acc, b, integer.multiplier(s_x, s_w, s_y), np.zeros(24, f32), out)
    np.testing.assert_array_equal(got, want)
    assert onnx.__version__


U8 = Output(lo=0, hi=255)


def bytes_of(seed, *shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_products_of_two_tensors_are_exact_sums(dtype):
    a, r = bytes_of(0, 2, 1, 5, 300), bytes_of(1, 4, 300, 3, dtype=dtype)
    want = np.matmul(a.astype(np.int64) - 200, r.astype(np.int64) + 7)
    np.testing.assert_array_equal(integer.matmul_acc(a, r, z_a=200, z_r=-7), want)
    y = integer.matmul(a, r, U8, m=2e-5, z_a=200, z_r=-7)
    np.testing.assert_array_equal(y, np.rint(np.clip(want.astype(f32) * f32(2e-5), 0, 255)))


def test_maximum_compares_real_values():
    a, r = bytes_of(0, 99), bytes_of(1, 99, dtype=np.int8)
    y = integer.extremum(np.maximum, a, r, U8, ra=0.5, rb=1.25, z_a=3, z_r=-9)
    np.testing.assert_array_equal(y, np.rint(np.clip(np.maximum((a - 3.0) * 0.5, (r + 9.0) * 1.25), 0, 255)))


@pytest.mark.parametrize("scale", [1e-4, 0.03, 0.5, 20.0])
def test_softmax_is_within_a_step_of_the_real_one(scale):
    x, table = bytes_of(0, 40, 60), integer.softmax_table(scale)
    y = integer.softmax(x, table, U8, axis=1, s_y=1 / 256)
    e = np.exp((x - x.max(1, keepdims=True).astype(float)) * scale)
    assert np.abs(y - np.minimum(e / e.sum(1, keepdims=True) * 256, 255)).max() < 0.51


def test_softmax_depends_on_distances_and_not_on_the_order():
    x, table = bytes_of(0, 7, 50) // 2, integer.softmax_table(0.05)
    y = integer.softmax(x, table, U8, axis=1, s_y=1 / 256)
    order = np.random.default_rng(1).permutation(50)
    np.testing.assert_array_equal(integer.softmax(x[:, order], table, U8, axis=1, s_y=1 / 256), y[:, order])
    np.testing.assert_array_equal(integer.softmax(x + np.uint8(100), table, U8, axis=1, s_y=1 / 256), y)


@pytest.mark.parametrize("centred", [True, False])
def test_normalization_is_within_a_step_of_the_real_one(centred):
    x, scale, z = bytes_of(0, 30, 96), 0.04, 111
    G, B = (np.random.default_rng(1).random(96) * 50).astype(f32), np.full(96, 128, f32)
    y = integer.normalize(x, G, B, U8, axes=1, E=1e-5 / scale**2, centred=centred, z_x=z)
    real = (x.astype(float) - z) * scale
    real -= real.mean(1, keepdims=True) if centred else 0
    want = real / np.sqrt((real**2).mean(1, keepdims=True) + 1e-5) * G + B
    assert np.abs(y - np.clip(want, 0, 255)).max() < 0.501


def test_normalization_does_not_see_the_mean_or_the_zero_point():
    x, ones = bytes_of(0, 5, 64) // 2, np.full(64, 40, f32)
    first = integer.normalize(x, ones, ones * 3, U8, axes=1, E=0.1, centred=True)
    moved = integer.normalize(x + np.uint8(77), ones, ones * 3, U8, axes=1, E=0.1, centred=True, z_x=50)
    np.testing.assert_array_equal(moved, first)
