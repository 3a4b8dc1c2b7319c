"""Resizing of torch with antialiasing by a factor, which its exporter to ONNX writes by the rounded size instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Weight = Callable[[Any, Any], Any]

_SHARPNESS = -0.5  # of the cubic (Keys 1981), where antialiasing is on


def resizing_decompositions(torch: Any) -> dict[Any, Callable[..., Any]]:
    """By op of torch what computes the same, as products; NotImplemented where sizes are open."""
    aten = torch.ops.aten
    table: dict[Any, Callable[..., Any]] = {}
    for op, reach, weight in (
        (aten._upsample_bilinear2d_aa, 1, _linear),
        (aten._upsample_bicubic2d_aa, 2, _cubic),
    ):
        table[op.default] = _by_size(torch, reach, weight)
        table[op.vec] = _by_factors(torch, reach, weight)
    return table


def _by_size(torch: Any, reach: int, weight: Weight) -> Callable[..., Any]:
    def resized(
        x: Any, output_size: Sequence[int], align_corners: bool, scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Any:  # fmt: skip
        lengths = (*x.shape[2:], *output_size)
        if not all(isinstance(n, int) for n in lengths):
            return NotImplemented
        rows, columns = (
            _weights(torch, n, size, align_corners, factor, reach, weight).to(x)
            for n, size, factor in zip(lengths[:2], output_size, (scales_h, scales_w), strict=True)
        )
        return rows @ x @ columns.T

    return resized


def _by_factors(torch: Any, reach: int, weight: Weight) -> Callable[..., Any]:
    by_size = _by_size(torch, reach, weight)

    def resized(
        x: Any, output_size: Sequence[int] | None, align_corners: bool, scale_factors: Sequence[float] | None
    ) -> Any:
        if scale_factors is None:
            return by_size(x, output_size, align_corners)
        sizes = [int(n * factor) for n, factor in zip(x.shape[2:], scale_factors, strict=True)]
        return by_size(x, sizes, align_corners, *scale_factors)

    return resized


def _weights(
    torch: Any, length: int, size: int, align_corners: bool, factor: float | None, reach: int, weight: Weight
) -> Any:
    """By place of the result how much each element counts; computed, as a decomposition has no constants."""
    step = length / size if not factor else 1 / factor
    if align_corners:
        step = (length - 1) / (size - 1) if size > 1 else 0.0
    wide = max(step, 1.0)
    centre = (torch.arange(size, dtype=torch.float64).unsqueeze(1) + 0.5) * step
    first, last = (torch.floor(centre + side * reach * wide + 0.5) for side in (-1, 1))
    elements = torch.arange(length, dtype=torch.float64)
    inside = (elements >= first) & (elements < last)
    rows = torch.where(inside, weight(torch, ((elements - centre + 0.5) / wide).abs()), 0.0)
    return rows / rows.sum(1, keepdim=True)


def _linear(torch: Any, t: Any) -> Any:
    return torch.clamp(1 - t, min=0)


def _cubic(torch: Any, t: Any) -> Any:
    a = _SHARPNESS
    near, far = ((a + 2) * t - (a + 3)) * t * t + 1, (((t - 5) * t + 8) * t - 4) * a
    return torch.where(t < 1, near, torch.where(t < 2, far, 0.0))


__all__ = ["resizing_decompositions"]
