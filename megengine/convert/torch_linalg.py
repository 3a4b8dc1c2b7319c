"""Solutions of small systems for torch's exporter to ONNX, which lacks them: inverses, Cholesky, determinants."""

from __future__ import annotations

import math
from collections.abc import Callable
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


__all__ = ["linalg_decompositions"]
