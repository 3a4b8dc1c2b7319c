"""Inverse, singular values, complex numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import ErrorSample, Op, Sample, apply, define, no_onnx, not_differentiable, public
from megengine.ops.common import as_tensor, broadcast_shapes, floating, operands, refuse_quantized, unbroadcast
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
    left = apply("matmul", y, ct, transpose_a=True, transpose_b=False)
    return (-apply("matmul", left, y, transpose_a=False, transpose_b=True),)


def _inverse_samples() -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (3, 3), (2, 4, 4)):
        yield Sample((rng.standard_normal(shape) + 4 * np.eye(shape[-1]),))


def _inverse_errors() -> Iterator[ErrorSample]:
    yield ErrorSample((np.zeros((2, 3), np.float32),), {}, ShapeError, "matinv: inp has shape .* square")


define(
    Op(
        "matinv",
        _inverse_infer,
        _inverse,
        _inverse_vjp,
        no_onnx("no such operator"),
        _inverse_samples,
        _inverse_errors,
    )
)


@public(home=_MATH)
def matinv(inp: Any) -> Tensor:
    """Inverse of square matrices inp [..., N, N]. Raises OptionError where one is singular."""
    return apply("matinv", floating(inp))


def _svd_infer(x: TensorSpec, *, full: bool) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    _matrices("svd", x)
    *lead, m, n = x.shape
    k = min(m, n)
    shapes = (*lead, m, m if full else k), (*lead, k), (*lead, n if full else k, n)
    return tuple(TensorSpec(s, x.dtype, x.device) for s in shapes)  # type: ignore[return-value]


def _svd_samples() -> Iterator[Sample]:
    yield Sample((np.diag([3.0, 2.0, 1.0]),), {"full": False}, False)
    yield Sample((np.diag([3.0, 2.0, 1.0])[:2],), {"full": True}, False)


define(
    Op(
        "svd",
        _svd_infer,
        lambda x, full: tuple(np.linalg.svd(x, full)),
        not_differentiable("singular vectors are not unique where values coincide"),
        no_onnx("no such operator"),
        _svd_samples,
        lambda: iter([ErrorSample((np.zeros(3, np.float32),), {"full": False}, ShapeError, "svd: inp has shape")]),
    )
)


@public(home=_MATH)
def svd(inp: Any, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """U, S, V with inp = U diag(S) V for matrices [..., M, N]; only S without `compute_uv`."""
    u, s, v = apply("svd", floating(inp), full=bool(full_matrices))
    return (u, s, v) if compute_uv else s


# ---------------------------------------------------------------- complex numbers

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


_FLOATS = np.random.default_rng(1).standard_normal((2, 3))
define(
    Op(
        "complex",
        _complex_infer,
        lambda a, b: a + 1j * b,
        _complex_vjp,
        no_onnx("no complex numbers there"),
        lambda: iter([Sample((_FLOATS, _FLOATS[:1]), {}, False)]),
        lambda: iter([ErrorSample((np.zeros(3, np.int32),) * 2, {}, DTypeError, "complex: parts are int32")]),
    )
)
for _name, _take in (("real", np.real), ("imag", np.imag)):
    define(
        Op(
            _name,
            _part_infer(_name),
            lambda x, _take=_take: np.array(_take(x)),
            (lambda ctx, ct: (apply("complex", ct, ct * 0),))
            if _name == "real"
            else (lambda ctx, ct: (apply("complex", ct * 0, ct),)),
            no_onnx("no complex numbers there"),
            lambda: iter([Sample(((_FLOATS + 2j * _FLOATS).astype(np.complex64),), {}, False)]),
            lambda _name=_name: iter(
                [ErrorSample((np.zeros(3, np.float32),), {}, DTypeError, f"{_name}: the input is")]
            ),
        )
    )


@public(home=_TENSOR)
def complex(real: Any, imag: Any) -> Tensor:
    """Complex numbers (complex64) from their parts; shapes broadcast."""
    a, b = operands("complex", real, imag)
    return apply("complex", floating(a), floating(b))


@public(home=_TENSOR)
def polar(abs: Any, angle: Any) -> Tensor:
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
