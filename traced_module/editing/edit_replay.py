"""Doing again what a log says, on another copy of the model: every change is checked against what it was made for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError, GraphError, MegEngineError, brief
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.editing.attaching import attribute_at, join
from megengine.traced_module.editing.checking import check_before, check_kinds, check_same
from megengine.traced_module.editing.computed import digest_of, made_again
from megengine.traced_module.editing.edit_records import EditStep, addresses_of, weights_of
from megengine.traced_module.editing.ends import own_call
from megengine.traced_module.editing.expressions import rename_node
from megengine.traced_module.editing.inferring import note_entry
from megengine.traced_module.editing.parts import put_attribute
from megengine.traced_module.editing.rewiring import set_call
from megengine.traced_module.formats.module_reading import EXPRS, ModuleReader, check_attribute, check_path, count_in
from megengine.traced_module.formats.values import ValueReader, class_path, dtype_in
from megengine.traced_module.ir.expr import Apply, Call, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.functions import flatten_arguments
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.journal import Origin
from megengine.traced_module.ir.lookup import own_node
from megengine.traced_module.ir.names import identifier
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode, get_subattr, module_of
from megengine.traced_module.ir.primitives import (
    assign,
    drop_attribute,
    forget_graphs,
    give_results,
    is_among,
    link,
    unlink,
    use_nodes,
    with_nodes,
)
from megengine.traced_module.ir.queries import child_graph, graphs_of, is_reached
from megengine.traced_module.traced import TracedModule


class _NodesOf:
    """The nodes of a graph by name, as they are at the time."""

    def __init__(self, graph: InternalGraph) -> None:
        self.graph = graph

    def __getitem__(self, name: str) -> Node:
        if not isinstance(name, str):
            raise FileFormatError(f"{brief(name)} where the name of a node was expected")
        return own_node(self.graph, name)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A tensor or layer that is computed from others when an edit uses it."""

    values: ValueReader
    entry: Mapping[str, Any]
    expected: type

    def made(self) -> Any:
        arguments = tuple([self.values.value(v) for v in self.entry["given"]])
        results = made_again(Origin(self.entry["computed"], arguments, self.entry["index"]))
        if not isinstance(results, self.expected) or isinstance(results, TracedModule):
            raise FileFormatError(f"{self.entry['computed']} gives a {type(results).__name__}")
        return results


class _Made(list[Any]):
    """Tensors or layers of a step."""

    def __getitem__(self, place: Any) -> Any:
        part = super().__getitem__(place)
        if isinstance(part, _Pending):
            part = self[place] = part.made()
        return part


class Replay:
    """Performs the steps of a log on a traced module."""

    def __init__(self, top: InternalGraph, allow: Sequence[type]) -> None:
        self.top, self.allow = top, allow
        self.done: list[ValueReader] = []  # tensors and layers of the steps before
        self.look()

    def look(self) -> None:
        self.graphs = {tuple(address): graph for address, graph in addresses_of(self.top).values()}

    def step(self, step: EditStep) -> None:
        """One step as one transaction. Raises what its first change that does not fit raises."""
        values = ValueReader({name: np.array(array) for name, array in step.arrays.items()}, self.allow)
        values.tensors, values.layers = _Made(), _Made()
        for entry in step.tensors:
            self._add(values, entry, "tensors", Tensor) or values.add_tensor(entry)
        for entry in step.layers:
            self._add(values, entry, "layers", Module) or values.add_layer(entry)
        self.done.append(values)
        with self.top.journal.transaction(step.what):
            changes = _Changes(self, values, step)
            for edit in step.edits:
                changes.perform(edit)
            changes.finish()

    def _add(self, values: ValueReader, entry: Mapping[str, Any], kind: str, expected: type) -> bool:
        """Take a tensor or layer that is there already; False if the entry describes a new one."""
        if "same" in entry:
            step, place = map(count_in, entry["same"])
            part = getattr(self.done[step], kind)[place]
        elif "model" in entry:
            check_path(entry["model"])
            part = get_subattr(self.top.owner, entry["model"])
        elif "computed" in entry:
            getattr(values, kind).append(_Pending(values, entry, expected))
            return True
        else:
            return False
        if not isinstance(part, expected) or isinstance(part, TracedModule):
            raise GraphError(f"{brief(dict(entry))} is a {type(part).__name__}; expected a {expected.__name__}")
        getattr(values, kind).append(part)
        return True

    def graph(self, address: Any) -> InternalGraph:
        path, index = address
        graph = self.graphs.get((path, index))
        if graph is None:
            raise GraphError(f"the model has no graph {index} in its module {path or 'top'!r}")
        return graph


def _check(expr: Expr) -> None:
    """Raises what makes an expression impossible; in a graph that nothing calls it may be, as in the session."""
    try:
        check_same(expr, expr.inputs)
    except MegEngineError:
        if is_reached(expr):
            raise


class _Changes:
    """The changes of one step."""

    def __init__(self, replay: Replay, values: ValueReader, step: EditStep) -> None:
        self.replay, self.values, self.after = replay, values, step
        self.reader = ModuleReader(values, [])
        journal = replay.top.journal
        # ids count from where the model is, so that they are those of the session on a model that it began with
        self.shift = (journal.next_node - step.before[0], journal.next_expr - step.before[1])
        self.touched: dict[int, Expr] = {}

    def perform(self, edit: Mapping[str, Any]) -> None:
        do = edit["do"]
        if do not in _CHANGES:
            raise FileFormatError(f"a change of the unknown kind {brief(do)}")
        if "weights" in edit and digest_of(weights_of(self.replay.top)) != edit["weights"]:
            raise GraphError(
                f"{brief(edit.get('computed_by'))} put in values that it computed from the weights of the model, and "
                "this model has others; run it on this model instead"
            )
        graph = self.replay.graph(edit["graph"])
        self.values.nodes = _NodesOf(graph)  # type: ignore[assignment]  # reads names as the dict does
        _CHANGES[do](self, graph, edit)

    def finish(self) -> None:
        """Check what was touched, and count on as the session did."""
        for expr in self.touched.values():
            if expr.in_graph:
                _check(expr)
                note_entry(expr)
        journal = self.replay.top.journal
        journal.next_node = max(journal.next_node, self.after.after[0] + self.shift[0])
        journal.next_expr = max(journal.next_expr, self.after.after[1] + self.shift[1])

    def node(self, name: Any) -> Any:
        return self.values.nodes[name]

    def nodes(self, names: Any) -> list[Any]:
        return [self.node(name) for name in names]

    def expr(self, edit: Mapping[str, Any], kind: type[Expr] = Expr) -> Any:
        """The expression of a change, which must read as it did."""
        expr = self.node(edit["expr"]).expr
        if not isinstance(expr, kind):
            raise GraphError(f"{expr!r} is a {expr.kind}; expected a {kind.__name__}")
        if isinstance(edit.get("was"), str):
            _expect(f"the expression {edit['expr']!r}", expr.described(), edit["was"])
        return expr

    def link(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        entry = edit["expr"]
        kind = entry["kind"]
        if kind not in EXPRS:
            raise FileFormatError(f"an expression of the unknown kind {brief(kind)}")
        meta = {k: self.values.value(v) for k, v in entry.get("meta", {}).items()}
        expr, inputs = EXPRS[kind](self.reader, graph, count_in(entry["id"]) + self.shift[1], meta, entry)
        before = None if edit["before"] is None else self.node(edit["before"]).expr
        check_before(f"the new {kind}", inputs, before)
        expr._disable_remove = entry.get("keep") is True
        outputs = [self._made(graph, expr, item) for item in entry["outputs"]]
        if not outputs:
            raise FileFormatError(f"an expression of the kind {kind} makes no value")
        expr._outputs = tuple(outputs)
        if not isinstance(expr, GetAttr) and not all(isinstance(n, TensorNode) for n in outputs):
            raise FileFormatError(f"{outputs[0].name!r} is a module; only attributes are")
        if isinstance(expr, Call) and "result" in entry:
            results, expr._out_def = self.reader.result(entry["result"])
            if list(map(id, results)) != list(map(id, outputs)):
                raise FileFormatError(f"the result of {outputs[0].name} is not made of its values in order")
        link(graph, expr, inputs, before)
        if isinstance(expr, GetAttr):
            node = expr.output
            attribute = module_of(node)
            if isinstance(node, TensorNode):
                if not isinstance(attribute, Tensor) or attribute.spec != node.spec:
                    kind = attribute.spec if isinstance(attribute, Tensor) else type(attribute).__name__
                    raise GraphError(f"{node.name!r} reads {expr.name!r}, a {kind}; expected {node.spec}")
            elif not isinstance(attribute, Module):
                raise GraphError(f"{node.name!r} reads {expr.name!r}, a {type(attribute).__name__}; expected a module")
        self._touch(expr)

    def _made(self, graph: InternalGraph, expr: Expr, item: Mapping[str, Any]) -> Node:
        name = item["name"]
        if graph.names.get(name) is not None:
            raise GraphError(f"the graph has a node {name!r} already")
        graph.names.free(name)  # it may be one that counts without a node
        return self.reader.node(graph, expr, {**item, "id": count_in(item["id"]) + self.shift[0]})

    def _touch(self, expr: Expr) -> None:
        if not isinstance(expr, (Input, Constant, GetAttr)):
            self.touched[id(expr)] = expr

    def unlink(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        expr = self.expr(edit)
        if used := [n.name for n in expr.outputs if n.users]:
            raise GraphError(
                f"{used[0]!r} is still used by {', '.join(u.name for u in own_node(graph, used[0]).users)}"
            )
        unlink(graph, expr)

    def use(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        expr = self.expr(edit)
        inputs = self._exchanged(f"the operands of {edit['expr']!r}", expr.inputs, edit, "inputs")
        if len(inputs) != len(expr.inputs):
            raise FileFormatError(
                f"{edit['expr']!r} has {counted(len(expr.inputs), 'operand')}, the log gives {len(inputs)}"
            )
        check_kinds("use", expr.inputs, inputs)
        check_before("use", inputs, expr)
        use_nodes(graph, expr, inputs)
        self._touch(expr)

    def _exchanged(self, what: str, old: Sequence[Node], edit: Mapping[str, Any], key: str) -> tuple[Node, ...]:
        """The nodes after an exchange at some places, or of all; those before it must be as they were."""
        new = self.nodes(edit[key])
        places = range(len(old)) if "places" not in edit else list(map(count_in, edit["places"]))
        if "places" in edit and not (len(places) == len(new) and max(places, default=-1) < len(old)):
            raise FileFormatError(
                f"{what}: {counted(len(new), 'node')} for the places {_shown(edit['places'])} of {len(old)}"
            )
        _expect(what, [old[i].name for i in places], list(edit["was"]))
        return with_nodes(tuple(old), list(places) if "places" in edit else None, new)

    def arguments(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        expr = self.expr(edit, Call)
        inputs, arguments = self.reader.arguments(dict(edit))
        if expr.inputs and isinstance(expr.inputs[0], ModuleNode) and (not inputs or inputs[0] is not expr.inputs[0]):
            raise GraphError(f"{expr!r}: the module that is called cannot be replaced by an argument")
        check_before("arguments", inputs, expr)
        set_call(expr, inputs, arguments)
        self._touch(expr)

    def results(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        expr = self.expr(edit, Call)
        _expect(f"the results of {edit['expr']!r}", [n.name for n in expr.outputs], list(edit["was"]))
        have = {n.name: n for n in expr.outputs}
        wanted = {item["name"] for item in edit["outputs"]}
        dropped = [n for n in expr.outputs if n.name not in wanted]
        if used := [n.name for n in dropped if n.users or is_among(n, graph.outputs)]:
            raise GraphError(f"{used[0]!r} is still used")
        outputs = [have.get(item["name"]) or self._made(graph, expr, item) for item in edit["outputs"]]
        structure = None
        if not outputs or not all(isinstance(n, TensorNode) for n in outputs):
            raise FileFormatError(f"a call makes tensors, one or more; the log gives {counted(len(outputs), 'result')}")
        if "value" in edit:
            leaves, structure = self.reader.result(edit["value"])
            if list(map(id, leaves)) != list(map(id, outputs)):
                raise FileFormatError(f"the result of {edit['expr']} is not made of its values in order")
        give_results(graph, expr, outputs, structure)
        self._touch(expr)

    def attrs(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        expr = self.expr(edit, Apply)
        new = {k: self.values.value(v) for k, v in edit["attrs"].items()}
        assign(graph, expr, "_attrs", MappingProxyType(new))
        self._touch(expr)

    def meta(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        assign(graph, self.expr(edit), "meta", {k: self.values.value(v) for k, v in edit["meta"].items()})

    def rename(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        node, new = self.node(edit["node"]), edit["new"]
        if new != identifier(new):
            raise FileFormatError(f"{brief(new)} is no name")
        if graph.names.get(new) is not None and graph.names.get(new) is not node:
            raise GraphError(f"the graph has a node {new!r} already")
        rename_node(graph, node, new)

    def spec(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        node = self.node(edit["node"])
        if not isinstance(node, TensorNode):
            raise GraphError(f"{node.name!r} is a module and has no shape")
        _expect(f"{node.name!r}", str(node.spec), edit["was"])
        device = str(edit.get("device", node.spec.device))
        spec = TensorSpec(tuple(map(count_in, edit["shape"])), dtype_in(edit["dtype"]), device)
        assign(graph, node, "_spec", spec)
        self._touch(node.expr)

    def inputs(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        self._interface(graph, "_inputs", edit)
        if any(not isinstance(n.expr, Input) for n in graph.inputs):
            raise FileFormatError("an input is made by something else than an Input")

    def outputs(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        self._interface(graph, "_outputs", edit)
        if not all(isinstance(n, TensorNode) for n in graph.outputs):
            raise FileFormatError("an output is a module")

    def _interface(self, graph: InternalGraph, attribute: str, edit: Mapping[str, Any]) -> None:
        nodes = self._exchanged(f"the {attribute[1:]}", getattr(graph, attribute), edit, "nodes")
        assign(graph, graph, attribute, nodes)

    def call(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        inputs, arguments = flatten_arguments(
            [self.values.value(v) for v in edit["args"]],
            {k: self.values.value(v) for k, v in edit["kwargs"].items()},
            lambda v: v if isinstance(v, Node) else None,
        )
        if list(map(id, inputs)) != [id(n) for n in graph.inputs if isinstance(n, TensorNode)]:
            raise FileFormatError(f"the arguments of {graph.qualname} are not its inputs in order")
        assign(graph, graph, "arguments", arguments)

    def result(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        structure = None
        if edit["value"] is not None:
            nodes, structure = self.reader.result(edit["value"])
            if list(map(id, nodes)) != list(map(id, graph.outputs)):
                raise FileFormatError(f"the result of {graph.qualname} is not made of its outputs in order")
        assign(graph, graph, "out_def", structure)

    def owner(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        own_call(graph)

    def module(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        node, path = self.node(edit["node"]), edit["path"]
        value = self._traced(graph, edit["traced"]) if "traced" in edit else self.values.value(edit["value"])
        if not isinstance(node, ModuleNode) or not isinstance(value, (Module, Tensor)):
            raise FileFormatError(f"{brief(path)}: a {type(value).__name__} where a layer or tensor was expected")
        check_path(path)
        _, _, was = attribute_at(node, path)
        _expect(f"the attribute {path!r}", None if was is None else class_path(was), edit["was"])
        put_attribute(graph, node, path, value)
        self.replay.look()  # with a traced module come graphs, and may go

    def setting(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        node, name = self.node(edit["node"]), edit["name"]
        layers = dict(node.owner.named_modules()) if isinstance(node, ModuleNode) else {}
        layer = layers.get(edit["inner"])
        check_attribute(name)
        state = {} if layer is None else object.__getattribute__(layer, "__dict__")
        if name not in state or isinstance(layer, TracedModule):
            raise GraphError(f"{edit['node']!r} has no layer {brief(edit['inner'])} with a setting {brief(name)}")
        value, old = self.values.value(edit["value"]), state.get(name)
        part = next((kind for kind in (Module, Tensor) if isinstance(old, kind)), None)
        if isinstance(value, (Module, Tensor, Node)) and not (part and isinstance(value, part)):
            raise FileFormatError(f"{brief(name)} is a {type(value).__name__}; expected another kind of value")
        if part is None:
            _expect(f"{name!r} of {edit['node']!r}", old, self.values.value(edit["was"]))
        else:
            _expect(f"{name!r} of {edit['node']!r}", class_path(old), edit["was"])
        assign(graph, layer, name, value, ("setting", graph, node, layer, name, value))
        for user in node.users:
            self._touch(user)

    def drop(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        path, name = edit["path"], edit["name"]
        check_path(f"{path}.{name}" if path else name)
        holder = get_subattr(graph.owner, path) if path else graph.owner
        if not isinstance(holder, TracedModule):
            raise GraphError(f"{path!r} is a {type(holder).__name__}; expected a traced module")
        was = object.__getattribute__(holder, "__dict__").get(name)
        _expect(f"the attribute {name!r} of {path!r}", None if was is None else class_path(was), edit["was"])
        drop_attribute(graph, holder, name, ("drop", graph, path, name, was))
        self.replay.look()

    def forget(self, graph: InternalGraph, edit: Mapping[str, Any]) -> None:
        calls = [e for g in self.replay.graphs.values() for e in g.exprs(recursive=False) if child_graph(e) is graph]
        if graph is self.replay.top or calls:
            raise GraphError(f"{graph.qualname} is the outermost graph, or is called")
        forget_graphs(self.replay.top, graph.owner, [graph])
        self.replay.look()

    def _traced(self, graph: InternalGraph, entries: list[Any]) -> TracedModule:
        module = ModuleReader(self.values, entries).all((0, 0))
        join(graph, graphs_of(module), self.shift)
        return module


def _expect(what: str, value: Any, wanted: Any) -> None:
    if value != wanted:
        raise GraphError(f"{what}: found {_shown(value)}, expected {_shown(wanted)}")


def _shown(value: Any) -> str:
    return brief(value, 300)


_CHANGES: dict[str, Callable[[_Changes, InternalGraph, Mapping[str, Any]], None]] = {
    name: getattr(_Changes, name)
    for name in (
        *("link", "unlink", "use", "arguments", "results", "attrs", "meta", "rename", "spec"),
        *("inputs", "outputs", "call", "result", "owner", "module", "drop", "forget", "setting"),
    )
}
