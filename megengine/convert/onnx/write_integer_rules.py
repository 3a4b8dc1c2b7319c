"""Writers of integer ops: integer products and float32 arithmetic in the order of docs/integer-arithmetic.md.

Every node rounds as the specification does, so a runtime that computes node by node gives the same integers.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megengine.convert.onnx.write_open_resize import matrix_of
from megengine.convert.onnx.write_window_rules import padded
from megengine.convert.onnx.writing import Writer, attribute, quantized, storage, writer
from megengine.core.dtype import QuantizedDType
from megengine.core.sizes import is_open
from megengine.kernels.reference.integer import along_places, resize_bits
from megengine.ops.pool_nd import pool_counts
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode

F32, I32, I64, F64 = (np.dtype(kind) for kind in ("float32", "int32", "int64", "float64"))


@dataclass(frozen=True, slots=True)
class _Part:
    """`(stored - zero) * factor` is the integers, or a term of them; `stored` is the name of a value, or an array."""

    stored: Any
    zero: Any = None  # without one it is 0
    factor: int = 1


class _Steps:
    """Nodes that compute one op, one after the other; values are names."""

    def __init__(self, w: Writer, expr: Apply) -> None:
        self.w, self.expr, self.name = w, expr, expr.outputs[0].name

    def __call__(self, op_type: str, *inputs: Any, **attrs: Any) -> str:
        """A node; arrays among its inputs are stored."""
        given = [v if isinstance(v, str) else self.w.constant(v, f"{self.name}_constant") for v in inputs]
        return self.w.add(op_type, given, f"{self.name}_{op_type.lower()}", **attrs)

    def cast(self, x: str, dtype: Any) -> str:
        import onnx

        return self("Cast", x, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def centred(self, node: TensorNode, dtype: np.dtype) -> str:
        """The integers less their zero point, exact in a wider dtype."""
        wide, z = self.cast(self.w.value(node), dtype), _dtype(node).zero_point
        return self("Sub", wide, np.asarray(z, dtype)) if z else wide

    def scaled(self, node: TensorNode, ratio: float) -> str:
        return self("Mul", self.centred(node, F32), np.float32(ratio))

    def summed(self, x: str, axes: Sequence[int], *, keep: bool = True) -> str:
        return self("ReduceSum", x, np.asarray(axes, I64), keepdims=int(keep))

    def unsigned(self, node: TensorNode) -> list["_Part"]:
        """The integers as uint8, which ConvInteger takes everywhere; those of 16 bits as two parts."""
        x, dtype = self.w.value(node), _dtype(node)
        if dtype.storage == np.uint8:
            return [_Part(x, np.uint8(dtype.zero_point))]
        if dtype.storage == np.int8:
            moved = self.cast(self("Add", self.cast(x, I32), np.int32(128)), np.uint8)
            return [_Part(moved, np.uint8(dtype.zero_point + 128))]
        moved = self("Add", self.cast(x, I32), np.int32(32768))
        high = self("Div", moved, np.int32(256))
        low = self("Sub", moved, self("Mul", high, np.int32(256)))
        zeros = map(np.uint8, divmod(dtype.zero_point + 32768, 256))
        return [_Part(self.cast(part, np.uint8), next(zeros), by) for part, by in ((high, 256), (low, 1))]

    def products(self, op_type: str, *sides: "list[_Part]", **attrs: Any) -> str:
        """Exact sums of products of all sides: int32, or int64 where a side has several parts."""
        total = ""
        for parts in itertools.product(*sides):
            factor = math.prod(part.factor for part in parts)
            zeros = [part.zero for part in parts if part.zero is not None]
            made = self(op_type, *(part.stored for part in parts), *zeros, **attrs)
            if max(map(len, sides)) == 1:
                return made
            made = self.cast(made, I64)
            made = self("Mul", made, np.int64(factor)) if factor != 1 else made
            total = self("Add", total, made) if total else made
        return total

    def around(self, node: TensorNode, widths: tuple[tuple[int, int], ...]) -> tuple[list["_Part"], list[int]]:
        """`unsigned`, and the padding that is left to a window: open widths of zero points are put around here."""
        parts = self.unsigned(node)
        if not is_open(widths):
            return parts, attribute(widths)
        wider = [replace(p, stored=padded(self.w, p.stored, widths, p.zero, self.name)) for p in parts]
        return wider, [0] * 2 * len(widths)

    def finish(self, t: str, dtype: Any, lo: int | None = None, hi: int | None = None) -> None:
        """Clamp, round to the nearest even integer, add the zero point; a float32 result stays as it is."""
        import onnx

        if not isinstance(dtype, QuantizedDType):
            self.w.emit("Identity", self.expr, [t])
            return
        z = dtype.zero_point
        ends = dtype.qmin - z if lo is None else lo, dtype.qmax - z if hi is None else hi
        rounded = self("Round", self("Clip", t, *map(np.float32, ends)))
        shifted = self("Add", rounded, np.float32(z)) if z else rounded
        self.w.emit("Cast", self.expr, [shifted], to=onnx.helper.np_dtype_to_tensor_dtype(dtype.storage))


def _dtype(node: TensorNode) -> QuantizedDType:
    dtype = quantized(node)
    assert dtype is not None, node
    return dtype


def _of(node: TensorNode) -> np.ndarray:
    assert isinstance(node.expr, Constant), f"{node} is stored with the network"
    return storage(node)


def unsigned_weights(integers: np.ndarray) -> tuple[np.ndarray, np.uint8]:
    """int8 weights [out, in] as uint8 [in, out] with their zero point.

    ONNX Runtime's products of uint8 with int8 saturate at 16 bits on processors without VNNI; those of uint8 do not:
    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    return np.ascontiguousarray((integers.T.astype(np.int16) + 128).astype(np.uint8)), np.uint8(128)


def _layer(at: _Steps, total: str, channels: tuple[int, ...]) -> None:
    """What follows the sums of a layer; `channels` is the shape that its numbers have."""
    a, (_, _, *numbers) = at.expr.attrs, at.expr.inputs
    b, M, B = (_of(node).reshape(channels) for node in numbers[:3])
    if b.any():
        total = at("Add", total, b.astype(I32 if _dtype(at.expr.inputs[0]).storage.itemsize == 1 else I64))
    t = at.cast(total, F32)
    t = at("Add", at("Mul", t, M), B)
    for residual in numbers[3:]:
        t = at("Add", t, at.scaled(residual, a["ratio"]))
    at.finish(t, a["dtype"], a["lo"], a["hi"])


@writer("qconv2d")
def qconv2d(w: Writer, expr: Apply) -> None:
    """ConvInteger, and the epilogue."""
    at, a = _Steps(w, expr), expr.attrs
    window = {"strides": "stride", "dilations": "dilation", "group": "groups"}
    attrs = {theirs: attribute(a[ours]) for theirs, ours in window.items()}
    parts, pads = at.around(expr.inputs[0], a["padding"])
    weights = [_Part(w.value(expr.inputs[1]))]
    _layer(at, at.products("ConvInteger", parts, weights, pads=pads, **attrs), (-1, 1, 1))


@writer("qlinear")
def qlinear(w: Writer, expr: Apply) -> None:
    """MatMulInteger, and the epilogue."""
    at = _Steps(w, expr)
    weights = [_Part(*unsigned_weights(_of(expr.inputs[1])))]
    _layer(at, at.products("MatMulInteger", at.unsigned(expr.inputs[0]), weights), (-1,))


@writer("qmatmul")
def qmatmul(w: Writer, expr: Apply) -> None:
    """MatMulInteger of two computed tensors."""
    at, a = _Steps(w, expr), expr.attrs
    sides = []
    for node, turned in zip(expr.inputs, (a["transpose_a"], a["transpose_b"]), strict=True):
        parts, rank = at.unsigned(node), len(node.shape)
        perm = [*range(rank - 2), rank - 1, rank - 2]
        sides.append([replace(p, stored=at("Transpose", p.stored, perm=perm)) for p in parts] if turned else parts)
    t = at.cast(at.products("MatMulInteger", *sides), F32)
    at.finish(at("Mul", t, np.float32(a["m"])), a["dtype"], a["lo"], a["hi"])


_PAIRS = {"qadd": "Add", "qmaximum": "Max", "qminimum": "Min"}


@writer(*_PAIRS)
def pair(w: Writer, expr: Apply) -> None:
    """Both operands in steps of the result."""
    at, a = _Steps(w, expr), expr.attrs
    t = at(_PAIRS[expr.op], *(at.scaled(n, a[ratio]) for n, ratio in zip(expr.inputs, ("ra", "rb"), strict=True)))
    at.finish(t, a["dtype"], a["lo"], a["hi"])


@writer("qmul")
def qmul(w: Writer, expr: Apply) -> None:
    """The exact product, times one factor."""
    at, a = _Steps(w, expr), expr.attrs
    product = at("Mul", *(at.centred(node, F32) for node in expr.inputs))
    at.finish(at("Mul", product, np.float32(a["m"])), a["dtype"], a["lo"], a["hi"])


@writer("requantize")
def requantize(w: Writer, expr: Apply) -> None:
    """One factor."""
    at, a = _Steps(w, expr), expr.attrs
    at.finish(at.scaled(expr.inputs[0], a["ratio"]), a["dtype"], a["lo"], a["hi"])


@writer("qtable")
def qtable(w: Writer, expr: Apply) -> None:
    """Gather from the table, or from the tables one after the other; int8 indices begin at -128, int16 at -32768."""
    at, (x, table), axis = _Steps(w, expr), expr.inputs, expr.attrs.get("axis")
    index, offset = at.cast(w.value(x), I32), np.int32(-np.iinfo(_dtype(x).storage).min)
    if axis is not None:
        offset = offset + table.shape[-1] * along_places(table.shape[0], axis, len(x.shape)).astype(I32)
    index = at("Add", index, offset) if offset.any() else index
    values = w.value(table) if axis is None else w.constant(_of(table).reshape(-1), f"{at.name}_tables")
    w.emit("Gather", expr, [values, index])


def _average(at: _Steps, total: str, count: Any) -> None:
    target = at.expr.attrs["dtype"]
    m: Any = np.float32(_dtype(at.expr.inputs[0]).only_scale) / np.float32(target.only_scale)
    m = at("Div", m, at.cast(count, F32)) if isinstance(count, str) else m / np.asarray(count, F32)
    at.finish(at("Mul", at.cast(total, F32), m), target)


@writer("qmean", "qsum")
def qmean(w: Writer, expr: Apply) -> None:
    """An exact sum, times one factor."""
    at, a, x = _Steps(w, expr), expr.attrs, expr.inputs[0]
    axes = [*range(len(x.shape))] if a["axis"] is None else np.atleast_1d(a["axis"]).tolist()
    count: Any = 1 if expr.op == "qsum" else math.prod(x.shape[axis] for axis in axes)
    count = at("Squeeze", w.size(count), np.zeros(1, I64)) if is_open(count) else max(count, 1)
    wide = at.centred(x, I32 if _dtype(x).storage.itemsize == 1 else I64)
    _average(at, at.summed(wide, axes, keep=a["keepdims"]), count)


@writer("qavg_pool2d")
def qavg_pool2d(w: Writer, expr: Apply) -> None:
    """Sums by ConvInteger with weights of 1, times one factor a place."""
    at, a, x = _Steps(w, expr), expr.attrs, expr.inputs[0]
    channels, window = x.shape[1], {k: a[k] for k in ("kernel", "stride", "padding")}
    parts, pads = at.around(x, a["padding"])
    attrs = {"strides": attribute(a["stride"]), "pads": pads, "group": channels}
    ones = [_Part(np.ones((channels, 1, *a["kernel"]), np.int8))]
    total = at.products("ConvInteger", parts, ones, **attrs)
    count: Any = math.prod(a["kernel"])
    if not a["count_include_pad"] and is_open(x.shape[2:]):
        places = at("Expand", np.ones((1, 1, 1, 1), np.uint8), w.constant([1, 1, *x.shape[2:]], "sizes", I64))
        places = padded(w, places, a["padding"], np.zeros((), np.uint8), at.name) if is_open(a["padding"]) else places
        count = at("ConvInteger", places, np.ones((1, 1, *a["kernel"]), np.int8), **{**attrs, "group": 1})
    elif not a["count_include_pad"]:
        count = pool_counts(x.shape[2:], **window, dilation=(1, 1), count_include_pad=False)
    _average(at, total, count)


def resized_integers(w: Writer, expr: Apply) -> None:
    """Exact products with whole weights along each axis, in float64, rounded once."""
    at, a, x = _Steps(w, expr), expr.attrs, expr.inputs[0]
    rank, axes, dtype = len(x.shape), len(a["size"]), _dtype(expr.inputs[0])
    t = at.centred(x, F64)
    for k, out in enumerate(a["size"]):
        perm = [*(i for i in range(rank) if i != k + 2), k + 2]
        moved = at("MatMul", at("Transpose", t, perm=perm), matrix_of(at, x.shape[k + 2], out, a))
        t = at("Transpose", moved, perm=np.argsort(perm).tolist())
    t = at("Round", at("Mul", t, np.float64(0.5 ** (resize_bits(axes) * axes))))
    at.finish(at.cast(t, F32), dtype)


@writer("qsoftmax")
def qsoftmax(w: Writer, expr: Apply) -> None:
    """Each exp of the table divided by their exact sum."""
    at, a, (x, table) = _Steps(w, expr), expr.attrs, expr.inputs
    wide, axis = at.cast(w.value(x), I32), a["axis"] % len(x.shape)
    largest = at("ReduceMax", wide, np.array([axis])) if w.opset >= 18 else at("ReduceMax", wide, axes=[axis])
    e = at("Gather", w.value(table), at("Sub", largest, wide))
    total = at.cast(at.summed(at.cast(e, I64), [axis]), F32)
    r = at("Div", np.float32(1) / np.float32(a["dtype"].only_scale), total)
    at.finish(at("Mul", at.cast(e, F32), r), a["dtype"])


@writer("qnorm")
def qnorm(w: Writer, expr: Apply) -> None:
    """Exact sums in int64, the deviation in float64, three float32 operations."""
    at, a, (x, gain, bias) = _Steps(w, expr), expr.attrs, expr.inputs
    rank = len(x.shape)
    axes, n = range(rank - a["axes"], rank), math.prod(x.shape[rank - a["axes"] :])
    count: Any = at("Squeeze", w.size(n), np.zeros(1, I64)) if is_open(n) else np.int64(n)
    c = at.centred(x, I64)
    part, power = at("Mul", c, count), at("Mul", at.summed(at("Mul", c, c), axes), count)
    if a["centred"]:
        total = at.summed(c, axes)
        part, power = at("Sub", part, total), at("Sub", power, at("Mul", total, total))
    wide: Any = at.cast(count, F64) if is_open(n) else np.float64(n)
    square = at("Mul", wide, wide) if is_open(n) else np.float64(n * n)
    variance = at("Div", at.cast(power, F64), square)
    root = at("Sqrt", at("Add", variance, np.float64(a["E"])))
    k = at.cast(at("Div", at("Div", np.float64(1), root), wide), F32)
    t = at("Mul", at.cast(part, F32), k)
    at.finish(at("Add", at("Mul", t, w.value(gain)), w.value(bias)), a["dtype"])
