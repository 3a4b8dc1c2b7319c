"""Sums of products of 8-bit integers that are computed in float64 become ConvInteger and MatMulInteger again.

Reading these gives float64 products, which are exact; ONNX Runtime has no float64 convolution, and OpenVINO no float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.convert.onnx.writing import Writer, attribute, storage
from megengine.core.dtype import storage_of
from megengine.core.sizes import is_open
from megengine.dispatch import OnnxRule
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.patterns import call, match

SMALL = (np.dtype(np.uint8), np.dtype(np.int8))
INT32, FLOAT64 = np.dtype(np.int32), np.dtype(np.float64)
MOST = 2**31 - 1
_CAST, _LESS, _RESHAPED = call("cast"), call("sub"), call("reshape")


@dataclass(frozen=True, slots=True)
class _Integers:
    """An operand: `data` less `zero`, a node of 8-bit integers or an array of whole numbers."""

    data: TensorNode | np.ndarray
    zero: TensorNode | int = 0

    @property
    def largest(self) -> np.ndarray:
        """Bounds of the magnitudes, for each row of an array."""
        if isinstance(self.data, TensorNode):
            return np.full(1, 255.0)
        return np.abs(self.data)


def integer_sums(w: Writer, expr: Apply) -> bool:
    """Write a float64 convolution or matrix product of 8-bit integers as one of integers; False where it is another."""
    rule = expr.record.onnx
    is_layer = isinstance(rule, OnnxRule) and rule.op_type == "Conv"
    plain = expr.record.rows and not any(expr.attrs.get(flag) for flag in ("transpose_a", "transpose_b"))
    if len(expr.inputs) != 2 or not (is_layer or plain) or storage_of(expr.output.dtype) != FLOAT64:
        return False
    sides = [_integers(node) for node in expr.inputs]
    x, weight = sides
    if x is None or weight is None or not isinstance(x.data, TensorNode) or _reach(expr, x, weight, is_layer) > MOST:
        return False
    if is_layer:
        if is_open(expr.attrs["padding"]):
            return False
        assert isinstance(rule, OnnxRule)
        attrs = {theirs: attribute(expr.attrs[ours]) for ours, theirs in rule.attributes.items() if ours in expr.attrs}
        _write(w, "ConvInteger", expr, x, weight, **attrs)
    else:
        _write(w, "MatMulInteger", expr, x, weight)
    return True


def _write(w: Writer, op_type: str, expr: Apply, x: _Integers, weight: _Integers, **attrs: Any) -> None:
    """The product, as the int32 values that the only user makes of it, or cast to float64."""
    user = _only_user(expr)
    if user is not None and match(_CAST, user.outputs[0]) is not None and user.outputs[0].dtype == INT32:
        _product(w, op_type, [user.outputs[0].name], x, weight, **attrs)
        w.absorbed.add(id(user))
    else:
        total = _product(w, op_type, f"{expr.output.name}_sums", x, weight, **attrs)
        w.emit("Cast", expr, [total], to=_number(FLOAT64))


def _only_user(expr: Apply) -> Apply | None:
    users, graph = [*expr.output.users], expr.graph
    single = len(users) == 1 and graph is not None and all(node is not expr.output for node in graph.outputs)
    return users[0] if single and isinstance(users[0], Apply) else None


def _number(dtype: np.dtype) -> int:
    import onnx

    return onnx.helper.np_dtype_to_tensor_dtype(dtype)


def _integers(node: TensorNode) -> _Integers | None:
    """The 8-bit integers that a float64 value is, less one zero point; None for other values."""
    expr = node.expr
    if isinstance(expr, Constant):
        value = storage(node)
        whole = value.size and np.isfinite(value).all() and np.array_equal(value, np.rint(value))
        low, high = (min(value.min(), 0.0), max(value.max(), 0.0)) if whole else (0.0, 256.0)
        return _Integers(value.astype(np.int64)) if high - low <= 255 else None
    if (stored := _cast_from(node)) is not None:
        return _Integers(stored)
    if not isinstance(expr, Apply) or match(_LESS, node) is None or expr.inputs[1].spec.size != 1:
        return None
    data, zero = _cast_from(expr.inputs[0]), _zero(expr.inputs[1])
    return None if data is None or zero is None or data.shape != node.shape else _Integers(data, zero)


def _cast_from(node: TensorNode) -> TensorNode | None:
    """The 8-bit integers that a node casts."""
    expr = node.expr
    cast = isinstance(expr, Apply) and match(_CAST, node) is not None and expr.inputs[0].dtype in SMALL
    return expr.inputs[0] if cast else None


def _zero(node: TensorNode) -> TensorNode | int | None:
    """One zero point, behind a cast and a change of shape: integers of 8 bits, or a stored number."""
    while isinstance(node.expr, Apply) and match(_RESHAPED, node) is not None:
        node = node.expr.inputs[0]
    if isinstance(node.expr, Constant):
        value = float(storage(node).reshape(-1)[0])
        return int(value) if value in range(-128, 256) else None
    return _cast_from(node)


def _reach(expr: Apply, x: _Integers, weight: _Integers, is_layer: bool) -> float:
    """The largest magnitude that a sum can have."""
    if isinstance(weight.data, TensorNode):
        shape = expr.inputs[1].shape
        taps = shape[1:] if is_layer else shape[-2:-1] if len(shape) > 1 else shape
        return MOST + 1 if is_open(taps) else 255.0 * 255.0 * float(np.prod(taps))
    axes = tuple(range(1, weight.data.ndim)) if is_layer else (max(weight.data.ndim - 2, 0),)
    return 255.0 * float(weight.largest.sum(axes).max())


def _product(
    w: Writer, op_type: str, outputs: Sequence[str] | str, x: _Integers, weight: _Integers, **attrs: Any
) -> str:
    """The int32 sums. ONNX Runtime's ConvInteger takes uint8 values alone, as the first operand.

    Weights of MatMulInteger are uint8: see `unsigned_weights`.
    """
    names = [_unsigned(w, x), _unsigned(w, weight, signed=op_type == "ConvInteger")]
    inputs = [*(data for data, _ in names), *(zero for _, zero in names)]
    return w.add(op_type, inputs, outputs, **attrs)


def _unsigned(w: Writer, side: _Integers, *, signed: bool = False) -> tuple[str, str]:
    """The names of an operand as 8-bit integers, and of its zero point, which have one dtype; uint8 if not `signed`."""
    if isinstance(side.data, np.ndarray):
        keep = signed and side.data.min() >= -128 and side.data.max() <= 127
        zero = 0 if keep else max(0, -int(side.data.min()))
        dtype = np.int8 if keep else np.uint8
        return w.constant((side.data + zero).astype(dtype), "weight"), w.constant(zero, "zero", dtype)
    dtype = storage_of(side.data.dtype)
    moved = dtype == np.int8 and not signed
    data, wanted = w.value(side.data), np.dtype(np.uint8) if moved else dtype
    data = _raised(w, data, 128) if moved else data
    if isinstance(side.zero, int):
        return data, w.constant(side.zero + (128 if moved else 0), "zero", wanted)
    zero = w.value(side.zero)
    lift = 128 * (int(storage_of(side.zero.dtype) == np.int8) - int(wanted == np.int8))
    zero = _raised(w, zero, lift, wanted) if lift else zero
    return data, w.add("Reshape", [zero, w.constant(np.zeros(0), "scalar", np.int64)], "zero")


def _raised(w: Writer, value: str, by: int, dtype: Any = np.uint8) -> str:
    wide = w.add("Cast", [value], f"{value}_wide", to=_number(INT32))
    wide = w.add("Add", [wide, w.constant(by, "shift", np.int32)], f"{value}_raised")
    return w.add("Cast", [wide], f"{value}_unsigned", to=_number(np.dtype(dtype)))
