"""Flattening: calls of submodules that are graphs are replaced by what those graphs do."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any

from megengine.traced_module.editing.attaching import own_history, take_in
from megengine.traced_module.editing.checking import specs_of
from megengine.traced_module.editing.expressions import add_input, add_self
from megengine.traced_module.ir.copying import Copier
from megengine.traced_module.ir.expr import Call, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.lookup import attribute_path
from megengine.traced_module.ir.names import without_count
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.primitives import assign, link, number, remove_dead
from megengine.traced_module.ir.provenance import graph_path, meta_at
from megengine.traced_module.ir.queries import child_graph


def flattened(traced: Any, graph: InternalGraph | None = None) -> Any:
    """See `TracedModule.flatten`; of a module with several graphs, `graph` is the one that is flattened."""
    source: InternalGraph = traced.graph if graph is None else graph
    copier = Copier()
    copies = traced._copies(copier, graphs=False)  # what is done to the result is not done to the source
    made = copies[id(traced)]
    uncalled = [g for m in copies.values() for g in m.graphs]  # of submodules: still there, to be called and edited
    own_history(uncalled)
    flat = InternalGraph(source.name, source.qualname, owner=made)
    _Inliner(flat, copier).run(source)
    flat.arguments, flat.out_def = source.arguments, source.out_def
    flat.metadata = dict(source.metadata)
    remove_dead(flat)
    number([flat], flat=True)
    if uncalled:
        take_in(flat, uncalled)
    flat._journal.recording = True
    made._add_graph(flat)
    return made


@dataclass(frozen=True, slots=True)
class Label:
    """The name of a value in a graph, and the prefix of that graph; the outermost one keeps its `own` names."""

    prefix: str
    name: str
    own: bool = False

    def __str__(self) -> str:
        return f"{self.prefix}_{self.name}" if self.prefix else self.name


def has_graphs(module: Any) -> bool:
    """True for a traced module that calls enter."""
    return bool(getattr(module, "_graphs", None))


@dataclass(slots=True)
class _Entered:
    """A graph whose expressions are copied."""

    source: InternalGraph
    todo: Iterator[Expr]
    mapping: dict[int, Any]  # its nodes -> those of the copy
    prefix: str = ""  # what names of its values begin with
    path: str = ""  # of its module
    outputs: dict[int, Label] = field(default_factory=dict)  # values that leave it -> as the caller knows them
    other_shapes: bool = False  # it was traced for other shapes than it is called with here
    call: Call | None = None  # that enters it
    taken: set[str] = field(default_factory=set)  # names that values of the graphs it enters got in it


class _Inliner:
    def __init__(self, graph: InternalGraph, copier: Copier) -> None:
        self.graph, self.copier = graph, copier
        self.attributes: dict[str, Node] = {}
        self.prefixes: dict[int, str] = {}  # node of a module that is called -> what names of its values begin with

    def run(self, source: InternalGraph) -> None:
        """Copy the outermost graph."""
        mapping: dict[int, Any] = {}
        for node in source.inputs:
            if isinstance(node, ModuleNode):
                mapping[id(node)] = add_self(self.graph)
            else:
                mapping[id(node)] = add_input(self.graph, node.name, node.spec, node.qualname)
        names = self.graph._names
        for node in source.nodes(recursive=False):  # the outermost graph keeps its names, whatever comes before
            names.take(node.name, names.get(node.name))
        self._body(source, mapping)
        for name in [name for name in names if names.get(name) is None]:
            names.free(name)
        self.graph._outputs = tuple(mapping[id(n)] for n in source.outputs)

    def _body(self, source: InternalGraph, mapping: dict[int, Any]) -> None:
        """Copy the expressions of a graph and of those it enters, without recursion: modules may nest deeply."""
        entered = [_Entered(source, iter(source._order), mapping)]
        while entered:
            at = entered[-1]
            inside = self._until_call(at)
            if inside is not None:
                entered.append(inside)
                continue
            entered.pop()
            if at.call is not None:
                entered[-1].taken.update(label.name for label in at.outputs.values())
                results = [at.mapping[id(n)] for n in at.source.outputs]
                entered[-1].mapping.update(zip(map(id, at.call.outputs), results, strict=True))

    def _until_call(self, at: _Entered) -> _Entered | None:
        """Copy up to a call that enters a graph, which is given; None at the end."""
        for expr in at.todo:
            if isinstance(expr, Input):
                continue
            if isinstance(expr, GetAttr):
                self._attribute(expr, at)
                continue
            child = child_graph(expr)
            if isinstance(expr, Call) and child is not None:
                return self._enter(expr, child, at)
            self._copy(expr, at)
        return None

    def _name(self, label: Label) -> str:
        return label.name if label.own else self.graph._names.unique(str(label))

    def _attribute(self, expr: GetAttr, at: _Entered) -> None:
        full = f"{at.path}.{expr.name}" if at.path else expr.name
        node, names = expr.output, self.graph._names
        known = full in self.attributes
        # each time that a graph is copied its reads of modules count
        name = self._name(_label(node, at.prefix, {})) if not known or isinstance(node, ModuleNode) else ""
        if not known:
            new = GetAttr(self.graph, self.graph._new_expr_id(), meta_at(expr, at.path), full)
            spec = node.spec if isinstance(node, TensorNode) else None
            new._outputs = (self.graph._make_node(new, spec, name, self._qualname(node, at)),)
            link(self.graph, new, (self.graph._inputs[0],), None)
            self.attributes[full] = new.output
        elif name and has_graphs(node.owner):
            names.take(name, names.get(name))
        self.prefixes[id(node)] = name
        at.mapping[id(node)] = self.attributes[full]

    def _copy(self, expr: Expr, at: _Entered) -> None:
        new = expr._copy(self.graph)
        if isinstance(new, Constant):
            new._value = self.copier.of(new._value)
        new.meta = meta_at(expr, at.path)
        new._id = self.graph._new_expr_id()
        graph, mapping, nodes = self.graph, at.mapping, []
        for node in expr._outputs:
            spec = node._spec if isinstance(node, TensorNode) else None
            name = self._name(_label(node, at.prefix, at.outputs))
            graph._names.take(name, None)
            made = graph._make_node(new, spec, name, self._qualname(node, at))
            nodes.append(made)
            mapping[id(node)] = made
        new._outputs = tuple(nodes)
        link(graph, new, [mapping[id(n)] for n in expr._inputs], None)
        specs = specs_of(new, new.inputs) if at.other_shapes else None
        for node, spec in zip(nodes, specs or (), strict=False):
            node._spec = spec

    def _qualname(self, node: Node, at: _Entered) -> str:
        """The path of a value: one graph may stand in several places."""
        here = f"{self.graph.qualname}.{at.path}" if at.path else self.graph.qualname
        own, text = at.source.qualname, node._qualname
        return here + text[len(own) :] if own != here and text.startswith(f"{own}.") else text

    def _enter(self, expr: Call, child: InternalGraph, at: _Entered) -> _Entered:
        module_node = expr.inputs[0]
        attribute = module_node.expr.name if isinstance(module_node.expr, GetAttr) else ""
        inner: dict[int, Node] = {id(child.inputs[0]): self.graph._inputs[0]}
        for given, node in zip(expr.inputs[1:], child.inputs[1:], strict=True):
            inner[id(node)] = at.mapping[id(given)]
        names = self._labels(expr, child, at)
        below = ".".join(p for p in (at.path, attribute) if p)
        other = at.other_shapes or any(inner[id(n)].spec != n.spec for n in child.inputs[1:])
        prefix = self.prefixes[id(module_node)]
        return _Entered(child, iter(child._order), inner, prefix, below, names, other, expr)

    def _labels(self, expr: Call, child: InternalGraph, at: _Entered) -> dict[int, Label]:
        """Names of the values that leave a graph: those of the call, or those under which the caller returns them.

        A value of the caller's keeps its name until the call has been copied, so a name that is given on to a graph
        below gets a count where the caller has it too, as in MegEngine.
        """
        names: dict[int, Label] = {}
        for node in expr.outputs:
            label = at.outputs.get(id(node))
            if label is not None:
                free = _free(label.name, at.source._names, at.taken)
                if free != label.name:
                    label = at.outputs[id(node)] = Label(label.prefix, free)
                at.taken.add(free)
            names[id(node)] = label or _label(node, at.prefix, {})
        return {id(o): names[id(n)] for o, n in zip(child.outputs, expr.outputs, strict=True)}


def inlined(call: Call) -> dict[int, Node]:
    """Put what a call of a submodule does in the place of the call, in the graph that makes it.

    Its results keep their names. Other calls of the submodule stay as they are. Returns the values by the ids of
    those of the submodule's graph, and of the results of the call.
    """
    graph, child = call._graph, child_graph(call)
    assert child is not None
    with graph._edit("inline"):
        inside = _Inlined(
            call, child, dict(zip(map(id, child._inputs), (graph._inputs[0], *call._inputs[1:]), strict=True))
        )
        made = [inside.copied(expr) for expr in child._order if not isinstance(expr, Input)]
        pairs = [(old, inside.mapping[id(n)]) for old, n in zip(call._outputs, child._outputs, strict=True)]
        graph.replace_node(dict(pairs))
        names = [(new, old._name) for old, new in pairs if any(new._expr is expr for expr in made)]
        graph.erase(call)
        for node, name in names:
            if graph._names.get(name) is None:
                graph.rename(node, name)
    return {**inside.mapping, **{id(old): new for old, new in pairs}}


class _Inlined:
    """The place of a call, while what its graph does is put there."""

    def __init__(self, call: Call, child: InternalGraph, mapping: dict[int, Any]) -> None:
        self.call, self.child, self.mapping, self.graph = call, child, mapping, call._graph
        self.prefix = call._inputs[0]._name
        self.path = attribute_path(call._inputs[0])  # of the module, below that of the graph
        at = graph_path(self.graph)
        self.where = f"{at}.{self.path}" if at else self.path
        same = all(self.mapping[id(n)].spec == n.spec for n in child._inputs[1:])
        self.other_shapes = not same

    def copied(self, expr: Expr) -> Expr:
        """One expression of the submodule, in front of the call."""
        if isinstance(expr, GetAttr):
            return self._read(expr)
        graph, new = self.graph, expr._copy(self.graph)
        new._id, new.meta = graph._new_expr_id(), meta_at(expr, self.where)
        self._make(new, expr)
        link(graph, new, [self.mapping[id(n)] for n in expr._inputs], self.call)
        specs = specs_of(new, new._inputs) if self.other_shapes else None
        for node, spec in zip(new._outputs, specs or (), strict=False):
            if node._spec != spec:
                assign(graph, node, "_spec", spec)
        return new

    def _read(self, expr: GetAttr) -> Expr:
        graph, path = self.graph, f"{self.path}.{attribute_path(expr.output)}"
        known = (e for e in graph._order if isinstance(e, GetAttr) and attribute_path(e.output) == path)
        new = next((e for e in known if e._key < self.call._key), None)
        if new is None:
            new = GetAttr(graph, graph._new_expr_id(), meta_at(expr, self.where), path)
            self._make(new, expr)
            link(graph, new, (graph._inputs[0],), self.call)
        self.mapping[id(expr.output)] = new.output
        return new

    def _make(self, new: Expr, expr: Expr) -> None:
        graph, nodes, own = self.graph, [], f"{self.child.qualname}."
        for node in expr._outputs:
            name = graph._names.unique(f"{self.prefix}_{node._name}")
            graph._names.take(name, None)  # for the next one; linking gives it to the node
            text = node._qualname
            text = f"{graph.qualname}.{self.path}.{text[len(own) :]}" if text.startswith(own) else text
            nodes.append(graph._make_node(new, node._spec if isinstance(node, TensorNode) else None, name, text))
            self.mapping[id(node)] = nodes[-1]
        new._outputs = tuple(nodes)


def _free(name: str, *taken: Container[str]) -> str:
    """The name, or the first of `base_1`, `base_2`, ... that is in none of these."""
    base, count, free = without_count(name), 0, name
    while any(free in names for names in taken):
        count += 1
        free = f"{base}_{count}"
    return free


def _label(node: Node, prefix: str, outputs: dict[int, Label]) -> Label:
    return outputs.get(id(node)) or Label(prefix, node.name, own=not prefix)
