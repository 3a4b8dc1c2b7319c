"""A model with open axes is read at more sizes: what differs between them without a formula holds for one size only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError, brief
from megengine.core.sizes import COUNT, OpenRatio, OpenSize, at, is_open, names_of
from megengine.traced_module.bodies import Body
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.graph import InternalGraph

# Lengths from those of the example: factors, one for each axis, and what is added. Of each row the first that the
# network takes is read: some take equal lengths only, others multiples of a number.
_SECOND = (((2, 3, 5), 0), ((2,), 0), ((3,), 0))
_ODD = (((2, 3, 5), 1), ((2,), 1), ((2,), 3), ((4,), 1), ((1,), 3))
_CLOSE = 1e-6  # relative difference of numbers that are computed from sizes


def check_every_size(graph: InternalGraph, read: Callable[[dict[str, int]], InternalGraph]) -> None:
    """Raise FileFormatError where a graph with open axes has numbers of its example in the place of formulas.

    `read` gives the graph for other examples. Where the model cannot be read for others, nothing is known.
    """
    examples = {name: n for node in graph.inputs for name, n in _examples(node.spec.shape)}
    if not examples:
        return
    for row in (_SECOND, _ODD):
        for factors, more in row:
            sizes = {name: n * factors[i % len(factors)] + more for i, (name, n) in enumerate(examples.items())}
            try:
                second = read(sizes)
            except FileFormatError:
                continue
            if found := _first_difference(graph, second, sizes):
                raise _error(*found, examples, sizes)
            break


def _examples(shape: Sequence[int]) -> Iterator[tuple[str, int]]:
    for size in shape:
        for name in sorted(names_of(size)):
            yield name, int(size)


def _first_difference(a: InternalGraph, b: InternalGraph, sizes: Mapping[str, int]) -> tuple[Expr, str] | None:
    """The first expression that is another one at the second sizes, and how it differs."""
    first, second = a.exprs(), b.exprs()
    for one, other in zip(first, second, strict=False):
        if why := _difference(one, other, sizes):
            return one, why
    if len(first) != len(second):
        return (first[-1] if len(first) > len(second) else second[-1]), "the network has other nodes there"
    return None


def _difference(a: Expr, b: Expr, sizes: Mapping[str, int]) -> str:
    if a.kind != b.kind or a.callee != b.callee or len(a.inputs) != len(b.inputs):
        return f"it is {a.described()} for the one and {b.described()} for the other"
    if isinstance(a, Constant) and isinstance(b, Constant):
        one, other = a.value._storage(), b.value._storage()
        return (
            ""
            if _same_array(one, other)
            else f"a constant is {_shown(one)} for the one and {_shown(other)} for the other"
        )
    if isinstance(a, Apply) and isinstance(b, Apply):
        for name, value in a.attrs.items():
            if not _alike(value, b.attrs.get(name), sizes):
                return f"its {name} is {brief(value)} for the one and {brief(b.attrs.get(name))} for the other"
    for one, other in zip(a.outputs, b.outputs, strict=True):
        if not _alike(one.spec.shape, other.spec.shape, sizes):
            return f"its shape is {one.spec.shape} for the one and {other.spec.shape} for the other"
    return ""


def _same_array(a: np.ndarray, b: np.ndarray) -> bool:
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


def _shown(array: np.ndarray) -> str:
    return brief(array.item() if array.size == 1 else f"{array.dtype}{list(array.shape)}")


def _alike(a: Any, b: Any, sizes: Mapping[str, int]) -> bool:
    """Whether a value of the first reading is the other one at the sizes of the second."""
    if isinstance(a, Body) and isinstance(b, Body):
        return _first_difference(a.graph, b.graph, sizes) is None
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_alike(x, y, sizes) for x, y in zip(a, b, strict=True))
    if isinstance(a, (OpenSize, OpenRatio)):
        here, there = (at(size, {**dict.fromkeys(names_of(size), COUNT), **sizes}) for size in (a, b))
        return isinstance(there, (int, float)) and abs(here - there) <= _CLOSE * abs(here)
    if is_open(b):
        return False
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else (a == b or a is b or (a != a and b != b))


def _error(expr: Expr, why: str, examples: Mapping[str, int], sizes: Mapping[str, int]) -> FileFormatError:
    one, other = (", ".join(f"{name} = {n}" for name, n in each.items()) for each in (examples, sizes))
    while not isinstance(expr, Apply) and expr.outputs[0].users:  # a constant is part of what reads it
        expr = expr.outputs[0].users[0]
    name = expr.meta.get("onnx") or expr.outputs[0].name
    return FileFormatError(
        f"node {name!r} ({expr.callee[1]}) cannot be read for open axes: {why} ({one}; {other}), and it does not "
        f"follow from the sizes; fix them with input_shapes={{...}}, or export the model with fixed sizes"
    )
