"""Inverse, determinant, singular values, complex numbers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import DType
from megengine.core.errors import DTypeError, GradientError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.types import TensorLike
from megengine.dispatch import ErrorSample, OnnxRule, Sample, apply, define, no_onnx, public
from megengine.ops.common import (
    FLOAT32,
    as_tensor,
    broadcast_shapes,
    cast,
    floating,
    operands,
    refuse_quantized,
    unbroadcast,
)
from megengine.ops.matmul import product
from megengine.tensor import Tensor

_MATH, _TENSOR = "megengine.functional.math", "megengine.functional.tensor"


def _matrices(op: str, x: TensorSpec) -> None:
    refuse_quantized(op, x)
    if x.ndim < 2:
        raise ShapeError(f"{op}: inp has shape {x.shape}; expected [..., M, N]")


def _inverse_infer(x: TensorSpec) -> TensorSpec:
    _matrices("matinv", x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"matinv: inp has shape {x.shape}; expected square matrices [..., N, N]")
    return x


def _inverse(x: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.inv(x)
    except np.linalg.LinAlgError:
        raise OptionError("matinv: a matrix is singular; expected matrices of full rank") from None


def _inverse_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    y = ctx.outputs[0]
    return (-product(product(y, ct, ta=True), y, tb=True),)


def _inverse_samples() -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (3, 3), (2, 4, 4)):
        yield Sample((rng.standard_normal(shape) + 4 * np.eye(shape[-1]),))


define(
    "matinv",
    _inverse_infer,
    _inverse,
    _inverse_vjp,
    no_onnx("no such operator"),
    _inverse_samples,
    lambda: [ErrorSample((np.zeros((2, 3), np.float32),), {}, ShapeError, "matinv: inp has shape .* square")],
)


def _determinant_infer(x: TensorSpec) -> TensorSpec:
    _matrices("det", x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"det: inp has shape {x.shape}; expected square matrices [..., N, N]")
    return TensorSpec(x.shape[:-2], x.dtype, x.device)


def _determinant_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    x, y = ctx.inputs[0], ctx.outputs[0]
    cofactors = apply("transpose", apply("matinv", x), perm=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))
    return (apply("reshape", ct * y, shape=(*y.shape, 1, 1)) * cofactors,)


define(
    "det",
    _determinant_infer,
    lambda x: np.asarray(np.linalg.det(x), x.dtype),
    _determinant_vjp,
    OnnxRule("Det"),
    _inverse_samples,
    lambda: [ErrorSample((np.zeros((2, 3), np.float32),), {}, ShapeError, "det: inp has shape .* square")],
)


def _solvable(inp: Any) -> tuple[Tensor, DType]:
    """A tensor of a dtype that LAPACK takes (float16 and bfloat16 as float32), and the dtype of the results."""
    x = floating(inp)
    return (x if x.dtype in _COMPLEX else cast(x, FLOAT32)), x.dtype


@public(home=_MATH)
def matinv(inp: TensorLike) -> Tensor:
    """Inverse of square matrices inp [..., N, N]. Raises OptionError where one is singular."""
    x, dtype = _solvable(inp)
    return cast(apply("matinv", x), dtype)


def _svd_infer(x: TensorSpec, *, full: bool) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    _matrices("svd", x)
    *lead, m, n = x.shape
    k = min(m, n)
    shapes = (*lead, m, m if full else k), (*lead, k), (*lead, n if full else k, n)
    u, s, v = (TensorSpec(shape, x.dtype, x.device) for shape in shapes)
    return u, s, v


def _antisymmetric(t: Tensor, s: Tensor) -> Tensor:
    """(t - its transpose) / (s_j^2 - s_i^2), 0 where singular values coincide."""
    order = (*range(t.ndim - 2), t.ndim - 1, t.ndim - 2)
    square = s * s
    row, column = (apply("reshape", square, shape=shape) for shape in ((*s.shape[:-1], 1, s.shape[-1]), (*s.shape, 1)))
    gap = row - column
    same = apply("equal", gap, as_tensor(0, like=gap))
    safe = apply("where", same, as_tensor(1, like=gap), gap)
    return apply("where", same, as_tensor(0, like=gap), (t - apply("transpose", t, perm=order)) / safe)


def _svd_vjp(ctx: Any, du: Tensor | None, ds: Tensor | None, dv: Tensor | None) -> tuple[Tensor]:
    """Source: Townsend, "Differentiating the singular value decomposition", 2016."""
    u, s, v = ctx.outputs
    k = s.shape[-1]
    if ctx.attrs["full"] and (du is not None or dv is not None):
        raise GradientError("svd: the vectors of full matrices have no gradient; use full_matrices=False")
    u, v = u[..., :k], v[..., :k, :]
    row, column = apply("reshape", s, shape=(*s.shape[:-1], 1, k)), apply("reshape", s, shape=(*s.shape, 1))
    inner, outer = [], []
    if ds is not None:
        inner.append(apply("reshape", ds, shape=(*s.shape, 1)) * Tensor(np.eye(k), dtype=s.dtype, device=s.device))
    if du is not None:
        inner.append(_antisymmetric(product(u, du, ta=True), s) * row)
        outer.append(product((du - product(u, product(u, du, ta=True))) / row, v))
    if dv is not None:
        inner.append(column * _antisymmetric(product(v, dv, tb=True), s))
        outer.append(product(u, (dv - product(product(dv, v, tb=True), v)) / column))
    core = functools.reduce(operator.add, inner)
    return (functools.reduce(operator.add, outer, product(product(u, core), v)),)


def _svd(x: np.ndarray, full: bool) -> tuple[np.ndarray, ...]:
    if not np.isfinite(x).all():  # NumPy may not terminate
        raise OptionError("svd: inp has elements that are infinite or not a number; expected finite ones")
    return tuple(np.linalg.svd(x, full))


def _svd_samples() -> Iterator[Sample]:
    rng = np.random.default_rng(2)
    for shape in ((3, 3), (4, 2), (2, 4), (2, 3, 2), (1, 1), (0, 2, 3)):
        yield Sample((rng.standard_normal(shape),), {"full": False})
    yield Sample((np.diag([3.0, 2.0, 1.0])[:2],), {"full": True}, False)


define(
    "svd",
    _svd_infer,
    _svd,
    _svd_vjp,
    no_onnx("no such operator"),
    _svd_samples,
    lambda: [ErrorSample((np.zeros(3, np.float32),), {"full": False}, ShapeError, "svd: inp has shape")],
)


@public(home=_MATH)
def svd(inp: TensorLike, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """U, S, V with inp = U diag(S) V for matrices [..., M, N]; only S without `compute_uv`."""
    x, dtype = _solvable(inp)
    u, s, v = (cast(part, dtype) for part in apply("svd", x, full=bool(full_matrices)))
    return (u, s, v) if compute_uv else s


_COMPLEX = {np.dtype(np.float32): np.dtype(np.complex64), np.dtype(np.float64): np.dtype(np.complex128)}
_PART = {c: r for r, c in _COMPLEX.items()}


def _complex_infer(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if a.dtype != b.dtype or a.dtype not in _COMPLEX:
        raise DTypeError(f"complex: parts are {a.dtype} and {b.dtype}; expected float32; use .astype")
    return TensorSpec(broadcast_shapes("complex", a.shape, b.shape), _COMPLEX[a.dtype], a.device)


def _complex_vjp(ctx: Any, ct: Tensor) -> tuple:
    a, b = ctx.inputs
    return unbroadcast(apply("real", ct), a.shape), unbroadcast(apply("imag", ct), b.shape)


def _part_infer(name: str) -> Callable[[TensorSpec], TensorSpec]:
    def infer(x: TensorSpec) -> TensorSpec:
        if x.dtype not in _PART:
            raise DTypeError(f"{name}: the input is {x.dtype}; expected complex numbers; make them with F.complex")
        return TensorSpec(x.shape, _PART[x.dtype], x.device)

    return infer


_FLOATS = np.linspace(-2.0, 1.5, 6).reshape(2, 3)
define(
    "complex",
    _complex_infer,
    lambda a, b: a + 1j * b,
    _complex_vjp,
    no_onnx("no complex numbers there"),
    lambda: [Sample((_FLOATS, _FLOATS[:1]), {}, False)],
    lambda: [ErrorSample((np.zeros(3, np.int32),) * 2, {}, DTypeError, "complex: parts are int32")],
)
for _name, _take in (("real", np.real), ("imag", np.imag)):
    define(
        _name,
        _part_infer(_name),
        lambda x, _take=_take: np.array(_take(x)),
        (lambda ctx, ct: (apply("complex", ct, ct * 0),))
        if _name == "real"
        else (lambda ctx, ct: (apply("complex", ct * 0, ct),)),
        no_onnx("no complex numbers there"),
        lambda: [Sample(((_FLOATS + 2j * _FLOATS).astype(np.complex64),), {}, False)],
        lambda _name=_name: [ErrorSample((np.zeros(3, np.float32),), {}, DTypeError, f"{_name}: the input is")],
    )


@public(home=_TENSOR)
def complex(real: TensorLike, imag: TensorLike) -> Tensor:
    """Complex numbers (complex64) from their parts; shapes broadcast."""
    a, b = operands("complex", real, imag)
    return apply("complex", floating(a), floating(b))


@public(home=_TENSOR)
def polar(abs: TensorLike, angle: TensorLike) -> Tensor:
    """Complex numbers from absolute values and angles in radians; shapes broadcast."""
    a, b = operands("polar", abs, angle)
    a, b = floating(a), floating(b)
    return apply("complex", a * apply("cos", b), a * apply("sin", b))


@public(home=_TENSOR)
def real(complex: Tensor) -> Tensor:
    """Real parts of complex numbers."""
    return apply("real", as_tensor(complex))


@public(home=_TENSOR)
def imag(complex: Tensor) -> Tensor:
    """Imaginary parts of complex numbers."""
    return apply("imag", as_tensor(complex))
