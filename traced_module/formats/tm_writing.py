"""Writes `.tm` files that MegEngine 1.13 loads: its classes by name, and their state."""

from __future__ import annotations

import inspect
import os
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import GraphError, brief
from megengine.core.pytree import TreeDef
from megengine.core.text import counted
from megengine.dispatch import opdefs
from megengine.dispatch.refusal import kinds_named
from megengine.logger import get_logger
from megengine.module import Module
from megengine.serialization import write_atomically
from megengine.serialization.arrays import with_metadata
from megengine.serialization.files import WRITERS
from megengine.serialization.objects import module_state
from megengine.serialization.writer import KINDS, PickleWriter
from megengine.tensor import Tensor
from megengine.traced_module.formats.module_writing import texts
from megengine.traced_module.formats.tm_lowering import FUNCTIONS, for_megengine, results_without_tensor
from megengine.traced_module.formats.tm_order import in_file_order
from megengine.traced_module.formats.tm_tensors import METHOD, makes_tensor, with_class
from megengine.traced_module.formats.tm_versions import (
    BOOKKEEPING,
    CONTAINERS,
    FLOATS,
    LONGEST_NAME,
    METADATA,
    OPS,
    ORIGINS,
    POINTS,
)
from megengine.traced_module.ir.expr import Apply, Call, CallFunction, CallMethod, Constant, Expr, GetAttr
from megengine.traced_module.ir.functions import Arguments, argspec_of
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.primitives import check_former_inputs
from megengine.traced_module.ir.provenance import FLOAT, to_plain
from megengine.traced_module.nesting import nests
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.calls import Static, is_leaf_module

VERSION = "1.13.0"
_HOME = "megengine.traced_module"
_UNKNOWN_THERE = frozenset(("GRU", "GRUCell", *(kind.__name__ for kind in FUNCTIONS)))  # layers that MegEngine lacks


@dataclass(frozen=True, slots=True)
class Name:
    """A class or an object by its name."""

    path: str


_TENSOR = Name("megengine.tensor.Tensor")


class Names(tuple):
    """Classes by their names, written once."""


class Stub:
    """An object of a class of MegEngine."""

    __slots__ = ("args", "path", "state")

    def __init__(self, path: str, state: Any = None, args: tuple = ()) -> None:
        self.path, self.state, self.args = path, state, args


class _TmWriter(PickleWriter):
    """Writes all objects first and their states then, so that references between them need no deep nesting."""

    def stub(self, value: Stub) -> None:
        self.make(value)
        if value.state is not None:
            self.write(value.state)
            self.put(pickle.BUILD)

    def make(self, stub: Stub) -> None:
        """Write an object without its state."""
        self.name(stub.path)
        self.tuple_(stub.args)
        self.put(pickle.NEWOBJ)
        self.remember(stub)

    def shared(self, value: Names) -> None:
        """Write a tuple that stands in many places."""
        self.tuple_(value)
        self.remember(value)

    def graph_of(self, objects: list[Stub], root: Stub) -> None:
        """Write the root: these objects, then their states."""
        for stub in objects:
            self.make(stub)
            self.put(pickle.POP)
        for stub in objects:
            self.out += self.memo[id(stub)]
            self.write(stub.state)
            self.put(pickle.BUILD, pickle.POP)
        self.write(root)

    kinds = (
        (Name, lambda writer, value: writer.name(value.path)),
        (Names, shared),
        (Stub, stub),
        (type(Ellipsis), lambda writer, value: writer.name("builtins.Ellipsis")),
        (np.dtype, PickleWriter.dtype),
        (Module, lambda writer, value: writer.write(Stub(*_layer_state(value)))),  # a layer of a layer
    )


@kinds_named
def save_tm(traced: TracedModule, path: str | os.PathLike[str]) -> None:
    """Write a traced module as MegEngine 1.13 saves it, in one step; `mge.load` reads it there and here.

    Calls of layers that MegEngine 1.13 lacks (ReLU6, Tanh, HSwish, HSigmoid) are written as calls of functions, a
    shape as the size of a pooling window as a tuple of its lengths, a named tuple as a tuple (with a warning). Calls
    that MegEngine still cannot run are written with a warning: such a layer inside of another one, and calls whose
    results hold None or numbers beside tensors.

    Raises:
        GraphError: MegEngine has no counterpart for a part of the module (a graph of ops, an op, a container of
            yours); the message names it, and nothing is written.

    Example:
        >>> save_tm(traced, "net.tm")  # doctest: +SKIP
    """
    write_atomically(path, tm_content(traced))


@nests()
def tm_content(traced: TracedModule) -> list[Any]:
    """The content of a `.tm` file, as buffers. Raises as `save_tm`."""
    writer = _TmWriter()
    writer.graph_of(*_described(traced))
    return writer.content()


@nests()
def _beside_others(writer: PickleWriter, traced: TracedModule) -> None:
    """Write a traced module that is in a container, as `{"net": traced, "epoch": 3}`."""
    own = _TmWriter()
    vars(own).update(vars(writer), methods=own.methods)  # the stream goes on
    objects, root = _described(traced)
    own.graph_of(objects, root)
    vars(writer).update(vars(own), methods=writer.methods)
    writer.memo[id(traced)] = writer.memo[id(root)]
    writer.kept.append(traced)


def _described(traced: TracedModule) -> tuple[list[Stub], Stub]:
    """The objects of a file and its root; warns of what MegEngine will not load or run."""
    traced = for_megengine(traced)
    described, warn = _Description(), get_logger(__name__).warning
    root = described.traced(traced, is_top=True)
    if described.unknown:
        warn(
            f".tm: MegEngine {VERSION} has no such layers as {', '.join(described.unknown[:5])}: it will not load the "
            "file, this package will; call the functions of that name instead"
        )
    if mixed := results_without_tensor(traced):
        warn(
            f".tm: MegEngine {VERSION} runs no call that gives None or numbers beside tensors, as "
            f"{', '.join(mixed[:5])} does: it will load the file and not run it, this package will"
        )
    if described.plain:
        warn(f".tm: {', '.join(list(described.plain)[:5])} is written as a plain tuple")
    return [*described.objects, *described.built], root


class _Description:
    def __init__(self) -> None:
        self.objects: list[Stub] = []  # parts of graphs
        self.built: list[Stub] = []  # modules
        self.modules: dict[int, Stub] = {}
        self.kept: list[Any] = []
        self.unknown: list[str] = []
        self.nodes: dict[int, Stub] = {}
        self.plain: dict[str, None] = {}  # named tuples that are written as tuples

    # ------------------------------------------------------------ modules

    def traced(self, module: TracedModule, *, is_top: bool = False) -> Stub:
        """A traced module, or a container of modules."""
        if id(module) in self.modules:
            return self.modules[id(module)]
        stub = self.modules[id(module)] = Stub(f"{_HOME}.traced_module.TracedModule")
        graphs, results = {}, {}
        own = object.__getattribute__(module, "__dict__")
        children = {n: v for n, v in own.items() if isinstance(v, (Module, Tensor))}
        for name in sorted(BOOKKEEPING & children.keys()):
            raise GraphError(
                f".tm: {_place(module)} has a submodule or tensor called {name!r}, which MegEngine's files use for "
                "themselves; give it another name, or write .mgt"
            )
        for graph in module.graphs:
            if graph.arguments is None:
                raise GraphError(f".tm: {graph.name!r} is a graph of ops; MegEngine's files hold calls; write .mgt")
            arguments, _ = in_file_order(graph.arguments, graph.inputs[1:])
            result, _ = in_file_order((graph.out_def or TreeDef(None), ()), graph.outputs)
            key = self.structure(_with_self(arguments), leading_module=True)
            graphs[key] = self.graph(graph, is_top=is_top)
            results[key] = self.structure(result)
        containers = ("argdef_graph_map", "argdef_outdef_map", "watch_points", "watch_node_value", "end_points")
        stub.state = {
            "_modules": ["_forward_pre_hooks", "_forward_hooks", *containers, *children],
            "name": None,
            "training": module.training,
            "quantize_disabled": module.quantize_disabled,
            "_forward_pre_hooks": OrderedDict(),
            "_forward_hooks": OrderedDict(),
            "_name": None,
            "_short_name": None,
            "argdef_graph_map": graphs,
            "argdef_outdef_map": results,
            "_is_top": is_top,
            "watch_points": [],
            "watch_node_value": {},
            "end_points": [],
            "is_qat": module.is_qat,
            "argspec": _argspec(module.forward_signature),
            **{name: self.child(value, name) for name, value in children.items()},
        }
        points = {key: self.points(key, getattr(module, key)) for key in ("watch_points", "end_points")}
        if any(points.values()):  # MegEngine runs no module that was loaded with points of its own
            next(iter(graphs.values())).state[POINTS] = points
        if is_top:
            registered = ("register_type", "register_container_type", "register_mdule", "register_function")
            stub.state["dump_info"] = {"version": VERSION, **{name: [] for name in registered}}
        self.built.append(stub)  # after its submodules: MegEngine reads them while it restores the state
        return stub

    def points(self, what: str, points: list[TensorNode]) -> list[Stub]:
        """Nodes of the module and of those below it, which are written by now."""
        for node in points:
            if id(node) not in self.nodes:
                raise GraphError(
                    f".tm: {what} hold {node.name!r}, which is not a node of the module any more; take others, or "
                    "clear_watch_points() or clear_end_points()"
                )
        return [self.nodes[id(node)] for node in points]

    def child(self, value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, TracedModule):
            return self.traced(value)
        if not is_leaf_module(value):
            raise GraphError(f".tm: {name} is a {type(value).__name__}, which is not a layer")
        if id(value) not in self.modules:
            path, state = _layer_state(value)
            home, _, kind = path.rpartition(".")
            if kind in _UNKNOWN_THERE and home.startswith("megengine."):
                self.unknown.append(f"{name} ({kind})")
            described = {"module": (home, kind), "state": state, "version": VERSION}
            self.modules[id(value)] = Stub(f"{_HOME}.serialization._ModuleState", described)
            self.kept.append(value)
        return self.modules[id(value)]

    # ------------------------------------------------------------ graphs

    def graph(self, graph: InternalGraph, *, is_top: bool) -> Stub:
        check_former_inputs(graph)
        stub = Stub(f"{_HOME}.traced_module.InternalGraph")
        self.objects.append(stub)
        nodes = self.nodes
        exprs: dict[int, Stub] = {}
        for expr in graph.exprs(recursive=False):
            exprs[id(expr)] = self.empty(f"{_HOME}.expr.{_kind(expr)}")
            for node in expr.outputs:
                kind = "ModuleNode" if isinstance(node, ModuleNode) else "TensorNode"
                nodes[id(node)] = self.empty(f"{_HOME}.node.{kind}")
        for expr in graph.exprs(recursive=False):
            inputs, outputs = ([nodes[id(n)] for n in several] for several in (expr.inputs, expr.outputs))
            exprs[id(expr)].state = self.expr(expr, inputs, outputs)
            for node in expr.outputs:
                users = [exprs[id(u)] for u in sorted(node.users, key=lambda u: u.position)]
                nodes[id(node)].state = _node(node, exprs[id(expr)], users)
        assert graph.arguments is not None
        _, ordered = in_file_order(graph.arguments, graph.inputs[1:])
        _, results = in_file_order((graph.out_def or TreeDef(None), ()), graph.outputs)
        names = {"name": graph.name, "qualname": graph.qualname}
        used: dict[str, Any] = {n.name: nodes[id(n)] for e in graph.exprs(recursive=False) for n in e.outputs}
        used |= {name: None for name in graph.names if name not in used}  # in an order that no undone edit changes
        namespace = Stub(f"{_HOME}.traced_module.NameSpace", {**names, "_used_names": used})
        stub.state = {
            "_exprs": [exprs[id(e)] for e in graph._exprs],
            "_inputs": [nodes[id(n)] for n in (graph.inputs[0], *ordered)],
            "_outputs": [nodes[id(n)] for n in results],
            "_watch_point": [],
            "_end_point": [],
            "_namespace": namespace,
            "_rst": Stub("collections.defaultdict", None, (Name("builtins.list"),)),
            "_name": graph.name,
            "_qualname": graph.qualname,
            ORIGINS: {e.id: origin for e in graph.exprs(recursive=False) if (origin := to_plain(e.meta))},
        }
        if floats := [e.id for e in graph.exprs(recursive=False) if e.meta.get(FLOAT)]:
            stub.state[FLOATS] = floats
        if graph.metadata:
            stub.state[METADATA] = texts(graph.metadata)
        if is_top:
            stub.state["_total_ids"] = graph.journal.counts
        return stub

    def empty(self, path: str) -> Stub:
        """An object whose state comes later."""
        stub = Stub(path)
        self.objects.append(stub)
        return stub

    def expr(self, expr: Expr, inputs: list[Stub], outputs: list[Stub]) -> dict[str, Any]:
        state: dict[str, Any] = {"_id": expr.id, "_disable_remove": expr.kept}
        if _is_op(expr):
            kind = Name(f"{opdefs.PREFIX}{opdefs.class_name(expr.qualified)}")
            kept = {k: _option(k, v) for k, v in opdefs.state_of(expr.qualified, expr.kwargs).items()}
            state |= {"inputs": inputs, "opdef_state": {**kept, "opdef_type": kind}, "version": VERSION}
            return state | {"outputs": outputs}
        if isinstance(expr, Call):
            return state | self.call(expr, inputs, outputs)
        state["inputs"] = inputs
        if isinstance(expr, Apply):
            if expr.op not in OPS:
                raise GraphError(f".tm: {expr!r} applies an op; MegEngine's files hold calls of functions")
            kind = Name(f"megengine.core._imperative_rt.ops.{expr.op}")
            state |= {"opdef_state": {**OPS[expr.op], "opdef_type": kind}, "version": VERSION}
        elif isinstance(expr, Constant):
            state |= {"value": expr.value, "name": ""}
        else:
            state |= {"name": _named(expr.name if isinstance(expr, GetAttr) else expr.outputs[0].name)}
        return state | {"outputs": outputs}

    def call(self, expr: Call, inputs: list[Stub], outputs: list[Stub]) -> dict[str, Any]:
        ordered = with_class(expr, _TENSOR) if makes_tensor(expr) else expr.arguments
        arguments, inputs = in_file_order(ordered, inputs)
        result, outputs = in_file_order((expr.out_def or TreeDef(None), ()), outputs)
        if isinstance(expr, CallMethod):
            callee: dict[str, Any] = {"method": expr.method}
        elif makes_tensor(expr):
            callee = {"method": METHOD}
        else:
            assert isinstance(expr, CallFunction)
            home, _, name = expr.qualified.rpartition(".")
            callee = {"func": (home, name)}
        leading = isinstance(expr, CallMethod) and expr.method == "__call__"
        return {
            "inputs": inputs,
            "const_val": list(arguments[1]),
            **callee,
            "outputs": outputs,
            "arg_def": self.structure(arguments, leading_module=leading),
            "out_def": self.structure(result),
            "version": VERSION,
        }

    def structure(self, arguments: Arguments, *, leading_module: bool = False) -> Stub:
        """The nesting of arguments or results, with constants at its leaves."""
        definition, constants = arguments
        fixed = dict(constants)
        count = 0

        def walk(at: TreeDef) -> Stub:
            nonlocal count
            if at.kind is None:
                count += 1
                return _leaf(fixed, count - 1, is_module=leading_module and count == 1)
            if at.kind is Static:
                return _leaf({-1: at.aux}, -1, is_module=False)
            children = [walk(c) for c in at.children]
            aux = tuple(at.aux) if at.kind in (dict, OrderedDict) else None
            state = {"type": Name(self.container(at.kind)), "aux_data": aux, "children_defs": children}
            return Stub(f"{_HOME}.pytree.TreeDef", {**state, "num_leaves": at.num_leaves})

        return walk(definition)

    def container(self, kind: Any) -> str:
        """MegEngine's name of a container; that of tuple for a named tuple, whose class it would have to import."""
        path = f"{kind.__module__}.{kind.__qualname__}"
        if path in CONTAINERS:
            return path
        if not issubclass(kind, tuple):
            raise GraphError(
                f".tm: a {kind.__qualname__} is among arguments or results; MegEngine's files hold tuples, lists and "
                "dicts of tensors; write .mgt"
            )
        self.plain.setdefault(kind.__qualname__)
        return "builtins.tuple"


def _place(module: TracedModule) -> str:
    graph = next(iter(module.graphs), None)
    return module.origin or "a container of modules" if graph is None else graph.qualname


def _layer_state(layer: Any) -> tuple[str, dict[str, Any]]:
    """Name of the class of a layer, and its attributes in MegEngine's form."""
    path, state = module_state(layer)
    state |= {"_name": None, "_short_name": None}  # MegEngine derives them from the paths of reads
    if hasattr(layer, "linear"):
        state |= {"in_features": layer.linear.in_features, "out_features": layer.linear.out_features}
    return path, state


_POSITION = Name(f"{_HOME}.pytree.ArgsIndex")
_MODULE_NODES = (Name(f"{_HOME}.node.ModuleNode"), Name(f"{_HOME}.node.NodeMixin"))
_MODULE_LEAF = Names((Name("megengine.module.module.Module"), *_MODULE_NODES, _POSITION))
_TENSOR_LEAF = Names((Name("megengine.tensor.Tensor"), Name(f"{_HOME}.node.TensorNode"), _POSITION))


def _leaf(fixed: dict[int, Any], index: int, *, is_module: bool) -> Stub:
    kinds: Any = _MODULE_LEAF if is_module else _TENSOR_LEAF
    kinds = (_type(fixed[index]), _POSITION) if index in fixed else kinds
    state = {"type": kinds, "aux_data": None, "children_defs": [], "num_leaves": 1, "const_val": fixed.get(index)}
    return Stub(f"{_HOME}.pytree.LeafDef", state)


def _type(value: Any) -> Any:
    if isinstance(value, Name):
        return Name("builtins.type")
    if value is None or value is Ellipsis:
        return Stub("builtins.type", None, (value,))
    kind = type(value)
    return Name(f"{kind.__module__}.{kind.__qualname__}")


def _named(name: str) -> str:
    if len(name) > LONGEST_NAME:
        raise GraphError(
            f".tm: the name {brief(name)} has {counted(len(name), 'character')}; expected at most {LONGEST_NAME}"
        )
    return name


def _kind(expr: Expr) -> str:
    """MegEngine's class of an expression."""
    if makes_tensor(expr):
        return CallMethod.kind
    return Apply.kind if _is_op(expr) else expr.kind


def _is_op(expr: Expr) -> TypeGuard[CallFunction]:
    """True for a call that MegEngine keeps as an applied op."""
    return isinstance(expr, CallFunction) and expr.qualified.startswith(opdefs.PREFIX)


def _option(name: str, value: Any) -> Any:
    """An option of an op in MegEngine's form."""
    if name == "comp_node":
        return _DEVICE
    return with_metadata(value) if isinstance(value, QuantizedDType) else value


_DEVICE = Stub("megengine.core._imperative_rt.common.CompNode", "xpux:0")


def _node(node: Node, expr: Stub, users: list[Stub]) -> dict[str, Any]:
    state: dict[str, Any] = {"expr": expr, "users": users, "_id": node.id}
    if isinstance(node, TensorNode):
        dtype = node.spec.dtype
        state |= {
            "_qparams": node.qparams,
            "_shape": node.spec.shape,
            "_dtype": with_metadata(dtype) if isinstance(dtype, QuantizedDType) else dtype,
            "_device": _DEVICE,
        }
    state |= {"_name": _named(node.name), "_qualname": node.qualname}
    if isinstance(node, ModuleNode):
        state["module_type"] = (node.module_type.__module__, node.module_type.__qualname__)
    return state


def _with_self(arguments: Arguments) -> Arguments:
    definition, constants = arguments
    args, kwargs = definition.children
    longer = TreeDef(args.kind, args.aux, (TreeDef(None), *args.children))
    return TreeDef(definition.kind, definition.aux, (longer, kwargs)), tuple((i + 1, v) for i, v in constants)


def _argspec(signature: inspect.Signature | None) -> Stub | None:
    spec = argspec_of(signature)
    return None if spec is None else Stub("inspect.FullArgSpec", None, tuple(spec))


WRITERS[TracedModule] = tm_content
KINDS[TracedModule] = _beside_others
