"""Pictures in other sizes: sums of a few neighbours along each axis."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from megengine.core.calls import shown
from megengine.core.dtype import QuantizedDType, is_float
from megengine.core.errors import ArgumentError, DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import MOVES_INTEGERS, ONNX_WRITER, ErrorSample, Sample, apply, define, no_onnx, public
from megengine.kernels.reference import integer
from megengine.kernels.reference.resize import taps
from megengine.ops import quantized_calls
from megengine.ops.common import FLOAT32, Integers, cast, choice, floating, rounded_to
from megengine.ops.quantized import S8, U8, few_bits, output_of, stored
from megengine.ops.simulation import simulated
from megengine.tensor import Tensor

_MODES = ("linear", "nearest", "cubic")


def _infer(x: TensorSpec, *, size: tuple[int, ...], mode: str, corners: bool, front: int = 0) -> TensorSpec:
    """With `front` axes before N and C, as lifted operands have."""
    if isinstance(x.dtype, QuantizedDType):
        few_bits("resize", "x", x)
    choice("resize", "mode", mode, _MODES)
    if not isinstance(x.dtype, QuantizedDType) and not is_float(x.dtype):
        raise DTypeError(f"resize: the input is {x.dtype}; expected floats; use .astype")
    if x.ndim != front + 2 + len(size) or min(x.shape[front + 2 :], default=0) < 1 or min(size) < 1:
        raise ShapeError(f"resize: input {x.shape} to size {size}; expected N, C and as many axes, none of them empty")
    return TensorSpec((*x.shape[: front + 2], *size), x.dtype, x.device)


def _integers(x: np.ndarray, size: tuple[int, ...], mode: str, corners: bool, dtype: QuantizedDType) -> np.ndarray:
    places = [taps(n, out, mode, corners) for n, out in zip(x.shape[2:], size, strict=True)]
    whole = [(index, integer.whole_weights(weight, len(size))) for index, weight in places]
    return integer.resize(x, whole, output_of(dtype))


def _reference(
    x: np.ndarray, size: tuple[int, ...], mode: str, corners: bool, in_specs: Any, out_specs: Any, front: int = 0
) -> np.ndarray:
    x = x.reshape(x.shape[front:])
    if isinstance(dtype := in_specs[0].dtype, QuantizedDType):
        return _integers(x, size, mode, corners, dtype)
    for k, out in enumerate(size):
        index, weight = taps(x.shape[k + 2], out, mode, corners)
        moved = np.moveaxis(x, k + 2, -1)
        total = sum(moved[..., index[:, t]] * weight[:, t].astype(x.dtype) for t in range(index.shape[1]))
        x = np.moveaxis(np.asarray(total), -1, k + 2)
    return np.ascontiguousarray(x)


def _adjoint(ct: np.ndarray, size: tuple[int, ...], mode: str, corners: bool) -> np.ndarray:
    for k, n in enumerate(size):
        index, weight = taps(n, ct.shape[k + 2], mode, corners)
        moved = np.moveaxis(ct, k + 2, 0)
        total = np.zeros((n, *moved.shape[1:]), ct.dtype)
        for t in range(index.shape[1]):
            share = weight[:, t].astype(ct.dtype).reshape(-1, *[1] * (moved.ndim - 1))
            np.add.at(total, index[:, t], moved * share)
        ct = np.moveaxis(total, 0, k + 2)
    return np.ascontiguousarray(ct)


def _vjp(name: str) -> Any:
    def vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
        options = {"mode": ctx.attrs["mode"], "corners": ctx.attrs["corners"]}
        return (apply(name, ct, size=ctx.inputs[0].shape[2:], **options),)

    return vjp


def _samples(mode: str = "") -> Iterator[Sample]:
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 6))
    for mode in _MODES:
        for size in ((8, 3), (5, 6), (1, 1)):
            yield Sample((x,), {"size": size, "mode": mode, "corners": False})
    yield Sample((x,), {"size": (4, 9), "mode": "linear", "corners": True})
    yield Sample((x[..., 0],), {"size": (4,), "mode": "linear", "corners": True})
    yield Sample((x[:0],), {"size": (4, 9), "mode": "linear", "corners": True})


def _with_integers() -> Iterator[Sample]:
    yield from _samples()
    for mode in _MODES:
        yield Sample((stored(U8, 1, 2, 5, 6),), {"size": (8, 3), "mode": mode, "corners": False}, False)
    yield Sample((stored(S8, 2, 3, 7),), {"size": (12,), "mode": "linear", "corners": True}, False)


def _errors() -> Iterator[ErrorSample]:
    x, attrs = np.zeros((1, 2, 5, 6), np.float32), {"size": (4, 4), "corners": False}
    yield ErrorSample((x,), {**attrs, "mode": "liner"}, OptionError, "did you mean 'linear'")
    yield ErrorSample((x[0],), {**attrs, "mode": "linear"}, ShapeError, "resize: input .* expected N, C")
    yield ErrorSample((x.astype(np.int32),), {**attrs, "mode": "linear"}, DTypeError, "resize: the input is int32")


define(
    "resize",
    _infer,
    _reference,
    _vjp("resize_backward"),
    ONNX_WRITER,
    _with_integers,
    _errors,
    needs_specs=True,
    quant=MOVES_INTEGERS,
    lift=lambda attrs: {**attrs, "front": attrs.get("front", 0) + 1},
)
define("resize_backward", _infer, _adjoint, _vjp("resize"), no_onnx("gradient of resize"), _samples)

_PUBLIC = {"bilinear": ("linear", 2), "nearest": ("nearest", 2), "bicubic": ("cubic", 2), "linear": ("linear", 1)}
_PUBLIC["trilinear"] = ("linear", 3)


def _target(x: Tensor, n: int, size: Any, scale_factor: Any) -> tuple[int, ...]:
    if (size is None) == (scale_factor is None):
        raise OptionError("interpolate: give either size or scale_factor")
    value = size if scale_factor is None else scale_factor
    value = value.tolist() if isinstance(value, (Tensor, np.ndarray)) else value
    items: tuple[Any, ...] = (value,) * n if isinstance(value, numbers.Real) else tuple(value)
    if len(items) != n or any(v <= 0 for v in items):
        name = "size" if scale_factor is None else "scale_factor"
        raise OptionError(f"interpolate: {name} is {value}; expected a positive number or {n} of them")
    if scale_factor is None:
        return tuple(int(v) for v in items)
    return tuple(math.floor(length * float(v)) for length, v in zip(x.shape[2:], items, strict=True))


@public(home="megengine.functional.vision", quantized=quantized_calls.on_stored)
@simulated(quantized_calls.on_stored)
def interpolate(
    inp: TensorLike,
    size: Integers | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "bilinear",
    align_corners: bool | None = None,
) -> Tensor:
    """Inp [N,C,...] in another size, given as lengths or factors.

    Modes: bilinear, nearest and bicubic (two axes of space), linear (one), trilinear (three). `align_corners` (not with
    nearest and bicubic) keeps the outermost elements in place; otherwise elements count as areas.
    Of float16 a float32, and of 8-bit integers rounded ones, as in MegEngine.
    Raises OptionError, ShapeError and DTypeError.
    """
    kind, n = _PUBLIC[choice("interpolate", "mode", mode, tuple(_PUBLIC), any_case=True)]
    if not isinstance(align_corners, (bool, np.bool_, type(None), int)):
        raise ArgumentError(f"interpolate: align_corners is {shown(align_corners)}; expected True, False or None")
    if align_corners is not None and kind != "linear":
        raise OptionError(f"interpolate: align_corners has no meaning in mode {mode!r}; leave it out")
    x = floating(inp)
    x = cast(x, FLOAT32) if x.dtype == np.float16 else x
    if x.ndim != n + 2:
        raise ShapeError(f"interpolate: inp has shape {x.shape}; expected {counted(n + 2, 'axis')} for mode {mode!r}")
    out = apply("resize", x, size=_target(x, n, size, scale_factor), mode=kind, corners=bool(align_corners))
    dtype = inp.dtype if isinstance(inp, Tensor) else None
    return rounded_to(out, dtype) if dtype in (np.uint8, np.int8) else out
