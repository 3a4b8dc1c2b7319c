"""Flattening: calls of submodules that are graphs are replaced by what those graphs do."""

from __future__ import annotations

from typing import Any

from megengine.traced_module.expr import Call, Expr, GetAttr, Input
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.node import ModuleNode, Node, TensorNode
from megengine.traced_module.queries import child_graph
from megengine.traced_module.tracing.capture import renumber


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


Label = tuple[str, bool]  # a name, and whether it is one of the outermost graph, which are kept


def has_graphs(module: Any) -> bool:
    """True for a traced module that calls enter."""
    return bool(getattr(module, "_graphs", None))


class _Inliner:
    def __init__(self, graph: InternalGraph) -> None:
        self.graph = graph
        self.attributes: dict[str, Node] = {}
        self.prefixes: dict[int, str] = {}  # node of a module that is called -> what names of its values begin with
        self.other_shapes = False  # the graph that is copied was traced for other shapes than it is called with here

    def run(self, source: InternalGraph) -> None:
        """Copy the outermost graph."""
        mapping: dict[int, Node] = {}
        for node in source.inputs:
            if isinstance(node, ModuleNode):
                mapping[id(node)] = self.graph.add_self()
            else:
                mapping[id(node)] = self.graph.add_input(node.name, node.spec, node.qualname)
        names = self.graph._names
        for node in source.nodes(recursive=False):  # the outermost graph keeps its names, whatever comes before
            names.take(node.name, names.get(node.name))
        self._body(source, mapping, prefix="", path="", outputs={})
        for name in [name for name in names if names.get(name) is None]:
            names.free(name)
        self.graph._outputs = tuple(mapping[id(n)] for n in source.outputs)  # type: ignore[assignment]

    def _body(
        self, source: InternalGraph, mapping: dict[int, Node], prefix: str, path: str, outputs: dict[int, Label]
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

    def _label(self, node: Node, prefix: str, outputs: dict[int, Label]) -> Label:
        return outputs.get(id(node)) or ((f"{prefix}_{node.name}", False) if prefix else (node.name, True))

    def _name(self, label: Label) -> str:
        name, own = label
        return name if own else self.graph._names.unique(name)

    def _attribute(self, expr: GetAttr, mapping: dict[int, Node], prefix: str, path: str) -> None:
        full = f"{path}.{expr.name}" if path else expr.name
        node, names = expr.output, self.graph._names
        known = full in self.attributes
        # each time that a graph is copied its reads of modules count
        name = self._name(self._label(node, prefix, {})) if not known or isinstance(node, ModuleNode) else ""
        if not known:
            new = GetAttr(self.graph, self.graph._new_expr_id(), dict(expr.meta), full)
            spec = node.spec if isinstance(node, TensorNode) else None
            new._outputs = (self.graph._make_node(new, spec, name, node.qualname),)
            self.graph._link(new, (self.graph._inputs[0],), None)
            self.attributes[full] = new.output
        elif name and has_graphs(node.owner):
            names.take(name, names.get(name))
        self.prefixes[id(node)] = name
        mapping[id(node)] = self.attributes[full]

    def _copy(self, expr: Expr, mapping: dict[int, Node], prefix: str, outputs: dict[int, Label]) -> None:
        new = expr._copy(self.graph)
        new._id = self.graph._new_expr_id()
        new._disable_remove = expr._disable_remove
        nodes = []
        for node in expr.outputs:
            spec = node.spec if isinstance(node, TensorNode) else None
            name = self._name(self._label(node, prefix, outputs))
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
        outputs: dict[int, Label],
    ) -> None:
        module_node = expr.inputs[0]
        attribute = module_node.expr.name if isinstance(module_node.expr, GetAttr) else ""
        inner: dict[int, Node] = {id(child.inputs[0]): self.graph._inputs[0]}
        for given, node in zip(expr.inputs[1:], child.inputs[1:], strict=True):
            inner[id(node)] = mapping[id(given)]
        names = {id(o): self._label(n, prefix, outputs) for o, n in zip(child.outputs, expr.outputs, strict=True)}
        below = ".".join(p for p in (path, attribute) if p)
        outside = self.other_shapes
        self.other_shapes |= any(inner[id(n)].spec != n.spec for n in child.inputs[1:])  # type: ignore[attr-defined]
        self._body(child, inner, self.prefixes[id(module_node)], below, names)
        self.other_shapes = outside
        for node, result in zip(expr.outputs, child.outputs, strict=True):
            mapping[id(node)] = inner[id(result)]
