"""Reads the description of a traced module (`module_writing`). Names in it are looked up, never imported.

Ops are inferred again. Shapes of calls are taken from the file; `graph.lint()` compares them with those of the calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError, brief
from megengine.core.pytree import flatten, unflatten
from megengine.core.spec import TensorSpec
from megengine.tensor import Tensor
from megengine.traced_module.editing.checking import specs_of
from megengine.traced_module.formats.checks import (
    check_attribute,
    check_called,
    check_method,
    check_multipliers,
    check_path,
    qparams_of,
    spec_of,
    tensor_nodes,
)
from megengine.traced_module.formats.module_writing import OWN_STATE, texts
from megengine.traced_module.formats.values import ValueReader, count_in, dtype_in, length_in
from megengine.traced_module.ir.expr import Apply, Call, CallFunction, CallMethod, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.functions import flatten_arguments, function_of
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.lookup import own_node
from megengine.traced_module.ir.names import identifier
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode, get_subattr
from megengine.traced_module.ir.primitives import link, share_history
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.calls import Static
from megengine.traced_module.tracing.specialization import Specialization

_MAX_DEPTH = 100


def rebuild(described: dict[str, Any], arrays: Mapping[str, np.ndarray], allow: Sequence[type]) -> TracedModule:
    """The traced module that graph.json and its arrays describe.

    Raises:
        FileFormatError: unknown names, or parts that do not fit together. Malformed parts also raise KeyError,
            TypeError, ValueError, IndexError, AttributeError, RecursionError and this package's other errors.
    """
    reader = ValueReader(arrays, allow)
    for entry in described["tensors"]:
        reader.add_tensor(entry)
    for entry in described["layers"]:
        reader.add_layer(entry)
    return ModuleReader(reader, described["modules"]).all(described["counters"])


class ModuleReader:
    """Modules, graphs and expressions from their descriptions."""

    def __init__(self, values: ValueReader, entries: list[Any]) -> None:
        self.values, self.entries = values, entries
        self.modules = [TracedModule() for _ in entries]
        self.graphs: list[InternalGraph] = []
        self.targets: dict[int, tuple[Any, int]] = {}  # node of a module -> (the module, how many reads lead to it)

    def all(self, counters: Any) -> TracedModule:
        """The outermost module, whose graphs share one journal and one count of ids."""
        if not self.modules:
            raise FileFormatError("the file holds no module")
        for module, entry in zip(self.modules, self.entries, strict=True):
            self.state(module, entry)
        for module, entry in zip(self.modules, self.entries, strict=True):
            self.fill(module, entry)
        for module, entry in zip(self.modules, self.entries, strict=True):
            self.points(module, entry)
        if not self.modules[0].graphs:
            raise FileFormatError("the outermost module has no graph")
        top = self.modules[0].graphs[0]
        share_history(self.graphs, top)
        # NOTE: a flattened module keeps submodules that it does not call, whose graphs have counts of their own
        next_node, next_expr = map(count_in, counters)
        top.journal.next_node = max(next_node, *(n.id + 1 for n in top.nodes(recursive=False)))
        top.journal.next_expr = max(next_expr, *(e.id + 1 for e in top.exprs(recursive=False)))
        top.journal.recording = True
        return self.modules[0]

    def state(self, module: TracedModule, entry: dict[str, Any]) -> None:
        own = object.__getattribute__(module, "__dict__")
        before = dict(own)
        own.clear()
        for name, described in entry["state"].items():
            is_module = isinstance(described, dict) and list(described) == ["module"]
            value = self.modules[count_in(described["module"])] if is_module else self.values.value(described)
            if name not in before or name in OWN_STATE:
                check_attribute(name)
            elif not isinstance(value, (bool,) if type(before[name]) is bool else (str, type(None))):
                raise FileFormatError(f"{name!r} of a module is {brief(value)}, which is not valid there")
            own[name] = value
        own.update({name: value for name, value in before.items() if name not in own})

    def fill(self, module: TracedModule, entry: dict[str, Any]) -> None:
        if "signature" in entry:
            module.forward_signature = self.signature(entry["signature"])
        module.specializations = tuple(Specialization(*map(str, item)) for item in entry.get("specializations", ()))
        for described in entry.get("graphs", ()):
            before = len(module.graphs)
            module._add_graph(self.graph(described, module))
            if len(module.graphs) == before:
                raise FileFormatError("two graphs of a module take the same arguments")

    def points(self, module: TracedModule, entry: dict[str, Any]) -> None:
        """Watch and end points: nodes of the module, or of the submodule at a place."""
        for key in ("watch_points", "end_points"):
            points = []
            for number, name, *place in entry.get(key, ()):
                owner = self.modules[count_in(place[0])] if place else module
                points.append(own_node(owner.graphs[count_in(number)], name))
            if not all(isinstance(n, TensorNode) for n in points):
                raise FileFormatError(f"{key} of a module hold a node that is no tensor")
            setattr(module, key, points)

    def signature(self, described: list[Any]) -> inspect.Signature:
        kinds = {kind.name: kind for kind in type(inspect.Parameter.POSITIONAL_ONLY)}
        parameters = [
            inspect.Parameter(name, kinds[kind], **({"default": self.values.value(default[0])} if default else {}))
            for name, kind, *default in described
        ]
        return inspect.Signature(parameters)

    # ------------------------------------------------------------ graphs

    def graph(self, described: dict[str, Any], owner: TracedModule | None) -> InternalGraph:
        graph = InternalGraph(str(described["name"]), str(described["qualname"]), owner=owner)
        graph.metadata = texts(described.get("metadata", {}))
        nodes: dict[str, Node] = {}
        self.values.nodes = nodes
        for entry in described["exprs"]:
            self.expr(graph, entry, nodes)
        graph._inputs = tuple(nodes[name] for name in described["inputs"])
        graph._outputs = tensor_nodes([nodes[name] for name in described["outputs"]], graph)
        for name in described.get("reserved", ()):
            if name != identifier(name) or name in nodes:
                raise FileFormatError(f"{brief(name)} is not a name that can be reserved")
            graph.names.take(name, None)
        declared = [n for e in graph.exprs(recursive=False) if isinstance(e, Input) for n in e.outputs]
        late_self = any(isinstance(n, ModuleNode) for n in graph.inputs[1:])
        if set(map(id, declared)) != set(map(id, graph.inputs)) or len(declared) != len(graph.inputs) or late_self:
            raise FileFormatError(f"the inputs of {graph.qualname} are not those of its expressions")
        if not graph.outputs:
            raise FileFormatError(f"{graph.qualname} returns nothing")
        self.nesting(graph, described)
        check_called(graph)
        self.graphs.append(graph)
        return graph

    def nesting(self, graph: InternalGraph, described: dict[str, Any]) -> None:
        if "arguments" in described:
            args, kwargs = self.values.value(described["arguments"])
            inputs, graph.arguments = flatten_arguments(args, kwargs, node_or_none)
            first = [n for n in graph.inputs if not isinstance(n, TensorNode)]
            if not _same(inputs, graph.inputs[len(first) :]):
                raise FileFormatError(f"the arguments of {graph.qualname} are not its inputs")
            graph._inputs = (*first, *inputs)
        if "result" in described:
            nodes, graph.out_def = self.result(described["result"])
            if not _same(nodes, graph.outputs):
                raise FileFormatError(f"the result of {graph.qualname} is not made of its outputs")
            graph._outputs = tuple(nodes)

    def result(self, described: Any) -> tuple[list[Any], Any]:
        leaves, structure = flatten(self.values.value(described))
        if all(isinstance(leaf, Node) for leaf in leaves):
            return leaves, structure
        supply = iter([leaf if isinstance(leaf, Node) else Static(leaf) for leaf in leaves])
        return flatten(unflatten(structure, supply))

    def expr(self, graph: InternalGraph, entry: dict[str, Any], nodes: dict[str, Node]) -> None:
        kind = entry["kind"]
        if kind not in EXPRS:
            raise FileFormatError(f"an expression of the unknown kind {brief(kind)}")
        meta = {k: self.values.value(v) for k, v in entry.get("meta", {}).items()}
        ident = count_in(entry["id"])
        expr, inputs = EXPRS[kind](self, graph, ident, meta, entry)
        expr._disable_remove = entry.get("keep") is True
        outputs = [self.node(graph, expr, item) for item in entry["outputs"]]
        if not outputs:
            raise FileFormatError(f"expression {ident} has no result")
        for node in outputs:
            nodes[node.name] = node
        expr._outputs = tuple(outputs)
        link(graph, expr, inputs, None)
        if isinstance(expr, (Input, GetAttr)):
            self.target(graph, expr)
        elif not all(isinstance(n, TensorNode) for n in outputs):
            raise FileFormatError(f"{expr.name!r} is a module; only attributes and the first input are")
        if isinstance(expr, Call) and "result" in entry:
            results, expr._out_def = self.result(entry["result"])
            if not _same(results, outputs):
                raise FileFormatError(f"the result of {expr.name} is not made of its values")
            expr._outputs = tuple(results)
        elif isinstance(expr, Apply):
            specs, have = specs_of(expr, expr.inputs) or (), [n.spec for n in outputs if isinstance(n, TensorNode)]
            if list(specs) != have:
                texts = (", ".join(map(str, several)) for several in (specs, have))
                raise FileFormatError(f"{expr.name!r} is {next(texts)}; the file states {next(texts)}")
            check_multipliers(expr)

    def node(self, graph: InternalGraph, expr: Expr, item: dict[str, Any]) -> Node:
        name = item["name"]
        if name != identifier(name) or name in graph.names:
            raise FileFormatError(f"{brief(name)} is no name, or names two nodes")
        spec = None
        if "shape" in item:
            spec = spec_of(name, tuple(map(length_in, item["shape"])), dtype_in(item["dtype"]))
            if "device" in item:
                spec = TensorSpec(spec.shape, spec.dtype, str(item["device"]))
        node = graph._make_node(expr, spec, name, str(item["qualname"]))
        node._id = count_in(item["id"])
        if spec is not None and "qparams" in item:
            node.qparams = qparams_of(name, self.values.value(item["qparams"]))
        graph.names.take(name, node)
        return node

    def target(self, graph: InternalGraph, expr: Expr) -> None:
        """Check the node of an input, or of an attribute that is read."""
        (node,) = expr.outputs
        if isinstance(expr, Input):
            value, depth = graph.owner, 0
            if isinstance(node, TensorNode):
                return
            if len(graph.exprs(recursive=False)) > 1:
                raise FileFormatError(f"{node.name!r} is a module; expected it as the first input only")
        else:
            (base,) = expr.inputs
            at, depth = self.targets[id(base)]
            value = get_subattr(at, expr.name)
            if isinstance(node, TensorNode) and (not isinstance(value, Tensor) or value.spec != node.spec):
                kind = value.spec if isinstance(value, Tensor) else type(value).__name__
                raise FileFormatError(f"{node.name!r} reads {expr.name!r}, a {kind}; the file states {node.spec}")
        if depth > _MAX_DEPTH:
            raise FileFormatError(f"{node.name!r} is read through more than {_MAX_DEPTH} other modules")
        self.targets[id(node)] = value, depth + 1

    # ------------------------------------------------------------ expressions

    def input(self, graph: InternalGraph, ident: int, meta: dict, entry: dict[str, Any]) -> Made:
        return Input(graph, ident, meta), []

    def constant(self, graph: InternalGraph, ident: int, meta: dict, entry: dict[str, Any]) -> Made:
        value = self.values.tensors[count_in(entry["value"])]
        (stated,) = entry["outputs"]
        if list(value.shape) != stated.get("shape") or value.dtype != dtype_in(stated["dtype"]):
            raise FileFormatError(f"{brief(stated['name'])} is {value.spec}, which is not what the file states")
        return Constant(graph, ident, meta, value), []

    def get_attr(self, graph: InternalGraph, ident: int, meta: dict, entry: dict[str, Any]) -> Made:
        path = entry["attribute"]
        check_path(path)
        return GetAttr(graph, ident, meta, path), self.inputs(entry)

    def call_method(self, graph: InternalGraph, ident: int, meta: dict, entry: dict[str, Any]) -> Made:
        method = entry["method"]
        inputs, arguments = self.arguments(entry)
        if not inputs or isinstance(inputs[0], ModuleNode) != (method == "__call__"):
            raise FileFormatError(f"expression {ident} calls {brief(method)} of something that has no such method")
        if method != "__call__":
            check_method(method)
        return CallMethod(graph, ident, meta, arguments, method), inputs

    def call_function(self, graph: InternalGraph, ident: int, meta: dict, entry: dict[str, Any]) -> Made:
        function_of(entry["function"])
        inputs, arguments = self.arguments(entry)
        return CallFunction(graph, ident, meta, arguments, entry["function"]), inputs

    def apply(self, graph: InternalGraph, ident: int, meta: dict, entry: dict[str, Any]) -> Made:
        attrs = {k: self.values.value(v) for k, v in entry["attrs"].items()}
        return Apply(graph, ident, meta, str(entry["op"]), attrs), self.inputs(entry)

    def arguments(self, entry: dict[str, Any]) -> tuple[list[Node], Any]:
        """Nodes among the arguments of a call, and the rest."""
        args = [self.values.value(v) for v in entry["args"]]
        kwargs = {k: self.values.value(v) for k, v in entry.get("kwargs", {}).items()}
        return flatten_arguments(args, kwargs, node_or_none)

    def inputs(self, entry: dict[str, Any]) -> list[Node]:
        return [self.values.nodes[name] for name in entry["inputs"]]


Made = tuple[Expr, list[Node]]
EXPRS: dict[str, Callable[[ModuleReader, InternalGraph, int, dict, dict[str, Any]], Made]] = {
    "Input": ModuleReader.input,
    "Constant": ModuleReader.constant,
    "GetAttr": ModuleReader.get_attr,
    "CallMethod": ModuleReader.call_method,
    "CallFunction": ModuleReader.call_function,
    "Apply": ModuleReader.apply,
}


def node_or_none(value: Any) -> Node | None:
    return value if isinstance(value, Node) else None


def _same(nodes: Sequence[Any], stated: Sequence[Any]) -> bool:
    """True for the same nodes in any order: older files order the entries of a dict differently."""
    return sorted(map(id, nodes)) == sorted(map(id, stated))
