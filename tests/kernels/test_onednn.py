"""oneDNN kernels: float against float64 references, integers bit for bit against the specification."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from megengine.core.dtype import bfloat16, qint8, quantized, quint8
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer, reference_runner
from megengine.kernels import _core, isa, memory, onednn
from megengine.kernels.native import empty_for_step, from_step, to_step
from megengine.kernels.problem import Problem
from megengine.kernels.reference.integer import cut16
from megengine.kernels.registry import family

pytestmark = pytest.mark.skipif(not onednn.available(), reason=onednn.unavailable_reason())

# n, c, h, o, k, stride, pad, groups, source, result, activation, residual
SHAPES = {
    "1x1": (1, 64, 14, 96, 1, 1, 0, 1, "u8", "u8", "relu", ""),
    "1x1 to s8": (2, 96, 7, 24, 1, 1, 0, 1, "u8", "s8", "none", ""),
    "1x1 from s8": (1, 24, 14, 144, 1, 1, 0, 1, "s8", "u8", "relu6", ""),
    "1x1 residual": (1, 64, 7, 64, 1, 1, 0, 1, "u8", "u8", "relu", "u8"),
    "1x1 residual s8": (1, 144, 7, 24, 1, 1, 0, 1, "u8", "s8", "none", "s8"),
    "1x1 residual other sign": (1, 64, 7, 64, 1, 1, 0, 1, "u8", "u8", "relu", "s8"),
    "1x1 stride 2": (1, 64, 15, 32, 1, 2, 0, 1, "u8", "s8", "none", ""),
    "1x1 tails": (1, 37, 9, 51, 1, 1, 0, 1, "u8", "u8", "relu", ""),
    "3x3": (1, 32, 14, 32, 3, 1, 1, 1, "u8", "u8", "relu", ""),
    "3x3 residual": (1, 32, 9, 32, 3, 1, 1, 1, "u8", "u8", "relu", "u8"),
    "3x3 from s8": (1, 32, 9, 32, 3, 1, 1, 1, "s8", "u8", "relu", ""),
    "3x3 stride 2": (1, 32, 15, 48, 3, 2, 1, 1, "u8", "u8", "relu", ""),
    "stem 7x7": (1, 3, 32, 64, 7, 2, 3, 1, "u8", "u8", "relu", ""),
    "stem from s8": (1, 3, 32, 32, 3, 2, 1, 1, "s8", "u8", "relu6", ""),
    "grouped": (1, 32, 9, 32, 3, 1, 1, 4, "u8", "u8", "relu", ""),
    "grouped by 3": (1, 24, 9, 36, 3, 1, 1, 3, "u8", "s8", "none", ""),
    "depthwise": (1, 96, 14, 96, 3, 1, 1, 96, "u8", "u8", "relu6", ""),
    "depthwise stride 2": (1, 96, 15, 96, 3, 2, 1, 96, "u8", "u8", "relu6", ""),
    "depthwise tail": (1, 35, 9, 35, 3, 1, 1, 35, "u8", "u8", "relu", ""),
    "depthwise 5x5": (1, 40, 9, 40, 5, 1, 2, 40, "u8", "u8", "relu", ""),
    "depthwise from s8": (1, 64, 9, 64, 3, 1, 1, 64, "s8", "s8", "none", ""),
    "one pixel": (1, 16, 1, 16, 1, 1, 0, 1, "u8", "u8", "none", ""),
}
TYPES = {"u8": quint8, "s8": qint8}


def integers(rng, kind, shape):
    return (
        rng.integers(0, 256, shape).astype(np.uint8) if kind == "u8" else rng.integers(-128, 128, shape).astype(np.int8)
    )


def integer_case(name, *, near_ties):
    n, c, h, o, k, stride, pad, groups, source, result, activation, residual = SHAPES[name]
    rng = np.random.default_rng([len(name), near_ties])
    s_x, s_y, s_r = 0.02, 0.11, 0.05
    dtype = TYPES[result](s_y)
    lo, hi = dtype.qmin, dtype.qmax
    lo = lo if activation == "none" else max(lo, 0)
    hi = min(hi, 97) if activation == "relu6" else hi
    w = rng.integers(-127, 128, (o, c // groups, k, k)).astype(np.int8)
    spread = 75.0 * 75.0 * np.sqrt(c // groups * k * k)
    m = 60 / spread * np.exp(rng.normal(0, 0.3, o))
    if near_ties:
        m = 0.5 / np.maximum(1, np.rint(0.5 / m))
    bias = rng.integers(-80, 80, o) * 0.5 if near_ties else rng.normal(0, 20, o)
    arrays = [
        integers(rng, source, (n, c, h, h)),
        w,
        np.zeros(o, np.int32),
        m.astype(np.float32),
        bias.astype(np.float32),
    ]
    specs = [TensorSpec(arrays[0].shape, TYPES[source](s_x)), *[TensorSpec(a.shape, a.dtype) for a in arrays[1:]]]
    attrs = {"stride": (stride, stride), "padding": ((pad, pad),) * 2, "dilation": (1, 1), "groups": groups}
    attrs.update(lo=lo, hi=hi, ratio=float(cut16(s_r / s_y)) if residual else 0.0, dtype=dtype)
    size = (h + 2 * pad - k) // stride + 1
    if residual:
        arrays.append(integers(rng, residual, (n, o, size, size)))
        specs.append(TensorSpec(arrays[-1].shape, TYPES[residual](s_r)))
    return Problem("qconv2d", specs, [infer("qconv2d", specs, attrs)], attrs), arrays


@pytest.mark.skipif(not isa.has("vnni"), reason="int8 by oneDNN needs VNNI")
@pytest.mark.parametrize("near_ties", [False, True], ids=["random", "near-ties"])
@pytest.mark.parametrize("name", SHAPES)
def test_integer_convolution_equals_the_specification(name, near_ties):
    problem, arrays = integer_case(name, near_ties=near_ties)
    kernel = next(k for k in family("qconv2d").kernels if k.name == "onednn_qconv2d")
    assert kernel.usable(problem) is None
    expected = reference_runner(get_op("qconv2d"), problem, True)(*arrays)
    got = kernel.run(problem, *arrays)
    assert len(np.unique(expected)) > 3
    assert np.count_nonzero(got != expected) == 0


@pytest.mark.skipif(not isa.has("vnni"), reason="int8 by oneDNN needs VNNI")
@pytest.mark.parametrize("result", ["s8", "float32"])
def test_integer_linear_equals_the_specification(result):
    rng = np.random.default_rng(0)
    x, w = integers(rng, "u8", (3, 257)), rng.integers(-127, 128, (100, 257)).astype(np.int8)
    m, bias = rng.uniform(1e-4, 1e-3, 100).astype(np.float32), rng.normal(0, 9, 100).astype(np.float32)
    arrays = [x, w, np.zeros(100, np.int32), m, bias]
    specs = [TensorSpec(x.shape, quint8(0.02)), *[TensorSpec(a.shape, a.dtype) for a in arrays[1:]]]
    attrs = {"lo": -128, "hi": 127, "ratio": 0.0, "dtype": result if result == "float32" else qint8(0.1)}
    problem = Problem("qlinear", specs, [infer("qlinear", specs, attrs)], attrs)
    expected = reference_runner(get_op("qlinear"), problem, True)(*arrays)
    kernel = next(k for k in family("qlinear").kernels if k.name == "onednn_qlinear")
    np.testing.assert_array_equal(kernel.run(problem, *arrays), expected)


@pytest.mark.skipif(not isa.has("vnni"), reason="int8 by oneDNN needs VNNI")
@pytest.mark.parametrize(("rows", "depth"), [(127, 512), (128, 511), (128, 512), (200, 513)])
@pytest.mark.parametrize("residual", [False, True])
def test_integer_products_of_many_deep_rows_equal_the_specification(rows, depth, residual):
    rng = np.random.default_rng(rows)
    x, w = integers(rng, "u8", (rows, depth)), rng.integers(-127, 128, (33, depth)).astype(np.int8)
    m, bias = rng.uniform(1e-5, 1e-4, 33).astype(np.float32), rng.normal(0, 9, 33).astype(np.float32)
    arrays = [x, w, np.zeros(33, np.int32), m, bias]
    specs = [TensorSpec(x.shape, quint8(0.02)), *[TensorSpec(a.shape, a.dtype) for a in arrays[1:]]]
    attrs = {"lo": -128, "hi": 90, "ratio": float(cut16(0.7)) if residual else 0.0, "dtype": qint8(0.1)}
    if residual:
        arrays.append(integers(rng, "s8", (rows, 33)))
        specs.append(TensorSpec(arrays[-1].shape, qint8(0.07)))
    problem = Problem("qlinear", specs, [infer("qlinear", specs, attrs)], attrs)
    expected = reference_runner(get_op("qlinear"), problem, True)(*arrays)
    kernel = next(k for k in family("qlinear").kernels if k.name == "onednn_qlinear")
    assert len(np.unique(expected)) > 3
    np.testing.assert_array_equal(kernel.run(problem, *arrays), expected)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize(("rows", "depth"), [((127,), 512), ((128,), 511), ((128,), 512), ((6, 43), 640)])
def test_float_products_of_many_deep_rows_are_near_the_float64_reference(rows, depth, activation):
    rng = np.random.default_rng(depth)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((*rows, depth), (37, depth)))
    b = rng.standard_normal(37).astype(np.float32)
    attrs = {"activation": activation}
    specs = [TensorSpec(a.shape, a.dtype) for a in (x, w, b)]
    problem = Problem("fused_linear", specs, [infer("fused_linear", specs, attrs)], attrs)
    kernel = next(k for k in family("fused_linear").kernels if k.name == "onednn_fused_linear")
    want = get_op("fused_linear").reference(*(a.astype(np.float64) for a in (x, w, b)), **attrs)
    results = []
    for threads in (1, 2):
        out = np.full(want.size + 16, 77, np.float32)
        _core.run_step(kernel.make_step(problem, {1: w, 2: b}, threads), [x, out[: want.size]])
        assert (out[want.size :] == 77).all()
        results.append(out[: want.size].reshape(want.shape))
    np.testing.assert_allclose(results[0], want, rtol=1e-4, atol=2e-4)
    np.testing.assert_array_equal(results[0], results[1])


def test_refusals_give_reasons():
    problem, arrays = integer_case("1x1", near_ties=False)
    kernel = next(k for k in family("qconv2d").kernels if k.name == "onednn_qconv2d")
    shifted = TensorSpec(problem.inputs[0].shape, quint8(0.02, 3))
    moved = Problem("qconv2d", (shifted, *problem.inputs[1:]), problem.outputs, problem.attrs)
    with isa.capped("avx2"):
        assert "saturates" in kernel.usable(problem)
    if isa.has("vnni"):
        assert "input zero points" in kernel.usable(moved)
    arrays[2][3] = 1
    assert "integer bias" in kernel.accepts(problem, dict(enumerate(arrays)))


@pytest.mark.skipif("bf16" not in isa.available(), reason="no instructions for bfloat16")
@pytest.mark.parametrize(
    ("taken", "given", "groups"), [(8, 8, 4), (4, 4, 8), (4, 8, 4), (2, 3, 8), (8, 8, 3), (16, 16, 2), (3, 3, 4)]
)
def test_small_groups_of_bfloat16(taken, given, groups):
    rng = np.random.default_rng(taken + groups)
    shapes = (2, taken * groups, 7, 9), (given * groups, taken, 3, 3), (given * groups,)
    arrays = [rng.standard_normal(s).astype(bfloat16) for s in shapes]
    attrs = {"stride": (2, 1), "padding": ((1, 1), (2, 0)), "dilation": (1, 1), "groups": groups, "activation": "relu"}
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    problem = Problem("fused_conv2d", specs, [infer("fused_conv2d", specs, attrs)], attrs)
    want = get_op("fused_conv2d").reference(*(a.astype(np.float64) for a in arrays), **attrs)
    out = empty_for_step(problem.outputs[0])
    step = onednn.onednn_fused_conv2d.make_step(problem, {1: arrays[1], 2: arrays[2]}, 1)
    _core.run_step(step, [memory.bits(to_step(arrays[0])), memory.bits(out)])
    np.testing.assert_allclose(from_step(out).astype(np.float64), want, rtol=2.0**-7, atol=2.0**-7)
    assert onednn.joins_groups(problem) == (
        isa.has("amx") and groups % (16 // taken) == 0 and 16 % taken == 0 < taken < 16
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("groups", [1, 4, 16])
def test_float_convolution_is_near_the_float64_reference(groups, threads):
    rng = np.random.default_rng(groups)
    x = rng.standard_normal((1, 16, 13, 11)).astype(np.float32)
    w = rng.standard_normal((16, 16 // groups, 3, 3)).astype(np.float32)
    b, r = rng.standard_normal(16).astype(np.float32), rng.standard_normal((1, 16, 7, 11)).astype(np.float32)
    attrs = {"stride": (2, 1), "padding": ((1, 1), (2, 0)), "dilation": (1, 1), "groups": groups, "activation": "relu"}
    specs = [TensorSpec(a.shape, a.dtype) for a in (x, w, b, r)]
    problem = Problem("fused_conv2d", specs, [infer("fused_conv2d", specs, attrs)], attrs)
    kernel = family("fused_conv2d").select(problem, {}, step=True)
    step = kernel.make_step(problem, {1: w, 2: b}, threads)
    buffer = np.full(to_step(r).size + 64, 77, np.float32)  # canaries behind the output
    out = buffer[: r.size].reshape(1, 7, 11, 16)
    out[...] = to_step(r)
    from megengine.kernels import _core

    _core.run_step(step, [to_step(x), out, out])
    want = get_op("fused_conv2d").reference(*(a.astype(np.float64) for a in (x, w, b, r)), **attrs)
    np.testing.assert_allclose(out.transpose(0, 3, 1, 2), want, rtol=1e-5, atol=1e-5)
    assert (buffer[r.size :] == 77).all()


def float_case(x_shape, w_shape, **attrs):
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    attrs = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1} | attrs
    specs = [TensorSpec(a.shape, a.dtype) for a in (x, w)]
    problem = Problem("conv2d", specs, [infer("conv2d", specs, attrs)], attrs)
    kernel = next(k for k in family("conv2d").kernels if k.name == "onednn_conv2d")
    return kernel, problem, x, w


def test_threads_share_a_cached_step():
    kernel, problem, x, w = float_case((1, 64, 28, 28), (64, 64, 3, 3))
    inputs = [x * scale for scale in (1, 2, 3)]
    expected = [kernel.run(problem, i, w).copy() for i in inputs]

    def differences(which):
        return sum(not np.array_equal(kernel.run(problem, inputs[which], w), expected[which]) for _ in range(500))

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(differences, range(3))) == [0, 0, 0]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_that_see_only_padding_are_not_a_part(threads):
    attrs = {"stride": (2, 3), "padding": ((6, 6), (0, 6)), "dilation": (1, 2)}
    kernel, problem, x, w = float_case((1, 8, 3, 12), (16, 8, 1, 1), **attrs)
    step = kernel.make_step(problem, {1: w}, threads)
    want = get_op("conv2d").reference(x.astype(np.float64), w.astype(np.float64), **attrs, groups=1)
    out = np.full(want.transpose(0, 2, 3, 1).shape, 77, np.float32)
    from megengine.kernels import _core

    _core.run_step(step, [to_step(x), out])
    np.testing.assert_allclose(out.transpose(0, 3, 1, 2), want, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not isa.has("vnni"), reason="int8 by oneDNN needs VNNI")
def test_bounds_of_a_narrow_type_are_kept():
    rng = np.random.default_rng(0)
    dtype = quantized("qint8_narrow", 0.11)
    arrays = [integers(rng, "u8", (1, 8, 4, 4)), integers(rng, "s8", (16, 8, 1, 1)), np.zeros(16, np.int32)]
    arrays += [np.full(16, 5, np.float32), np.zeros(16, np.float32)]
    specs = [TensorSpec(arrays[0].shape, quint8(0.02)), *[TensorSpec(a.shape, a.dtype) for a in arrays[1:]]]
    attrs = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}
    attrs |= {"lo": -127, "hi": 127, "ratio": 0.0, "dtype": dtype}
    problem = Problem("qconv2d", specs, [infer("qconv2d", specs, attrs)], attrs)
    kernel = next(k for k in family("qconv2d").kernels if k.name == "onednn_qconv2d")
    got = kernel.run(problem, *arrays)
    assert (got.min(), got.max()) == (-127, 127)
    np.testing.assert_array_equal(got, reference_runner(get_op("qconv2d"), problem, True)(*arrays))


@pytest.mark.parametrize("op", ["conv2d_backward_data", "conv2d_backward_weight"])
@pytest.mark.parametrize("groups", [1, 2])
def test_threads_run_one_gradient_step_at_the_same_time(op, groups):
    """The step is made by one thread and kept; its scratch memory is the caller's."""
    rng = np.random.default_rng(0)
    shapes = (1, 32, 9, 9), (32, 32 // groups, 3, 3), (1, 32, 7, 7)
    x, w, ct = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    arrays, attrs = ([ct, w], {"size": (9, 9)}) if op.endswith("data") else ([x, ct], {"kernel": (3, 3)})
    attrs |= {"stride": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": groups}
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    problem = Problem(op, specs, [infer(op, specs, attrs)], attrs)
    kernel = family(op).select(problem, {})
    assert kernel.name == f"onednn_{op.removeprefix('conv2d_')}"
    want = kernel.run(problem, *arrays)
    with ThreadPoolExecutor(8) as threads:
        for got in threads.map(lambda _: kernel.run(problem, *arrays), range(64)):
            np.testing.assert_array_equal(got, want)


_REASON = """
from megengine.core.dtype import quint8
from megengine.core.spec import TensorSpec
from megengine.kernels import onednn
from megengine.kernels.problem import Problem
spec = TensorSpec((1, 8), quint8(0.1))
print(onednn._integer_usable(Problem("qlinear", [spec], [spec], {})))
"""


@pytest.mark.skipif(isa.detected() not in ("vnni", "amx"), reason="int8 by oneDNN needs VNNI")
@pytest.mark.parametrize("cap", ["AVX2", "AVX512_CORE", "AVX512_CORE_VNNI"])
def test_a_cap_of_onednn_below_vnni_is_noticed(cap):
    environment = {k: v for k, v in os.environ.items() if k != "MEGENGINE_MAX_ISA"} | {"ONEDNN_MAX_CPU_ISA": cap}
    done = subprocess.run([sys.executable, "-c", _REASON], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None" if cap.endswith("VNNI") else "ONEDNN_MAX_CPU_ISA caps it" in done.stdout


WINDOWS = {
    "output_padding": ((2, 3, 4, 5), (3, 2, 3, 3), {"stride": (2, 2), "padding": ((1, 1), (1, 1))}, (1, 0)),
    "groups": ((1, 4, 3, 3), (4, 3, 2, 3), {"stride": (1, 3), "dilation": (2, 1), "groups": 2}, (0, 0)),
    "channels": ((2, 16, 7, 7), (16, 8, 2, 2), {"stride": (2, 2)}, (0, 0)),
    "depthwise": ((1, 6, 5, 4), (6, 1, 3, 3), {"padding": ((0, 1), (1, 0)), "groups": 6}, (0, 0)),
    "larger": ((1, 2, 3, 3), (2, 2, 3, 3), {"stride": (2, 3)}, (1, 2)),
    "volume": ((2, 3, 4, 5, 3), (3, 2, 3, 3, 2), {"stride": (2, 1, 2), "padding": ((1, 0), (1, 1), (0, 0))}, (1, 0, 1)),
    "volume_groups": ((1, 4, 3, 3, 5), (4, 3, 2, 3, 1), {"stride": (1, 2, 1), "groups": 2}, (0, 1, 0)),
    "convolution": ((2, 3, 5, 6, 7), (16, 3, 3, 2, 3), {"stride": (1, 2, 1), "padding": ((1, 1), (0, 1), (2, 0))}, ()),
    "of_groups": ((1, 4, 5, 5, 5), (6, 2, 2, 3, 1), {"dilation": (2, 1, 1), "groups": 2}, ()),
    "by_channel": ((1, 8, 5, 5, 5), (8, 1, 3, 3, 3), {"groups": 8}, ()),
    "points": ((2, 16, 3, 4, 5), (32, 16, 1, 1, 1), {}, ()),
    "along_depth": ((1, 32, 5, 3, 4), (16, 32, 3, 1, 1), {"padding": ((1, 1), (0, 0), (0, 0))}, ()),
    "turned": ((2, 9, 5, 6, 7), (17, 9, 3, 3, 3), {"padding": ((1, 1),) * 3}, ()),
    "turned_tiles": ((1, 8, 4, 4, 4), (32, 8, 3, 3, 3), {"padding": ((1, 1),) * 3}, ()),
    "one_channel": ((2, 1, 5, 6, 7), (16, 1, 3, 3, 3), {"stride": (2, 1, 1), "padding": ((1, 1),) * 3}, ()),
}


def window_problem(case, dtype, *, bias):
    """The problem, its arrays, and the result of the same numbers in float64."""
    x, w, geometry, extra = WINDOWS[case]
    rng, axes = np.random.default_rng(0), len(x) - 2
    attrs = {"stride": (1,) * axes, "padding": ((0, 0),) * axes, "dilation": (1,) * axes, "groups": 1} | geometry
    op, channels = f"conv{axes}d", w[0]
    if extra:
        op, channels, attrs = f"conv_transpose{axes}d", w[1] * attrs["groups"], {**attrs, "output_padding": extra}
    arrays = [rng.standard_normal(s).astype(dtype) for s in (x, w, (channels,))[: 2 + bias]]
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    want = get_op(op).reference(*(a.astype(np.float64) for a in arrays), **attrs)
    return Problem(op, specs, [infer(op, specs, attrs)], attrs), arrays, want


def run_windows(problem, arrays, want, **near):
    """In eager calls and as a step of a plan, which writes nothing behind the result."""
    kernel = onednn.onednn_windows
    assert kernel.usable(problem) is None
    np.testing.assert_allclose(kernel.run(problem, *arrays).astype(np.float64), want, **near)
    out = memory.bits(np.full(want.size + 32, 77, arrays[0].dtype))
    step = kernel.make_step(problem, dict(enumerate(arrays)), 1)
    _core.run_step(step, [memory.bits(to_step(arrays[0])), out[:-32]])
    got = out.view(arrays[0].dtype)
    assert (got[-32:] == 77).all()
    np.testing.assert_allclose(got[:-32].astype(np.float64), to_step(want).ravel(), **near)


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", WINDOWS)
def test_transposed_convolutions_and_volumes(case, bias, level):
    with isa.capped(level):
        run_windows(*window_problem(case, np.float32, bias=bias), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif("bf16" not in isa.available(), reason="no instructions for bfloat16")
@pytest.mark.parametrize("case", WINDOWS)
def test_transposed_convolutions_and_volumes_of_bfloat16(case):
    """Sums in float32, rounded once."""
    run_windows(*window_problem(case, bfloat16, bias=True), rtol=2.0**-8, atol=2.0**-8)


def test_a_size_that_no_convolution_takes_back_is_left_to_the_reference():
    attrs = {"stride": (1, 1), "padding": ((0, 0),) * 2, "dilation": (2, 2), "groups": 1, "output_padding": (1, 1)}
    specs = [TensorSpec(s, np.dtype(np.float32)) for s in ((1, 2, 3, 3), (2, 2, 3, 3))]
    problem = Problem("conv_transpose2d", specs, [infer("conv_transpose2d", specs, attrs)], attrs)
    assert family("conv_transpose2d").select(problem, {}) is None


@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_along_rows_runs_along_columns(groups):
    """The bytes of pictures that are one pixel wide are those of pictures one pixel high."""
    attrs = {"stride": (2, 1), "padding": ((3, 1), (0, 0)), "dilation": (2, 1), "groups": groups}
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 8, 21, 1), (12, 8 // groups, 4, 1), (12,))]
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    problem = Problem("conv2d", specs, [infer("conv2d", specs, attrs)], attrs)
    wanted = get_op("conv2d").reference(*(a.astype(np.float64) for a in arrays), **attrs)
    np.testing.assert_allclose(onednn.onednn_conv2d.run(problem, *arrays), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3, 4, 7, 8, 15, 17])
@pytest.mark.parametrize("stride", [(2, 2), (3, 2), (2, 1), (1, 2)])
def test_weight_gradients_of_points_that_are_taken_in_steps(channels, stride):
    """oneDNN's own code for such steps read what was not written, with few channels, and ended the process."""
    rng = np.random.default_rng(channels)
    size = (12, 17)
    out = tuple((n - 1) // s + 1 for n, s in zip(size, stride, strict=True))
    x = rng.standard_normal((2, channels, *size)).astype(np.float32)
    ct = rng.standard_normal((2, 5, *out)).astype(np.float32)
    attrs = {"kernel": (1, 1), "stride": stride, "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": 1}
    specs = [TensorSpec(a.shape, a.dtype) for a in (x, ct)]
    problem = Problem("conv2d_backward_weight", specs, [infer("conv2d_backward_weight", specs, attrs)], attrs)
    kernel = next(k for k in family("conv2d_backward_weight").kernels if k.name == "onednn_backward_weight")
    read = x[:, :, :: stride[0], :: stride[1]].astype(np.float64)
    want = np.einsum("nohw,nchw->oc", ct.astype(np.float64), read)[:, :, None, None]
    for _ in range(3):  # what is not written differs from run to run
        np.testing.assert_allclose(kernel.run(problem, x, ct), want, rtol=1e-4, atol=1e-4)
