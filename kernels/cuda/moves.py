"""Ops that move elements: reshape, transpose, broadcast, slice, pad, concat, split, windows. Elements of every dtype.

Other families use `transposed`, `strided_copy`, `copy_part` and `constant`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.sizes import slice_bounds
from megengine.core.text import counted
from megengine.kernels.cuda import bordering, parts, windows
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.placing import copied
from megengine.kernels.cuda.runtime import Runtime
from megengine.kernels.cuda.sources import TYPES, Program, program
from megengine.kernels.cuda.walks import MOST_AXES, Move, move
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

Ints = tuple[int, ...]
_CONSTANT = 256  # bytes of a constant that a launch carries


@functools.lru_cache(maxsize=4096)
def distances(shape: Ints) -> Ints:
    """Elements from one to the next along each axis of a dense array."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


# ---- for other families
def untyped(problem: Problem) -> str | None:
    """Why kernels that compute with elements do not take the first operand: complex numbers have no type there."""
    dtype = problem.inputs[0].dtype
    return None if storage_of(dtype) in TYPES else f"no kernel computes with {dtype}"


def strided_copy(x: DeviceArray, shape: Ints, strides: Ints, start: int = 0) -> DeviceArray:
    """A dense array of the elements of x at start + sum(coordinate * stride); strides may be negative or 0."""
    out = x.runtime.empty(shape, x.dtype)
    move(shape, strides, distances(shape), x.dtype.itemsize, (start, 0))(out, x)
    return out


def copy_part(
    out: DeviceArray, x: DeviceArray, shape: Ints, source: Ints, target: Ints, firsts: tuple[int, int]
) -> None:
    """Copy `shape` elements of x, `source` elements apart, into out, which was just made, `target` elements apart."""
    move(shape, source, target, x.dtype.itemsize, firsts)(out, x)


@functools.lru_cache(maxsize=4096)
def _transposition(shape: Ints, perm: Ints, itemsize: int) -> tuple[Ints, Move | None]:
    """The shape of a transposed array, and the copy; None where the elements keep their order."""
    moved = [axis for axis in perm if shape[axis] != 1]
    target = tuple(shape[axis] for axis in perm)
    if moved == sorted(moved):
        return target, None
    steps = distances(shape)
    return target, move(target, tuple(steps[axis] for axis in perm), distances(target), itemsize)


def transposed(x: DeviceArray, perm: Ints) -> DeviceArray:
    """The array with its axes in another order."""
    shape, copy = _transposition(x.shape, perm, x.dtype.itemsize)
    if copy is None:
        return x.reshape(shape)
    out = x.runtime.empty(shape, x.dtype)
    copy(out, x)
    return out


def constant(runtime: Runtime, value: np.ndarray) -> DeviceArray:
    """A small array, of at most 256 bytes, on the device: its bytes travel with a launch, so that nothing waits."""
    value = np.ascontiguousarray(value)
    out = runtime.empty(value.shape, value.dtype)
    if not value.size:
        return out
    carried = np.zeros((), np.dtype((np.void, _CONSTANT)))
    carried[()] = value.tobytes().ljust(_CONSTANT, b"\0")
    runtime.launch(program("constants.cu"), "put_bytes", 1, _CONSTANT, (out, carried, np.int32(value.nbytes)))
    return out


# ---- copies of one strided operand
Places = tuple[Ints, Ints, int]  # shape, distances in the operand, first element


def _moved(places: Callable[[Problem], Places]) -> Callable[..., DeviceArray]:
    """The `run` of an op whose result is dense and holds elements of x at places that the problem tells."""

    @functools.lru_cache(maxsize=4096)
    def prepared(problem: Problem) -> Move:
        shape, strides, start = places(problem)
        dtype = storage_of(problem.inputs[0].dtype)
        return move(shape, strides, distances(shape), dtype.itemsize, (start, 0))

    def run(problem: Problem, x: DeviceArray) -> DeviceArray:
        out = x.runtime.empty(problem.outputs[0].shape, x.dtype)
        prepared(problem)(out, x)
        return out

    return run


def _broadcast_places(problem: Problem) -> Places:
    shape, of_x = problem.outputs[0].shape, problem.inputs[0].shape
    steps = [0 if n == 1 else step for n, step in zip(of_x, distances(of_x), strict=True)]
    return shape, (*(0,) * (len(shape) - len(of_x)), *steps), 0


def _repeat_places(problem: Problem) -> Places:
    of_x, counts = problem.inputs[0].shape, problem.attrs["counts"]
    shape = tuple(n for pair in zip(of_x, counts, strict=True) for n in pair)
    return shape, tuple(n for step in distances(of_x) for n in (step, 0)), 0


def _ranges(shape: Ints, attrs: Any) -> tuple[Ints, Ints]:
    """The first place and the step along each axis of a slice."""
    parts = zip(attrs["starts"], attrs["stops"], attrs["steps"], shape, strict=True)
    bounds = [slice_bounds(*part) for part in parts]
    return tuple(b[0] for b in bounds), tuple(b[2] for b in bounds)


def _slice_places(problem: Problem) -> Places:
    of_x, shape = problem.inputs[0].shape, problem.outputs[0].shape
    starts, steps = _ranges(of_x, problem.attrs)
    apart = distances(of_x)
    first = sum(a * d for a, d in zip(starts, apart, strict=True)) if math.prod(shape) else 0
    return shape, tuple(s * d for s, d in zip(steps, apart, strict=True)), first


def _transpose(problem: Problem, x: DeviceArray) -> DeviceArray:
    return transposed(x, problem.attrs["perm"])


def _rearrange(problem: Problem, x: DeviceArray) -> DeviceArray:
    a = problem.attrs
    return transposed(x.reshape(a.parts), a.perm).reshape(a.shape)


def _reshape(problem: Problem, x: DeviceArray) -> DeviceArray:
    return x.reshape(problem.outputs[0].shape)


def _copy(problem: Problem, x: DeviceArray) -> Any:
    return copied(x, problem.outputs[0].device)


def _shape(problem: Problem, x: DeviceArray) -> DeviceArray:
    return constant(x.runtime, np.array(x.shape, np.int32))


def _windowed(problem: Problem) -> str | None:
    return untyped(problem) or windows.usable(problem)


# ---- borders
@functools.lru_cache(maxsize=4096)
def _padding(problem: Problem) -> bordering.Padding:
    spec, attrs = problem.inputs[0], problem.attrs
    dtype, value = storage_of(spec.dtype), attrs["value"]
    if isinstance(spec.dtype, QuantizedDType) and attrs["mode"] == "constant":
        value = spec.dtype.integer_of(value)
    fill = np.zeros((), dtype) if attrs["mode"] != "constant" else np.asarray(dtype.type(value))
    return bordering.padding(spec.shape, attrs["widths"], attrs["mode"], fill.tobytes())


def _pad(problem: Problem, x: DeviceArray) -> DeviceArray:
    out = x.runtime.empty(problem.outputs[0].shape, x.dtype)
    _padding(problem)(out, x)
    return out


def _paddable(problem: Problem) -> str | None:
    """Refuses a constant border of a dtype that has a scale for every channel, as the reference does."""
    dtype = problem.inputs[0].dtype
    if problem.inputs[0].ndim > MOST_AXES:
        return f"{counted(problem.inputs[0].ndim, 'axis')}; at most {MOST_AXES}"
    scales = isinstance(dtype, QuantizedDType) and isinstance(dtype.scale, tuple)
    return f"{dtype} has a scale per channel" if scales and problem.attrs["mode"] == "constant" else None


@functools.lru_cache(maxsize=4096)
def _placed_back(problem: Problem) -> Move:
    """The gradient of a slice: a border of zeros where steps are 1, else elements written into zeros."""
    shape, of_ct = problem.outputs[0].shape, problem.inputs[0].shape
    itemsize = storage_of(problem.outputs[0].dtype).itemsize
    starts, steps = _ranges(shape, problem.attrs)
    if all(step == 1 for step in steps) and 0 not in of_ct and len(shape) <= MOST_AXES:
        widths = tuple((a, n - a - m) for a, n, m in zip(starts, shape, of_ct, strict=True))
        return bordering.padding(of_ct, widths, "constant", bytes(itemsize))
    apart = distances(shape)
    first = sum(a * d for a, d in zip(starts, apart, strict=True)) if 0 not in of_ct else 0
    return move(of_ct, distances(of_ct), tuple(s * d for s, d in zip(steps, apart, strict=True)), itemsize, (0, first))


def _slice_backward(problem: Problem, ct: DeviceArray) -> DeviceArray:
    place, shape = _placed_back(problem), problem.outputs[0].shape
    out = (ct.runtime.empty if isinstance(place, bordering.Padding) else ct.runtime.zeros)(shape, ct.dtype)
    place(out, ct)
    return out


def programs() -> Iterator[Program]:
    """Every program that these kernels launch."""
    for size in (1, 2, 4, 8, 16):
        yield program("moves.cu", SIZE=size)
        for pack in {1, max(4 // size, 1)}:
            yield program("tiles.cu", SIZE=size, PACK=pack)
    yield program("constants.cu")
    yield from parts.programs()
    yield from windows.programs()


def _kernel(name: str, run: Callable[..., Any], **more: Any) -> tuple[Kernel, ...]:
    return (EagerKernel(f"cuda_{name}", run, **more),)


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "reshape": _kernel("reshape", _reshape, reshapes=True),
    "copy": _kernel("copy", _copy),
    "GetVarShape": _kernel("shape", _shape),
    "transpose": _kernel("transpose", _transpose),
    "broadcast_to": _kernel("broadcast_to", _moved(_broadcast_places)),
    "fused_rearrange": _kernel("fused_rearrange", _rearrange),
    "fused_repeat": _kernel("fused_repeat", _moved(_repeat_places)),
    "slice": _kernel("slice", _moved(_slice_places)),
    "slice_backward": _kernel("slice_backward", _slice_backward),
    "concat": _kernel("concat", parts.concat),
    "split": _kernel("split", parts.split),
    "pad": _kernel("pad", _pad, usable=_paddable),
    "unfold": _kernel("unfold", windows.unfold, usable=_windowed),
    "fold": _kernel("fold", windows.fold, usable=_windowed),
}
