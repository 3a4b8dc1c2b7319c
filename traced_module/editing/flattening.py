"""Flattening: calls of submodules that are graphs are replaced by what those graphs do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from megengine.traced_module.editing.attaching import own_history, take_in
from megengine.traced_module.editing.checking import specs_of
from megengine.traced_module.editing.expressions import add_input, add_self
from megengine.traced_module.editing.inferring import settle_lengths
from megengine.traced_module.ir.copying import Copier
from megengine.traced_module.ir.expr import Call, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.lookup import attribute_path
from megengine.traced_module.ir.names import without_count
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.primitives import assign, check_former_input, link, number, remove_dead
from megengine.traced_module.ir.provenance import graph_path, meta_at
from megengine.traced_module.ir.queries import child_graph


def flattened(traced: Any, graph: InternalGraph | None = None) -> Any:
    """See `TracedModule.flatten`; of a module with several graphs, `graph` is the one that is flattened."""
    source: InternalGraph = traced.graph if graph is None else graph
    copier = Copier()
    copies = traced._copies(copier, graphs=False)  # what is done to the result is not done to the source
    own = copies[id(traced)]
    uncalled = [g for m in copies.values() for g in m.graphs]  # of submodules: still there, to be called and edited
    own_history(uncalled)
    flat = InternalGraph(source.name, source.qualname, owner=own)
    _Inliner(flat, copier=copier).run(source)
    flat.arguments, flat.out_def = source.arguments, source.out_def
    flat.metadata = dict(source.metadata)
    settle_lengths(flat)
    remove_dead(flat)
    number([flat], flat=True)
    if uncalled:
        take_in(flat, uncalled)
    flat.journal.recording = True
    own._add_graph(flat)
    return own


@dataclass(frozen=True, slots=True)
class Label:
    """The name of a value in a graph, and the prefix of that graph; the outermost one keeps its `own` names."""

    prefix: str
    name: str
    own: bool = False

    def __str__(self) -> str:
        return f"{self.prefix}_{self.name}" if self.prefix else self.name


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
    """Copies what graphs do to the end of a new graph, or in front of a call (`before`), with constants of a copier."""

    def __init__(self, graph: InternalGraph, *, copier: Copier | None = None, before: Expr | None = None) -> None:
        self.graph, self.copier, self.before = graph, copier, before
        self.where = graph_path(graph)
        self.attributes: dict[str, Node] = {}  # what the graph reads already, by paths
        self.prefixes: dict[int, str] = {}  # node of a module that is called -> what names of its values begin with

    def run(self, source: InternalGraph) -> None:
        mapping: dict[int, Any] = {}
        for node in source.inputs:
            if isinstance(node, ModuleNode):
                mapping[id(node)] = add_self(self.graph)
            else:
                mapping[id(node)] = add_input(self.graph, node.name, node.spec, node.qualname)
        names = self.graph.names
        for node in source.nodes(recursive=False):  # the outermost graph keeps its names, whatever comes before
            names.take(node.name, names.get(node.name))
        entered = [_Entered(source, iter(source.exprs(recursive=False)), mapping)]
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
        for name in [name for name in names if names.get(name) is None]:
            names.free(name)
        self.graph._outputs = tuple(mapping[id(n)] for n in source.outputs)

    def _until_call(self, at: _Entered) -> _Entered | None:
        """Copy up to a call that enters a graph, which is given; None at the end."""
        for expr in at.todo:
            child = child_graph(expr) if isinstance(expr, Call) else None
            if isinstance(expr, Call) and child is not None:
                module_node = expr.inputs[0]
                attribute = module_node.expr.name if isinstance(module_node.expr, GetAttr) else ""
                inner: dict[int, Node] = {id(child.inputs[0]): self.graph.inputs[0]}
                for argument, node in zip(expr.inputs[1:], child.inputs[1:], strict=True):
                    inner[id(node)] = at.mapping[id(argument)]
                names = self._labels(expr, child, at)
                below = ".".join(p for p in (at.path, attribute) if p)
                other = at.other_shapes or any(inner[id(n)].spec != n.spec for n in child.inputs[1:])
                prefix = self.prefixes[id(module_node)]
                return _Entered(child, iter(child.exprs(recursive=False)), inner, prefix, below, names, other, expr)
            if isinstance(expr, Input):
                check_former_input(expr)
            else:
                self.copied(expr, at)
        return None

    def copied(self, expr: Expr, at: _Entered) -> Expr:
        """The copy of an expression; of a read that the graph has already, that one."""
        return self._read(expr, at) if isinstance(expr, GetAttr) else self._copy(expr, at)

    def _name(self, label: Label) -> str:
        return label.name if label.own else self.graph.names.unique(str(label))

    def _read(self, expr: GetAttr, at: _Entered) -> Expr:
        node, names = expr.output, self.graph.names
        path = attribute_path(node) if isinstance(expr.inputs[0].expr, GetAttr) else expr.name
        full = f"{at.path}.{path}" if at.path else path
        if full not in self.attributes:
            self.prefixes[id(node)] = self._name(_label(node, at.prefix, {}))
            new = GetAttr(self.graph, self.graph.journal.new_expr_id(), self._meta(expr, at), full)
            self._make(new, [node], at, [self.prefixes[id(node)]])
            link(self.graph, new, (self.graph.inputs[0],), self.before)
            self.attributes[full] = new.output
        elif self.before is None and isinstance(node, ModuleNode):  # as in MegEngine, each copy of a read counts
            name = self.prefixes[id(node)] = self._name(_label(node, at.prefix, {}))
            if getattr(node.owner, "_graphs", None):
                names.take(name, names.get(name))
        at.mapping[id(node)] = self.attributes[full]
        return self.attributes[full].expr

    def _copy(self, expr: Expr, at: _Entered) -> Expr:
        new = expr._copy(self.graph)
        if isinstance(new, Constant) and self.copier is not None:
            new._value = self.copier.of(new._value)
        new._id, new.meta = self.graph.journal.new_expr_id(), self._meta(expr, at)
        self._make(new, expr.outputs, at)
        link(self.graph, new, [at.mapping[id(n)] for n in expr.inputs], self.before)
        specs = specs_of(new, new.inputs) if at.other_shapes else None
        for node, spec in zip(new.outputs, specs or (), strict=False):
            if node.spec != spec:
                assign(self.graph, node, "_spec", spec)
        return new

    def _make(self, new: Expr, nodes: Sequence[Node], at: _Entered, names: Sequence[str] = ()) -> None:
        outputs = []
        for i, node in enumerate(nodes):
            name = names[i] if names else self._name(_label(node, at.prefix, at.outputs))
            self.graph.names.take(name, None)  # for the next one; linking gives it to the node
            spec = node.spec if isinstance(node, TensorNode) else None
            outputs.append(self.graph._make_node(new, spec, name, self._qualname(node, at)))
            if spec is not None:
                outputs[-1].qparams = node.qparams
            at.mapping[id(node)] = outputs[-1]
        new._outputs = tuple(outputs)

    def _meta(self, expr: Expr, at: _Entered) -> dict[str, Any]:
        return meta_at(expr, f"{self.where}.{at.path}" if self.where and at.path else self.where or at.path)

    def _qualname(self, node: Node, at: _Entered) -> str:
        """The path of a value: one graph may stand in several places."""
        here = f"{self.graph.qualname}.{at.path}" if at.path else self.graph.qualname
        own, text = at.source.qualname, node.qualname
        return here + text[len(own) :] if own != here and text.startswith(f"{own}.") else text

    def _labels(self, expr: Call, child: InternalGraph, at: _Entered) -> dict[int, Label]:
        """Names of the values that leave a graph: those of the call, or those under which the caller returns them.

        A value of the caller's keeps its name until the call has been copied, so a name that is given on to a graph
        below gets a count where the caller has it too, as in MegEngine.
        """
        names: dict[int, Label] = {}
        for node in expr.outputs:
            label = at.outputs.get(id(node))
            if label is not None:
                base, count, free = without_count(label.name), 0, label.name
                while free in at.source.names or free in at.taken:
                    count += 1
                    free = f"{base}_{count}"
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
    graph, child = call.top_graph, child_graph(call)
    assert child is not None
    mapping = dict(zip(map(id, child.inputs), (graph.inputs[0], *call.inputs[1:]), strict=True))
    other = any(mapping[id(n)].spec != n.spec for n in child.inputs[1:])
    prefix, path = call.inputs[0].name, attribute_path(call.inputs[0])
    at = _Entered(child, iter(child.exprs(recursive=False)), mapping, prefix, path, other_shapes=other)
    inliner = _Inliner(graph, before=call)
    reads = [e.output for e in graph.exprs(recursive=False) if isinstance(e, GetAttr) and e.comes_before(call)]
    inliner.attributes = {attribute_path(node): node for node in reversed(reads)}
    with graph.journal.transaction("inline"):
        copies = [inliner.copied(expr, at) for expr in at.todo if not isinstance(expr, Input)]
        pairs = [(old, mapping[id(n)]) for old, n in zip(call.outputs, child.outputs, strict=True)]
        graph.replace_node(dict(pairs))
        names = [(new, old.name) for old, new in pairs if any(new.expr is expr for expr in copies)]
        graph.erase(call)
        for node, name in names:
            if graph.names.get(name) is None:
                graph.rename(node, name)
        settle_lengths(graph)
    return {**mapping, **{id(old): new for old, new in pairs}}


def _label(node: Node, prefix: str, outputs: dict[int, Label]) -> Label:
    return outputs.get(id(node)) or Label(prefix, node.name, own=not prefix)
