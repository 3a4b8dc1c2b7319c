"""What files call the results of a graph, also where a pass puts other nodes in the place of these."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from megengine.traced_module.ir.expr import Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import END_NAMES, STAND_INS
from megengine.traced_module.ir.primitives import assign

_RESULTS = "results"  # in the metadata of an expression: what files call those of its values that became results


def stored_names(metadata: Mapping[str, str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Names of inputs and results by their nodes; none where the metadata of a graph has none that can be read."""
    try:
        found: Any = json.loads(metadata.get(END_NAMES, "{}"))
        inputs = {str(node): str(name) for node, name in found.get("inputs", {}).items()}
        return inputs, [(str(node), str(name)) for node, name in found.get("outputs", [])]
    except (AttributeError, TypeError, ValueError, RecursionError):
        return {}, []


def stored_result_names(graph: InternalGraph) -> list[str | None]:
    """The name of each result that a pass noted, or the metadata has for its node or what it stands for; or None."""
    left, names = stored_names(graph.metadata)[1], list[str | None]()
    for node in graph.outputs:
        if (noted := _noted(node.expr).get(node.name)) is not None:
            names.append(noted)
            continue
        known = (node.name, *map(node.name.removesuffix, STAND_INS))
        found = next((one for one in left if one[0] in known), None)
        names.append(None if found is None else found[1])
        if found is not None:
            left.remove(found)
    return names


def _noted(expr: Expr) -> dict[str, str]:
    found: Any = expr.meta.get(_RESULTS)  # of a file, perhaps
    return {str(node): str(name) for node, name in found.items()} if isinstance(found, dict) else {}


def result_names(graph: InternalGraph) -> list[str]:
    """What an export calls each result: as the file that the graph was read from does, or as its node."""
    return [name or node.name for name, node in zip(stored_result_names(graph), graph.outputs, strict=True)]


def note_result_names(graph: InternalGraph, names: Sequence[str]) -> None:
    """The same for an edited graph, at the expressions, as a change that can be undone and replayed."""
    for node, name in zip(graph.outputs, names, strict=True):
        if node.name != name:
            noted = {**_noted(node.expr), node.name: name}
            assign(graph, node.expr, "meta", {**node.expr.meta, _RESULTS: noted})


def keep_result_names(graph: InternalGraph, names: Sequence[str]) -> None:
    """Let exports call the results so, whatever their nodes are called now."""
    inputs, _ = stored_names(graph.metadata)
    pairs = [(node.name, name) for node, name in zip(graph.outputs, names, strict=True)]
    pairs = [pair for k, pair in enumerate(pairs) if pair[1] not in names[:k]]  # two results may be one node
    graph.metadata[END_NAMES] = json.dumps({"inputs": inputs, "outputs": [*map(list, pairs)]}, sort_keys=True)
