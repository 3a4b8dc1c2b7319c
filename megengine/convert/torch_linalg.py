"""Functions of torch that its exporter to ONNX lacks, by elementary ones: small matrices, and special functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

_LARGEST = 16  # rows of matrices that are solved in a step each


def linalg_decompositions(torch: Any) -> dict[Any, Callable[..., Any]]:
    """By op of torch what computes the same; NotImplemented for matrices of more than 16 rows, or of open size."""
    aten = torch.ops.aten

    def first(function: Callable[..., Any]) -> Callable[..., Any]:
        """Without what tells of errors."""

        def of(*args: Any, **named: Any) -> Any:
            made = function(torch, *args, **named)
            return made if made is NotImplemented else made[0]

        return of

    def whole(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, check_errors=False, **named: function(torch, *args, **named)

    def logarithm(a: Any) -> Any:
        sign, value = _sign_and_log(torch, a)[:2]
        return torch.where(sign < 0, math.nan, value)

    return {
        **dict.fromkeys((aten.linalg_inv.default, aten.inverse.default), first(_inverse)),
        **dict.fromkeys((aten.linalg_cholesky.default, aten.cholesky.default), first(_cholesky)),
        aten.linalg_solve.default: first(_solved),
        aten.linalg_inv_ex.default: whole(_inverse),
        aten.linalg_cholesky_ex.default: whole(_cholesky),
        aten._linalg_solve_ex.default: whole(_solved),
        aten.linalg_solve_triangular.default: lambda a, b, *, upper, left=True, unitriangular=False: (
            _triangular(torch, a, b, upper, unitriangular) if left else NotImplemented
        ),
        aten.cholesky_solve.default: lambda b, a, upper=False: _by_factor(torch, a.mT if upper else a, b),
        aten._linalg_slogdet.default: whole(_sign_and_log),
        **dict.fromkeys((aten.linalg_slogdet.default, aten.slogdet.default), lambda a: _sign_and_log(torch, a)[:2]),
        aten.logdet.default: logarithm,
        **dict.fromkeys((aten.lgamma.default, aten.special_gammaln.default), lambda x: _log_gamma(torch, x)),
        **dict.fromkeys((aten.digamma.default, aten.special_digamma.default), lambda x: _digamma(torch, x)),
        **dict.fromkeys((aten.erfinv.default, aten.special_erfinv.default), lambda x: _inverse_erf(torch, x)),
        aten.special_ndtri.default: lambda x: _inverse_erf(torch, 2 * x - 1) * math.sqrt(2),
    }


def _is_small(matrix: Any) -> bool:
    return isinstance(matrix.shape[-1], int) and matrix.shape[-1] <= _LARGEST and matrix.is_floating_point()


def _eliminated(torch: Any, a: Any, b: Any) -> Any:
    """The solution of a x = b by Gauss-Jordan elimination with the largest pivot of each column."""
    size = a.shape[-1]
    rows = torch.cat((a, b), -1)
    numbers = torch.arange(size, device=a.device)
    for k in range(size):
        best = rows[..., k:, k].abs().argmax(-1, keepdim=True) + k
        order = torch.where(numbers == k, best, torch.where(numbers == best, k, numbers))  # k and the best one change
        rows = rows.gather(-2, order.unsqueeze(-1).expand(rows.shape))
        pivot = rows[..., k : k + 1, :] / rows[..., k : k + 1, k : k + 1]
        factors = torch.where((numbers == k).unsqueeze(-1), 0.0, rows[..., :, k : k + 1])
        rows = torch.where((numbers == k).unsqueeze(-1), pivot, rows - factors * pivot)
    return rows[..., size:]


def _no_errors(torch: Any, matrix: Any) -> Any:
    return torch.zeros(matrix.shape[:-2], dtype=torch.int32, device=matrix.device)


def _inverse(torch: Any, a: Any) -> Any:
    if not _is_small(a):
        return NotImplemented
    ones = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    return _eliminated(torch, a, ones.expand(a.shape)), _no_errors(torch, a)


def _solved(torch: Any, a: Any, b: Any, *, left: bool = True) -> Any:
    """The solution, and empty factors that nobody reads."""
    if not _is_small(a) or not left:
        return NotImplemented
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    columns = b.unsqueeze(-1) if vector else b
    shape = torch.broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    x = _eliminated(torch, a.expand(*shape, *a.shape[-2:]), columns.expand(*shape, *columns.shape[-2:]))
    pivots = torch.zeros(a.shape[:-1], dtype=torch.int32, device=a.device)
    return (x.squeeze(-1) if vector else x), torch.zeros_like(a), pivots, _no_errors(torch, a)


def _cholesky(torch: Any, a: Any, upper: bool = False) -> Any:
    if not _is_small(a):
        return NotImplemented
    size, columns = a.shape[-1], []
    rest = a.transpose(-2, -1) if upper else a
    below = torch.arange(size, device=a.device)
    for k in range(size):
        column = torch.where(below >= k, rest[..., :, k] / torch.sqrt(rest[..., k : k + 1, k]), 0.0)
        columns.append(column)
        rest = rest - column.unsqueeze(-1) * column.unsqueeze(-2)
    lower = torch.stack(columns, -1)
    return (lower.transpose(-2, -1) if upper else lower), _no_errors(torch, a)


def _triangular(torch: Any, a: Any, b: Any, upper: bool, ones: bool) -> Any:
    if not _is_small(a):
        return NotImplemented
    size, found = a.shape[-1], {}
    for k in reversed(range(size)) if upper else range(size):
        known = sum(a[..., k, j].unsqueeze(-1) * x for j, x in found.items())
        row = b[..., k, :] - known
        found[k] = row if ones else row / a[..., k, k].unsqueeze(-1)
    return torch.stack([found[k] for k in range(size)], -2)


def _by_factor(torch: Any, lower: Any, b: Any) -> Any:
    """The solution of (lower lower^T) x = b."""
    if not _is_small(lower):
        return NotImplemented
    half = _triangular(torch, lower, b, upper=False, ones=False)
    return _triangular(torch, lower.mT, half, upper=True, ones=False)


def _sign_and_log(torch: Any, a: Any) -> Any:
    value = torch.linalg.det(a)
    factors = (torch.zeros_like(a), torch.zeros(a.shape[:-1], dtype=torch.int32, device=a.device))
    return (torch.sign(value), torch.log(torch.abs(value)), *factors)


def _polynomial(x: Any, factors: Sequence[float]) -> Any:
    total = factors[0]
    for factor in factors[1:]:
        total = total * x + factor
    return total


_LANCZOS = (
    676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
    -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def _log_gamma(torch: Any, x: Any) -> Any:
    """Lanczos' series (g = 7), and the reflection of arguments below 1/2."""
    small, kind = x < 0.5, x.dtype
    wide = x.double()
    y = torch.where(small, 1 - wide, wide) - 1
    series = 0.99999999999980993 + sum(factor / (y + k) for k, factor in enumerate(_LANCZOS, 1))
    t = y + 7.5
    value = 0.5 * math.log(2 * math.pi) + (y + 0.5) * torch.log(t) - t + torch.log(series)
    mirrored = math.log(math.pi) - torch.log(torch.abs(torch.sin(math.pi * (wide - torch.round(wide))))) - value
    return torch.where(small, mirrored, value).to(kind)


def _digamma(torch: Any, x: Any) -> Any:
    """Six steps of the recurrence, then the asymptotic series; reflected below 1/2."""
    small, kind = x < 0.5, x.dtype
    wide = x.double()
    y = torch.where(small, 1 - wide, wide)
    below = sum(1 / (y + k) for k in range(6))
    t = 1 / (y + 6)
    series = _polynomial(t * t, (-1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12, 0.0))
    value = torch.log(y + 6) - 0.5 * t + series - below
    angle = math.pi * (wide - torch.round(wide))
    mirrored = value - math.pi * torch.cos(angle) / torch.sin(angle)
    return torch.where(small, mirrored, value).to(kind)


_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
         -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
        0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def _inverse_erf(torch: Any, x: Any) -> Any:
    """M. Giles, Approximating the erfinv function (GPU Computing Gems, 2011), single precision."""
    w = -torch.log((1 - x) * (1 + x))
    near, far = _polynomial(w - 2.5, _NEAR), _polynomial(torch.sqrt(w) - 3, _FAR)
    ends = torch.where(x.abs() == 1, x * math.inf, torch.where(w < 5, near, far) * x)
    return torch.where(x == 0, x, ends)


__all__ = ["linalg_decompositions"]
