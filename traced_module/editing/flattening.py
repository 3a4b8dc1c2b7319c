"""Flattening: calls of submodules that are graphs are replaced by what those graphs do."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any

from megengine.traced_module.copying import Copier
from megengine.traced_module.editing.attaching import take_in
from megengine.traced_module.expr import Call, Constant, Expr, GetAttr, Input
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.names import without_count
from megengine.traced_module.node import ModuleNode, Node, TensorNode
from megengine.traced_module.order import renumber
from megengine.traced_module.provenance import meta_at
from megengine.traced_module.queries import child_graph


def flattened(traced: Any, graph: InternalGraph | None = None) -> Any:
    """See `TracedModule.flatten`; of a module with several graphs, `graph` is the one that is flattened."""
    from megengine.traced_module.traced import own_history

    source: InternalGraph = traced.graph if graph is None else graph
    copier = Copier()
    copies = traced._copies(copier, graphs=False)  # what is done to the result is not done to the source
    made = copies[id(traced)]
    uncalled = [g for m in copies.values() for g in m.graphs]  # of submodules: still there, to be called and edited
    own_history(uncalled)
    flat = InternalGraph(source.name, source.qualname, owner=made)
    _Inliner(flat, copier).run(source)
    flat.arguments, flat.out_def = source.arguments, source.out_def
    flat.remove_dead()
    renumber(flat, flat=True)
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
    mapping: dict[int, Node]  # its nodes -> those of the copy
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
        mapping: dict[int, Node] = {}
        for node in source.inputs:
            if isinstance(node, ModuleNode):
                mapping[id(node)] = self.graph.add_self()
            else:
                mapping[id(node)] = self.graph.add_input(node.name, node.spec, node.qualname)
        names = self.graph._names
        for node in source.nodes(recursive=False):  # the outermost graph keeps its names, whatever comes before
            names.take(node.name, names.get(node.name))
        self._body(source, mapping)
        for name in [name for name in names if names.get(name) is None]:
            names.free(name)
        self.graph._outputs = tuple(mapping[id(n)] for n in source.outputs)  # type: ignore[assignment]

    def _body(self, source: InternalGraph, mapping: dict[int, Node]) -> None:
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
            self.graph._link(new, (self.graph._inputs[0],), None)
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
        graph._link(new, [mapping[id(n)] for n in expr._inputs], None)
        specs = graph._specs_of(new, new.inputs) if at.other_shapes else None
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
        other = at.other_shapes or any(inner[id(n)].spec != n.spec for n in child.inputs[1:])  # type: ignore[attr-defined]
        prefix = self.prefixes[id(module_node)]
        return _Entered(child, iter(child._order), inner, prefix, below, names, other, expr)

    def _labels(self, expr: Call, child: InternalGraph, at: _Entered) -> dict[int, Label]:
        """What values that leave a graph are called: like those of the call, or like those that the caller gives on.

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


def _free(name: str, *taken: Container[str]) -> str:
    """The name, or the first of `base_1`, `base_2`, ... that is in none of these."""
    base, count, free = without_count(name), 0, name
    while any(free in names for names in taken):
        count += 1
        free = f"{base}_{count}"
    return free


def _label(node: Node, prefix: str, outputs: dict[int, Label]) -> Label:
    return outputs.get(id(node)) or Label(prefix, node.name, own=not prefix)
