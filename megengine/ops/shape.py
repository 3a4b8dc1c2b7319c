"""Ops that move elements without computing: reshape, transpose, concat, split, slice, pad, cast.

They accept quantized tensors and keep their dtype: the stored integers are moved.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine.core.dtype import DType, QuantizedDType, as_dtype, is_float, storage_of
from megengine.core.errors import ArgumentError, DTypeError, OptionError, ShapeError, brief
from megengine.core.limits import refuse_oversized
from megengine.core.spec import TensorSpec
from megengine.dispatch import ErrorSample, OnnxRule, Op, Sample, apply, define, no_onnx, not_differentiable, public
from megengine.ops.common import (
    FLOAT32,
    INT32,
    Axes,
    Integers,
    as_tensor,
    broadcast_shapes,
    choice,
    normalize_axes,
    normalize_axis,
    promote,
    unbroadcast,
)
from megengine.tensor import Tensor

_HOME = "megengine.functional.tensor"


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(list(shape)).standard_normal(shape)


# ---------------------------------------------------------------- shape as a value

define(
    Op(
        "GetVarShape",  # MegEngine's name: traced graphs and files store it
        lambda x: TensorSpec((x.ndim,), INT32, x.device),
        lambda x: np.array(x.shape, np.int32),
        not_differentiable("a shape is an integer"),
        OnnxRule("Shape", write=lambda specs, attrs: ("Shape", {})),
        lambda: iter([Sample((_x(3, 4),), differentiable=False), Sample((_x(2, 0, 1),), differentiable=False)]),
    )
)

# ---------------------------------------------------------------- reshape


def resolve_shape(op: str, size: int, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape with its one -1 replaced so that it holds `size` elements."""
    shape = tuple(int(n) for n in shape)
    unknown = [i for i, n in enumerate(shape) if n == -1]
    known = math.prod(n for n in shape if n != -1)
    if len(unknown) > 1 or any(n < -1 for n in shape):
        raise ShapeError(f"{op}: target shape {shape} is not valid; expected lengths >= 0 and at most one -1")
    if unknown:
        if known == 0 or size % known:
            raise ShapeError(f"{op}: {size} elements do not fill shape {shape}")
        return tuple(size // known if n == -1 else n for n in shape)
    if known != size:
        raise ShapeError(f"{op}: shape {shape} holds {known} elements, the input has {size}")
    return shape


def _reshape_infer(x: TensorSpec, *, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(resolve_shape("reshape", x.size, shape), x.dtype, x.device)


define(
    Op(
        "reshape",
        _reshape_infer,
        lambda x, shape: np.ascontiguousarray(x).reshape(shape),
        lambda ctx, ct: (apply("reshape", ct, shape=ctx.inputs[0].shape),),
        OnnxRule("Reshape"),
        lambda: iter(
            [
                Sample((_x(2, 6),), {"shape": (3, -1)}),
                Sample((_x(0, 3),), {"shape": (3, 0)}),
                Sample((_x(),), {"shape": (1, 1)}),
            ]
        ),
        lambda: iter(
            [ErrorSample((np.zeros(6, np.float32),), {"shape": (4,)}, ShapeError, "reshape: shape .* holds 4")]
        ),
        quant="move",
    )
)


@public(home=_HOME)
def reshape(inp: Any, target_shape: Integers) -> Tensor:
    """The same elements in another shape: integers in a sequence or a tensor; one length may be -1."""
    return apply("reshape", as_tensor(inp), shape=shape_argument((target_shape,)))


@public(home="megengine.tensor", methods=("reshape", "view"))
def reshape_method(self: Tensor, *args: Integers) -> Tensor:
    """The same elements in another shape: integers, one sequence or a tensor; one length may be -1."""
    return apply("reshape", self, shape=shape_argument(args))


def shape_argument(shape: Any) -> tuple[int, ...]:
    """A shape given as integers, one sequence, or a tensor."""
    if len(shape) == 1 and not isinstance(shape[0], numbers.Integral):
        only = shape[0]
        if isinstance(only, (Tensor, np.ndarray)) and only.ndim > 1:
            raise ShapeError(f"a shape is given by a tensor of shape {only.shape}; expected one axis")
        shape = only.tolist() if isinstance(only, (Tensor, np.ndarray)) else only
        shape = [shape] if isinstance(shape, int) else shape
    if isinstance(shape, str) or not all(isinstance(n, numbers.Integral) or np.ndim(n) == 0 for n in shape):
        raise ArgumentError(f"a shape is {brief(shape)}; expected integers")
    return tuple(int(n) for n in shape)


@public(home=_HOME, methods=("flatten",))
def flatten(inp: Any, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """Axes start_axis..end_axis as one."""
    x = as_tensor(inp)
    if not x.shape:
        return apply("reshape", x, shape=(1,))
    a, b = normalize_axis("flatten", start_axis, x.ndim), normalize_axis("flatten", end_axis, x.ndim)
    return apply("reshape", x, shape=(*x.shape[:a], math.prod(x.shape[a : b + 1]), *x.shape[b + 1 :]))


@public(home=_HOME)
def expand_dims(inp: Any, axis: Integers) -> Tensor:
    """New axes of length 1 at the positions `axis` (an integer or several) of the result."""
    x = as_tensor(inp)
    items = [axis] if isinstance(axis, numbers.Integral) else list(axis)  # type: ignore[arg-type]
    ndim = x.ndim + len(items)
    axes = normalize_axes("expand_dims", items, ndim)
    lengths = iter(x.shape)
    return apply("reshape", x, shape=tuple(1 if i in axes else next(lengths) for i in range(ndim)))


@public(home=_HOME)
def squeeze(inp: Any, axis: Axes = None) -> Tensor:
    """Without the axes of length 1 (or without those named, which must have length 1)."""
    x = as_tensor(inp)
    axes = [i for i, n in enumerate(x.shape) if n == 1] if axis is None else normalize_axes("squeeze", axis, x.ndim)
    for a in axes:
        if x.shape[a] != 1:
            raise ShapeError(f"squeeze: axis {a} of shape {x.shape} has length {x.shape[a]}; expected 1")
    return apply("reshape", x, shape=tuple(n for i, n in enumerate(x.shape) if i not in axes))


# ---------------------------------------------------------------- transpose


def _transpose_infer(x: TensorSpec, *, perm: tuple[int, ...]) -> TensorSpec:
    if sorted(perm) != list(range(x.ndim)):
        raise ShapeError(f"transpose: {perm} is not a permutation of the {x.ndim} axes of shape {x.shape}")
    return TensorSpec(tuple(x.shape[p] for p in perm), x.dtype, x.device)


define(
    Op(
        "transpose",
        _transpose_infer,
        lambda x, perm: np.ascontiguousarray(np.transpose(x, perm)),
        lambda ctx, ct: (apply("transpose", ct, perm=tuple(int(i) for i in np.argsort(ctx.attrs["perm"]))),),
        OnnxRule("Transpose", {"perm": "perm"}),
        lambda: iter([Sample((_x(2, 3, 4),), {"perm": (2, 0, 1)}), Sample((_x(0, 3),), {"perm": (1, 0)})]),
        lambda: iter([ErrorSample((np.zeros((2, 3), np.float32),), {"perm": (0, 0)}, ShapeError, "not a permutation")]),
        quant="move",
    )
)


@public(home=_HOME, methods=("transpose", "permute"))
def transpose(inp: Any, *pattern: Integers | str) -> Tensor:
    """Axes in another order; "x" in the pattern makes a new axis of length 1. Without a pattern: reversed."""
    x = as_tensor(inp)
    only: Any = pattern[0] if len(pattern) == 1 else None
    items: list[Any] = list(pattern) if only is None or isinstance(only, numbers.Integral) else list(only)
    items = items or list(reversed(range(x.ndim)))
    kept = [normalize_axis("transpose", p, x.ndim) for p in items if p != "x"]
    out = apply("transpose", x, perm=tuple(kept))
    new = [i for i, p in enumerate(items) if p == "x"]
    return expand_dims(out, new) if new else out


@public(home=_HOME)
def swapaxes(inp: Any, axis1: int, axis2: int) -> Tensor:
    """Two axes exchanged."""
    x = as_tensor(inp)
    a, b = normalize_axis("swapaxes", axis1, x.ndim), normalize_axis("swapaxes", axis2, x.ndim)
    perm = list(range(x.ndim))
    perm[a], perm[b] = b, a
    return apply("transpose", x, perm=tuple(perm))


# ---------------------------------------------------------------- broadcast


def _broadcast_infer(x: TensorSpec, *, shape: tuple[int, ...]) -> TensorSpec:
    if broadcast_shapes("broadcast_to", x.shape, shape) != tuple(shape):
        raise ShapeError(f"broadcast_to: shape {x.shape} does not broadcast to {shape}")
    return TensorSpec(tuple(shape), x.dtype, x.device)


def _broadcast(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    out = np.empty(shape, x.dtype)
    out[...] = x
    return out


define(
    Op(
        "broadcast_to",
        _broadcast_infer,
        _broadcast,
        lambda ctx, ct: (unbroadcast(ct, ctx.inputs[0].shape),),
        OnnxRule("Expand"),
        lambda: iter(
            [
                Sample((_x(3, 1),), {"shape": (2, 3, 4)}),
                Sample(
                    (
                        _x(
                            1,
                        ),
                    ),
                    {"shape": (0,)},
                ),
            ]
        ),
        quant="move",
    )
)


@public(home=_HOME)
def broadcast_to(inp: Any, shape: Integers) -> Tensor:
    """Repeat along axes of length 1 until the shape is `shape`."""
    return apply("broadcast_to", as_tensor(inp), shape=shape_argument((shape,)))


# ---------------------------------------------------------------- concat, split, stack


def _concat_infer(*xs: TensorSpec, axis: int) -> TensorSpec:
    if not xs:
        raise OptionError("concat: no tensors; expected at least one")
    first = xs[0]
    axis = normalize_axis("concat", axis, first.ndim)
    for i, x in enumerate(xs):
        if x.dtype != first.dtype:
            raise DTypeError(f"concat: input {i} is {x.dtype}, input 0 is {first.dtype}; expected one dtype")
        if x.ndim != first.ndim or any(
            a != b for k, (a, b) in enumerate(zip(x.shape, first.shape, strict=False)) if k != axis
        ):
            raise ShapeError(
                f"concat: input {i} has shape {x.shape}, input 0 {first.shape}; "
                f"expected equal lengths except on axis {axis}"
            )
    length = sum(x.shape[axis] for x in xs)
    return TensorSpec((*first.shape[:axis], length, *first.shape[axis + 1 :]), first.dtype, first.device)


def _concat_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor, ...]:
    axis = ctx.attrs["axis"] % ct.ndim
    return apply("split", ct, sections=tuple(x.shape[axis] for x in ctx.inputs), axis=axis)


define(
    Op(
        "concat",
        _concat_infer,
        lambda *xs, axis: np.concatenate(xs, axis=axis),
        _concat_vjp,
        OnnxRule("Concat", {"axis": "axis"}),
        lambda: iter([Sample((_x(2, 3), _x(2, 1)), {"axis": 1}), Sample((_x(2, 3, 2), _x(0, 3, 2)), {"axis": 0})]),
        lambda: iter(
            [ErrorSample((np.zeros((2, 3)), np.zeros((3, 3))), {"axis": 1}, ShapeError, "concat: input 1 has shape")]
        ),
        quant="concat",
    )
)


def _split_infer(x: TensorSpec, *, sections: tuple[int, ...], axis: int) -> tuple[TensorSpec, ...]:
    axis = normalize_axis("split", axis, x.ndim)
    if sum(sections) != x.shape[axis] or any(n < 0 for n in sections):
        raise ShapeError(f"split: sections {sections} do not add up to length {x.shape[axis]} of axis {axis}")
    return tuple(TensorSpec((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype, x.device) for n in sections)


def _split(x: np.ndarray, sections: tuple[int, ...], axis: int) -> tuple[np.ndarray, ...]:
    return tuple(np.ascontiguousarray(p) for p in np.split(x, np.cumsum(sections)[:-1], axis))


def _split_vjp(ctx: Any, *cts: Tensor | None) -> tuple[Tensor]:
    filled = [zeros_like(o) if ct is None else ct for ct, o in zip(cts, ctx.outputs, strict=True)]
    return (apply("concat", *filled, axis=ctx.attrs["axis"]),)


define(
    Op(
        "split",
        _split_infer,
        _split,
        _split_vjp,
        OnnxRule("Split", {"axis": "axis"}),
        lambda: iter([Sample((_x(2, 5),), {"sections": (2, 0, 3), "axis": 1})]),
        lambda: iter([ErrorSample((np.zeros((2, 5)),), {"sections": (2, 2), "axis": 1}, ShapeError, "do not add up")]),
        quant="move",
    )
)


def _common(op: str, inps: Any) -> list[Tensor]:
    xs = [as_tensor(x) for x in inps]
    if not xs:
        raise OptionError(f"{op}: no tensors; expected at least one")
    dtype: DType = xs[0].dtype
    for x in xs[1:]:
        if x.dtype != dtype:
            dtype = promote(op, dtype, x.dtype)
    return [x if x.dtype == dtype else apply("cast", x, dtype=dtype) for x in xs]


@public(home=_HOME)
def concat(inps: Sequence[Any], axis: int = 0, device: str | None = None) -> Tensor:
    """Tensors one after the other along `axis`; one without axes counts as one of one element."""
    xs = [x if x.spec.shape else apply("reshape", x, shape=(1,)) for x in _common("concat", inps)]
    return xs[0] if len(xs) == 1 else apply("concat", *xs, axis=int(axis))


@public(home=_HOME)
def stack(inps: Sequence[Any], axis: int = 0, device: str | None = None) -> Tensor:
    """Tensors of one shape along a new axis."""
    xs = _common("stack", inps)
    for i, x in enumerate(xs):
        if x.shape != xs[0].shape:
            raise ShapeError(f"stack: input {i} has shape {x.shape}, input 0 {xs[0].shape}; expected equal shapes")
    axis = normalize_axis("stack", axis, xs[0].ndim + 1)
    return apply("concat", *[expand_dims(x, axis) for x in xs], axis=axis)


@public(home=_HOME)
def split(inp: Any, nsplits_or_sections: Integers, axis: int = 0) -> tuple[Tensor, ...]:
    """Parts along `axis`: their number, or the positions where to cut."""
    x = as_tensor(inp)
    axis = normalize_axis("split", axis, x.ndim)
    length = x.shape[axis]
    if isinstance(nsplits_or_sections, numbers.Integral):
        n = int(nsplits_or_sections)
        if n <= 0 or length < n:
            raise OptionError(f"split: {n} parts of length {length} on axis {axis}; expected 1..{length}")
        base, more = divmod(length, n)
        sections = tuple(base + (i < more) for i in range(n))
    else:
        cuts = [0, *map(int, nsplits_or_sections), length]  # type: ignore[arg-type]
        sections = tuple(b - a for a, b in itertools.pairwise(cuts))
    return apply("split", x, sections=sections, axis=axis)


# ---------------------------------------------------------------- slice, pad, cast


def _slice_infer(x: TensorSpec, *, starts: tuple, stops: tuple, steps: tuple) -> TensorSpec:
    if not len(starts) == len(stops) == len(steps) == x.ndim:
        raise ShapeError(f"slice: {len(starts)} ranges for {x.ndim} axes; expected one per axis")
    if 0 in steps:
        raise OptionError("slice: a step is 0; expected a non-zero step")
    lengths = [len(range(*slice(a, b, c).indices(n))) for n, a, b, c in zip(x.shape, starts, stops, steps, strict=True)]
    return TensorSpec(tuple(lengths), x.dtype, x.device)


def _slices(attrs: Any) -> tuple[slice, ...]:
    return tuple(slice(a, b, c) for a, b, c in zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True))


define(
    Op(
        "slice",
        _slice_infer,
        lambda x, **attrs: x[_slices(attrs)].copy(),
        lambda ctx, ct: (apply("slice_backward", ct, shape=ctx.inputs[0].shape, **ctx.attrs),),
        OnnxRule("Slice"),
        lambda: iter(
            [
                Sample((_x(4, 5),), {"starts": (1, None), "stops": (3, None), "steps": (1, -2)}),
                Sample((_x(4, 5),), {"starts": (3, 0), "stops": (3, 2), "steps": (1, 1)}),
            ]
        ),
        quant="move",
    )
)


def _slice_backward(ct: np.ndarray, shape: tuple[int, ...], **attrs: Any) -> np.ndarray:
    out = np.zeros(shape, ct.dtype)
    out[_slices(attrs)] = ct
    return out


define(
    Op(
        "slice_backward",
        lambda ct, *, shape, starts, stops, steps: TensorSpec(tuple(shape), ct.dtype, ct.device),
        _slice_backward,
        lambda ctx, ct: (apply("slice", ct, **{k: ctx.attrs[k] for k in ("starts", "stops", "steps")}),),
        no_onnx("gradient of slice"),
        lambda: iter([Sample((_x(2, 3),), {"shape": (4, 5), "starts": (1, 0), "stops": (3, 5), "steps": (1, 2)})]),
    )
)


def _pad_infer(x: TensorSpec, *, widths: tuple, mode: str, value: float) -> TensorSpec:
    if len(widths) != x.ndim or any(w < 0 for pair in widths for w in pair):
        raise ShapeError(f"pad: widths {widths} for shape {x.shape}; expected {x.ndim} pairs of numbers >= 0")
    choice("pad", "mode", mode, ("constant", "edge", "reflect"))
    if mode == "reflect" and any(max(p) >= n for p, n in zip(widths, x.shape, strict=True) if max(p)):
        raise ShapeError(f"pad: reflect widths {widths} must be smaller than the lengths {x.shape}")
    return TensorSpec(tuple(n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)), x.dtype, x.device)


def _pad(x: np.ndarray, widths: tuple, mode: str, value: float, in_specs: tuple, out_specs: tuple) -> np.ndarray:
    if mode != "constant":
        return np.pad(x, widths, mode=mode)  # type: ignore[call-overload]
    dtype = in_specs[0].dtype
    if isinstance(dtype, QuantizedDType):
        if isinstance(dtype.scale, tuple):
            raise DTypeError(f"pad: got {dtype} with a scale per channel; expected one scale; dequantize it first")
        value = float(np.clip(np.rint(value / dtype.scale) + dtype.zero_point, dtype.qmin, dtype.qmax))
    return np.pad(x, widths, constant_values=x.dtype.type(value))


def _pad_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    x, widths, mode = ctx.inputs[0], ctx.attrs["widths"], ctx.attrs["mode"]
    if mode == "constant":
        starts = tuple(a for a, _ in widths)
        stops = tuple(a + n for n, (a, _) in zip(x.shape, widths, strict=True))
        return (apply("slice", ct, starts=starts, stops=stops, steps=(1,) * x.ndim),)
    where = np.pad(np.arange(x.size, dtype=np.int32).reshape(x.shape), widths, mode=mode)
    index = Tensor._wrap(where.reshape(-1))
    flat = apply("index_backward", apply("reshape", ct, shape=(ct.size,)), index, shape=(x.size,), pattern=("i",))
    return (apply("reshape", flat, shape=x.shape),)


_PADS = {"widths": ((1, 0), (0, 2)), "value": 0.5}
define(
    Op(
        "pad",
        _pad_infer,
        _pad,
        _pad_vjp,
        OnnxRule("Pad", {"mode": "mode"}),
        lambda: iter(
            [
                Sample((_x(3, 4),), {**_PADS, "mode": "constant"}),
                Sample((_x(3, 4),), {**_PADS, "mode": "edge"}),
                Sample((_x(3, 4),), {**_PADS, "mode": "reflect"}),
            ]
        ),
        needs_specs=True,
        quant="move",
    )
)


@public(home="megengine.functional.nn")
def pad(src: Any, pad_width: Sequence[Sequence[int]], mode: str = "constant", constant_value: float = 0.0) -> Tensor:
    """Lengthen every axis by (before, after) of `pad_width`; modes constant, reflect, replicate."""
    mode = mode.lower() if mode in ("CONSTANT", "REFLECT", "REPLICATE") else mode
    mode = {"replicate": "edge"}.get(choice("pad", "mode", mode, ("constant", "edge", "reflect", "replicate")), mode)
    x = as_tensor(src)
    if any(np.ndim(pair) != 1 or len(pair) != 2 for pair in pad_width):
        raise ArgumentError(f"pad: pad_width is {brief(pad_width)}; expected a pair (before, after) for each axis")
    widths = tuple((int(a), int(b)) for a, b in pad_width)
    widths = widths + ((0, 0),) * (x.ndim - len(widths))
    return apply("pad", x, widths=widths, mode=mode, value=float(constant_value))


def _cast_infer(x: TensorSpec, *, dtype: Any) -> TensorSpec:
    if isinstance(dtype, QuantizedDType) or isinstance(x.dtype, QuantizedDType):
        raise DTypeError(f"cast: {x.dtype} to {dtype}; quantized types are reached by quantize and dequantize")
    return TensorSpec(x.shape, dtype, x.device)


def _cast(x: np.ndarray, dtype: Any) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        return x.astype(dtype)


define(
    Op(
        "cast",
        _cast_infer,
        _cast,
        lambda ctx, ct: (apply("cast", ct, dtype=ctx.inputs[0].dtype) if is_float(ctx.inputs[0].dtype) else None,),
        OnnxRule("Cast"),
        lambda: iter([Sample((_x(3, 4),), {"dtype": FLOAT32}, False), Sample((_x(0, 4),), {"dtype": FLOAT32}, False)]),
        quant="move",
    )
)


@public(home="megengine.tensor", methods=("astype",))
def astype(inp: Any, dtype: Any) -> Tensor:
    """The tensor in another dtype; to and from quantized dtypes by quantizing and dequantizing."""
    x, wanted = as_tensor(inp), as_dtype(dtype)
    if x.dtype == wanted:
        return x
    if isinstance(wanted, QuantizedDType):
        return apply("quantize", x if x.dtype == FLOAT32 else astype(x, FLOAT32), dtype=wanted)
    if isinstance(x.dtype, QuantizedDType):
        return astype(apply("dequantize", x), wanted)
    return apply("cast", x, dtype=wanted)


@public(home="megengine.tensor", methods=("detach",))
def detach(self: Tensor) -> Tensor:
    """The same value, unknown to gradient recording."""
    if self._value is not None:
        return Tensor._of_spec(self._value, self.spec)
    if self._thunk is None:
        return self  # while ops are recorded there are no values to differentiate
    return Tensor._deferred(self.spec, self._thunk)


# ---------------------------------------------------------------- creation


def _made(array: np.ndarray, device: str | None = None) -> Tensor:
    return Tensor(array, dtype=array.dtype, device=device)


def _fill_dtype(value: Any, dtype: Any) -> np.dtype:
    if dtype is not None:
        return storage_of(as_dtype(dtype))
    if isinstance(value, (bool, np.bool_)):
        return np.dtype(bool)
    return np.dtype(np.int32) if isinstance(value, numbers.Integral) else FLOAT32


def _lengths(op: str, shape: Any) -> tuple[int, ...]:
    """The shape of a new tensor, checked."""
    lengths = shape_argument((shape,))
    if min(lengths, default=0) < 0:
        raise ShapeError(f"{op}: shape is {brief(lengths)}; expected lengths of at least 0")
    refuse_oversized(op, lengths, 4)
    return lengths


@public(home=_HOME)
def full(shape: Integers, value: float, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor filled with `value`, whose type gives the dtype when none is given."""
    value = value.item() if isinstance(value, Tensor) else value
    if not isinstance(value, (numbers.Number, np.bool_)) or (isinstance(value, int) and value.bit_length() > 63):
        raise ArgumentError(f"full: value is {brief(value)}; expected a number of at most 64 bits")
    return _made(np.full(_lengths("full", shape), value, _fill_dtype(value, dtype)), device)


@public(home=_HOME)
def zeros(shape: Integers, *, dtype: Any = "float32", device: str | None = None) -> Tensor:
    """A tensor of zeros."""
    return _made(np.zeros(_lengths("zeros", shape), storage_of(as_dtype(dtype))), device)


@public(home=_HOME)
def ones(shape: Integers, *, dtype: Any = "float32", device: str | None = None) -> Tensor:
    """A tensor of ones."""
    return _made(np.ones(_lengths("ones", shape), storage_of(as_dtype(dtype))), device)


@public(home=_HOME)
def zeros_like(inp: Any) -> Tensor:
    """Zeros with the shape and dtype of `inp`."""
    x = as_tensor(inp)
    return _made(np.zeros(x.shape, storage_of(x.dtype)), x.device)


@public(home=_HOME)
def ones_like(inp: Any) -> Tensor:
    """Ones with the shape and dtype of `inp`."""
    x = as_tensor(inp)
    return _made(np.ones(x.shape, storage_of(x.dtype)), x.device)


@public(home=_HOME)
def full_like(inp: Any, value: float) -> Tensor:
    """`value` in the shape and dtype of `inp`."""
    x = as_tensor(inp)
    return _made(np.full(x.shape, value, storage_of(x.dtype)), x.device)


@public(home=_HOME)
def arange(
    start: float = 0, stop: float | None = None, step: float = 1, dtype: Any = "float32", device: str | None = None
) -> Tensor:
    """Numbers from start (inclusive) to stop (exclusive)."""
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise OptionError("arange: step is 0; expected a non-zero step")
    span = (float(last) - float(first)) / float(step)
    if not math.isfinite(span):
        raise OptionError(f"arange: start={first}, stop={last}, step={step}; expected finite numbers")
    refuse_oversized("arange", (max(math.ceil(span), 0),), 16)
    return _made(np.arange(first, last, step).astype(storage_of(as_dtype(dtype))), device)


@public(home=_HOME)
def linspace(start: float, stop: float, num: int, dtype: Any = "float32", device: str | None = None) -> Tensor:
    """`num` evenly spaced numbers from start to stop, both included."""
    refuse_oversized("linspace", (max(int(num), 0),), 16)
    return _made(np.linspace(float(start), float(stop), int(num)).astype(storage_of(as_dtype(dtype))), device)


@public(home=_HOME)
def eye(N: int, M: int | None = None, *, dtype: Any = "float32", device: str | None = None) -> Tensor:
    """The N x M matrix with ones on its diagonal."""
    refuse_oversized("eye", (max(int(N), 0), max(int(N if M is None else M), 0)), 4)
    return _made(np.eye(int(N), M, dtype=storage_of(as_dtype(dtype))), device)
