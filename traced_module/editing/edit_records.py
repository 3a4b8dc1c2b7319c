"""Primitive changes of graphs as plain data, in the words of native files (`module_writing`)."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError
from megengine.core.pytree import TreeDef, unflatten
from megengine.kernels.cuda.placing import host
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.editing.composites import is_composite
from megengine.traced_module.editing.computed import digest_of
from megengine.traced_module.editing.edit_words import in_words
from megengine.traced_module.formats.module_writing import ModuleWriter, node_out
from megengine.traced_module.formats.values import ValueWriter, class_path, dtype_out
from megengine.traced_module.ir.expr import Apply, Call, Constant, Expr
from megengine.traced_module.ir.functions import Arguments, unflatten_arguments
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.journal import Journal, Origin
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.primitives import Nodes, Places, difference
from megengine.traced_module.traced import TracedModule

Address = list[Any]  # [path of the module, which of its graphs]


def addresses_of(top: InternalGraph) -> dict[int, tuple[Address, InternalGraph]]:
    """How the graphs of a traced module are named in a log: by the path of their module and their place in it."""
    addresses: dict[int, tuple[Address, InternalGraph]] = {}
    todo: list[tuple[str, Any]] = [("", top.owner)]
    seen: set[int] = set()
    while todo:
        path, module = todo.pop()
        if not isinstance(module, TracedModule) or id(module) in seen:
            continue  # the outermost one of a graph of ops is None
        seen.add(id(module))
        for i, graph in enumerate(module.graphs):
            if graph.journal is top.journal:
                addresses.setdefault(id(graph), ([path, i], graph))
        entries = object.__getattribute__(module, "__dict__").items()
        below = [(f"{path}.{k}" if path else k, v) for k, v in entries if issubclass(type(v), TracedModule)]
        todo += reversed(below)
    addresses[id(top)] = _address_of_top(top), top
    return addresses


def _address_of_top(top: InternalGraph) -> Address:
    graphs = top.owner.graphs if isinstance(top.owner, TracedModule) else ()
    # of ops, or a copy that its module does not hold: as if it were the first
    return ["", next((i for i, graph in enumerate(graphs) if graph is top), 0)]


def parts_of(module: Any) -> dict[int, tuple[Any, str]]:
    """Layers and tensors of a traced module: id -> the object and the path at which it is met first."""
    parts: dict[int, tuple[Any, str]] = {}
    todo: list[tuple[str, Any]] = [("", module)]
    while todo:
        path, at = todo.pop()
        if id(at) in parts:
            continue
        parts[id(at)] = at, path
        if isinstance(at, Module):
            entries = object.__getattribute__(at, "__dict__").items()
            below = [(f"{path}.{k}" if path else k, v) for k, v in entries if isinstance(v, (Module, Tensor))]
            # what was set and is not traced yet is in no log
            todo += reversed([p for p in below if not (isinstance(at, TracedModule) and is_composite(p[1]))])
    return {key: each for key, each in parts.items() if not isinstance(each[0], TracedModule)}


def weights_of(top: InternalGraph) -> list[tuple[str, np.ndarray]]:
    if top.of_calls:
        weights = (
            (path, host(part._storage())) for part, path in parts_of(top.owner).values() if isinstance(part, Tensor)
        )
    else:
        weights = ((e.name, host(e.value._storage())) for e in top.exprs(recursive=False) if isinstance(e, Constant))
    return sorted(weights, key=lambda pair: pair[0])


_PLAIN = frozenset((int, float, bool, str, type(None)))


class _Call:
    """What a call is when it is put in, and the names that nodes have then."""

    __slots__ = ("expr", "ident", "inputs", "kept", "outputs", "own", "qualname")

    def __init__(self, expr: Call) -> None:
        self.qualname = expr.top_graph.qualname
        self.expr, self.ident, self.kept = expr, expr.id, expr.kept
        self.own = [getattr(expr, name) for name in expr._own]
        self.inputs = [n.name for n in expr.inputs]
        self.outputs = [(n.id, n.name, n.qualname, n.spec) for n in expr.outputs]

    def restored(self) -> Call:
        """The call with nodes of those names."""
        graph = self.expr.top_graph
        expr: Any = self.expr._copy(graph)
        expr._id, expr._disable_remove = self.ident, self.kept
        for name, value in zip(expr._own, self.own, strict=True):
            setattr(expr, name, value)
        expr._inputs = tuple([Node(graph, 0, name, "", expr) for name in self.inputs])
        outputs = [TensorNode(graph, ident, name, qualname, expr, spec) for ident, name, qualname, spec in self.outputs]
        expr._outputs = tuple(outputs)
        return expr


def _is_fixed(expr: Call) -> bool:
    """True unless one of the constants among the arguments of a call can change."""
    for _, value in expr._const_val:  # noqa: SIM110 (asked of every call that is inserted)
        if type(value) not in _PLAIN:
            return False
    return True


class Recorder:
    """The changes of one transaction.

    A description holds the names at the time of the change, as nodes may be renamed later. The provenance of new
    expressions is complete when the transaction ends, and is described then.
    """

    def __init__(self, journal: Journal, origins: dict[int, tuple[Any, Origin]]) -> None:
        self.addresses, self.running, self.origins = journal.addresses, journal.running, origins
        self._edits: list[dict[str, Any]] = []
        self._model: dict[int, tuple[Any, str]] | None = None  # layers and tensors that the model has -> path
        # the expressions that were put in: the edit, where they come from when the transaction ends, what they are
        self._linked: list[tuple[dict[str, Any], dict[str, Any], _Call | None]] = []
        # the first edit that puts in what a pass computed in a way that is not known, and the model's weights then
        self._baked: tuple[dict[str, Any], list[tuple[str, np.ndarray]]] | None = None

    @functools.cached_property
    def writer(self) -> ModuleWriter:
        return ModuleWriter(ValueWriter(self._known))

    @property
    def edits(self) -> list[dict[str, Any]]:
        """The changes as JSON. Calls are described when they are asked for: few of them ever are."""
        for edit, meta, call in self._linked:
            try:
                described = edit["expr"] if call is None else self.writer.without_meta(call.restored(), call.qualname)
                described["meta"] = self.writer.meta(meta, described["outputs"][0]["name"])
                edit["expr"] = described
            except FileFormatError as exc:
                edit.clear()
                edit.update(do="unknown", why=str(exc))
        self._linked.clear()
        if self._baked is not None and "weights" not in self._baked[0]:
            self._baked[0]["weights"] = digest_of(self._baked[1])
            self._baked = self._baked[0], []
        return self._edits

    def note(self, what: str, *args: Any) -> None:
        """Describe a change: `what` is a method below. For one that cannot be described saving raises."""
        held = self._arrays()
        try:
            edit = getattr(self, what)(*args)
        except FileFormatError as exc:
            edit = {"do": "unknown", "why": str(exc)}
        if edit is not None:
            self._edits.append(edit)
            if self.running and self._arrays() > held and self._baked is None:
                edit["computed_by"] = self.running[-1]
                self._baked = edit, weights_of(args[0].top)

    def _arrays(self) -> int:
        return len(self.writer.values.arrays) if "writer" in self.__dict__ else 0

    @property
    def size(self) -> tuple[int, int]:
        """How many changes there are, and how many of them put expressions in."""
        return len(self._edits), len(self._linked)

    def forget_since(self, size: tuple[int, int]) -> None:
        """Changes that were taken back do not count."""
        del self._edits[size[0] :], self._linked[size[1] :]
        if self._baked is not None and not any(edit is self._baked[0] for edit in self._edits):
            self._baked = None

    def in_words(self, start: int, end: int | None) -> str:
        return in_words(self.edits[start:end])

    def close(self) -> None:
        self._linked = [(edit, meta.copy(), call) for edit, meta, call in self._linked]

    def _at(self, graph: InternalGraph) -> Address:
        if graph is graph.top and id(graph) not in self.addresses:  # no need to look at all modules
            self.addresses[id(graph)] = _address_of_top(graph), graph
        elif id(graph) not in self.addresses:
            self.addresses.update(addresses_of(graph.top))
        if id(graph) not in self.addresses:
            raise FileFormatError(f"{graph.qualname} is no graph of the traced module that is edited")
        return self.addresses[id(graph)][0]

    def nothing(self) -> None:
        """A part of another change."""

    def link(self, graph: InternalGraph, expr: Expr, before: Expr | None) -> dict[str, Any]:
        place = None if before is None else expr_name(before)
        call = _Call(expr) if isinstance(expr, Call) and _is_fixed(expr) else None
        described = None if call is not None else self.writer.without_meta(expr, graph.qualname)
        edit = {"do": "link", "graph": self._at(graph), "before": place, "expr": described}
        self._linked.append((edit, expr.meta, call))
        return edit

    def unlink(self, graph: InternalGraph, expr: Expr) -> dict[str, Any]:
        return {"do": "unlink", "graph": self._at(graph), "expr": expr_name(expr), "was": expr.described()}

    def use(self, graph: InternalGraph, expr: Expr, places: Places, old: Nodes, new: Nodes) -> dict[str, Any]:
        return {
            "do": "use",
            "graph": self._at(graph),
            "expr": expr_name(expr),
            **_exchanged_names("inputs", places, old, new),
        }

    def outputs(self, graph: InternalGraph, places: Places, old: Nodes, new: Nodes) -> dict[str, Any]:
        return {"do": "outputs", "graph": self._at(graph), **_exchanged_names("nodes", places, old, new)}

    def arguments(
        self, graph: InternalGraph, expr: Call, inputs: Sequence[Node], arguments: Arguments
    ) -> dict[str, Any]:
        args, kwargs = self._call(inputs, arguments, expr.name)
        place = {"graph": self._at(graph), "expr": expr_name(expr), "was": expr.described()}
        return {"do": "arguments", **place, "args": args, "kwargs": kwargs}

    def _call(self, inputs: Sequence[Any], arguments: Arguments, where: str) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = unflatten_arguments(arguments, inputs)
        value = self.writer.values.value
        return [value(v, where) for v in args], {k: value(v, f"{where}.{k}") for k, v in kwargs.items()}

    def results(self, graph: InternalGraph, call: Call, nodes: Nodes, out_def: TreeDef | None) -> dict[str, Any]:
        edit = {"do": "results", "graph": self._at(graph), "expr": expr_name(call)}
        edit |= {"was": [n.name for n in call.outputs], "outputs": list(map(node_out, nodes))}
        if out_def is not None:
            edit["value"] = self.writer.values.value(unflatten(out_def, nodes), call.name)
        return edit

    def rename(self, graph: InternalGraph, node: Node, new: str) -> dict[str, Any]:
        return {"do": "rename", "graph": self._at(graph), "node": node.name, "new": new}

    def module(self, graph: InternalGraph, node: ModuleNode, path: str, was: Any, value: Any) -> dict[str, Any]:
        place = {"graph": self._at(graph), "node": node.name, "path": path}
        self._look(graph)
        old = None if was is None else class_path(was)
        edit = {"do": "module", **place, "was": old}
        if isinstance(value, TracedModule):
            writer = ModuleWriter(self.writer.values)
            return {**edit, "traced": [json.loads(text) for text in writer.all(value)]}
        return {**edit, "value": self.writer.values.value(value, path)}

    def setting(self, graph: InternalGraph, node: ModuleNode, layer: Module, name: str, value: Any) -> dict[str, Any]:
        inner = next(path for path, module in node.owner.named_modules() if module is layer)
        out = self.writer.values.value
        old = object.__getattribute__(layer, "__dict__")[name]
        was = class_path(old) if isinstance(old, (Module, Tensor)) else out(old, name)
        place = {"graph": self._at(graph), "node": node.name, "inner": inner, "name": name}
        return {"do": "setting", **place, "was": was, "value": out(value, name)}

    def drop(self, graph: InternalGraph, path: str, name: str, value: Any) -> dict[str, Any]:
        self._look(graph)
        return {"do": "drop", "graph": self._at(graph), "path": path, "name": name, "was": class_path(value)}

    def forget(self, graph: InternalGraph) -> dict[str, Any]:
        return {"do": "forget", "graph": self._at(graph)}

    def _look(self, graph: InternalGraph) -> None:
        """See what the model has before layers of it are exchanged."""
        if self._model is None:
            self._model = parts_of(graph.top.owner)

    def _known(self, value: Any, where: str) -> dict[str, Any] | None:
        if self._model is not None and id(value) in self._model:
            return {"model": self._model[id(value)][1]}
        if id(value) not in self.origins:
            return None
        _, origin = self.origins[id(value)]
        arguments = [self.writer.values.value(v, f"{where}.{i}") for i, v in enumerate(origin.given)]
        return {"computed": origin.function, "given": arguments, "index": origin.index}

    def owner(self, graph: InternalGraph) -> dict[str, Any]:
        return {"do": "owner", "graph": self._at(graph)}

    def set(self, graph: InternalGraph, target: Any, attribute: str, value: Any) -> dict[str, Any]:
        place: dict[str, Any] = {"graph": self._at(graph)}
        if isinstance(target, TensorNode):
            device = {"device": value.device} if value.device != target.spec.device else {}
            spec = {"shape": list(value.shape), "dtype": dtype_out(value.dtype), **device}
            return {"do": "spec", **place, "node": target.name, "was": str(target.spec), **spec}
        if isinstance(target, Expr):
            place["expr"] = expr_name(target)
            values = {k: self.writer.values.value(v, f"{target.name}.{k}") for k, v in value.items()}
            if attribute == "_attrs" and isinstance(target, Apply):
                return {"do": "attrs", **place, "was": target.described(), "attrs": values}
            return {"do": "meta", **place, "meta": values}
        if attribute in ("_inputs", "_outputs"):
            return {
                "do": attribute[1:],
                **place,
                **_exchanged_names("nodes", *difference(getattr(target, attribute), value)),
            }
        if attribute == "arguments":
            tensors = [n for n in target.inputs if isinstance(n, TensorNode)]
            args, kwargs = self._call(tensors, value, target.name)
            return {"do": "call", **place, "args": args, "kwargs": kwargs}
        nested = None if value is None else self.writer.values.value(unflatten(value, target.outputs), target.name)
        return {"do": "result", **place, "value": nested}


def _exchanged_names(key: str, places: Places, old: Nodes, new: Nodes) -> dict[str, Any]:
    names = {"was": [n.name for n in old], key: [n.name for n in new]}
    return names if places is None else {"places": places, **names}


def expr_name(expr: Expr) -> str:
    """How logs name an expression: as the first value it makes."""
    return expr.outputs[0].name


@dataclass(frozen=True)
class EditStep:
    """One transaction.

    Attributes:
        what: the name of the edit or the pass ("replace_node", "FuseConvBn").
        before, after: (nodes, expressions) counted before and after it.
        edits: its changes, as JSON.
        tensors, layers: descriptions of tensors and layers that the changes refer to by their places.
        arrays: their values by name.
    """

    what: str
    before: tuple[int, int]
    after: tuple[int, int]
    edits: list[dict[str, Any]] = field(repr=False)
    tensors: list[dict[str, Any]] = field(repr=False)
    layers: list[dict[str, Any]] = field(repr=False)
    arrays: dict[str, np.ndarray] = field(repr=False)

    def to_text(self) -> str:
        words = in_words(self.edits)
        return f"{self.what}: {words}" if words else self.what
