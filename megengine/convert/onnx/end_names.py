"""Names of inputs and results: programs ask a file for these, so a file that is read and written again keeps them.

Nodes of graphs have names of their own: `gpu_0/data_0` is no identifier, and a result is called like the node that
makes it. What the file said stands in the graph's metadata, by the names of the nodes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from megengine.traced_module.ir.end_names import stored_names, stored_result_names
from megengine.traced_module.ir.expr import Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import END_NAMES

if TYPE_CHECKING:
    import onnx

Pairs = Sequence[tuple[str, str]]  # name of a node, name in the file


def noted(inputs: Pairs, results: Pairs) -> dict[str, str]:
    """The metadata that holds the names of a file; empty where those of the nodes are the same."""
    if all(node == name for node, name in (*inputs, *results)):
        return {}
    return {END_NAMES: json.dumps({"inputs": dict(inputs), "outputs": [*map(list, results)]}, sort_keys=True)}


def restore(made: "onnx.GraphProto", graph: InternalGraph) -> None:
    """Give inputs and results of a written graph the names that the metadata of its graph holds for their nodes.

    Nodes that an edit renamed, and those that were added, keep the names that they have, also a constant that is a
    result: what is written for it beside the stored numbers has its name.
    """
    inputs, _ = stored_names(graph.metadata)
    wanted = {item.name: inputs.get(node.name) for item, node in zip(made.input, graph.inputs, strict=True)}
    for item, node, name in zip(made.output, graph.outputs, stored_result_names(graph), strict=True):
        wanted[item.name] = name
        if name is None and isinstance(node.expr, Constant) and node.name not in (*wanted, *wanted.values()):
            wanted[item.name] = node.name
    names = {old: old for old, new in wanted.items() if new is None}
    for old, new in wanted.items():  # of two that would have one name the first has it
        names[old] = new if new is not None and new not in names.values() else old
    if len({*names.values()}) < len(names):
        return
    used = {name for one in (made, *_bodies(made)) for name in _defined(one)}
    for new in sorted({*names.values()} & used - {*names}):  # a value inside the graph makes room
        names[new] = next(name for count in range(1, len(used) + 2) if (name := f"{new}_{count}") not in used)
        used.add(names[new])
    for one in (made, *_bodies(made)):
        _rename(one, names)


def part_results(made: "onnx.GraphProto") -> None:
    """Put an Identity between a float result and the Transpose that reads it, in a graph that quantizes.

    ONNX Runtime's optimiser (1.32) gives otherwise what is quantized behind the Transpose as the result: 8 bits of it.
    """
    import onnx

    if all(node.op_type != "QuantizeLinear" for node in made.node):
        return
    moved = {node.input[0] for node in made.node if node.op_type == "Transpose"}
    made_here = {name for node in made.node for name in node.output}
    for item in made.output:
        if item.name in moved & made_here and item.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            used = {name for one in (made, *_bodies(made)) for name in _defined(one)}
            result, inside = item.name, f"{item.name}_inside"
            while inside in used:
                inside += "_1"
            for one in (made, *_bodies(made)):
                _rename(one, {result: inside})
            item.name = result
            made.node.append(onnx.helper.make_node("Identity", [inside], [result], name=inside))


def _bodies(graph: "onnx.GraphProto") -> Iterator["onnx.GraphProto"]:
    """The graphs inside the nodes of a graph, and those inside them."""
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield body
                yield from _bodies(body)


def _defined(graph: "onnx.GraphProto") -> Iterable[str]:
    yield from (item.name for item in (*graph.input, *graph.initializer, *graph.output))
    for node in graph.node:
        yield from node.output


def _rename(graph: "onnx.GraphProto", names: Mapping[str, str]) -> None:
    for item in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
