"""oneDNN kernels: float and int8 convolution and linear layers, called in the form of the specification.

Integers: weight scale = M, float bias = B, sum scale = ratio, a clip only where the type itself does not clamp; no
other scales. This sequence equals docs/integer-arithmetic.md bit for bit where products are exact (VNNI and better).
"""

from __future__ import annotations

import functools
import math
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, bfloat16
from megengine.core.effectless import warn_caller
from megengine.core.spec import TensorSpec
from megengine.kernels import _core, isa, memory
from megengine.kernels.kernel import EagerKernel, StepKernel
from megengine.kernels.native import empty_for_step, from_step, linear_rank, long_steps, step_kernel, to_step
from megengine.kernels.problem import Problem
from megengine.kernels.reference.conv import out_length

_F32 = np.dtype(np.float32)
_WEIGHTS, _INTEGER_WEIGHTS = (1, 2), (1, 2, 3, 4)  # the inputs w, b and w, b, M, B
_TILE = 16  # channels of a group from which on kernels of bfloat16 use AMX tiles well
WIDEST_HALF = 13  # columns of a depthwise kernel of bfloat16
_MANY_ROWS, _DEEP = 128, 512  # from which a product is a convolution of points
_OF_THE_LIBRARY = ("none", "relu", "relu6")  # activations that every implementation computes exactly
_OF_HALVES = (*_OF_THE_LIBRARY, "hsigmoid", "hswish")  # and those that it computes fast in bfloat16


def _load() -> tuple[ModuleType | None, str]:
    try:
        from megengine.kernels import _onednn
    except ImportError as error:
        return None, f"the oneDNN module does not load: {error}"
    return _onednn, ""


def _warn_of_absence(reason: str) -> None:
    """Warn on the platform that has a oneDNN module."""
    if sys.platform == "linux" and os.uname().machine == "x86_64":
        text = (
            f"{reason}. Results stay the same, but float convolutions and products run on kernels of this package, "
            "about 7 times slower; install megengine again, or build it with onednn-cpu-gomp at hand (pip install .)"
        )
        warn_caller(text, RuntimeWarning)


_module, _reason = _load()
if _module is None:
    _warn_of_absence(_reason)


def available() -> bool:
    """True if the oneDNN backend is loaded."""
    return _module is not None


def unavailable_reason() -> str:
    """Why the backend is not loaded; empty when it is."""
    return _reason


def build() -> list[str]:
    """The library's version and the module's file; empty when it is not loaded."""
    return [] if _module is None else [_module.version(), str(_module.__file__)]


def _missing(problem: Problem) -> str | None:
    if _module is None:
        return _reason
    if any(s.size == 0 for s in (*problem.inputs, *problem.outputs)):
        return "empty tensors"
    return long_steps(problem)


def _layer_usable(problem: Problem) -> str | None:
    """As `_float_usable`, of float32 and of bfloat16 where the CPU multiplies it."""
    if any(s.dtype != bfloat16 for s in problem.inputs) or _module is None:
        return _float_usable(problem)
    if not (isa.has("bf16") and _module.bfloat16_is_native()):
        return f"no instructions for bfloat16, active is {isa.active()}"
    return _missing(problem)


def conv_usable(problem: Problem) -> str | None:
    """As `_layer_usable`, without wide depthwise kernels of bfloat16, for which the library has no vector code: it
    takes 6 to 20 times as long as in float32.
    """
    shape = _conv_lengths(problem)[0]
    alone = problem.attrs.groups == shape[1] == shape[4]
    if alone and problem.inputs[0].dtype == bfloat16 and shape[6] > WIDEST_HALF:
        return f"a depthwise kernel of bfloat16 with {shape[6]} columns; expected at most {WIDEST_HALF}"
    return _layer_usable(problem)


def _float_usable(problem: Problem) -> str | None:
    if any(s.dtype != _F32 for s in problem.inputs):
        return f"float32 only, got {', '.join(str(s.dtype) for s in problem.inputs)}"
    return _missing(problem)


def _conv_lengths(problem: Problem) -> tuple[list[int], list[int]]:
    (n, c, h, w), (o, _, kh, kw) = problem.inputs[0].shape, problem.inputs[1].shape
    a = problem.attrs
    (top, bottom), (left, right) = a.padding
    oh, ow = problem.outputs[0].shape[2:]
    if (w, kw, left, right) == (
        1,
        1,
        0,
        0,
    ):  # along columns the library takes a fifth of the time; the bytes are the same
        stride, dilation = a.stride[::-1], a.dilation[::-1]
        return [n, c, 1, h, o, 1, kh, a.groups, 1, oh], [*stride, *dilation, 0, 0, top, bottom]
    return [n, c, h, w, o, kh, kw, a.groups, oh, ow], [*a.stride, *a.dilation, top, bottom, left, right]


def _dense(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array)


def joins_groups(problem: Problem) -> bool:
    """True if small groups of bfloat16 are convolved as groups of 16 channels, which fill the rows of AMX tiles."""
    taken, groups = problem.inputs[1].shape[1], problem.attrs.groups
    fits = 1 < taken < _TILE and _TILE % taken == 0 and groups % (_TILE // taken) == 0
    return fits and problem.inputs[0].dtype == bfloat16 and isa.has("amx")


def _joined(weights: np.ndarray, groups: int) -> np.ndarray:
    """Weights of groups of 16 channels; those for channels of other groups are 0.

    The library takes 885 us for 64 channels of 56 x 56 numbers in groups of 4, 845 in groups of 8, 230 in groups of 16.
    As in other kernels that share tiles, a number that is not finite reaches the results of its neighbours.
    """
    outputs, taken, *kernel = weights.shape
    together = _TILE // taken
    parts = weights.reshape(groups // together, together, outputs // groups, taken, *kernel)
    wide = np.zeros((*parts.shape[:3], together, *parts.shape[3:]), weights.dtype)
    for i in range(together):
        wide[:, i, :, i] = parts[:, i]
    return wide.reshape(outputs, _TILE, *kernel)


def _conv_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    assert _module is not None
    shape, geometry = _conv_lengths(problem)
    dtype, w = problem.inputs[0].dtype.name, constants[1]
    if joins_groups(problem):
        w = _joined(w, shape[7])
        shape[7] = shape[1] // _TILE
    residual = dtype if len(problem.inputs) == 4 else ""
    activation, after = _activation(problem)
    weights, bias = memory.bits(_dense(w)), _bias(constants, shape[4])
    return _module.conv_step(
        shape, geometry, dtype, dtype, weights, None, bias, activation, 0.0, 0.0, residual, 1.0, threads, after
    )


def _bias(constants: dict[int, np.ndarray], channels: int) -> np.ndarray:
    """The bias in float32, in which it is added."""
    return _dense(constants[2].astype(_F32, copy=False)) if 2 in constants else np.zeros(channels, np.float32)


def _activation(problem: Problem) -> tuple[str, Any]:
    """The library's activation, and the own function that the step applies to its results, or None."""
    name = problem.attrs.get("activation", "none")
    if name in (_OF_HALVES if problem.inputs[0].dtype == bfloat16 else _OF_THE_LIBRARY):
        return name, None
    return "none", _core.float_function(name, 0.0)


def _product(m: int, k: int, n: int, *arguments: Any) -> Any:
    """A linear layer over m rows of k numbers. Many deep rows go as pixels of a 1x1 convolution, whose kernels the
    library blocks better: 197 rows of 768 numbers take four fifths of the time.
    """
    assert _module is not None
    if m >= _MANY_ROWS and k >= _DEEP:
        return _module.conv_step([1, k, m, 1, n, 1, 1, 1, m, 1], [1, 1, 1, 1, 0, 0, 0, 0], *arguments)
    return _module.linear_step(m, k, n, *arguments)


def _linear_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    n, k = problem.inputs[1].shape
    m = problem.inputs[0].size // k
    weights, bias, dtype = memory.bits(_dense(constants[1])), _bias(constants, n), problem.inputs[0].dtype.name
    residual = dtype if len(problem.inputs) == 4 else ""
    activation, after = _activation(problem)
    return _product(m, k, n, dtype, dtype, weights, None, bias, activation, 0.0, 0.0, residual, 1.0, threads, after)


def _rows_usable(problem: Problem) -> str | None:
    x, w = problem.inputs
    if w.ndim != 2 or x.ndim == 1 or problem.attrs.transpose_a:
        turned = ", transposed" * problem.attrs.transpose_a
        return f"operands of shapes {x.shape}{turned} and {w.shape}; only rows with a matrix"
    return linear_rank(problem) or _layer_usable(problem)


def _constant_matrix(problem: Problem, constants: dict[int, np.ndarray]) -> str | None:
    return None if 1 in constants else "the second operand is computed"


def _rows_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    """A product with a constant matrix, which is packed: a linear layer over the rows of all stacks."""
    x, w = problem.inputs[0], constants[1]
    weights, dtype = memory.bits(_dense(w if problem.attrs.transpose_b else w.T)), x.dtype.name
    (n, k), bias = weights.shape, np.zeros(weights.shape[0], np.float32)
    return _product(x.size // k, k, n, dtype, dtype, weights, None, bias, "none", 0.0, 0.0, "", 1.0, threads)


def _matmul_usable(problem: Problem) -> str | None:
    specs = (*problem.inputs, *problem.outputs)
    if any(s.ndim == 4 for s in specs):
        return "tensors of 4 axes lie channels-last"
    return _layer_usable(problem)


def _matmul_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    assert _module is not None
    rank, lengths = problem.outputs[0].ndim, []
    for spec, turned in zip(
        (*problem.inputs, *problem.outputs), (problem.attrs.transpose_a, problem.attrs.transpose_b, False), strict=True
    ):
        shape = [*(1,) * (rank - spec.ndim), *spec.shape]
        strides = [int(np.prod(shape[i + 1 :])) for i in range(rank)]
        if turned:
            shape[-2:], strides[-2:] = shape[:-3:-1], strides[:-3:-1]
        lengths += [shape, strides]
    return _module.matmul_step(*lengths, problem.inputs[0].dtype.name, threads)


def _viewed_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    """A product of operands that lie apart, which its result may too."""
    assert _module is not None
    a, out = problem.attrs, problem.outputs[0].shape
    steps = [math.prod(out[i + 1 :]) for i in range(len(out))]
    result = (*zip(*((out[i], steps[i]) for i in map(a.perm.index, range(len(out)))), strict=True),)
    lengths = []
    for shape, strides, *_ in (*a.views, result):
        missing = len(out) - len(shape)
        lengths += [[*(1,) * missing, *shape], [*(shape[0] * strides[0],) * missing, *strides]]
    return _module.matmul_step(*lengths, problem.inputs[0].dtype.name, threads, a.views[0][2], a.views[1][2], a.scale)


Geometry = tuple[list[Any], int, list[Any]]


def _geometry(problem: Problem, x: Any, out: Any, kernel: Any, *, behind: Any = None) -> Geometry:
    """Shapes of x, the result and the kernel; groups; stride, dilation, padding before and behind."""
    a = problem.attrs
    before, end = zip(*a.padding, strict=True)
    return [[*x], [*out], [*kernel]], a.groups, [[*a.stride], [*a.dilation], [*before], [*(behind or end)]]


def windows_usable(problem: Problem) -> str | None:
    """A transposed convolution is the library's if a convolution of its result gives its input."""
    a = problem.attrs
    if "output_padding" in a:
        (x, w), out = problem.inputs[:2], problem.outputs[0]
        numbers = zip(out.shape[2:], w.shape[2:], a.stride, a.padding, a.dilation, strict=True)
        if tuple(out_length(*n) for n in numbers) != x.shape[2:]:
            return f"output_padding {a.output_padding} gives a size that no convolution takes to its input"
    return _layer_usable(problem)


def window_step(problem: Problem, constants: dict[int, np.ndarray], threads: int, *, computed: bool = False) -> Any:
    """A convolution over three axes, or a transposed one, whose output padding is padding that is missing behind.

    Over two axes, too, where its weights, and its bias if it has one, are `computed`: it reads them when it runs.
    """
    assert _module is not None
    x, w, out = problem.inputs[0].shape, problem.inputs[1].shape, problem.outputs[0].shape
    extra = problem.attrs.get("output_padding")
    behind = extra and [end - more for (_, end), more in zip(problem.attrs.padding, extra, strict=True)]
    geometry, activation = _geometry(problem, x, out, w[2:], behind=behind), _activation(problem)
    weights, dtype = None if computed else memory.bits(_dense(constants[1])), problem.inputs[0].dtype.name
    bias = None if computed and len(problem.inputs) > 2 else _bias(constants, out[1])
    return _module.window_step(*geometry, dtype, weights, bias, extra is not None, *activation)


@functools.lru_cache(maxsize=512)
def _gradient_step(problem: Problem, level: str) -> Any:
    """A step of the gradient; `level` because oneDNN chooses its code by the instruction set."""
    assert _module is not None
    of_weight, specs = problem.op.endswith("_weight"), (*problem.inputs, *problem.outputs)
    x, ct, w = specs if of_weight else (specs[2], *specs[:2])
    return _module.conv_backward_step(*_geometry(problem, x.shape, ct.shape, w.shape[2:]), of_weight)


@functools.lru_cache(maxsize=512)
def _of_points(problem: Problem) -> tuple[tuple[slice, ...], Problem] | None:
    """Where a kernel of one point that takes steps reads its input, and the same problem without steps.

    oneDNN 3.2 has code of its own for steps of such kernels. For fewer channels than a vector of the CPU has numbers
    it reads what was never written: gradients were wrong, and programs ended.
    """
    a, x, ct = problem.attrs, *problem.inputs
    if math.prod(a.kernel) != 1 or math.prod(a.stride) == 1 or any(map(any, a.padding)):
        return None
    places = (slice(None),) * 2 + tuple(slice(0, n * s, s) for n, s in zip(ct.shape[2:], a.stride, strict=True))
    read = TensorSpec((*x.shape[:2], *ct.shape[2:]), x.dtype, x.device)
    return places, Problem(problem.op, (read, ct), problem.outputs, {**a, "stride": (1,) * len(a.stride)})


def _weight_gradient(problem: Problem, x: np.ndarray, ct: np.ndarray) -> np.ndarray:
    points = _of_points(problem)
    if points is not None:
        places, problem = points
        x = x[places]
    out = memory.empty(problem.outputs[0].shape, np.float32)
    _core.run_step(_gradient_step(problem, isa.active()), [to_step(x), to_step(ct), out])
    return out


def _data_gradient(problem: Problem, ct: np.ndarray, w: np.ndarray) -> np.ndarray:
    out = empty_for_step(problem.outputs[0])
    _core.run_step(_gradient_step(problem, isa.active()), [to_step(ct), _dense(w), out])
    return from_step(out)


def _storage(dtype: Any) -> str:
    return dtype.storage.name if isinstance(dtype, QuantizedDType) else dtype.name


def _integer_usable(problem: Problem) -> str | None:
    if not isa.has("vnni"):
        return f"oneDNN saturates int16 sums below VNNI, active is {isa.active()}"
    if _module is not None and not _module.int8_is_exact():
        return "oneDNN saturates int16 sums below VNNI, and ONEDNN_MAX_CPU_ISA caps it there"
    out = problem.outputs[0].dtype
    quantized = [s.dtype for s in (problem.inputs[0], *problem.inputs[5:])]
    zero_points = [dtype.zero_point for dtype in quantized if isinstance(dtype, QuantizedDType)]
    if any(zero_points):
        return f"input zero points {zero_points}; expected 0"
    if isinstance(out, QuantizedDType) and out.zero_point:
        return f"output zero point {out.zero_point}; expected 0"
    return _missing(problem)


def _no_integer_bias(problem: Problem, constants: dict[int, np.ndarray]) -> str | None:
    return "integer bias b is not zero" if np.any(constants[2]) else None


def _clamp(problem: Problem) -> tuple[str, float, float]:
    """The clip that the conversion to the stored integer does not perform by itself."""
    out, a = problem.outputs[0].dtype, problem.attrs
    if not isinstance(out, QuantizedDType):
        return "none", 0.0, 0.0
    stored = np.iinfo(out.storage)
    if a.lo == stored.min and a.hi == stored.max:
        return "none", 0.0, 0.0
    return "clip", float(a.lo), float(a.hi)


def _integer_arguments(problem: Problem, constants: dict[int, np.ndarray]) -> tuple:
    """Arguments from the weights on, as both steps take them."""
    residual = _storage(problem.inputs[5].dtype) if len(problem.inputs) == 6 else ""
    scales, bias = _dense(constants[3]), _dense(constants[4])
    return (_dense(constants[1]), scales, bias, *_clamp(problem), residual, float(problem.attrs.ratio) or 1.0)


def _qconv_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    assert _module is not None
    types = (_storage(problem.inputs[0].dtype), _storage(problem.outputs[0].dtype))
    return _module.conv_step(*_conv_lengths(problem), *types, *_integer_arguments(problem, constants), threads)


def _qlinear_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    k, n = problem.inputs[0].shape[-1], problem.inputs[1].shape[0]
    types = (_storage(problem.inputs[0].dtype), _storage(problem.outputs[0].dtype))
    m = problem.inputs[0].size // k
    return _product(m, k, n, *types, *_integer_arguments(problem, constants), threads)


onednn_conv2d = step_kernel("onednn_conv2d", _conv_step, conv_usable, packs=_WEIGHTS)
onednn_backward_weight = EagerKernel("onednn_backward_weight", _weight_gradient, _float_usable)
onednn_backward_data = EagerKernel("onednn_backward_data", _data_gradient, _float_usable)
onednn_windows = step_kernel("onednn_windows", window_step, windows_usable, packs=_WEIGHTS)
onednn_fused_windows = step_kernel("onednn_fused_windows", window_step, windows_usable, packs=_WEIGHTS)
onednn_fused_conv2d = step_kernel("onednn_fused_conv2d", _conv_step, conv_usable, packs=_WEIGHTS, inplace_input=3)
onednn_fused_linear = step_kernel(
    "onednn_fused_linear",
    _linear_step,
    lambda problem: linear_rank(problem) or _layer_usable(problem),
    packs=_WEIGHTS,
    inplace_input=3,
)
onednn_matmul_rows = StepKernel(
    "onednn_matmul_rows", _rows_step, _rows_usable, packs=(1,), accepts=_constant_matrix, free=True
)  # eager calls: NumPy's product, which packs nothing
onednn_matmul = StepKernel("onednn_matmul", _matmul_step, _matmul_usable, free=True)
onednn_viewed_matmul = StepKernel("onednn_viewed_matmul", _viewed_step, _layer_usable, free=True, in_rows=True)
onednn_qconv2d = step_kernel(
    "onednn_qconv2d", _qconv_step, _integer_usable, packs=_INTEGER_WEIGHTS, accepts=_no_integer_bias, inplace_input=5
)
onednn_qlinear = step_kernel(
    "onednn_qlinear",
    _qlinear_step,
    lambda problem: linear_rank(problem) or _integer_usable(problem),
    packs=_INTEGER_WEIGHTS,
    accepts=_no_integer_bias,
    inplace_input=5,
)
