"""New expressions, other results, names, and the end of what nothing needs: edits that both levels share."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import GraphError, NameInUseError
from megengine.core.pytree import TreeDef
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import get_op
from megengine.tensor import Tensor
from megengine.traced_module.editing.attaching import is_of_top
from megengine.traced_module.editing.checking import check_before, check_expr, check_owned, inferred
from megengine.traced_module.editing.inferring import infer_again, result_specs
from megengine.traced_module.ir.expr import Apply, Constant, Expr, Input
from megengine.traced_module.ir.functions import arguments_key
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import identifier, written_name
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.primitives import IN_ANOTHER, assign, give_name, is_among, link, unlink
from megengine.traced_module.moving import home
from megengine.traced_module.sizes import free_count

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def add_self(graph: InternalGraph) -> ModuleNode:
    """The node of the module that the graph belongs to: the first input at module level."""
    expr = Input(graph, graph.journal.new_expr_id(), {})
    graph._attach_outputs(expr, [None], "self", graph.qualname)
    link(graph, expr, (), None)
    assign(graph, graph, "_inputs", (expr.output, *graph.inputs))
    return expr.output


def add_input(graph: InternalGraph, name: str, spec: TensorSpec, qualname: str = "") -> TensorNode:
    if not isinstance(spec, TensorSpec):
        raise GraphError(f"add_input: {name!r} has the spec {spec!r}; expected a TensorSpec")
    with graph.journal.transaction("add_input"):
        expr = Input(graph, graph.journal.new_expr_id(), {})
        graph._attach_outputs(expr, [spec], name, qualname or f"{graph.qualname}.[{name}]")
        link(graph, expr, (), graph.inputs[-1].expr.following if graph.inputs else graph._order._first)
        assign(graph, graph, "_inputs", (*graph.inputs, expr.outputs[0]))
    return expr.outputs[0]


def constant(
    graph: InternalGraph,
    value: Any,
    name: str = "const_tensor",
    *,
    before: Expr | None = None,
    after: Expr | None = None,
    meta: Mapping[str, Any] | None = None,
) -> TensorNode:
    value = value if isinstance(value, Tensor) else Tensor._wrap(np.asarray(value), device=home(graph))
    if storage_of(value.dtype).kind in "OUSmM":
        raise GraphError(f"constant: {name!r} has elements of {value.dtype}; expected numbers")
    anchor = _anchor(graph, "constant", before, after)
    with graph.journal.transaction("constant"):
        expr = Constant(graph, graph.journal.new_expr_id(), dict(meta or {}), value)
        graph._attach_outputs(expr, [value.spec], name, f"{graph.qualname}.[{name}]" if graph.of_calls else "")
        link(graph, expr, (), anchor)
    return expr.outputs[0]


def _anchor(graph: InternalGraph, what: str, before: Expr | None, after: Expr | None) -> Expr | None:
    """The expression in front of which a new one goes; None for the end."""
    for place in (before, after):
        if place is not None:
            check_expr(graph, what, place)
    return graph._anchor(before, after)


def apply(
    graph: InternalGraph,
    op: str,
    inputs: Sequence[TensorNode],
    attrs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    before: Expr | None = None,
    after: Expr | None = None,
    meta: Mapping[str, Any] | None = None,
    qualname: str = "",
) -> Any:
    check_owned(graph, f"apply {op}", inputs)
    record, attrs = get_op(op), dict(attrs or {})
    if record.counts:
        attrs["count"] = free_count(graph, attrs.get("count") or name or f"{op}_out")
    specs = inferred(record, inputs, attrs)
    single = isinstance(specs, TensorSpec)
    anchor = _anchor(graph, f"apply {op}", before, after)
    check_before(record.name, inputs, anchor)
    outputs = [specs] if isinstance(specs, TensorSpec) else specs
    with graph.journal.transaction("apply"):
        expr = Apply(graph, graph.journal.new_expr_id(), dict(meta or {}), record.name, attrs)
        graph._attach_outputs(expr, outputs, name or f"{op}_out", qualname or _place(expr))
        link(graph, expr, inputs, anchor)
    return expr.outputs[0] if single else tuple(expr.outputs)


def _place(expr: Apply) -> str:
    """Qualname of what an op gives, by the module that it comes from; "" where that is not known."""
    module = expr.meta.get("module")
    parts = (expr.top_graph.qualname, module, f"[{expr.op}]")
    return "" if module is None else ".".join(part for part in parts if part)


def set_outputs(graph: InternalGraph, nodes: Sequence[Node]) -> None:
    """Say which values the graph returns."""
    check_owned(graph, "set_outputs", nodes)
    if not nodes or not all(isinstance(n, TensorNode) for n in nodes):
        raise GraphError(f"set_outputs: got {list(nodes)}; expected one tensor node or more")
    if graph.top is not graph and len(nodes) != len(graph.outputs):
        raise GraphError(
            f"set_outputs: {graph.qualname} is called by another graph, which uses "
            f"{counted(len(graph.outputs), 'result')}; got {len(nodes)}"
        )
    results = result_specs(graph)
    with graph.journal.transaction("set_outputs"):
        assign(graph, graph, "_outputs", tuple(nodes))
        infer_again(graph, [], results)


def rename(graph: InternalGraph, node: Node, new: str, *, written: bool = False) -> None:
    """Give a node a free name; `written` makes an identifier of the text first."""
    check_owned(graph, "rename", [node])
    if not isinstance(new, str):
        raise GraphError(f"rename: {node.name!r} to {new!r}; expected a text")
    new = written_name(new) if written else new
    if new != identifier(new):
        raise GraphError(f"{new!r} is not a name; expected letters, digits and _; try {identifier(new)!r}")
    holder = graph.names.get(new)
    if holder is not None and holder is not node:
        raise NameInUseError(f"{new!r} already names {holder.expr!r}; choose another name")
    with graph.journal.transaction("rename"):
        rename_node(graph, node, new)


def rename_node(graph: InternalGraph, node: Node, new: str) -> None:
    """Give a node a free name; of an input that is a parameter of its own, the parameter gets it too.

    A parameter of a module with several graphs keeps its name, as each graph has an input for it.
    """
    old = node.name
    give_name(graph, node, new)
    signature = _signature(graph)
    if signature is None or not isinstance(node.expr, Input) or not isinstance(node, TensorNode):
        return
    parameter = signature.parameters.get(old)
    if parameter is None or parameter.kind not in _NAMED or new in signature.parameters:
        return
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not _rename_keyword(graph, old, new):
        return
    renamed = [p.replace(name=new) if p is parameter else p for p in signature.parameters.values()]
    assign(graph, graph.owner, "forward_signature", signature.replace(parameters=renamed), IN_ANOTHER)


def _signature(graph: InternalGraph) -> inspect.Signature | None:
    owner: Any = graph.owner
    if len(getattr(owner, "graphs", ())) != 1 or owner.graphs[0] is not graph or graph.arguments is None:
        return None
    return owner.forward_signature


def _rename_keyword(graph: InternalGraph, old: str, new: str) -> bool:
    """Let calls of the outermost graph give an argument under another name; False for others, whose calls stay."""
    assert graph.arguments is not None
    (args, kwargs), constants = graph.arguments[0].children, graph.arguments[1]
    if not is_of_top(graph) or old not in kwargs.aux:
        return False
    keys = tuple([new if key == old else key for key in kwargs.aux])
    arguments = TreeDef(tuple, None, (args, TreeDef(dict, keys, kwargs.children))), constants
    assign(graph, graph, "arguments", arguments, IN_ANOTHER)
    assign(graph, graph.owner, "_graphs", {arguments_key(arguments): graph}, IN_ANOTHER)
    return True


def erase(graph: InternalGraph, expr: Expr) -> None:
    check_expr(graph, "erase", expr)
    if isinstance(expr, Input) and graph.arguments is not None:
        raise GraphError(
            f"erase: {expr.output.name!r} is an argument of calls of {graph.qualname}; reset_inputs gives a top "
            "graph other inputs"
        )
    for n in expr.outputs:
        if n.users or is_among(n, graph.outputs):
            used = [u.name for u in n.users] or ["the graph's outputs"]
            raise GraphError(f"erase: {n.name!r} is still used by {', '.join(used)}; replace its uses first")
    with graph.journal.transaction("erase"):
        unlink(graph, expr)
        if isinstance(expr, Input):
            assign(graph, graph, "_inputs", tuple(n for n in graph.inputs if n.expr is not expr))
