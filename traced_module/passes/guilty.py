"""What a pass did wrong: the first value that differs, and the smallest part of the graph that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megengine.tensor import Tensor
from megengine.traced_module.editing.edit_records import addresses_of
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.formats import native as files
from megengine.traced_module.interpret import interpret
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.entry import lower

Key = tuple[str, int, str]  # path of the module, which of its graphs, name of the node


@dataclass(frozen=True)
class Run:
    """A graph, and every value of one run of it: those of submodules too, each as often as it was made."""

    graphs: dict[tuple[str, int], InternalGraph]
    values: dict[Key, list[Tensor]]


def copy_of(graph: InternalGraph) -> InternalGraph:
    """The graph as it is now, with copies of all that its calls enter."""
    top = graph.top
    owner = top.owner
    if not isinstance(owner, TracedModule) or not any(top is g for g in owner.graphs):
        return graph.clone()
    places = {id(below): tuple(place) for place, below in addresses_of(top).values()}
    copy = next(iter(owner.clone().graphs)).top
    return _graphs_of(copy)[places[id(graph)]]


def _graphs_of(graph: InternalGraph) -> dict[tuple[str, int], InternalGraph]:
    return {(path, index): below for (path, index), below in addresses_of(graph.top).values()}


def run_of(graph: InternalGraph, inputs: Sequence[Any]) -> Run:
    graphs = _graphs_of(graph)
    places = {id(found): place for place, found in graphs.items()}
    values: dict[Key, list[Tensor]] = {}

    def keep(node: Any, value: Tensor) -> None:
        place = places.get(id(node.graph))
        if place is not None:
            values.setdefault((*place, node.name), []).append(value)

    interpret(graph, inputs, on_value=keep)
    return Run(graphs, values)


def difference(want: Tensor, got: Tensor) -> float:
    """Largest difference, as a part of the largest value wanted; infinite for other shapes and for what is no number.

    Infinities and NaN in the same places do not differ.
    """
    a, b = (np.asarray(t.numpy(), np.float64) for t in (want, got))
    if a.shape != b.shape:
        return float("inf")
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0)) or 1.0
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    worst = float(apart.max(initial=0)) / scale
    return worst if worst == worst else float("inf")


def first_difference(before: Run, after: Run, tolerance: float) -> Key | None:
    """The earliest value before a pass that has another value under the same name behind it."""
    for key, wanted in before.values.items():
        value = after.values.get(key)
        if value is None or len(value) != len(wanted):
            continue
        if any(difference(a, b) > tolerance for a, b in zip(wanted, value, strict=True)):
            return key
    return None


def write_reproducer(folder: Path, before: Run, after: Run, key: Key) -> None:
    """The part of both graphs between the values on which they agree and the first on which they do not, as ops.

    Of a submodule that was called several times the values of the first call are kept.
    """
    path, index, name = key
    graphs = [run.graphs[path, index] for run in (before, after)]
    shared = {n.name for n in graphs[0].nodes(False)} & {n.name for n in graphs[1].nodes(False)} - {name}
    parts = [_cut(graph, name, shared) for graph in graphs]
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for _, ends in parts:
        arrays.update({n: before.values[path, index, n][0].numpy() for n in ends if (path, index, n) in before.values})
    np.savez(folder / "inputs.npz", **arrays)  # pyright: ignore[reportArgumentType]
    for (part, _), title in zip(parts, ("before", "after"), strict=True):
        files.save(lower(part), folder / f"{title}.mgt")


def _cut(graph: InternalGraph, name: str, shared: set[str]) -> tuple[InternalGraph, list[str]]:
    """A copy that computes one value from the nearest values whose names are in `shared`; these become inputs."""
    part = graph.clone()
    node = part.node(name)
    kept = {id(node.expr)}
    todo, ends = list(node.expr.inputs), []
    while todo:
        at = todo.pop()
        if at.expr.kind in ("Constant", "Input", "GetAttr"):
            continue
        if at.name in shared:
            if at.name not in ends:
                ends.append(at.name)
            continue
        if id(at.expr) not in kept:
            kept.add(id(at.expr))
            todo.extend(at.expr.inputs)
    set_outputs(part, [node])
    part.out_def = None
    for end in ends:
        old = part.node(end)
        fresh = add_input(part, f"{end}_value", old.spec)
        part.replace_node({old: fresh})
    remove_dead(part)
    return part, ends
