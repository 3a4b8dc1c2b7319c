"""What files call the results of a graph, also where a pass puts other nodes in the place of these."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import END_NAMES, STAND_INS


def stored_names(metadata: Mapping[str, str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Names of inputs and results by their nodes; none where the metadata of a graph has none that can be read."""
    try:
        found: Any = json.loads(metadata.get(END_NAMES, "{}"))
        inputs = {str(node): str(name) for node, name in found.get("inputs", {}).items()}
        return inputs, [(str(node), str(name)) for node, name in found.get("outputs", [])]
    except (AttributeError, TypeError, ValueError, RecursionError):
        return {}, []


def stored_result_names(graph: InternalGraph) -> list[str | None]:
    """The name of each result that the metadata has for its node, or for the one that it stands for; or None."""
    left, names = stored_names(graph.metadata)[1], list[str | None]()
    for node in graph.outputs:
        known = (node.name, *map(node.name.removesuffix, STAND_INS))
        found = next((one for one in left if one[0] in known), None)
        names.append(None if found is None else found[1])
        if found is not None:
            left.remove(found)
    return names


def result_names(graph: InternalGraph) -> list[str]:
    """What an export calls each result: as the file that the graph was read from does, or as its node."""
    return [name or node.name for name, node in zip(stored_result_names(graph), graph.outputs, strict=True)]


def keep_result_names(graph: InternalGraph, names: Sequence[str]) -> None:
    """Let exports call the results so, whatever their nodes are called now."""
    inputs, before = stored_names(graph.metadata)
    pairs = [(node.name, name) for node, name in zip(graph.outputs, names, strict=True)]
    pairs = [pair for k, pair in enumerate(pairs) if pair[1] not in names[:k]]  # two results may be one node
    pairs += [pair for pair in before if pair not in pairs]  # of nodes that `undo` brings back
    graph.metadata[END_NAMES] = json.dumps({"inputs": inputs, "outputs": [*map(list, pairs)]}, sort_keys=True)
