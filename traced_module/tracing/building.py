"""What is captured becomes expressions: of a graph that is being traced, or of one that is edited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from megengine.core.errors import GraphError
from megengine.core.pytree import TreeDef, flatten, unflatten
from megengine.dispatch import apply, interpose, opdefs
from megengine.module import Module
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.editing.checking import check_owned
from megengine.traced_module.ir.expr import SHAPE_OF, Apply, Call, CallFunction, CallMethod, Expr, GetAttr
from megengine.traced_module.ir.functions import arguments_of
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.primitives import link
from megengine.traced_module.ir.provenance import graph_path, meta_at
from megengine.traced_module.tracing.calls import alias, result_leaves
from megengine.traced_module.tracing.deferred import Deferring
from megengine.traced_module.tracing.lengths import own_lengths
from megengine.traced_module.tracing.source_lines import user_line


@dataclass(eq=False, slots=True)
class Read:
    """A module that was read: its node, and the name that calls of it begin with."""

    node: ModuleNode
    name: str
    before: Read | None = None  # the read under another name that no call has used yet
    called: bool = False


@dataclass(eq=False)
class Scope:
    """One graph being made or edited, and what its values and modules are called there."""

    graph: InternalGraph
    owner: Any  # the module; None for a graph of ops
    nodes: dict[int, TensorNode] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)  # ids above stay valid while the objects live
    paths: dict[int, str] = field(default_factory=dict)  # modules and containers -> path below the owner
    reads: dict[int, Read] = field(default_factory=dict)  # module -> its last read
    attributes: dict[str, Node] = field(default_factory=dict)  # path -> node
    source: str = ""  # the user's line that called it
    entry: CodeType | None = None  # what runs it: a frame of that stands between its own lines and that line
    changed: dict[int, str] = field(default_factory=dict)  # values that a called graph changed in place -> its argument

    def bind(self, tensor: Tensor, node: TensorNode) -> None:
        self.nodes[id(tensor)] = node
        self.alive.append(tensor)


class Builder:
    """Adds expressions to the graph of a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.graph = scope, scope.graph
        self.anchor: Expr | None = None  # new expressions go in front of it; None: last
        self.replayed: Expr | None = None  # of a graph that is traced again: what runs now, and knows its origin
        self.constants: dict[int, Expr] = {}  # of such a graph: value -> what has it
        self.outsider: Callable[[Tensor], None] | None = None  # called with each tensor that becomes a constant

    def node_of(self, value: Any) -> Node | None:
        """The node of a tensor or a module; None for other values. Unknown tensors become constants."""
        kind = type(value)  # not isinstance: to ask a module for its class runs Python
        if issubclass(kind, Node):
            check_owned(self.graph, "call", [value])
            return value
        if issubclass(kind, Module):
            read = self.scope.reads.get(id(value))
            return read.node if read else None
        return self.tensor_node(value) if issubclass(kind, Tensor) else None

    def tensor_node(self, value: Tensor) -> TensorNode:
        """The node of a tensor; an unknown one becomes a constant."""
        node = self.scope.nodes.get(id(value))
        if self.scope.changed and id(value) in self.scope.changed:
            raise GraphError(
                f"{self.graph.qualname} uses a value that {self.scope.changed[id(value)]} changed in place; "
                "a graph cannot change values of its caller: change a copy (x = x + 0) or return the tensor"
            )
        if node is None:
            if self.outsider is not None:
                self.outsider(value)
            made_by = self.constants.get(id(value))
            kind = "parameter" if isinstance(value, Parameter) else "tensor"
            name = f"const_{kind}" if made_by is None or made_by.top_graph.of_calls else made_by.name
            constant = Tensor._wrap(value._storage(), value.dtype, value.device)
            node = self.graph.constant(constant, name, before=self.anchor, meta=self.meta(made_by))
            self.scope.bind(value, node)
        return node

    def meta(self, made_by: Expr | None = None) -> dict[str, Any]:
        """Provenance of what is made now; that of an expression of a graph that is traced again, if it is one's."""
        path = graph_path(self.graph)
        if origin := made_by or self.replayed:
            return meta_at(origin, path)
        return {"module": path, "source": user_line(self.scope.source, self.scope.entry)}

    def make_attribute(self, owner: Node, path: str, qualname: str, value: Any, name: str) -> Node:
        expr = GetAttr(self.graph, self.graph.journal.new_expr_id(), self.meta(), path)
        spec = value.spec if isinstance(value, Tensor) else None
        self.graph.names.take(name, None)
        expr._outputs = (self.graph._make_node(expr, spec, name, qualname),)
        link(self.graph, expr, (owner,), self.anchor)
        return expr.outputs[0]

    def make_call(self, expr: Call, inputs: Sequence[Node], result: Any, name: str, qualname: str) -> Any:
        """Link a call whose result is known; gives the result with new tensors bound to the new nodes."""
        leaves, structure = result_leaves(result, getattr(expr, "qualified", name))
        specs = own_lengths(self.graph, self.graph.names.unique(name), tuple([t.spec for t in leaves]), inputs)
        self.graph._attach_outputs(expr, specs, name, qualname)
        if structure.kind is not None:
            expr._out_def = structure
        link(self.graph, expr, inputs, self.anchor)
        fresh = []
        for tensor, node, spec in zip(leaves, expr.outputs, specs, strict=True):
            # the same object may be an argument, or known under another node: each node has a tensor of its own
            made = alias(tensor) if spec is tensor.spec else Tensor._deferred(spec)
            node.qparams = tensor._qparams
            self.scope.bind(made, node)
            fresh.append(made)
        return fresh[0] if structure.kind is None else unflatten(structure, fresh)

    def make_recorded(self, function: Any, leaves: list[Any], structure: TreeDef, result: Any) -> Any:
        """The call of a public function or tensor method, whose result is known; its arguments in normal form, flat."""
        if function.is_method and function.name == "to":
            copy = opdefs.find(opdefs.COPY)  # MegEngine records its op
            assert copy is not None
            value, device = leaves
            leaves, structure = flatten(((value,), {"comp_node": str(device)} if device else {}))
            function = copy.__public__
        inputs, arguments = arguments_of(leaves, structure, self.node_of)
        graph, name = self.graph, function.name
        if not function.is_method:
            expr: Call = CallFunction(graph, graph.journal.new_expr_id(), self.meta(), arguments, function.qualified)
            if function.home.startswith(opdefs.HOME):
                name = name.lower()
                return self.make_call(expr, inputs, result, f"{name}_out", f"{graph.qualname}.[def_{name}]")
            if not function.recorded_as:
                return self.make_call(expr, inputs, result, f"{name}_out", f"{graph.qualname}.[func_{name}]")
        else:
            expr = CallMethod(graph, graph.journal.new_expr_id(), self.meta(), arguments, name)
        short = (function.recorded_as or name).strip("_")
        return self.make_call(expr, inputs, result, f"{short}_out", f"{graph.qualname}.[method_{short}]")


def shape_of(builder: Builder, tensor: Tensor, node: TensorNode) -> Tensor:
    """The shape of a value as a value."""
    graph = builder.graph
    with interpose(Deferring()):
        result = apply(SHAPE_OF, tensor)
    expr = Apply(graph, graph.journal.new_expr_id(), builder.meta(), SHAPE_OF, {})
    short = SHAPE_OF.lower()
    graph._attach_outputs(expr, [result.spec], f"{short}_out", f"{graph.qualname}.[def_{short}]")
    link(graph, expr, (node,), builder.anchor)
    builder.scope.bind(result, expr.outputs[0])
    return result
