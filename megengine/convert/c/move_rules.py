"""C forms of ops that put stored numbers in other places.

Where the elements of a result come from is read off the op's reference, which moves the numbers of the places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from megengine.convert.c.writing import VIEWS, NoFormError, Step, merged, nested, place, rule
from megengine.core.dtype import QuantizedDType, storage_of
from megengine.traced_module.ir.node import TensorNode

VIEWS.update(("reshape", "copy"))


def _copy(step: Step, x: TensorNode, y: str, shape: Sequence[int], source: tuple, target: tuple) -> None:
    """Copy elements; `source` and `target` are the place of the first one, and the distances along axes."""
    sizes, (reads, writes) = merged(shape, [source[1], target[1]])
    kind = storage_of(x.spec.dtype).itemsize
    if not math.prod(shape):
        return
    if sizes and reads[-1] == writes[-1] == 1:
        count, sizes, reads, writes = sizes[-1], sizes[:-1], reads[:-1], writes[:-1]
        line = f"memcpy({y} + ({place(target[0], writes)}), {step.x(x)} + ({place(source[0], reads)}), {count * kind});"
    else:
        line = f"{y}[{place(target[0], writes)}] = {step.x(x)}[{place(source[0], reads)}];"
    step.write("{\n" + "\n".join(f"    {part}" for part in nested(sizes, line)) + "\n}")


def _contiguous(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def _places(step: Step) -> list[np.ndarray]:
    """For each result, which element of the first operand lies where."""
    x, *others = step.inputs
    numbers = np.arange(x.spec.size, dtype=np.int64).reshape(x.shape)
    made = step.expr.record.reference(numbers, *(step.value(node) for node in others), **step.attrs)
    return list(made) if isinstance(made, tuple) else [made]


def _affine(places: np.ndarray) -> tuple[int, list[int]] | None:
    """The first place and the distances along axes, if these are the same everywhere."""
    if not places.size:
        return 0, [0] * places.ndim
    base = int(places.flat[0])
    distances = []
    for axis, n in enumerate(places.shape):
        second = tuple(int(k == axis) for k in range(places.ndim))
        distances.append(int(places[second]) - base if n > 1 else 0)
    grid = base + sum(
        np.arange(n).reshape([-1 if k == axis else 1 for k in range(places.ndim)]) * distances[axis]
        for axis, n in enumerate(places.shape)
    )
    return (base, distances) if np.array_equal(np.broadcast_to(grid, places.shape), places) else None


def _take(step: Step, y: str, places: np.ndarray) -> None:
    (x, *_), affine = step.inputs, _affine(places)
    if affine is not None:
        _copy(step, x, y, places.shape, affine, (0, _contiguous(places.shape)))
        return
    table = step.array(places.astype(np.int32), "places")
    step.write(
        f"{{\n    int32_t i;\n    for (i = 0; i < {places.size}; ++i)\n        {y}[i] = {step.x(x)}[{table}[i]];\n}}"
    )


@rule("transpose", "slice", "broadcast_to", "split")
def moved(step: Step) -> None:
    """Strided copies."""
    for k, places in enumerate(_places(step)):
        _take(step, f"y{k}", places)


@rule("concat")
def concat(step: Step) -> None:
    """A strided copy for each operand."""
    axis, inner = step.attrs["axis"] % len(step.y.shape), _contiguous(step.y.shape)
    first = 0
    for node in step.inputs:
        _copy(step, node, "y0", node.shape, (0, _contiguous(node.shape)), (first * inner[axis], inner))
        first += node.shape[axis]


@rule("pad")
def pad(step: Step) -> None:
    """The integer of the padding number everywhere, and a copy inside; or a table of places."""
    a, (x,) = step.attrs, step.inputs
    if a["mode"] != "constant":
        _take(step, "y0", np.pad(np.arange(x.spec.size).reshape(x.shape), a["widths"], mode=a["mode"]))
        return
    dtype = x.spec.dtype
    if not isinstance(dtype, QuantizedDType) and a["value"] != 0:
        raise NoFormError(f"it pads values of {dtype} with {a['value']}")
    value = dtype.integer_of(a["value"]) if isinstance(dtype, QuantizedDType) else 0
    step.write(f"{{\n    int32_t i;\n    for (i = 0; i < {step.y.spec.size}; ++i)\n        y0[i] = {value};\n}}")
    inner = _contiguous(step.y.shape)
    first = sum(before * distance for (before, _), distance in zip(a["widths"], inner, strict=True))
    _copy(step, x, "y0", x.shape, (0, _contiguous(x.shape)), (first, inner))


@rule("set_index")
def set_index(step: Step) -> None:
    """A copy, and the elements of the value at the places that a table gives."""
    x, value, *indices = step.inputs
    numbers = np.arange(value.spec.size).reshape(value.shape)
    known = [step.value(node) for node in indices]
    made = step.expr.record.reference(np.full(x.shape, -1), numbers, *known, **step.attrs).reshape(-1)
    taken = np.flatnonzero(made >= 0)
    at, from_ = (step.array(places.astype(np.int32), "places") for places in (taken, made[taken]))
    _copy(step, x, "y0", x.shape, (0, _contiguous(x.shape)), (0, _contiguous(x.shape)))
    step.write(
        f"{{\n    int32_t i;\n    for (i = 0; i < {len(taken)}; ++i)\n"
        f"        y0[{at}[i]] = {step.x(value)}[{from_}[i]];\n}}"
    )


@rule("index")
def index(step: Step) -> None:
    """Elements at known places."""
    _take(step, "y0", _places(step)[0])
