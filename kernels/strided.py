"""Steps for ops that only move elements, and for arithmetic that broadcasts.

NumPy computes the places of the elements: the op is applied to a view with the shape and strides that the value has in
a plan. The step walks the strides and the offset of the result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.kernels import _core
from megengine.kernels.kernel import StepKernel
from megengine.kernels.problem import Problem

_MOST_MOVES = 4096  # beyond, the walk over the moves dominates


@dataclass(frozen=True, slots=True)
class _Place:
    """A view in a buffer of a step: shape, offset and strides, both in bytes."""

    buffer: int
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]


Strides = Callable[[TensorSpec], tuple[int, ...]]


def _planned(spec: TensorSpec) -> tuple[int, ...]:
    """Strides of a value in a plan: 4-D ones lie channels-last."""
    strides, step = [0] * spec.ndim, storage_of(spec.dtype).itemsize
    for axis in (1, 3, 2, 0) if spec.ndim == 4 else reversed(range(spec.ndim)):
        strides[axis], step = step, step * spec.shape[axis]
    return tuple(strides)


def planned_strides(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in bytes of a value of a plan seen in a shape to which it broadcasts."""
    return _place(0, spec, _planned, lambda x: np.broadcast_to(x, shape)).strides


def _dense(spec: TensorSpec) -> tuple[int, ...]:
    """Strides of a C-contiguous value, as in small eager calls."""
    strides = [storage_of(spec.dtype).itemsize]
    for n in reversed(spec.shape[1:]):
        strides.append(strides[-1] * n)
    return tuple(strides[::-1][: spec.ndim])


def _place(
    buffer: int, spec: TensorSpec, strides: Strides, view: Callable[[np.ndarray], np.ndarray] = lambda a: a
) -> _Place:
    """Where `view` of a value lies in its buffer; no memory of the value's size is taken."""
    storage = storage_of(spec.dtype)
    probe = np.lib.stride_tricks.as_strided(np.empty(1, storage), spec.shape, strides(spec), writeable=False)
    part = view(probe)
    assert isinstance(part, np.ndarray)  # a number would lie elsewhere
    offset = part.__array_interface__["data"][0] - probe.__array_interface__["data"][0]
    return _Place(buffer, part.shape, offset, part.strides)


def _step(problem: Problem, moves: Sequence[tuple[_Place, _Place]], filled: int = 0, value: int | None = None) -> Any:
    out = problem.outputs[0]
    item = storage_of(out.dtype).itemsize
    moves = [(s, t) for s, t in moves if 0 not in t.shape]
    return _core.move_step(
        item=item,
        places=[[s.buffer, t.buffer, s.offset, t.offset] for s, t in moves],
        shapes=[list(t.shape) for _, t in moves],
        to_strides=[list(t.strides) for _, t in moves],
        from_strides=[list(s.strides) for s, _ in moves],
        filled=filled,
        bytes=0 if value is None else out.size * item,
        value=value or 0,
    )


# ---------------------------------------------------------------- moves


def _ranges(attrs: Any) -> tuple[Any, ...]:
    """A key for the ranges; the Ellipsis makes a view also of an array without axes."""
    return *(slice(a, b, c) for a, b, c in zip(attrs.starts, attrs.stops, attrs.steps, strict=True)), ...


# ops whose result is a view of their input
VIEWS: dict[str, Callable[[np.ndarray, Any], np.ndarray]] = {
    "transpose": lambda x, a: x.transpose(a.perm),
    "slice": lambda x, a: x[_ranges(a)],
    "broadcast_to": lambda x, a: np.broadcast_to(x, a.shape),
    "copy": lambda x, a: x,
    "bitcast": lambda x, a: x.view(storage_of(a.dtype)),
    "real": lambda x, a: x.real,
    "imag": lambda x, a: x.imag,
}


def _view_step(problem: Problem, strides: Strides) -> Any:
    source = _place(0, problem.inputs[0], strides, lambda x: VIEWS[problem.op](x, problem.attrs))
    return _step(problem, [(source, _place(1, problem.outputs[0], strides))])


def _along(axis: int, start: int, length: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: x[(slice(None),) * (axis % x.ndim) + (slice(start, start + length),)]


def _concat_step(problem: Problem, strides: Strides) -> Any:
    axis, start, moves = problem.attrs.axis, 0, []
    for i, spec in enumerate(problem.inputs):
        target = _place(len(problem.inputs), problem.outputs[0], strides, _along(axis, start, spec.shape[axis]))
        moves.append((_place(i, spec, strides), target))
        start += spec.shape[axis]
    return _step(problem, moves)


def _split_step(problem: Problem, strides: Strides) -> Any:
    axis, start, moves = problem.attrs.axis, 0, []
    for i, spec in enumerate(problem.outputs):
        source = _place(0, problem.inputs[0], strides, _along(axis, start, spec.shape[axis]))
        moves.append((source, _place(1 + i, spec, strides)))
        start += spec.shape[axis]
    return _step(problem, moves)


def _repeat_step(problem: Problem, strides: Strides) -> Any:
    """Every axis of the result as two: the elements, and how often each is there."""
    counts = problem.attrs.counts
    pairs = [n for pair in zip(problem.inputs[0].shape, counts, strict=True) for n in pair]
    ones = [n for length in problem.inputs[0].shape for n in (length, 1)]
    target = _place(1, problem.outputs[0], strides, lambda y: y.reshape(pairs, copy=False))
    source = _place(0, problem.inputs[0], strides, lambda x: np.broadcast_to(x.reshape(ones, copy=False), pairs))
    return _step(problem, [(source, target)])


def _rearrange_step(problem: Problem, strides: Strides) -> Any:
    a = problem.attrs
    turned = [a.parts[axis] for axis in a.perm]
    source = _place(0, problem.inputs[0], strides, lambda x: x.reshape(a.parts, copy=False).transpose(a.perm))
    target = _place(1, problem.outputs[0], strides, lambda y: y.reshape(turned, copy=False))
    return _step(problem, [(source, target)])


def _regions(n: int, before: int, after: int, *, mode: str) -> list[tuple[slice, slice]]:
    """Where ranges of a padded axis of length n come from: (place in the result, elements of the axis)."""
    if mode == "edge":
        first, last = slice(0, 1), slice(n - 1, n)
    else:
        first, last = slice(before, 0, -1), slice(n - 2, n - 2 - after if n - 2 - after >= 0 else None, -1)
    regions = [(slice(before, before + n), slice(None))]
    regions += [(slice(0, before), first)] if before else []
    return regions + ([(slice(before + n, before + n + after), last)] if after else [])


def _pad_step(problem: Problem, strides: Strides) -> Any:
    a, x = problem.attrs, problem.inputs[0]
    if a.mode != "constant":
        y, moves = problem.outputs[0], []
        axes = [_regions(n, *ends, mode=a.mode) for n, ends in zip(x.shape, a.widths, strict=True)]
        for parts in itertools.product(*axes):
            to, of = (tuple(part[k] for part in parts) for k in (0, 1))
            target = _place(1, y, strides, lambda v, to=to: v[to])
            source = _place(0, x, strides, lambda v, of=of, shape=target.shape: np.broadcast_to(v[of], shape))
            moves.append((source, target))
        return _step(problem, moves)
    inside = tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, a.widths, strict=True))
    moves = [(_place(0, x, strides), _place(1, problem.outputs[0], strides, lambda y: y[inside]))]
    value, storage = a.value, storage_of(x.dtype)
    if isinstance(x.dtype, QuantizedDType):
        d = x.dtype
        value = d.integer_of(value)
    bits = np.array(value).astype(storage).view(f"u{storage.itemsize}")
    return _step(problem, moves, filled=1, value=int(bits))


def _taps(n: int, k: int, stride: int, before: int, dilation: int, out: int) -> list[tuple[slice, slice]]:
    """For each tap of a window over an axis of length n: the windows in which it lies inside, and its elements."""
    parts = []
    for tap in range(k):
        at = tap * dilation - before
        first, stop = max(0, -(at // stride)), min(out, (n - 1 - at) // stride + 1)
        stop = max(first, stop)
        parts.append((slice(first, stop), slice(first * stride + at, (stop - 1) * stride + at + 1, stride)))
    return parts


def _unfold_step(problem: Problem, strides: Strides) -> Any:
    """Each tap of the windows, in all places where it lies inside."""
    x, y, a = problem.inputs[0], problem.outputs[0], problem.attrs
    axes, moves = len(a.kernel), []
    befores = [before for before, _ in a.padding]
    each = zip(x.shape[2:], a.kernel, a.stride, befores, a.dilation, y.shape[2:], strict=False)
    parts = [_taps(*one) for one in each]
    for taps in itertools.product(*(range(k) for k in a.kernel)):
        to, of = (tuple(parts[d][taps[d]][k] for d in range(axes)) for k in (0, 1))
        target = _place(1, y, strides, lambda v, to=to, taps=taps: v[(..., *to, *taps)])
        moves.append((_place(0, x, strides, lambda v, of=of: v[(..., *of)]), target))
    storage = storage_of(x.dtype)
    padded = any(map(any, a.padding))
    bits = int(np.array(a.value).astype(storage).view(f"u{storage.itemsize}"))
    return _step(problem, moves, filled=1, value=bits if padded else None)


def _unfolding(problem: Problem) -> str | None:
    return _same_types(problem) or (counted(n, "tap") if (n := math.prod(problem.attrs.kernel)) > _MOST_MOVES else None)


def _set_step(problem: Problem, strides: Strides) -> Any:
    """All of x, then the value over the ranges that are set."""
    x, value = problem.inputs
    key = (*(slice(*part) for part in problem.attrs.pattern), ...)
    target = _place(2, x, strides, lambda y: y[key])
    return _step(
        problem,
        [
            (_place(0, x, strides), _place(2, x, strides)),
            (_place(1, value, strides, lambda v: np.broadcast_to(v, target.shape)), target),
        ],
    )


def _same_types(problem: Problem) -> str | None:
    """Values are moved, never converted."""
    specs = (*problem.inputs, *problem.outputs)
    kind, *others = {storage_of(s.dtype) for s in specs}
    if others:
        return f"types {sorted(map(str, (kind, *others)))} differ"
    if (parts := max(len(problem.inputs), len(problem.outputs))) > _MOST_MOVES:
        return counted(parts, "part")
    if not any(spec.size for spec in problem.outputs):
        return "no elements"
    return None if kind.itemsize in (1, 2, 4, 8) else f"elements of {counted(kind.itemsize, 'byte')}"


def _padding(problem: Problem) -> str | None:
    if not problem.inputs[0].shape:
        return "no axes"
    dtype = problem.inputs[0].dtype
    if isinstance(dtype, QuantizedDType) and dtype.axis is not None:
        return f"{dtype} has a scale per channel"
    return _same_types(problem)


def _set_ranges(problem: Problem) -> str | None:
    if "i" in problem.attrs.pattern:
        return "places are given by tensors"
    ranges = zip(problem.attrs.pattern, problem.inputs[0].shape, strict=True)
    return _same_types(problem) if all(range(*slice(*part).indices(n)) for part, n in ranges) else "nothing is set"


def _as_other_numbers(problem: Problem) -> str | None:
    """Parts of complex numbers, and bits that count as another type: results decide what is moved."""
    item = storage_of(problem.outputs[0].dtype).itemsize
    if not problem.outputs[0].size:
        return "no elements"
    return None if item in (1, 2, 4, 8) else f"elements of {counted(item, 'byte')}"


MOVES: dict[str, tuple[Callable[[Problem], str | None], Callable[[Problem, Strides], Any]]] = {
    **dict.fromkeys(("transpose", "slice", "broadcast_to", "copy"), (_same_types, _view_step)),
    **dict.fromkeys(("bitcast", "real", "imag"), (_as_other_numbers, _view_step)),
    "concat": (_same_types, _concat_step),
    "split": (_same_types, _split_step),
    "fused_rearrange": (_same_types, _rearrange_step),
    "pad": (_padding, _pad_step),
    "fused_repeat": (_same_types, _repeat_step),
    "set_index": (_set_ranges, _set_step),
    "unfold": (_unfolding, _unfold_step),
}


def flat_step(problem: Problem) -> Any:
    """The step of a move, or of arithmetic that broadcasts, on C-contiguous arrays."""
    if problem.op in MOVES:
        return MOVES[problem.op][1](problem, _dense)
    out = problem.outputs[0]
    a, b = (_place(i, s, _dense, lambda x: np.broadcast_to(x, out.shape)) for i, s in enumerate(problem.inputs))
    return _core.broadcast_step(problem.op, list(out.shape), list(_dense(out)), list(a.strides), list(b.strides))


def _move(op: str) -> StepKernel:
    usable, make = MOVES[op]
    return StepKernel(f"own_strided_{op}", lambda problem, constants, threads: make(problem, _planned), usable)


own_strided_transpose = _move("transpose")
own_strided_slice = _move("slice")
own_strided_broadcast_to = _move("broadcast_to")
own_strided_copy = _move("copy")
own_strided_concat = _move("concat")
own_strided_split = _move("split")
own_strided_fused_repeat = _move("fused_repeat")
own_strided_fused_rearrange = _move("fused_rearrange")
own_strided_pad = _move("pad")
own_strided_set_index = _move("set_index")
own_strided_unfold = _move("unfold")
own_strided_bitcast = _move("bitcast")
own_strided_real = _move("real")
own_strided_imag = _move("imag")
