"""QR factors and exponentials of small matrices for torch's exporter to ONNX, which lacks them. Sizes are known, of at
most 16 rows and columns; inside, numbers are float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_LARGEST = 16  # rows and columns
_HALVINGS = 16  # of the argument of an exponential
_TERMS = 14  # of its series, for norms up to 1/2


def factor_decompositions(torch: Any) -> dict[Any, Callable[..., Any]]:
    """By op of torch what computes the same; NotImplemented for larger matrices, complex ones, or of open size."""
    aten = torch.ops.aten

    def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def of(a: Any, *args: Any, **named: Any) -> Any:
            if not _is_small(a):
                return NotImplemented
            made = function(torch, a.double(), *args, **named)
            return tuple(v.to(a.dtype) for v in made) if isinstance(made, tuple) else made.to(a.dtype)

        return of

    return {
        aten.linalg_qr.default: in_double(_qr),
        **dict.fromkeys((aten.linalg_matrix_exp.default, aten.matrix_exp.default), in_double(_matrix_exp)),
    }


def _is_small(a: Any) -> bool:
    sizes = a.shape[-2:]
    return all(isinstance(n, int) and 0 < n <= _LARGEST for n in sizes) and a.is_floating_point()


def _qr(torch: Any, a: Any, mode: str = "reduced") -> tuple[Any, Any]:
    """By Householder's reflections, with the signs of LAPACK."""
    rows, columns = a.shape[-2:]
    q, r = torch.eye(rows, dtype=a.dtype, device=a.device), a
    if rows == 1:
        q = q.expand(*a.shape[:-2], rows, rows)
    numbers = torch.arange(rows, device=a.device)
    for k in range(min(rows - 1, columns)):
        first, below = r[..., k : k + 1, k], torch.where(numbers > k, r[..., :, k], 0.0)
        rest = (below * below).sum(-1, keepdim=True)
        end = torch.where(first < 0, 1.0, -1.0) * torch.sqrt(first * first + rest)
        idle = rest == 0  # nothing to reflect
        vector = below + torch.where(numbers == k, first - end, 0.0)
        scale = torch.where(idle, 0.0, 2 / torch.where(idle, 1.0, (vector * vector).sum(-1, keepdim=True)))
        outer = scale.unsqueeze(-1) * vector.unsqueeze(-1) * vector.unsqueeze(-2)
        q, r = q - q @ outer, r - outer @ r
    kept = rows if mode == "complete" else min(rows, columns)
    if mode == "r":
        return q.new_empty((0,)), r[..., : min(rows, columns), :].triu()
    return q[..., :kept], r[..., :kept, :].triu()


def _matrix_exp(torch: Any, a: Any) -> Any:
    """The series of the argument halved so often that its norm is at most 1/2; then as many squares."""
    norm = a.abs().sum(-1).amax(-1)
    count = torch.ceil(torch.log2(norm.clamp(min=0.25))).clamp(min=-1, max=_HALVINGS - 1) + 1
    small = a * torch.exp2(-count).unsqueeze(-1).unsqueeze(-1)
    ones = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    made = ones
    for k in range(_TERMS, 0, -1):
        made = ones + small @ made / k
    for k in range(_HALVINGS):
        made = torch.where((count > k).unsqueeze(-1).unsqueeze(-1), made @ made, made)
    return made


__all__ = ["factor_decompositions"]
