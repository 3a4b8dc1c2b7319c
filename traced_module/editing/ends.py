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
    """Append an input; see `InternalGraph.add_input_node`."""
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
    """Return one more value: the module's result becomes (what it was, the value).

    The value may be one of a submodule, or its path, as for `value_of`. In the graph of a submodule, every call
    of it gets the result.
    """
    with graph._edit("add_output_node"):
        found = value_in(graph, node, what="add_output_node", through=through)
        check_owned(graph, "add_output_node", [found])
        current = _result(graph)
        graph.reset_outputs((*current, found) if isinstance(current, tuple) else (current, found))


def reset_outputs(graph: InternalGraph, outputs: Any) -> None:
    """Return these nodes, nested in tuples, lists and dicts as the result is to be.

    They may be values of submodules, or paths, as for `value_of`. In the graph of a submodule, every call of it
    gives these results; one that is used there has to stay.
    """
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
    """The node of this graph that has the value of a submodule's node.

    Where there is none yet, the graphs between return one more result, (what it was, the value), and every call
    of them gives it. Of a submodule that is called several times it is the value of the first call; or that of
    the call `through`, or of the first along a path that is given in place of the node.

    Example:
        >>> graph.value_of("layer2.1.relu_out")  # doctest: +SKIP

    Raises:
        GraphError: this graph does not compute the value.
    """
    with graph._edit("value_of"):
        found = value_in(graph, node, what="value_of", through=through)
        check_owned(graph, "value_of", [found])
    return found


def reset_inputs(graph: InternalGraph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[TensorNode]:
    """Give the graph new inputs for these example tensors; the old ones must be unused then.

    See `InternalGraph.reset_inputs`.
    """
    leaves, structure = flatten((args, kwargs))
    if wrong := [leaf for leaf in leaves if not isinstance(leaf, Tensor)]:
        raise GraphError(f"reset_inputs: expected tensors, got {type(wrong[0]).__name__}")
    with graph._edit("reset_inputs"):
        return set_inputs(graph, [leaf.spec for leaf in leaves], structure)


def _result(graph: InternalGraph) -> Any:
    if graph.out_def is not None:
        return unflatten(graph.out_def, graph._outputs)
    return graph._outputs[0] if len(graph._outputs) == 1 else graph._outputs
