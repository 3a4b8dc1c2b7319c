"""Ways to write calls of torch that its exporter to ONNX copies into invalid files, or lacks: as others write them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def spelling_decompositions(torch: Any) -> dict[Any, Callable[..., Any]]:
    """By op of torch the same call as the exporter takes it; NotImplemented where it is written so."""
    aten = torch.ops.aten
    layers = {
        2: (aten.max_pool2d, aten.max_pool2d_with_indices, aten.conv2d, aten.conv_transpose2d),
        3: (aten.max_pool3d, aten.max_pool3d_with_indices, aten.avg_pool3d, aten.conv3d, aten.conv_transpose3d),
    }
    return {
        **{
            overload: for_all_axes(overload, axes)
            for axes, ops in layers.items()
            for op in ops
            for overload in (getattr(op, name) for name in op.overloads() if name in ("default", "input"))
        },
        **_shifts(torch, torch.bitwise_left_shift, aten.__lshift__, aten.bitwise_left_shift),
        **_shifts(torch, torch.bitwise_right_shift, aten.__rshift__, aten.bitwise_right_shift),
    }


def _shifts(torch: Any, shift: Callable[..., Any], operator: Any, function: Any) -> dict[Any, Callable[..., Any]]:
    """Shifts as one function, and those of uint8 in int32: the exporter makes int8 of them."""

    def moved(x: Any, count: Any, *, spelled: bool) -> Any:
        if isinstance(x, torch.Tensor) and torch.result_type(x, count) == torch.uint8:
            count = count.int() if isinstance(count, torch.Tensor) else count
            return (shift(x.int(), count) & 255).to(torch.uint8)
        return shift(x, count) if spelled else NotImplemented

    kept, spelled = (functools.partial(moved, spelled=value) for value in (False, True))
    return {
        **dict.fromkeys((function.Tensor, function.Tensor_Scalar, operator.Scalar), kept),
        operator.Tensor: spelled,
    }


def for_all_axes(op: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """The op with as many numbers as axes where a list of one stands for all: `max_pool2d(x, (2,))`."""

    def call(*args: Any, **named: Any) -> Any:
        if not any(_is_one(value) for value in (*args, *named.values())):
            return NotImplemented
        full = {name: _repeated(value, axes) for name, value in named.items()}
        return op(*(_repeated(value, axes) for value in args), **full)

    return call


def _is_one(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 1


def _repeated(value: Any, axes: int) -> Any:
    return list(value) * axes if _is_one(value) else value


__all__ = ["for_all_axes", "spelling_decompositions"]
