"""A part of a tensor, and a tensor with a border: slice, pad.

They accept quantized tensors and keep their dtype: the stored integers are moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import ArgumentError, DTypeError, OptionError, ShapeError, brief
from megengine.core.sizes import slice_bounds, slice_length
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import MOVES_INTEGERS, ONNX_WRITER, QuantRule, Sample, apply, define, no_onnx, public
from megengine.ops.common import as_tensor, choice, sample_values
from megengine.tensor import Tensor

_Mode = Literal["constant", "edge", "reflect"]


def _slice_infer(x: TensorSpec, *, starts: tuple, stops: tuple, steps: tuple) -> TensorSpec:
    if not len(starts) == len(stops) == len(steps) == x.ndim:
        raise ShapeError(f"slice: {counted(len(starts), 'range')} for {counted(x.ndim, 'axis')}; expected one per axis")
    if 0 in steps:
        raise OptionError("slice: a step is 0; expected a non-zero step")
    ranges = zip(starts, stops, steps, x.shape, strict=True)
    return TensorSpec(tuple([slice_length(*part) for part in ranges]), x.dtype, x.device)


def _slices(attrs: Any) -> tuple[slice, ...]:
    return tuple(slice(a, b, c) for a, b, c in zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True))


def _slice_keeps(shape: tuple[int, ...], attrs: Any) -> bool:
    parts = zip(_slices(attrs), shape, strict=True)
    return all(slice_bounds(s.start, s.stop, s.step, n) == (0, n, 1) for s, n in parts)


def _slice_follows(
    attrs: Mapping[str, Any], old: tuple[int, ...], new: tuple[int, ...], step: int | None = None
) -> list[dict[str, Any]]:
    """Whole axes stay whole."""
    return [{"stops": tuple([n if stop == m else stop for m, n, stop in zip(old, new, attrs["stops"], strict=True)])}]


define(
    "slice",
    _slice_infer,
    lambda x, **attrs: x[_slices(attrs)].copy(),
    lambda ctx, ct: (apply("slice_backward", ct, shape=ctx.inputs[0].shape, **ctx.attrs),),
    ONNX_WRITER,
    lambda: [
        Sample((sample_values(4, 5),), {"starts": (1, None), "stops": (3, None), "steps": (1, -2)}),
        Sample((sample_values(4, 5),), {"starts": (3, 0), "stops": (3, 2), "steps": (1, 1)}),
    ],
    quant=MOVES_INTEGERS,
    moves=True,
    by_type=True,
    keeps=_slice_keeps,
    lift=lambda attrs: {name: (new, *attrs[name]) for name, new in (("starts", None), ("stops", None), ("steps", 1))},
    follow=_slice_follows,
)


def _slice_backward(ct: np.ndarray, shape: tuple[int, ...], **attrs: Any) -> np.ndarray:
    out = np.zeros(shape, ct.dtype)
    out[_slices(attrs)] = ct
    return out


define(
    "slice_backward",
    lambda ct, *, shape, starts, stops, steps: TensorSpec(tuple(shape), ct.dtype, ct.device),
    _slice_backward,
    lambda ctx, ct: (apply("slice", ct, **{k: ctx.attrs[k] for k in ("starts", "stops", "steps")}),),
    no_onnx("gradient of slice"),
    lambda: [Sample((sample_values(2, 3),), {"shape": (4, 5), "starts": (1, 0), "stops": (3, 5), "steps": (1, 2)})],
)


def _pad_infer(x: TensorSpec, *, widths: tuple, mode: str, value: float) -> TensorSpec:
    if len(widths) != x.ndim or any(w < 0 for pair in widths for w in pair):
        raise ShapeError(f"pad: widths {widths} for shape {x.shape}; expected {counted(x.ndim, 'pair')} >= 0")
    choice("pad", "mode", mode, get_args(_Mode))
    if mode == "reflect" and any(max(p) >= n for p, n in zip(widths, x.shape, strict=True) if max(p)):
        raise ShapeError(f"pad: reflect widths {widths} must be smaller than the lengths {x.shape}")
    if mode == "edge" and any(n == 0 and max(p) for p, n in zip(widths, x.shape, strict=True)):
        raise ShapeError(f"pad: an axis of shape {x.shape} is empty, so it has no border to repeat; widths {widths}")
    return TensorSpec(tuple(n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)), x.dtype, x.device)


def _pad(x: np.ndarray, widths: tuple, mode: _Mode, value: float, in_specs: tuple, out_specs: tuple) -> np.ndarray:
    if mode != "constant":
        return np.pad(x, widths, mode=mode)
    dtype = in_specs[0].dtype
    if isinstance(dtype, QuantizedDType):
        if isinstance(dtype.scale, tuple):
            raise DTypeError(f"pad: got {dtype} with a scale per channel; expected one scale; dequantize it first")
        value = dtype.integer_of(value)
    return np.pad(x, widths, constant_values=x.dtype.type(value))


def _pad_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    x, widths, mode = ctx.inputs[0], ctx.attrs["widths"], ctx.attrs["mode"]
    if mode == "constant":
        starts = tuple(a for a, _ in widths)
        stops = tuple(a + n for n, (a, _) in zip(x.shape, widths, strict=True))
        return (apply("slice", ct, starts=starts, stops=stops, steps=(1,) * x.ndim),)
    where = np.pad(np.arange(x.size, dtype=np.int32).reshape(x.shape), widths, mode=mode)
    index = Tensor._wrap(where.reshape(-1), None, ct.device)
    flat = apply("index_backward", apply("reshape", ct, shape=(ct.size,)), index, shape=(x.size,), pattern=("i",))
    return (apply("reshape", flat, shape=x.shape),)


_PADS = {"widths": ((1, 0), (0, 2)), "value": 0.5}


def _pads_with_zero(attrs: Mapping[str, Any]) -> str | None:
    if attrs.get("mode", "constant") != "constant":
        return None
    return None if attrs.get("value", 0) == 0 else f"it pads with {attrs.get('value')}"


define(
    "pad",
    _pad_infer,
    _pad,
    _pad_vjp,
    ONNX_WRITER,
    lambda: [
        Sample((sample_values(3, 4),), {**_PADS, "mode": "constant"}),
        Sample((sample_values(3, 4),), {**_PADS, "mode": "edge"}),
        Sample((sample_values(3, 4),), {**_PADS, "mode": "reflect"}),
    ],
    needs_specs=True,
    quant=QuantRule("shape", non_negative="inherit", usable=_pads_with_zero),
    moves=True,
    by_type=True,
    lift=lambda attrs: {**attrs, "widths": ((0, 0), *attrs["widths"])},
)


PAD_MODES = ("constant", "edge", "reflect", "replicate")


@public(home="megengine.functional.nn", by_spec=True)
def pad(
    src: TensorLike, pad_width: Sequence[Sequence[int]], mode: str = "constant", constant_value: float = 0.0
) -> Tensor:
    """Lengthen every axis by (before, after) of `pad_width`; modes constant, reflect, replicate."""
    mode = choice("pad", "mode", mode, PAD_MODES, any_case=True)
    mode = "edge" if mode == "replicate" else mode
    x = as_tensor(src)
    if any(np.ndim(pair) != 1 or len(pair) != 2 for pair in pad_width):
        raise ArgumentError(f"pad: pad_width is {brief(pad_width)}; expected a pair (before, after) for each axis")
    widths = tuple((int(a), int(b)) for a, b in pad_width)
    widths = widths + ((0, 0),) * (x.ndim - len(widths))
    return apply("pad", x, widths=widths, mode=mode, value=float(constant_value))
