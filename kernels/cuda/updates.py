"""Changes of many arrays of a GPU in one launch: rules of optimizers, norms and limits of gradients.

The addresses of the arrays travel in one table, and the places of the chunks that a block takes in another, which is
kept on the device for arrays of the same sizes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import Runtime
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.updates import RULES, NativeUpdate

_CHUNK = 1 << 14  # elements of a block
_THREADS = 256
_SCALARS = 8
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class _Chunks:
    """The chunks of arrays of some sizes: (array, first element, elements) of each, and the first of each array."""

    places: DeviceArray
    begins: DeviceArray
    count: int


@functools.lru_cache(maxsize=64)
def _chunks(runtime: Runtime, sizes: tuple[int, ...]) -> _Chunks:
    places = [(k, at, min(_CHUNK, n - at)) for k, n in enumerate(sizes) for at in range(0, n, _CHUNK)]
    begins = [0, *itertools.accumulate(-(-n // _CHUNK) for n in sizes)]
    table = np.array(places, np.int64).reshape(-1, 3)
    return _Chunks(runtime.upload(table), runtime.upload(np.array(begins, np.int64)), len(places))


def _table(runtime: Runtime, *columns: Sequence[DeviceArray | None]) -> DeviceArray:
    """The addresses of arrays, a row for each."""
    for column in columns:
        runtime.name_memory(column)
    rows = zip(*columns, strict=True)
    return runtime.table(np.array([[0 if a is None else a.address for a in row] for row in rows], np.int64))


class Again(Protocol):
    """What a recorded update asks its optimizer at each replay; `parameters` are those that the launch updates."""

    parameters: list[Any]

    def remember(self) -> None:
        """Keep what the launch is made of."""

    def scalars(self) -> tuple[float, ...]:
        """Count a step, and give its decay and scalars."""
        ...

    def holds(self) -> bool:
        """Whether the update is still the recorded one."""
        ...

    def undo(self) -> None:
        """Take back the count of the step that was recorded."""


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """Parameters that one launch updates with the same scalars: lists with an entry for each parameter."""

    update: NativeUpdate
    again: Again
    values: list[DeviceArray] = field(default_factory=list)
    gradients: list[DeviceArray] = field(default_factory=list)
    states: list[list[DeviceArray]] = field(default_factory=list)
    outs: list[DeviceArray] = field(default_factory=list)

    def add(self, out: DeviceArray, w: DeviceArray, g: DeviceArray, state: dict[str, DeviceArray]) -> None:
        """Write the new value of w to `out`, which may be the memory of w, and update the state. All are float32."""
        self.values.append(w)
        self.gradients.append(g)
        self.states.append([state[name] for name in self.update.states])
        self.outs.append(out)

    def run(self, decay: float) -> None:
        """Update everything; decay * w is added to the gradient."""
        if not self.values:
            return
        runtime, sizes = self.values[0].runtime, tuple(w.size for w in self.values)
        chunks, nothing = _chunks(runtime, sizes), [None] * len(sizes)
        columns = [[s[k] for s in self.states] if k < len(self.update.states) else nothing for k in (0, 1)]
        table = _table(runtime, self.values, self.gradients, self.outs, *columns)
        scalars, again = _filled((decay, *self.update.scalars)), self.again
        late = runtime.later(scalars, again=lambda: _filled(again.scalars()), holds=again.holds, undo=again.undo)
        if late is not None:
            again.remember()
        made = program("updates.cu", RULE=RULES.index(self.update.rule))
        runtime.launch(made, "cuda_update", chunks.count, _THREADS, (table, chunks.places, late, *scalars))


def _filled(scalars: Sequence[float]) -> np.ndarray:
    """Decay and scalars with zeros up to as many as kernels take."""
    return np.array([*scalars, *[0.0] * (1 + _SCALARS - len(scalars))], np.float32)


def copy_all(arrays: Sequence[DeviceArray], sources: Sequence[DeviceArray]) -> None:
    """Write the bytes of other arrays of this device, of as many, in one launch where their addresses allow it."""
    pairs = [(a, s) for a, s in zip(arrays, sources, strict=True) if a.size]
    whole = [(a, s) for a, s in pairs if not (a.address | s.address) & 15]
    for a, s in pairs:
        if (a.address | s.address) & 15:
            a.runtime.copy_within(a, s)
    if not whole:
        return
    runtime = whole[0][0].runtime
    sizes = [a.nbytes for a, _ in whole]
    step = 4 * _CHUNK
    places = [(k, at, min(step, n - at)) for k, n in enumerate(sizes) for at in range(0, n, step)]
    table = _table(runtime, [s for _, s in whole], [a for a, _ in whole])
    chunks = runtime.table(np.array(places, np.int64))
    runtime.launch(program("updates.cu"), "cuda_copied", len(places), _THREADS, (table, chunks))


def _mode(order: float) -> int:
    return 0 if order == 2 else 2 if order == np.inf else 1


def _groups(arrays: Sequence[DeviceArray]) -> list[tuple[list[int], _Chunks]]:
    """The places in the list of the arrays of each dtype, and the chunks of these."""
    found: dict[np.dtype, list[int]] = {}
    for k, array in enumerate(arrays):
        found.setdefault(array.dtype, []).append(k)
    runtime = arrays[0].runtime
    return [(group, _chunks(runtime, tuple(arrays[k].size for k in group))) for group in found.values()]


@functools.lru_cache(maxsize=64)
def _ends(runtime: Runtime, count: int) -> DeviceArray:
    return runtime.upload(np.array([0, count], np.int64))


def _sizes(arrays: Sequence[DeviceArray], order: float) -> DeviceArray:
    """float64 sums of powers, or the largest size, of each chunk."""
    runtime, groups, at = arrays[0].runtime, _groups(arrays), 0
    out = runtime.empty((sum(chunks.count for _, chunks in groups),), np.float64)
    for group, chunks in groups:
        part = DeviceArray(runtime, out.owner, out.address + 8 * at, (chunks.count,), out.dtype)
        made = program("updates.cu", MODE=_mode(order), TYPE=type_name(arrays[group[0]].dtype))
        arguments = (_table(runtime, [arrays[k] for k in group]), chunks.places, np.float64(order), part)
        runtime.launch(made, "cuda_sizes", chunks.count, _THREADS, arguments)
        at += chunks.count
    return out


def _joined(parts: DeviceArray, begins: DeviceArray, order: float) -> tuple[DeviceArray, DeviceArray]:
    """Norms float64 of arrays from their chunks; that of a single one also as float32 without axes."""
    runtime, count = parts.runtime, begins.size - 1
    out, norm = runtime.empty((count,), np.float64), runtime.empty((), np.float32)
    made = program("updates.cu", MODE=_mode(order))
    arguments = (parts, begins, np.float64(order), out, norm if count == 1 else None)
    runtime.launch(made, "cuda_joined", count, _THREADS, arguments)
    return out, norm


def limited(
    arrays: Sequence[DeviceArray], measured: Sequence[DeviceArray], most: float, order: float
) -> tuple[list[DeviceArray], DeviceArray]:
    """Arrays of float dtypes, scaled as brings the joint norm of others to at most `most`, and that norm before.

    The norm is float32 without axes.
    """
    runtime, outs = arrays[0].runtime, [a.runtime.empty(a.shape, a.dtype) for a in arrays]
    parts = _sizes(measured, order)
    whole, norm = _joined(parts, _ends(runtime, parts.size), order)
    for group, chunks in _groups(arrays):
        table = _table(runtime, [arrays[k] for k in group], [outs[k] for k in group])
        made = program("updates.cu", TYPE=type_name(arrays[group[0]].dtype))
        arguments = (table, chunks.places, whole, np.float64(most))
        runtime.launch(made, "cuda_limited", chunks.count, _THREADS, arguments)
    return outs, norm


def unscaled(arrays: Sequence[DeviceArray], factor: float) -> tuple[list[DeviceArray], DeviceArray]:
    """Arrays of float dtypes times a factor of their dtype, and an int32 without axes: 1 if a number is not finite."""
    runtime, outs = arrays[0].runtime, [a.runtime.empty(a.shape, a.dtype) for a in arrays]
    not_finite = runtime.zeros((), np.int32)
    for group, chunks in _groups(arrays):
        table = _table(runtime, [arrays[k] for k in group], [outs[k] for k in group])
        dtype = arrays[group[0]].dtype
        rounded = np.float64(np.asarray(factor).astype(dtype))
        made = program("updates.cu", TYPE=type_name(dtype))
        runtime.launch(made, "cuda_unscaled", chunks.count, _THREADS, (table, chunks.places, rounded, not_finite))
    return outs, not_finite


def adapted(batch: DeviceBatch, outs: Sequence[DeviceArray], rate: float, *, adapts: bool) -> None:
    """Write w - rate * direction to `outs`, which may be w, after the batch has written directions.

    If it `adapts`, the rate of each array is multiplied by the ratio of the norms of w and of the direction.
    """
    batch.values[0].runtime.not_recorded("the rate of LAMB")
    runtime, chunks = batch.values[0].runtime, _chunks(batch.values[0].runtime, tuple(w.size for w in batch.values))
    sizes = [_joined(_sizes(arrays, 2), chunks.begins, 2)[0] for arrays in (batch.values, batch.outs)]
    table = _table(runtime, batch.values, batch.outs, outs)
    arguments = (table, chunks.places, *sizes, np.float64(rate), np.int32(adapts))
    runtime.launch(program("updates.cu"), "cuda_adapted", chunks.count, _THREADS, arguments)


def programs() -> Iterator[Program]:
    """Every rule, every kind of norm, and every dtype of gradients."""
    yield from (program("updates.cu", RULE=k) for k in range(len(RULES)))
    yield from (program("updates.cu", MODE=mode) for mode in range(3))
    yield from (program("updates.cu", MODE=mode, TYPE=type_name(t)) for mode in range(3) for t in _FLOATS)
    yield from (program("updates.cu"), *(program("updates.cu", TYPE=type_name(t)) for t in _FLOATS))
