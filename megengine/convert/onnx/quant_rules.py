"""Import rules of quantization: tensors that hold their scale where it is constant, arithmetic where it is not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from megengine import functional as F
from megengine.convert.onnx.context import OnnxNode, Value, rule, spec_of
from megengine.convert.onnx.nn_rules import max_pool
from megengine.convert.onnx.operators import like
from megengine.convert.onnx.reading import FEW_BITS, data_type_name
from megengine.core.dtype import QuantizedDType, quantized, storage_of
from megengine.core.errors import brief
from megengine.core.text import counted
from megengine.dispatch import apply
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.node import TensorNode

FLOAT32 = np.dtype(np.float32)
_NORMAL = float(np.finfo(np.float32).tiny)
_WHOLE = {np.dtype(np.int8): "qint8", np.dtype(np.uint8): "quint8", np.dtype(np.int16): "qint16"}
_NAMES = {**_WHOLE, np.dtype(ml_dtypes.int4): "qint4", np.dtype(ml_dtypes.uint4): "quint4"}  # of stored values
_WIDER = {kind.lower(): np.dtype(np.uint8 if kind[0] == "U" else np.int8) for kind in FEW_BITS if "INT" in kind}
# operator -> the one that it computes on floats, the axis of several scales of each input
QLINEAR = {
    "QLinearMatMul": ("MatMul", (-2, -1)),
    "com.microsoft::QLinearAdd": ("Add", (None, None)),
    "com.microsoft::QLinearMul": ("Mul", (None, None)),
    "com.microsoft::QLinearAveragePool": ("AveragePool", (None,)),
    "com.microsoft::QLinearGlobalAveragePool": ("GlobalAveragePool", (None,)),
    "com.microsoft::QLinearLeakyRelu": ("LeakyRelu", (None,)),
    "com.microsoft::QLinearSigmoid": ("Sigmoid", (None,)),
    "com.microsoft::QLinearSoftmax": ("Softmax", (None,)),
    "com.microsoft::QLinearReduceMean": ("ReduceMean", (None,)),
}


@rule("QuantizeLinear", "com.microsoft::QuantizeLinear")
def quantize(node: OnnxNode, x: Value, scale: Value, zero: Value | None = None) -> Value:
    """Round(x / scale) + zero point, per tensor, along an axis, or in blocks of one."""
    stated = node.attr("output_dtype", 0)
    if (few := data_type_name(stated).lower()) in _WIDER:
        return _few_bits(node, x, scale, zero, few)
    dtype = node.dtype(stated) if stated else np.dtype(np.uint8) if zero is None else storage_of(spec_of(zero).dtype)
    return _quantize(node, x, scale, zero, dtype)


@rule("DequantizeLinear", "com.microsoft::DequantizeLinear", quantized=True)
def dequantize(node: OnnxNode, x: Value, scale: Value, zero: Value | None = None) -> Value:
    """(x - zero point) * scale, per tensor, along an axis, or in blocks of one."""
    return _dequantize(node, x, scale, zero, node.attr("axis", 1))


def _quantize(node: OnnxNode, x: Value, scale: Value, zero: Value | None, dtype: np.dtype) -> Value:
    """A quantized tensor where scale and zero point are one constant each, and integers elsewhere."""
    if dtype in _WHOLE and (own := _constant_pair(node, scale, zero)) is not None:
        return node.apply("quantize", node.cast(x, FLOAT32), dtype=quantized(_NAMES[dtype], *own))
    if dtype.name in _WIDER:
        return _few_bits(node, x, scale, zero, dtype.name)
    if dtype.kind not in "iu":
        raise node.fail(
            f"quantizes to {dtype}; expected integers. Write the file without 8-bit floats, or quantize the float model"
        )
    return node.composed(_rounded, x, scale, zero, bounds=np.iinfo(dtype), dtype=dtype)


def _few_bits(node: OnnxNode, x: Value, scale: Value, zero: Value | None, name: str) -> Value:
    """Integers of 4 or 2 bits, which a tensor holds as some of those of 8."""
    wide, bounds = _WIDER[name], ml_dtypes.iinfo(name)
    zero = zero.astype(wide) if isinstance(zero, np.ndarray) else zero
    if (own := _constant_pair(node, scale, zero)) is not None:
        return _within(node, node.cast(x, FLOAT32), quantized(_WHOLE[wide], *own), int(bounds.min), int(bounds.max))
    return node.composed(_rounded, x, scale, zero, bounds=bounds, dtype=wide)


def clipped_quantize(
    node: OnnxNode, x: Value, scale: Value, zero: np.ndarray, low: int | None, high: int | None
) -> Value:
    """What `QuantizeLinear` gives, kept between two integers: a clip of the real values in front of it.

    Their quotients by the scale are nearer to the integers than to any half.
    """
    own = _constant_pair(node, scale, zero)
    assert own is not None, "the caller has one constant scale"
    return _within(node, x, quantized(_WHOLE[zero.dtype], *own), low, high)


def _within(node: OnnxNode, x: Value, dtype: QuantizedDType, low: int | None, high: int | None) -> Value:
    ends = [
        None if end is None or end == whole else (end - dtype.zero_point) * dtype.only_scale
        for end, whole in ((low, dtype.qmin), (high, dtype.qmax))
    ]
    if ends != [None, None]:
        lo, hi = (default if end is None else end for end, default in zip(ends, (-np.inf, np.inf), strict=True))
        x = node.apply("clip", x, lo=float(lo), hi=float(hi))
    return node.apply("quantize", x, dtype=dtype)


def clipped_integers(node: OnnxNode, x: TensorNode, low: Value | None, high: Value | None) -> Value | None:
    """Integers that a `Clip` bounds, as Brevitas writes few bits, with their scale; None where it cannot be kept."""
    dtype, made = x.dtype, x.expr
    if not isinstance(dtype, QuantizedDType) or not isinstance(made, Apply) or not made.record.quantizes:
        return None
    if any(isinstance(end, TensorNode) or (end is not None and end.size != 1) for end in (low, high)):
        return None
    least, most = (None if end is None else int(np.reshape(end, -1)[0]) for end in (low, high))
    inside = all(end is None or dtype.qmin <= end <= dtype.qmax for end in (least, most))
    if not inside or (least is not None and most is not None and least > most):
        return None
    return _within(node, made.inputs[0], dtype, least, most)


def dequantize_stored(node: OnnxNode, x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> Value:
    """The floats of stored integers, whose scales broadcast to them."""
    shape = (1,) * (x.ndim - scale.ndim) + scale.shape
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    if len(axes) > 1 or (axes and shape[axes[0]] != x.shape[axes[0]]):
        return ((x.astype(np.float32) - zero.astype(np.float32)) * scale).astype(np.float32)
    return _dequantize(node, x, scale.reshape(-1) if axes else scale.reshape(()), zero, axes[0] if axes else None)


def _dequantize(node: OnnxNode, x: Value, scale: Value, zero: Value | None, axis: int | None) -> Value:
    """The floats that integers stand for; stored 8-bit weights stay integers."""
    if isinstance(zero, np.ndarray) and zero.dtype.name in _WIDER:
        zero = zero.astype(_WIDER[zero.dtype.name])
    if isinstance(x, np.ndarray):
        if not isinstance(scale, TensorNode) and not isinstance(zero, TensorNode):
            # a scale of stored biases is a product, which may be subnormal; NNCF's weights have negative ones
            flat = _checked(node, scale, least=-np.inf)
            offset = np.zeros(scale.shape, np.int32) if zero is None else zero.astype(np.int32)
            per_axis = (
                flat.size > 1 and scale.ndim == 1 and axis is not None and x.shape[node.axis(axis, x.ndim)] == flat.size
            )
            is_plain = scale.dtype == np.float32 and np.unique(offset).size == 1 and (per_axis or flat.size == 1)
            is_plain = is_plain and bool((flat >= _NORMAL).all())
            if node.dynamic and is_plain and (name := _NAMES.get(x.dtype)):
                scales, along = (flat, node.axis(axis or 0, x.ndim)) if per_axis else (float(flat[0]), None)
                dtype = quantized(name, scales, int(offset.reshape(-1)[0]), along)
                return node.apply("dequantize", node.integers(x.astype(dtype.storage, copy=False), dtype))
            wide = x.astype(np.int64 if x.dtype.kind in "iu" or "int" in x.dtype.name else np.float32)
            shift, factor = (
                _spread(node, Tensor._wrap(v), x.shape, axis).numpy() for v in (offset, scale.astype(np.float32))
            )
            return ((wide - shift).astype(np.float32) * factor).astype(scale.dtype)
    elif isinstance(own := x.dtype, QuantizedDType):
        if _constant_pair(node, scale, zero) == (own.scale, own.zero_point):
            return node.cast(node.apply("dequantize", x), storage_of(spec_of(scale).dtype))
        x = node.stored(x, FLOAT32)
    return node.composed(_real, x, scale, zero, axis=axis)


def _constant_pair(node: OnnxNode, scale: Value, zero: Value | None) -> tuple[float, int] | None:
    """One constant scale and zero point, None where they are several or computed."""
    if isinstance(scale, TensorNode) or isinstance(zero, TensorNode) or scale.size != 1 or node.attr("block_size", 0):
        return None
    return float(_checked(node, scale)[0]), 0 if zero is None else int(zero.reshape(-1)[0])


def _checked(node: OnnxNode, scale: np.ndarray, *, least: float = _NORMAL) -> np.ndarray:
    flat = scale.astype(np.float32).reshape(-1)
    if not flat.size or not np.all(np.isfinite(flat) & (flat >= least)):
        wanted = "positive, normal, finite numbers" if least > 0 else "finite numbers"
        raise node.fail(f"its scale is {brief(scale.reshape(-1).tolist())}; expected {wanted}")
    return flat


def _rounded(node: OnnxNode, x: Tensor, scale: Tensor, zero: Tensor | None, *, bounds: Any, dtype: np.dtype) -> Tensor:
    axis = node.attr("axis", 1)
    y = apply("round_even", x.astype("float32") / _spread(node, scale.astype("float32"), x.shape, axis))
    y = y if zero is None else y + _spread(node, zero, x.shape, axis).astype("float32")
    return F.clip(y, float(bounds.min), float(bounds.max)).astype(dtype)


def _real(node: OnnxNode, x: Tensor, scale: Tensor, zero: Tensor | None, *, axis: int | None) -> Tensor:
    if zero is not None:
        wide = x if storage_of(x.dtype).kind == "f" else x.astype("int32")
        x = wide - _spread(node, zero, x.shape, axis).astype(wide.dtype)
    return (x.astype("float32") * _spread(node, scale, x.shape, axis).astype("float32")).astype(scale.dtype)


def _spread(node: OnnxNode, values: Tensor, shape: tuple[int, ...], axis: int | None) -> Tensor:
    """Values that broadcast to a shape: one, one for each entry of an axis, or one for each block of it."""
    if values.size == 1:
        return values.reshape((1,) * len(shape))
    if axis is None:
        raise node.fail(f"{counted(values.size, 'scale')} or zero points; expected one")
    axis = node.axis(axis, len(shape))
    if values.ndim == 1:
        if values.size != shape[axis]:
            raise node.fail(f"{counted(values.size, 'scale')} for an axis of {shape[axis]}")
        return values.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    block = int(node.attr("block_size", 0)) or -(-shape[axis] // values.shape[axis])
    if values.ndim != len(shape) or -(-shape[axis] // block) != values.shape[axis]:
        raise node.fail(f"scales {values.shape} for blocks of {block} of axis {axis} of {shape}")
    return F.repeat(values, block, axis)[(*[slice(None)] * axis, slice(0, shape[axis]))]


def _operand(node: OnnxNode, place: int, axis: int | None) -> Value:
    """The floats that a quantized input stands for: the values, their scale and zero point are three inputs."""
    return _dequantize(node, node.input(place), node.input(place + 1), node.optional(place + 2), axis)


def _result(node: OnnxNode, y: Value, place: int) -> Value:
    """A float result as integers with the scale and zero point of two inputs."""
    zero = node.optional(place + 1)
    dtype = storage_of(spec_of(node.input(0) if zero is None else zero).dtype)
    return _quantize(node, y, node.input(place), zero, dtype)


@rule(*QLINEAR, quantized=True)
def qlinear(node: OnnxNode, first: Value, *inputs: Value | None) -> Value:
    """An operator of quantized tensors, by the one of floats."""
    if node.attr("channels_last", 0):
        return _channels_last(node, qlinear, first, *inputs)
    op_type, axes = QLINEAR[node.op_type]
    operands = [_operand(node, 3 * k, axis) for k, axis in enumerate(axes)]
    return _result(node, like(node, op_type, *operands), 3 * len(axes))


def _channels_last(node: OnnxNode, function: Callable[..., Value], x: Value, *inputs: Value | None) -> Value:
    """What the rule of [N, C, ...] makes of [N, ..., C], the form of ONNX Runtime's optimiser."""
    rank = len(x.shape)
    x = node.apply("transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))
    moved = replace(node, inputs=[x, *inputs], attrs={**node.attrs, "channels_last": 0})
    return node.apply("transpose", function(moved, x, *inputs), perm=(0, *range(2, rank), 1))


@rule("com.microsoft::NhwcMaxPool", quantized=True)
def nhwc_max_pool(node: OnnxNode, x: Value) -> Value:
    """Maximum pooling of [N, ..., C]."""
    return _channels_last(node, lambda moved, x: max_pool(moved, x)[0], x)


@rule("com.microsoft::QLinearConcat", quantized=True)
def qlinear_concat(node: OnnxNode, first: Value, *inputs: Value | None) -> Value:
    """Quantized tensors along one axis; scale and zero point of the result come first."""
    return _result(node, like(node, "Concat", *(_operand(node, k, None) for k in range(2, len(node.inputs), 3))), 0)


@rule("com.microsoft::QLinearWhere", quantized=True)
def qlinear_where(node: OnnxNode, condition: Value, first: Value, *inputs: Value | None) -> Value:
    """A choice between two quantized tensors."""
    return _result(node, like(node, "Where", condition, _operand(node, 1, None), _operand(node, 4, None)), 7)


@rule("QLinearConv", "com.microsoft::QLinearConv", quantized=True)
def qlinear_conv(node: OnnxNode, first: Value, *inputs: Value | None) -> Value:
    """A convolution of quantized tensors; the bias counts in units of both scales."""
    if node.attr("channels_last", 0):
        return _channels_last(node, qlinear_conv, first, *inputs)
    bias = _bias(node, 8)
    return _result(node, like(node, "Conv", _operand(node, 0, None), _operand(node, 3, 0), bias), 6)


@rule("com.microsoft::QGemm", quantized=True)
def qgemm(node: OnnxNode, first: Value, *inputs: Value | None) -> Value:
    """A product of quantized matrices and a bias; a float one where no scale of the result is given."""
    columns = 0 if node.attr("transB", 0) else 1
    y = like(node, "Gemm", _operand(node, 0, None), _operand(node, 3, columns), _bias(node, 6))
    return y if node.optional(7) is None else _result(node, y, 7)


def _bias(node: OnnxNode, place: int) -> Value | None:
    """A stored bias as floats: its integers count the product of the scales of input and weight."""
    stored, first, second = node.const(place, "bias"), node.const(1, "scale"), node.const(4, "scale")
    if stored is None or first is None or second is None:
        return None
    scale = first.astype(np.float64).reshape(-1) * second.astype(np.float64).reshape(-1)
    return (stored.astype(np.float64) * scale * float(node.attr("alpha", 1.0))).astype(np.float32)


@rule("DynamicQuantizeLinear")
def dynamic_quantize(node: OnnxNode, x: Value) -> tuple[Value, ...]:
    """uint8 by the range of the values at hand, their scale and zero point; the real values with a scale of 1."""
    if not node.dynamic:
        return x, np.ones((), FLOAT32), np.zeros((), np.uint8)
    return node.composed(lambda _, t: by_range(t), x)


def by_range(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Integers from 0 to 255 for the range of x with 0, their scale and zero point."""
    low, high = F.minimum(F.min(x), 0.0), F.maximum(F.max(x), 0.0)
    width = high - low
    step = F.where(width == 0.0, F.ones_like(width), width / 255.0)
    offset = F.clip(apply("round_even", -low / step), 0.0, 255.0)
    stored = F.clip(apply("round_even", x / step) + offset, 0.0, 255.0)
    return stored.astype("uint8"), step, offset.astype("uint8")


@rule("MatMulInteger", "ConvInteger", quantized=True)
def integer_product(
    node: OnnxNode, a: Value, b: Value, zero_a: Value | None = None, zero_b: Value | None = None
) -> Value:
    """Sums of products of integers, exact in 64-bit floats; several zero points belong to rows, columns or filters.

    A first operand of real values, as `dynamic_quantize` reads them, gives real sums.
    """
    filters = node.op_type == "ConvInteger"
    if spec_of(a).dtype == FLOAT32:
        weight = node.composed(_centred, node.stored(b, FLOAT32), zero_b, axis=0 if filters else -1)
        return like(node, node.op_type.removesuffix("Integer"), a, node.cast(weight, FLOAT32))
    pairs = ((a, zero_a, None if filters else -2), (b, zero_b, 0 if filters else -1))
    wide = [node.composed(_centred, node.stored(x, FLOAT32), zero, axis=axis) for x, zero, axis in pairs]
    return node.cast(like(node, node.op_type.removesuffix("Integer"), *wide), np.int32)


def _centred(node: OnnxNode, x: Tensor, zero: Tensor | None, *, axis: int | None) -> Tensor:
    wide = x.astype("float64")
    return wide if zero is None else wide - _spread(node, zero.astype("float64"), x.shape, axis)
