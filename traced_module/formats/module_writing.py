"""Describes a traced module for native files: every module, its graphs, its layers, and what they share.

Modules, layers and tensors stand in lists and are referred to by their places, which keeps sharing and needs no deep
nesting. There is one layer, tensor or expression a line.
"""

from __future__ import annotations

import inspect
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError
from megengine.core.pytree import unflatten
from megengine.core.spec import TensorSpec
from megengine.traced_module.formats.values import ValueWriter, dtype_out, lengths_out
from megengine.traced_module.ir.expr import Apply, Call, CallFunction, CallMethod, Constant, Expr, GetAttr
from megengine.traced_module.ir.functions import unflatten_arguments
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.ir.primitives import check_former_inputs
from megengine.traced_module.ir.provenance import graph_path
from megengine.traced_module.ir.queries import graphs_of
from megengine.traced_module.traced import TracedModule

# state of a traced module that is no attribute of the user
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_RUNS = ("watch_points", "end_points", "watch_node_value")
OWN_STATE = frozenset(("_graphs", "forward_signature", "specializations", *_RUNS, *_HOOKS))
_DEVICE = TensorSpec((), np.dtype(np.float32)).device


def describe(module: TracedModule, head: dict[str, Any]) -> tuple[str, dict[str, np.ndarray]]:
    """The text of graph.json and the arrays beside it.

    Raises:
        FileFormatError: the format cannot hold a value; the message has its path.
    """
    writer = ModuleWriter()
    modules = writer.all(module)
    journal = module.graphs[0].journal if module.graphs else None
    counters = [0, 0] if journal is None else [journal.next_node, journal.next_expr]
    lists = {"tensors": writer.values.tensors, "layers": writer.values.layers}
    text = _dumps({**head, "counters": counters})[:-1]
    for name, items in lists.items():
        text += f',\n"{name}": [\n' + ",\n".join(map(_dumps, items)) + "\n]"
    return text + ',\n"modules": [\n' + ",\n".join(modules) + "\n]}\n", writer.values.arrays


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


class ModuleWriter:
    """Texts of modules, graphs and expressions; their values are collected in `values`."""

    def __init__(self, values: ValueWriter | None = None) -> None:
        self.values = ValueWriter() if values is None else values
        self.places: dict[int, int] = {}
        self.waiting: deque[tuple[TracedModule, str]] = deque()

    def all(self, module: TracedModule) -> list[str]:
        """The texts of a traced module and of all modules in it."""
        self.place(module, "")
        modules = []
        while self.waiting:
            modules.append(self.module(*self.waiting.popleft()))
        return modules

    def place(self, module: TracedModule, where: str) -> int:
        if id(module) not in self.places:
            self.places[id(module)] = len(self.places)
            self.waiting.append((module, where))
        return self.places[id(module)]

    def module(self, module: TracedModule, where: str) -> str:
        if module._forward_hooks or module._forward_pre_hooks:
            raise FileFormatError(f"{where or 'the module'} has hooks, which cannot be saved; remove them first")
        state: dict[str, Any] = {}
        for name, value in object.__getattribute__(module, "__dict__").items():
            if name not in OWN_STATE:
                path = f"{where}.{name}" if where else name
                is_module = isinstance(value, TracedModule)
                state[name] = {"module": self.place(value, path)} if is_module else self.values.value(value, path)
        described: dict[str, Any] = {"state": state}
        if module.forward_signature is not None:
            described["signature"] = self.signature(module.forward_signature, where)
        if module.specializations:
            described["specializations"] = [[s.source, s.what, s.node] for s in module.specializations]
        for key, points in (("watch_points", module.watch_points), ("end_points", module.end_points)):
            if points:
                described[key] = [self.point(module, n) for n in points]
        graphs = ",\n".join(self.graph(g, f"{where}.{g.name}" if where else g.name) for g in module.graphs)
        return _dumps(described)[:-1] + (f', "graphs": [\n{graphs}\n]' if graphs else "") + "}"

    def point(self, module: TracedModule, node: TensorNode) -> list[Any]:
        """(number of the graph, name) of a watch or end point, and the place of its submodule if it is in one."""
        graph, owner = node.top_graph, node.top_graph.owner
        if graph.names.get(node.name) is not node or not any(graph is known for known in graphs_of(module)):
            raise FileFormatError(
                f"the watch or end point {node.name!r} is not a node of the module any more; take it off with "
                "clear_watch_points() or clear_end_points()"
            )
        number = next(i for i, known in enumerate(owner.graphs) if known is graph)
        return [number, node.name, *([] if owner is module else [self.place(owner, graph_path(graph))])]

    def signature(self, signature: inspect.Signature, where: str) -> list[Any]:
        """Name, kind and default of each parameter; annotations are left out."""
        empty = inspect.Parameter.empty
        return [
            [p.name, p.kind.name, *([] if p.default is empty else [self.values.value(p.default, f"{where}.{p.name}")])]
            for p in signature.parameters.values()
        ]

    # ------------------------------------------------------------ graphs

    def graph(self, graph: InternalGraph, where: str) -> str:
        check_former_inputs(graph)
        head: dict[str, Any] = {"name": graph.name, "qualname": graph.qualname}
        head["inputs"] = [n.name for n in graph.inputs]
        head["outputs"] = [n.name for n in graph.outputs]
        if reserved := sorted(n for n in graph.names if graph.names.get(n) is None):
            head["reserved"] = reserved
        if graph.metadata:
            head["metadata"] = texts(graph.metadata)
        if graph.arguments is not None:
            nodes = [n for n in graph.inputs if isinstance(n, TensorNode)]
            head["arguments"] = self.values.value(unflatten_arguments(graph.arguments, nodes), where)
        if graph.out_def is not None and graph.out_def.num_leaves == len(graph.outputs):
            head["result"] = self.values.value(unflatten(graph.out_def, graph.outputs), where)
        lines = [_dumps(self.expr(e, where)) for e in graph.exprs(recursive=False)]
        return _dumps(head)[:-1] + ', "exprs": [\n' + ",\n".join(lines) + "\n]}"

    def expr(self, expr: Expr, where: str) -> dict[str, Any]:
        described = self.without_meta(expr, where)
        for node, entry in zip(expr.outputs, described["outputs"], strict=True):
            if isinstance(node, TensorNode) and node.qparams is not None:
                entry["qparams"] = self.values.value(node.qparams, f"{where}.{node.name}.qparams")
        if expr.meta:
            described["meta"] = self.meta(expr.meta, f"{where}.{expr.outputs[0].name}" if expr.outputs else where)
        return described

    def meta(self, meta: Mapping[str, Any], at: str) -> dict[str, Any]:
        return {k: self.values.value(v, f"{at}.{k}") for k, v in meta.items()}

    def without_meta(self, expr: Expr, where: str) -> dict[str, Any]:
        at = f"{where}.{expr.outputs[0].name}" if expr.outputs else where
        described: dict[str, Any] = {"kind": expr.kind, "id": expr.id, "outputs": [node_out(n) for n in expr.outputs]}
        if isinstance(expr, Call):
            args, kwargs = expr.unflatten_args(expr.inputs)
            described |= {"function": expr.qualified} if isinstance(expr, CallFunction) else {}
            described |= {"method": expr.method} if isinstance(expr, CallMethod) else {}
            described["args"] = [self.values.value(v, at) for v in args]
            if kwargs:
                described["kwargs"] = {k: self.values.value(v, f"{at}.{k}") for k, v in kwargs.items()}
            if expr.out_def is not None:
                described["result"] = self.values.value(expr.return_val, at)
        elif isinstance(expr, Apply):
            described |= {"op": expr.op, "inputs": [n.name for n in expr.inputs]}
            described["attrs"] = {k: self.values.value(v, f"{at}.{k}") for k, v in expr.attrs.items()}
        elif isinstance(expr, GetAttr):
            described |= {"inputs": [n.name for n in expr.inputs], "attribute": expr.name}
        elif isinstance(expr, Constant):
            described["value"] = self.values.tensor(expr.value, at)
        if expr.kept:
            described["keep"] = True
        return described


def texts(metadata: Mapping[str, str]) -> dict[str, str]:
    """A copy of the metadata of a graph. Raises FileFormatError if a key or value is no text."""
    for key, value in metadata.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise FileFormatError(f"metadata {key!r} is {value!r}; expected texts")
    return dict(metadata)


def node_out(node: Node) -> dict[str, Any]:
    """Name, id, qualname and spec of a node."""
    described: dict[str, Any] = {"name": node.name, "id": node.id, "qualname": node.qualname}
    if isinstance(node, TensorNode):
        spec = node.spec
        described |= {"shape": lengths_out(spec.shape), "dtype": dtype_out(spec.dtype)}
        if spec.device != _DEVICE:
            described["device"] = spec.device
    return described
