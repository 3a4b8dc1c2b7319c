"""Own 8-bit kernels of quantized ops, each equal to docs/integer-arithmetic.md bit for bit.

Steps are made by `_core`; activations are dense NHWC in them. The eager form makes a step and runs it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from megengine.core.dtype import DType, QuantizedDType, known_quantized
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.kernels import _core, isa
from megengine.kernels.kernel import EagerKernel, MakeStep, StepKernel
from megengine.kernels.native import eager, empty_for_step, from_step, linear_rank, long_steps, step_kernel, to_step
from megengine.kernels.problem import Problem

Constants = dict[int, np.ndarray]
ADD, REQUANTIZE, _QUANTIZE, _DEQUANTIZE, MULTIPLY, LARGER, SMALLER = range(7)  # the native enumeration
WEIGHTS = (1, 2, 3, 4)  # w, b, M, B of qconv2d and qlinear


_STORAGES = ("uint8", "int8", "int16")  # the native code numbers them so, and float32 results 3


def _storage(dtype: DType) -> int:
    return _STORAGES.index(known_quantized(dtype).storage.name)


def tensor_list(dtype: DType) -> list[int]:
    return [known_quantized(dtype).zero_point, _storage(dtype)]


def clamp_list(dtype: Any, lo: int | None = None, hi: int | None = None) -> list[int]:
    if not isinstance(dtype, QuantizedDType):
        return [0, 0, 0, len(_STORAGES)]
    z = dtype.zero_point
    return [dtype.qmin - z if lo is None else lo, dtype.qmax - z if hi is None else hi, z, _storage(dtype)]


def _source(spec: TensorSpec) -> list[int]:
    n, c, h, w = spec.shape
    return [n, h, w, c, *tensor_list(spec.dtype)]


def usable_size(problem: Problem) -> str | None:
    if any(math.prod(s.shape) == 0 for s in (*problem.inputs, *problem.outputs)):
        return "no elements"
    if any(math.prod(s.shape) >= 2**31 for s in (*problem.inputs, *problem.outputs)):
        return "2**31 elements or more"
    return None


def _eight_bits(*dtypes: Any) -> str | None:
    for dtype in dtypes:
        if not isinstance(dtype, QuantizedDType) or dtype.itemsize != 1 or dtype.axis is not None:
            return f"{dtype} is not an 8-bit type with one scale"
    return None


def _product_step(problem: Problem, constants: Constants, threads: int, geometry: Any, **kind: bool) -> Any:
    source, output, window = geometry
    residual = tensor_list(problem.inputs[5].dtype) if len(problem.inputs) > 5 else None
    a = problem.attrs
    return _core.make_int8_conv_step(
        source=source,
        output=output,
        window=window,
        w=np.ascontiguousarray(constants[1]).view(np.int8).reshape(-1),
        b=np.ascontiguousarray(constants[2]),
        m=np.ascontiguousarray(constants[3]),
        bias=np.ascontiguousarray(constants[4]),
        clamp=clamp_list(a.dtype, a.lo, a.hi),
        residual=residual,
        ratio=float(a.ratio),
        **{"depthwise": False, "halved": False, **kind},
        threads=threads,
    )


def _conv_step(problem: Problem, constants: Constants, threads: int, **kind: bool) -> Any:
    a = problem.attrs
    _, o, oh, ow = problem.outputs[0].shape
    kh, kw = problem.inputs[1].shape[2:]
    (top, _), (left, _) = a.padding
    joined = 1 if kind.get("depthwise") else _joined(a.groups, o // a.groups)
    if joined > 1:
        constants = {**constants, 1: _side_by_side(constants[1], a.groups, joined)}
    window = [kh, kw, *a.stride, top, left, *a.dilation, a.groups // joined]
    return _product_step(problem, constants, threads, (_source(problem.inputs[0]), [oh, ow, o], window), **kind)


def _joined(groups: int, given: int) -> int:
    """How many groups are computed as one: a matrix product pads the results of a group to whole vectors."""
    most = (16 if isa.has("avx512") else 8) // given
    return max(n for n in range(1, max(1, min(most, groups)) + 1) if groups % n == 0)


def _side_by_side(w: np.ndarray, groups: int, joined: int) -> np.ndarray:
    """Weights [O,C/g,kh,kw] of fewer groups: a result has zeros for the channels of the others of its group."""
    given, (_, taken, kh, kw) = w.shape[0] // groups, w.shape
    out = np.zeros((groups // joined, joined, given, joined, taken, kh, kw), w.dtype)
    own = np.arange(joined)
    out[:, own, :, own] = w.reshape(groups // joined, joined, given, taken, kh, kw).swapaxes(0, 1)
    return out.reshape(w.shape[0], joined * taken, kh, kw)


def linear_step(problem: Problem, constants: Constants, threads: int, **kind: bool) -> Any:
    x, w = problem.inputs[:2]
    source = [math.prod(x.shape[:-1]), 1, 1, x.shape[-1], *tensor_list(x.dtype)]
    geometry = (source, [1, 1, w.shape[0]], [1, 1, 1, 1, 0, 0, 1, 1, 1])
    return _product_step(problem, constants, threads, geometry, **kind)


def _product_usable(problem: Problem) -> str | None:
    depth = math.prod(problem.inputs[1].shape[1:])
    if 255 * 128 * depth >= 2**31:
        return f"sums of {counted(depth, 'product')} may not fit int32"
    return long_steps(problem) or usable_size(problem)


def _product_full(problem: Problem) -> str | None:
    """Where the own kernel was measured to be the fastest: it prefetches weights, oneDNN waits for them."""
    outputs, _, *window = w = problem.inputs[1].shape
    if isa.active() != "vnni":
        return f"measured for vnni only, active is {isa.active()}"
    if outputs % 64 or problem.attrs.groups > 1:
        return "oneDNN is faster where it is usable (blocks of 64 output channels are not full)"
    if math.prod(w) < 1 << 20 and (math.prod(window) > 1 or w[1] < 256):
        return "oneDNN is faster where it is usable (weights of less than 1 MiB)"
    return _product_usable(problem)


def not_depthwise(problem: Problem) -> str | None:
    w = problem.inputs[1].shape
    if w[1] != 1 or w[0] != problem.attrs.groups:
        return "not depthwise (one input and one output channel a group)"
    if problem.attrs.dtype == "float32" and len(problem.inputs) > 5:
        return "float32 output with a residual"
    return None


def _depthwise_usable(problem: Problem) -> str | None:
    return not_depthwise(problem) or _product_usable(problem)


def _depthwise_full(problem: Problem) -> str | None:
    """Where the own kernel was measured to be the fastest: 3x3, stride 1, most lanes of its 64-channel blocks used."""
    w, channels = problem.inputs[1].shape, problem.inputs[0].shape[1]
    if w[2:] != (3, 3) or problem.attrs.stride != (1, 1):
        return "oneDNN is faster where it is usable (not 3x3 with stride 1)"
    if channels < 0.8 * (-(-channels // 64) * 64):
        return f"oneDNN is faster where it is usable ({counted(channels, 'channel')} fill blocks of 64 badly)"
    return _depthwise_usable(problem)


def _elementwise(problem: Problem, kind: int, clamp: list[int], ra: float, rb: float, threads: int) -> Any:
    a = problem.inputs[0].dtype
    return _core.make_int8_elementwise_step(
        kind=kind,
        size=math.prod(problem.outputs[0].shape),
        a=tensor_list(a) if isinstance(a, QuantizedDType) else [0, 0],
        r=tensor_list(problem.inputs[1].dtype) if kind in (ADD, MULTIPLY) else None,
        clamp=clamp,
        ra=ra,
        rb=rb,
        threads=threads,
    )


def rescaled(kind: int, *factors: str) -> MakeStep:
    """Steps with a clamp, whose factors are one or two attributes."""

    def make(problem: Problem, constants: Constants, threads: int) -> Any:
        a = problem.attrs
        ra, rb = (*(a[name] for name in factors), 0.0)[:2]
        return _elementwise(problem, kind, clamp_list(a.dtype, a.lo, a.hi), ra, rb, threads)

    return make


def _gate_step(problem: Problem, constants: Constants, threads: int) -> Any:
    """One value per picture and channel times every pixel of it; the gate may be either operand."""
    a = problem.attrs
    gate_first = problem.inputs[0].shape != problem.outputs[0].shape
    tensor, gate = (problem.inputs[i].dtype for i in ((1, 0) if gate_first else (0, 1)))
    n, c, h, w = problem.outputs[0].shape
    return _core.make_int8_gate_step(
        shape=[n, h * w, c],
        a=tensor_list(tensor),
        r=tensor_list(gate),
        gate_first=gate_first,
        clamp=clamp_list(a.dtype, a.lo, a.hi),
        m=a.m,
        threads=threads,
    )


def quantize_step(problem: Problem, constants: Constants, threads: int) -> Any:
    dtype = problem.attrs.dtype
    return _elementwise(problem, _QUANTIZE, clamp_list(dtype), dtype.scale, 0.0, threads)


def quantize_planes_step(spec: TensorSpec, dtype: QuantizedDType, threads: int) -> Any:
    """A step from a C-contiguous float32 NCHW picture to quantized NHWC: the border of a plan."""
    n, c, h, w = spec.shape
    return _core.make_int8_planes_step(
        images=n, channels=c, pixels=h * w, scale=dtype.scale, clamp=clamp_list(dtype), threads=threads
    )


def dequantize_step(problem: Problem, constants: Constants, threads: int) -> Any:
    scale = known_quantized(problem.inputs[0].dtype).only_scale
    return _elementwise(problem, _DEQUANTIZE, [0, 0, 0, 0], scale, 0.0, threads)


def _table_step(problem: Problem, constants: Constants, threads: int) -> Any:
    x, axis = problem.inputs[0], problem.attrs.get("axis")
    inner = 1
    if axis is not None:
        order = (0, 2, 3, 1) if x.ndim == 4 else tuple(range(x.ndim))
        inner = math.prod(x.shape[a] for a in order[order.index(axis % x.ndim) + 1 :])
    return _core.make_int8_lookup_step(
        tables=np.ascontiguousarray(constants[1]),
        is_signed=_storage(x.dtype) == 1,
        size=math.prod(problem.outputs[0].shape),
        inner=inner,
        threads=threads,
    )


def _add_usable(problem: Problem) -> str | None:
    a, r = problem.inputs
    if a.shape != r.shape:
        return f"shapes {a.shape} and {r.shape} differ"
    return _eight_bits(problem.attrs.dtype) or usable_size(problem)


def _gate_usable(problem: Problem) -> str | None:
    out = problem.outputs[0].shape
    shapes = sorted((s.shape for s in problem.inputs), key=math.prod)
    if len(out) != 4 or shapes != [(*out[:2], 1, 1), out] or shapes[0] == out:
        return f"shapes {problem.inputs[0].shape} and {problem.inputs[1].shape} are no picture and its gate"
    return _eight_bits(problem.attrs.dtype) or usable_size(problem)


def to_eight_bits(problem: Problem) -> str | None:
    return _eight_bits(problem.attrs.dtype) or usable_size(problem)


def from_eight_bits(problem: Problem) -> str | None:
    return _eight_bits(problem.inputs[0].dtype) or usable_size(problem)


def _pool(problem: Problem, window: list[int], scale: float, clamp: list[int], threads: int, **options: Any) -> Any:
    c = problem.inputs[0].shape[1]
    oh, ow = problem.outputs[0].shape[2:] if problem.outputs[0].ndim == 4 else (1, 1)
    return _core.make_int8_pool_step(
        source=_source(problem.inputs[0]),
        output=[oh, ow, c],
        window=window,
        scale=scale,
        clamp=clamp,
        threads=threads,
        **options,
    )


def _pool_window(problem: Problem) -> list[int]:
    a = problem.attrs
    (top, _), (left, _) = a.padding
    return [*a.kernel, *a.stride, top, left, 1, 1, problem.inputs[0].shape[1]]


def scale_ratio(problem: Problem) -> float:
    return float(
        np.float32(known_quantized(problem.inputs[0].dtype).only_scale) / np.float32(problem.attrs.dtype.only_scale)
    )


def average_step(problem: Problem, constants: Constants, threads: int) -> Any:
    options = {"average": True, "count_include_pad": problem.attrs.count_include_pad}
    return _pool(
        problem, _pool_window(problem), scale_ratio(problem), clamp_list(problem.attrs.dtype), threads, **options
    )


def maximum_step(problem: Problem, constants: Constants, threads: int) -> Any:
    options = {"average": False, "count_include_pad": True}
    return _pool(problem, _pool_window(problem), 1.0, [0, 0, 0, 0], threads, **options)


def mean_step(problem: Problem, constants: Constants, threads: int) -> Any:
    _, c, h, w = problem.inputs[0].shape
    options = {"average": True, "count_include_pad": True}
    window = [h, w, 1, 1, 0, 0, 1, 1, c]
    return _pool(problem, window, scale_ratio(problem), clamp_list(problem.attrs.dtype), threads, **options)


def not_over_picture(problem: Problem) -> str | None:
    axis = problem.attrs.axis
    if problem.inputs[0].ndim != 4 or axis is None or sorted(a % 4 for a in np.atleast_1d(axis)) != [2, 3]:
        return "not a mean over height and width"
    return None


def _run_quantize(problem: Problem, x: np.ndarray) -> np.ndarray:
    """NCHW pictures are converted to NHWC in the same pass."""
    if x.ndim != 4 or not x.flags.c_contiguous:
        return _quantize_any(problem, x)
    out = empty_for_step(problem.outputs[0])
    _core.run_step(quantize_planes_step(problem.inputs[0], problem.attrs.dtype, 1), [x, out])
    return from_step(out)


_quantize_any = eager(quantize_step)


def fake_quant_observe(x: np.ndarray, dtype: QuantizedDType) -> tuple[np.ndarray, float, float]:
    """Fake-quantized float32 x, its smallest and its largest value, in one pass. NaN is in neither."""
    x = np.asarray(x, np.float32, order="C")  # ascontiguousarray gives a single number an axis
    out = np.empty_like(x)
    least, most = _core.int8_fake_quant(x, out, dtype.scale, clamp_list(dtype))
    return out, least, most


def _fake_quant_usable(problem: Problem) -> str | None:
    dtype = problem.attrs.dtype
    if dtype.axis is not None:
        return "scales along an axis"
    if dtype.qmax - dtype.qmin > 65535:
        return "more than 16 bits"
    return usable_size(problem)


depthwise_step = functools.partial(_conv_step, depthwise=True)
dense_step = _conv_step

int8_depthwise_full = step_kernel("int8_depthwise_full", depthwise_step, _depthwise_full, packs=WEIGHTS)
int8_conv_full = step_kernel("int8_conv_full", dense_step, _product_full, packs=WEIGHTS)
int8_depthwise = step_kernel("int8_depthwise", depthwise_step, _depthwise_usable, packs=WEIGHTS)
int8_conv = step_kernel("int8_conv", dense_step, _product_usable, packs=WEIGHTS)
int8_linear = step_kernel(
    "int8_linear", linear_step, lambda problem: linear_rank(problem) or _product_usable(problem), packs=WEIGHTS
)
int8_add = step_kernel("int8_add", rescaled(ADD, "ra", "rb"), _add_usable)
int8_multiply = step_kernel("int8_multiply", rescaled(MULTIPLY, "m"), _add_usable)
int8_gate = step_kernel("int8_gate", _gate_step, _gate_usable)
int8_requantize = step_kernel("int8_requantize", rescaled(REQUANTIZE, "ratio"), to_eight_bits)
int8_quantize = StepKernel("int8_quantize", quantize_step, to_eight_bits, _run_quantize)
int8_dequantize = step_kernel("int8_dequantize", dequantize_step, from_eight_bits)
int8_table = step_kernel("int8_table", _table_step, to_eight_bits, packs=(1,))
int8_avg_pool2d = step_kernel("int8_avg_pool2d", average_step, to_eight_bits)
int8_mean = step_kernel("int8_mean", mean_step, lambda problem: not_over_picture(problem) or to_eight_bits(problem))
int8_max_pool2d = step_kernel("int8_max_pool2d", maximum_step, from_eight_bits)
int8_fake_quant = EagerKernel(
    "int8_fake_quant",
    lambda problem, x: from_step(fake_quant_observe(to_step(x), problem.attrs.dtype)[0]),
    _fake_quant_usable,
)
