"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import DTypeError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.types import TensorLike
from megengine.dispatch import ONNX_WRITER, ErrorSample, QuantRule, Sample, apply, define, mixed, public
from megengine.kernels.reference import ordered
from megengine.kernels.reference.order import in_order, in_turn, too_much
from megengine.ops import quantized_calls
from megengine.ops.common import (
    FLOAT32,
    INT32,
    as_tensor,
    broadcast_shapes,
    cast,
    check_modes,
    factors,
    lift_plain,
    noise,
    operands,
    refuse_quantized,
    unbroadcast,
)
from megengine.ops.ordered import define_ordered
from megengine.tensor import Tensor


def _swap(shape: tuple[int, ...], swap: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if swap else shape


def product_shape(
    op: str, a: tuple[int, ...], b: tuple[int, ...], *, transpose_a: bool, transpose_b: bool
) -> tuple[int, ...]:
    """The shape of a product of stacks of matrices, which broadcast. Raises ShapeError, which begins with `op`."""
    if len(a) < 2 or len(b) < 2:
        raise ShapeError(f"{op}: shapes {a} and {b}; expected at least two axes each")
    x, y = _swap(a, transpose_a), _swap(b, transpose_b)
    if x[-1] != y[-2]:
        raise ShapeError(
            f"{op}: inner sizes differ: a is {a} (transpose {transpose_a}), b is {b} "
            f"(transpose {transpose_b}); expected {x[-1]} == {y[-2]}"
        )
    return (*broadcast_shapes(op, x[:-2], y[:-2]), x[-2], y[-1])


def _infer(a: TensorSpec, b: TensorSpec, *, transpose_a: bool, transpose_b: bool) -> TensorSpec:
    refuse_quantized("matmul", a, b)
    if a.dtype != b.dtype:
        raise DTypeError(f"matmul: operands are {a.dtype} and {b.dtype}; expected one dtype; use .astype")
    shape = product_shape("matmul", a.shape, b.shape, transpose_a=transpose_a, transpose_b=transpose_b)
    return TensorSpec(shape, a.dtype, a.device)


def _reference(a: np.ndarray, b: np.ndarray, transpose_a: bool, transpose_b: bool) -> np.ndarray:
    a, b = in_order(a), in_order(b)
    a, b = a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if a.dtype == FLOAT32 and too_much(leading, a.shape[-2], a.shape[-1], b.shape[-1]) is None:
        return in_turn(a, b)  # as the kernel of small products does it
    return np.matmul(a, b)


def product(a: Tensor, b: Tensor, ta: bool = False, tb: bool = False) -> Tensor:
    """The op on tensors of at least two axes and one dtype; `ta` and `tb` transpose the last two axes."""
    return apply("matmul", a, b, transpose_a=ta, transpose_b=tb)


def _vjp(ctx: Any, ct: Tensor) -> tuple:
    a, b = ctx.inputs
    ta, tb = ctx.attrs["transpose_a"], ctx.attrs["transpose_b"]
    da = db = None
    if ctx.needs[0]:
        da = product(b, ct, tb, True) if ta else product(ct, b, False, not tb)
        da = unbroadcast(da, a.shape)
    if ctx.needs[1]:
        db = product(ct, a, True, ta) if tb else product(a, ct, not ta, False)
        db = unbroadcast(db, b.shape)
    return da, db


def _samples():
    for ta in (False, True):
        for tb in (False, True):
            a, b = noise(4, 3) if ta else noise(3, 4), noise(5, 4) if tb else noise(4, 5)
            yield Sample((a, b), {"transpose_a": ta, "transpose_b": tb})
    plain = {"transpose_a": False, "transpose_b": False}
    yield Sample((noise(2, 1, 3, 4), noise(5, 4, 2)), plain)
    yield Sample((noise(9, 40), noise(40, 17)), plain)  # long enough that the order of summation matters
    yield Sample((noise(0, 4), noise(4, 2)), plain)


def product_macs(inputs: Sequence[TensorSpec], result: TensorSpec, attrs: Mapping[str, Any]) -> int:
    """Multiply-accumulates of a matrix product: elements of the result x inner size."""
    return math.prod(result.shape) * inputs[0].shape[-2 if attrs.get("transpose_a") else -1]


_MATMUL = define(
    "matmul",
    _infer,
    _reference,
    _vjp,
    ONNX_WRITER,
    _samples,
    lambda: [
        ErrorSample(
            (np.zeros((2, 3)), np.zeros((2, 3))),
            {"transpose_a": False, "transpose_b": False},
            ShapeError,
            "matmul: inner sizes differ",
        )
    ],
    quant=QuantRule(
        "weighted",
        "qlinear",
        rows=True,
        weight_axis=lambda attrs: 0 if attrs.get("transpose_b") else 1,
        usable=lambda attrs: "its first operand is transposed" if attrs.get("transpose_a") else None,
    ),
    macs=product_macs,
    lift=lift_plain,
)
define_ordered(_MATMUL, ordered.product)


def _factors(op: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Both operands in the dtype of their product: int8 is multiplied as int32, as in MegEngine."""
    a, b = factors(op, x, y)
    return (cast(a, INT32), cast(b, INT32)) if a.dtype == np.int8 else (a, b)


@public(home="megengine.functional.math", by_spec=True, quantized=quantized_calls.multiplied)
def matmul(
    inp1: TensorLike,
    inp2: TensorLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    compute_mode: str = "default",
) -> Tensor:
    """Matrix product of [..., M, K] and [..., K, N]; leading axes broadcast; vectors as in NumPy; int8 gives int32."""
    check_modes("matmul", compute_mode=compute_mode)
    a, b = _factors("matmul", inp1, inp2)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"matmul: shapes {a.shape} and {b.shape}; expected at least one axis each")
    if a.ndim == 1 or b.ndim == 1:
        left, right = a.ndim == 1, b.ndim == 1  # as in NumPy
        a2 = apply("reshape", a, shape=(1, a.size)) if left else a
        b2 = apply("reshape", b, shape=(b.size, 1)) if right else b
        out = product(a2, b2, bool(transpose_a) and not left, bool(transpose_b) and not right)
        shape = list(out.shape)
        if left:
            shape.pop(-2)
        if right:
            shape.pop(-1)
        return apply("reshape", out, shape=tuple(shape))
    return product(a, b, bool(transpose_a), bool(transpose_b))


@public(home="megengine.tensor", methods=("__matmul__",), in_place=("__imatmul__",), by_spec=True)
def matmul_operator(inp1: TensorLike, inp2: TensorLike) -> Tensor:
    """Inp1 @ inp2. Not `matmul` itself: graphs store the arguments, and MegEngine's operator takes two."""
    return matmul(inp1, inp2)


@public(home="megengine.tensor", methods=("__rmatmul__",), by_spec=True)
def rmatmul(inp1: TensorLike, inp2: TensorLike) -> Tensor:
    """Inp2 @ inp1, for arrays on the left."""
    return matmul(inp2, inp1)


@public(home="megengine.functional.math", by_spec=True)
def dot(inp1: TensorLike, inp2: TensorLike) -> Tensor:
    """Inner product of two vectors, or of two tensors without axes."""
    a, b = operands("dot", inp1, inp2)
    if a.ndim > 1 or b.shape != a.shape:
        raise ShapeError(f"dot: shapes {a.shape} and {b.shape}; expected two vectors of one length")
    return apply("sum", a * b, axis=None, keepdims=False)


@public(home="megengine.functional.nn", by_spec=True, quantized=quantized_calls.linear)
def linear(
    inp: TensorLike, weight: TensorLike, bias: TensorLike | None = None, compute_mode: str = "default"
) -> Tensor:
    """Inp [..., K] times weight [N, K] transposed, plus bias [N]."""
    check_modes("linear", compute_mode=compute_mode)
    x, w = _factors("linear", inp, weight)
    if w.ndim != 2 or not x.shape or x.shape[-1] != w.shape[-1]:
        raise ShapeError(f"linear: inp has shape {x.shape}, weight {w.shape}; expected inp [..., K] and weight [N, K]")
    flat = x if x.ndim >= 2 else apply("reshape", x, shape=(1, x.size))
    out = product(flat, w, tb=True)
    if x.ndim == 1:
        out = apply("reshape", out, shape=(w.shape[0],))
    return out if bias is None else out + mixed.lowered(as_tensor(bias))
