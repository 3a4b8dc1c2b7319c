"""Flattening: calls of submodules that are graphs are replaced by what those graphs do."""

from __future__ import annotations

from typing import Any

from megengine.traced_module.capture import renumber
from megengine.traced_module.expr import Call, Expr, GetAttr, Input
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.node import ModuleNode, Node, TensorNode
from megengine.traced_module.queries import child_graph


def flattened(traced: Any, source: InternalGraph | None = None) -> Any:
    """See `TracedModule.flatten`; of a module with several graphs, `source` is the one that is flattened."""
    from megengine.traced_module.traced import own_history

    source = traced.graph if source is None else source
    copies: dict[int, Any] = {}  # so that layers that are exchanged in the result stay where they are in the source
    made = traced._copy_into(copies, graphs=False)
    own_history([g for m in copies.values() for g in m.graphs])
    graph = InternalGraph(source.name, source.qualname, owner=made)
    _Inliner(graph).run(source)
    graph.arguments, graph.out_def = source.arguments, source.out_def
    graph.remove_dead()
    renumber(graph)
    graph._journal.recording = True
    made._add_graph(graph)
    return made


class _Inliner:
    def __init__(self, graph: InternalGraph) -> None:
        self.graph = graph
        self.attributes: dict[str, Node] = {}
        self.other_shapes = False  # the graph that is copied was traced for other shapes than it is called with here

    def run(self, source: InternalGraph) -> None:
        """Copy the outermost graph."""
        mapping: dict[int, Node] = {}
        for node in source.inputs:
            if isinstance(node, ModuleNode):
                mapping[id(node)] = self.graph.add_self()
            else:
                mapping[id(node)] = self.graph.add_input(node.name, node.spec, node.qualname)
        self._body(source, mapping, prefix="", path="", outputs={})
        self.graph._outputs = tuple(mapping[id(n)] for n in source.outputs)  # type: ignore[assignment]

    def _body(
        self, source: InternalGraph, mapping: dict[int, Node], prefix: str, path: str, outputs: dict[int, str]
    ) -> None:
        """Copy the expressions of a graph; `outputs` names the values that leave it as the caller knows them."""
        for expr in source._order:
            if isinstance(expr, Input):
                continue
            if isinstance(expr, GetAttr):
                self._attribute(expr, mapping, prefix, path)
                continue
            child = child_graph(expr)
            if child is None:
                self._copy(expr, mapping, prefix, outputs)
            else:
                self._call(expr, child, mapping, prefix, path, outputs)

    def _name(self, node: Node, prefix: str, outputs: dict[int, str]) -> str:
        return outputs.get(id(node), f"{prefix}_{node.name}" if prefix else node.name)

    def _attribute(self, expr: GetAttr, mapping: dict[int, Node], prefix: str, path: str) -> None:
        full = f"{path}.{expr.name}" if path else expr.name
        node = expr.output
        if full not in self.attributes:
            new = GetAttr(self.graph, self.graph._new_expr_id(), dict(expr.meta), full)
            spec = node.spec if isinstance(node, TensorNode) else None
            self.graph._attach_outputs(new, [spec], self._name(node, prefix, {}), node.qualname)
            self.graph._link(new, (self.graph._inputs[0],), None)
            self.attributes[full] = new.output
        mapping[id(node)] = self.attributes[full]

    def _copy(self, expr: Expr, mapping: dict[int, Node], prefix: str, outputs: dict[int, str]) -> None:
        new = expr._copy(self.graph)
        new._id = self.graph._new_expr_id()
        new._disable_remove = expr._disable_remove
        nodes = []
        for node in expr.outputs:
            spec = node.spec if isinstance(node, TensorNode) else None
            name = self.graph._names.unique(self._name(node, prefix, outputs))
            self.graph._names.take(name, None)
            nodes.append(self.graph._make_node(new, spec, name, node.qualname))
            mapping[id(node)] = nodes[-1]
        new._outputs = tuple(nodes)
        self.graph._link(new, [mapping[id(n)] for n in expr.inputs], None)
        specs = self.graph._specs_of(new, new.inputs) if self.other_shapes else None
        for node, spec in zip(nodes, specs or (), strict=False):
            node._spec = spec

    def _call(
        self,
        expr: Call,
        child: InternalGraph,
        mapping: dict[int, Node],
        prefix: str,
        path: str,
        outputs: dict[int, str],
    ) -> None:
        module_node = expr.inputs[0]
        attribute = module_node.expr.name if isinstance(module_node.expr, GetAttr) else ""
        inner: dict[int, Node] = {id(child.inputs[0]): self.graph._inputs[0]}
        for given, node in zip(expr.inputs[1:], child.inputs[1:], strict=True):
            inner[id(node)] = mapping[id(given)]
        names = {id(o): self._name(n, prefix, outputs) for o, n in zip(child.outputs, expr.outputs, strict=True)}
        below = ".".join(p for p in (path, attribute) if p)
        outside = self.other_shapes
        self.other_shapes |= any(inner[id(n)].spec != n.spec for n in child.inputs[1:])  # type: ignore[attr-defined]
        self._body(child, inner, self._name(module_node, prefix, {}), below, names)
        self.other_shapes = outside
        for node, result in zip(expr.outputs, child.outputs, strict=True):
            mapping[id(node)] = inner[id(result)]
