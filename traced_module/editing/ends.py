"""Inputs and outputs of the traced module, and values of submodules as values of the graphs around them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from megengine.core.dtype import as_dtype
from megengine.core.errors import GraphError, ShapeError
from megengine.core.pytree import flatten, unflatten
from megengine.core.spec import TensorSpec
from megengine.tensor import Tensor
from megengine.traced_module.editing.checking import check_owned
from megengine.traced_module.editing.inputs import add_input, set_inputs
from megengine.traced_module.editing.results import set_results, value_in
from megengine.traced_module.ir.expr import Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode


def add_input_node(
    graph: InternalGraph, shape: Sequence[int], dtype: Any = "float32", name: str = "args"
) -> TensorNode:
    """See `InternalGraph.add_input_node`."""
    try:
        lengths = tuple(map(operator.index, shape))
    except TypeError:
        lengths = (-1,)
    if min(lengths, default=0) < 0:
        raise ShapeError(f"add_input_node: shape is {shape!r}; expected lengths, 0 or more each")
    if not isinstance(name, str):
        raise GraphError(f"add_input_node: name is {name!r}; expected a text")
    with graph._edit("add_input_node"):
        return add_input(graph, name, TensorSpec(lengths, as_dtype(dtype)))


def add_output_node(graph: InternalGraph, node: TensorNode | str, *, through: Expr | None = None) -> None:
    """See `InternalGraph.add_output_node`."""
    with graph._edit("add_output_node"):
        found = value_in(graph, node, what="add_output_node", through=through)
        check_owned(graph, "add_output_node", [found])
        current = _result(graph)
        graph.reset_outputs((*current, found) if isinstance(current, tuple) else (current, found))


def reset_outputs(graph: InternalGraph, outputs: Any) -> None:
    """See `InternalGraph.reset_outputs`."""
    leaves, structure = flatten(outputs)
    if not leaves or not all(isinstance(n, (TensorNode, str)) for n in leaves):
        check_owned(graph, "reset_outputs", leaves)
        wrong = next((n.name for n in leaves if not isinstance(n, TensorNode)), None)
        got = "nothing" if wrong is None else f"{wrong!r}, which is a module"
        raise GraphError(f"reset_outputs: got {got}; expected tensor nodes, one or more, nested in any way")
    with graph._edit("reset_outputs"):
        leaves = [value_in(graph, node, what="reset_outputs") for node in leaves]
        check_owned(graph, "reset_outputs", leaves)
        set_results(graph, leaves, structure)


def value_of(graph: InternalGraph, node: TensorNode | str, *, through: Expr | None = None) -> TensorNode:
    """See `InternalGraph.value_of`."""
    with graph._edit("value_of"):
        found = value_in(graph, node, what="value_of", through=through)
        check_owned(graph, "value_of", [found])
    return found


def reset_inputs(graph: InternalGraph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[TensorNode]:
    """See `InternalGraph.reset_inputs`."""
    leaves, structure = flatten((args, kwargs))
    if wrong := [leaf for leaf in leaves if not isinstance(leaf, Tensor)]:
        raise GraphError(f"reset_inputs: expected tensors, got {type(wrong[0]).__name__}")
    with graph._edit("reset_inputs"):
        return set_inputs(graph, [leaf.spec for leaf in leaves], structure)


def _result(graph: InternalGraph) -> Any:
    if graph.out_def is not None:
        return unflatten(graph.out_def, graph._outputs)
    return graph._outputs[0] if len(graph._outputs) == 1 else graph._outputs
