"""Reading `.tm` files of MegEngine 1.x: pickled traced modules, read as records and never run.

Every name in a file is looked up in our own tables: layers, public functions, tensor methods, ops.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError, MegEngineError, brief
from megengine.core.pytree import TreeDef, flatten
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import opdefs
from megengine.dispatch.refusal import kinds_named
from megengine.module import Module
from megengine.serialization import builder_of
from megengine.serialization.arrays import quantized_of
from megengine.serialization.objects import OBJECTS, AllowedClasses
from megengine.serialization.pickles import Global, Record, Whole, read_records
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.editing.inferring import infer_again
from megengine.traced_module.formats import tm_loaders, tm_tensors, tm_versions
from megengine.traced_module.formats.checks import (
    check_attribute,
    check_called,
    check_method,
    check_path,
    qparams_of,
    tensor_nodes,
)
from megengine.traced_module.formats.module_writing import texts
from megengine.traced_module.formats.tm_versions import BOOKKEEPING, CONTAINERS, FLOATS, METADATA, ORIGINS, POINTS
from megengine.traced_module.ir.expr import Apply, Call, CallFunction, CallMethod, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.functions import Arguments, function_of
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import identifier
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.ir.primitives import link, number, share_history
from megengine.traced_module.ir.provenance import FLOAT, from_plain
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.calls import Static

_HOME = "megengine.traced_module"
ROOT = f"{_HOME}.traced_module.TracedModule"
_LAYER = f"{_HOME}.serialization._ModuleState"
_MOST_PARTS = 1 << 20  # arguments and attributes of all graphs and modules of a file together
_ARGUMENTS_DEEP = 100


@kinds_named
def load_tm(path: str | os.PathLike[str], *, allow: Sequence[type] = ()) -> TracedModule:
    """Read a traced module that MegEngine 1.x saved (`mge.save(traced, "net.tm")`); nothing in the file is run.

    Args:
        path: the file.
        allow: your classes of modules (declared with `register_as_builtin` when it was written) that the file may hold.

    Raises:
        FileFormatError: damaged, not a traced module, or with the name of an unknown layer, function or op.

    Example:
        >>> traced = load_tm("resnet18.tm")  # doctest: +SKIP
    """
    with Path(path).open("rb") as file:
        try:
            return read_tm(read_records(file), allow=allow)
        except MegEngineError as exc:
            exc.add_note(f"while reading {path}")
            raise


def read_tm(root: Any, *, allow: Sequence[type] = ()) -> TracedModule:
    """The traced module of the records of a pickle."""
    if _kind(root) != ROOT:
        raise FileFormatError(f"the file holds {_kind(root) or type(root).__name__}; expected a traced module")
    try:
        return _Reader(allow).traced(root)
    except MegEngineError:
        raise
    except RecursionError as exc:
        raise FileFormatError(
            "its modules nest too deep for Python's limit of recursion "
            f"({counted(sys.getrecursionlimit(), 'call', spec=',')}); raise it "
            "with sys.setrecursionlimit"
        ) from exc
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, OverflowError) as exc:
        raise FileFormatError(f"the traced module has unexpected contents: {type(exc).__name__}: {exc}"[:300]) from exc


def _kind(value: Any) -> str:
    return str(value.target) if isinstance(value, Record) and isinstance(value.target, Global) else ""


class _Reader:
    def __init__(self, allow: Sequence[type]) -> None:
        self.build = builder_of(allow)
        self.made: dict[int, Any] = {}
        self.nodes: dict[int, Node] = {}  # by their records
        self.graphs: list[InternalGraph] = []
        self.spent = 0
        self.renewed: list[Expr] = []  # calls that loaders changed
        self.used: set[int] = set()  # records of expressions and nodes; each may stand in one place only

    def spend(self, count: int) -> None:
        """Bound the work on records that a file refers to again and again."""
        self.spent += count
        if self.spent > _MOST_PARTS:
            raise FileFormatError(f"over {_MOST_PARTS} arguments and attributes; its parts are shared without end")

    def only(self, record: Record) -> Record:
        """The record of an expression or a node. Raises FileFormatError if it stands in a second place."""
        if id(record) in self.used:
            raise FileFormatError(f"{_kind(record) or 'a value'} stands in two places of the graphs")
        self.used.add(id(record))
        return record

    # ------------------------------------------------------------ modules

    def traced(self, record: Record) -> TracedModule:
        """The outermost module, whose graphs share one journal and one count of ids.

        Expressions and nodes get new ids in the order of the graph, as where MegEngine loads a file: those in the file
        are of the session that edited the graph.
        """
        module = self.module(record)
        top = next((g for g in module._graphs.values()), None)
        if top is None:
            raise FileFormatError("the traced module has no graph")
        share_history(self.graphs, top)
        number([top, *self.graphs])
        for expr in self.renewed:
            infer_again(expr.top_graph, [expr])
        top.journal.recording = True
        return module

    def module(self, record: Record) -> TracedModule:
        """A module with graphs, or a container of modules."""
        if id(record) in self.made:
            return self.made[id(record)]
        state = _state(record)
        self.spend(len(state))
        module = self.made[id(record)] = TracedModule(name=_text(state.get("name")))
        module.training = bool(state.get("training", True))
        module.is_qat = bool(state.get("is_qat", False))
        module.quantize_disabled = bool(state.get("quantize_disabled", False))
        for name, value in state.items():
            kept_by_old_versions = name == "nodes" and isinstance(value, dict)
            if name not in BOOKKEEPING and not kept_by_old_versions:
                check_attribute(name)
                object.__setattr__(module, name, self.value(value, name))
        spec = state.get("argspec")
        module.forward_signature = None if spec is None else self.signature(spec)
        for key, graph_record in state.get("argdef_graph_map", {}).items():
            graph = self.graph(graph_record, module)
            # the first argument in MegEngine's files is the module
            structure, constants = self.structure(key)
            args, kwargs = structure.children
            graph.arguments = (
                TreeDef(structure.kind, structure.aux, (TreeDef(args.kind, args.aux, args.children[1:]), kwargs)),
                tuple((i - 1, v) for i, v in constants),
            )
            graph.out_def = self.structure(state["argdef_outdef_map"][key], of_results=True)[0]
            module._add_graph(graph)
        first = next(iter(state.get("argdef_graph_map", {}).values()), None)
        points = state if first is None else _state(first).get(POINTS, state)
        module.watch_points, module.end_points = (self.points(points, key) for key in ("watch_points", "end_points"))
        return module

    def points(self, state: Any, key: str) -> list[TensorNode]:
        """Nodes of a module, or of those below it, that are watched or at which a run ends."""
        listed = state.get(key, []) if isinstance(state, dict) else None
        nodes = [self.nodes.get(id(record)) for record in listed] if isinstance(listed, list) else [None]
        if not all(isinstance(node, TensorNode) for node in nodes):
            raise FileFormatError(f"{key} hold what is no tensor node of the module")
        return [node for node in nodes if isinstance(node, TensorNode)]

    def value(self, value: Any, what: str) -> Any:
        """A submodule, a layer, a tensor or a plain constant."""
        if _kind(value) == ROOT:
            return self.module(value)
        if id(value) not in self.made:
            is_layer = _kind(value) == _LAYER
            part = self.layer(_state(value)) if is_layer else self.build(value)
            if isinstance(value, Record) and not isinstance(part, (Tensor, Module)):
                raise FileFormatError(f"{what[:60]!r} is a {type(part).__name__}; expected a module or a tensor")
            self.made[id(value)] = part
        return self.made[id(value)]

    def layer(self, state: dict[str, Any]) -> Module:
        home, name = state["module"]
        layer = self.build(Record(Global(_word(home), _word(name)), (), state["state"]))
        if not isinstance(layer, Module):
            raise FileFormatError(f"{home}.{name} is not a layer")
        tm_versions.upgrade_layer(layer)
        return layer

    def signature(self, record: Record) -> inspect.Signature:
        if _kind(record) != "inspect.FullArgSpec":
            raise FileFormatError("the signature of forward is not an inspect.FullArgSpec")
        args, varargs, varkw, defaults, kwonly, kwdefaults, _ = record.args
        self.spend(len(args) + len(kwonly))
        defaults = tuple(self.constant(v) for v in defaults or ())
        kwdefaults = {k: self.constant(v) for k, v in (kwdefaults or {}).items()}
        first = len(args) - len(defaults)
        kinds = inspect.Parameter
        parameters = [
            kinds(a, kinds.POSITIONAL_OR_KEYWORD, default=defaults[i - first] if i >= first else kinds.empty)
            for i, a in enumerate(args)
        ]
        if varargs:
            parameters.append(kinds(varargs, kinds.VAR_POSITIONAL))
        parameters += [kinds(a, kinds.KEYWORD_ONLY, default=kwdefaults.get(a, kinds.empty)) for a in kwonly]
        if varkw:
            parameters.append(kinds(varkw, kinds.VAR_KEYWORD))
        return inspect.Signature(parameters)

    # ------------------------------------------------------------ graphs

    def graph(self, record: Record, owner: TracedModule) -> InternalGraph:
        state = _state(record)
        name = _text(state.get("_name", state.get("_module_name"))) or "graph"
        graph = InternalGraph(name, _text(state.get("_qualname", state.get("_prefix_name"))) or name, owner=owner)
        nodes: dict[int, Node] = {}
        for node in state["_inputs"]:
            self.expr(graph, _state(node)["expr"], nodes)
        for expr in state["_exprs"]:
            self.expr(graph, expr, nodes)
        graph._inputs = tuple(nodes[id(n)] for n in state["_inputs"])
        self.nodes |= nodes
        graph._outputs = tensor_nodes([nodes[id(n)] for n in state["_outputs"]], graph)
        self.origins(graph, state.get(ORIGINS, {}))
        self.floats(graph, state.get(FLOATS, []))
        self.metadata(graph, state.get(METADATA, {}))
        check_called(graph)
        self.graphs.append(graph)
        return graph

    def origins(self, graph: InternalGraph, noted: Any) -> None:
        if not isinstance(noted, dict):
            raise FileFormatError(f"the provenance of {graph.name!r} is {brief(noted)}; expected a dict by id")
        self.spend(len(noted))
        for expr in graph.exprs(recursive=False):
            if expr.id in noted:
                expr.meta.update(from_plain(noted[expr.id]))

    def floats(self, graph: InternalGraph, noted: Any) -> None:
        if not isinstance(noted, list) or not all(isinstance(ident, int) for ident in noted):
            raise FileFormatError(f"what {graph.name!r} leaves in float is {brief(noted)}; expected a list of ids")
        self.spend(len(noted))
        ids = set(noted)
        for expr in graph.exprs(recursive=False):
            if expr.id in ids:
                expr.meta[FLOAT] = True

    def metadata(self, graph: InternalGraph, stored: Any) -> None:
        if not isinstance(stored, dict):
            raise FileFormatError(f"the metadata of {graph.name!r} is {brief(stored)}; expected a dict of texts")
        self.spend(len(stored))
        graph.metadata = texts(stored)

    def expr(self, graph: InternalGraph, record: Record, nodes: dict[int, Node]) -> None:
        state, kind = _state(self.only(record)), _kind(record)
        make = _EXPRS.get(kind.removeprefix(f"{_HOME}.expr."))
        if make is None:
            raise FileFormatError(f"an expression of the unknown kind {kind[:80]!r}")
        self.spend(len(state.get("inputs", ())) + len(state["outputs"]))
        used = state.get("inputs", ())
        if not all(id(node) in nodes for node in used):
            raise FileFormatError(f"the expression {state.get('_id')} uses a node that is not made before it")
        state = {**state, "inputs": [nodes[id(node)] for node in used]}
        expr = make(self, graph, state)
        expr._disable_remove = bool(state.get("_disable_remove", False))
        expr._inputs = tuple(state["inputs"])
        outputs = []
        for node in state["outputs"]:
            nodes[id(node)] = new = self.node(graph, expr, node)
            graph.names.take(new._name, new)
            outputs.append(new)
        expr._outputs = tuple(outputs)
        if isinstance(expr, Call):
            before, expr = expr, tm_loaders.loaded(expr, _stored_name(state), _text(state.get("version")))
            # unknown functions and methods are refused: nothing is ever imported for a file
            if isinstance(expr, CallFunction):
                try:
                    function_of(expr.qualified)
                except MegEngineError as exc:
                    raise FileFormatError(f"the file calls {exc!s}") from None
            elif isinstance(expr, CallMethod) and expr.method != "__call__":
                check_method(expr.method)
            self.renewed += [expr] if expr is not before else []
        link(graph, expr, expr.inputs, None)

    def node(self, graph: InternalGraph, expr: Expr, record: Record) -> Node:
        state = _state(self.only(record))
        spec = None
        if _kind(record).endswith(".TensorNode"):
            dtype = self.build(state["_dtype"]) if state.get("_dtype") is not None else np.dtype(np.float32)
            shape = state.get("_shape")
            spec = TensorSpec(tuple(int(n) for n in shape or ()), quantized_of(dtype) or dtype)
        elif not _kind(record).endswith(".ModuleNode"):
            raise FileFormatError(f"a node of the unknown kind {_kind(record)[:80]!r}")
        name = _word(state.get("_name") or "node")
        node = graph._make_node(expr, spec, graph.names.unique(identifier(name)), "")
        if name == identifier(name) and graph.names.get(name) is None:
            node._name = name  # also the name of a Python builtin
        node._qualname = _text(state.get("_qualname", state.get("_orig_name"))) or f"{graph.qualname}.[{name}]"
        node._id = int(state["_id"])
        if spec is not None and state.get("_qparams") is not None:
            node.qparams = qparams_of(name, self.build(state["_qparams"]))
        return node

    # ------------------------------------------------------------ expressions

    def arguments(self, state: dict[str, Any]) -> Arguments:
        structure, _ = self.structure(state["arg_def"])
        self.spend(len(state["const_val"]))
        constants = tuple((int(i), self.constant(v)) for i, v in state["const_val"])
        if structure.num_leaves != len(state["inputs"]) + len(constants):
            leaves = f"{counted(len(state['inputs']), 'input')} and {counted(len(constants), 'constant')}"
            raise FileFormatError(f"a call has {leaves}; its arguments nest {counted(structure.num_leaves, 'value')}")
        return structure, constants

    def constant(self, value: Any) -> Any:
        """A constant argument: a number, text, a dtype, Ellipsis, ..."""
        if isinstance(value, Global) and str(value) == "builtins.Ellipsis":
            return Ellipsis
        return value if isinstance(value, (str, int, float, bool, type(None))) else self.build(value)

    def structure(self, record: Any, *, of_results: bool = False) -> tuple[TreeDef, tuple[tuple[int, Any], ...]]:
        """A nesting and the constants at its leaves; those of results are part of the nesting."""
        constants: list[tuple[int, Any]] = []
        count = 0

        def walk(at: Record, depth: int) -> TreeDef:
            nonlocal count
            state = _state(at)
            self.spend(1)
            if depth > _ARGUMENTS_DEEP:
                raise FileFormatError("arguments nest too deep")
            if _kind(at).endswith(".LeafDef"):
                # the leaf of a constant None has one class, that of a tensor or module several
                if state.get("const_val") is not None or len(state["type"]) == 2:
                    value = self.constant(state.get("const_val"))
                    if of_results:
                        return TreeDef(Static, value)
                    constants.append((count, value))
                count += 1
                return TreeDef(None)
            stored = state["type"]
            kind = CONTAINERS.get(str(stored)) if isinstance(stored, Global) else None
            if kind is None:
                raise FileFormatError(f"arguments nest in {brief(stored)}, which is not a known container")
            aux: Any = state.get("aux_data")
            self.spend(len(aux or ()))
            keys = tuple(aux) if kind in (dict, OrderedDict) else None
            return TreeDef(kind, keys, tuple(walk(c, depth + 1) for c in state["children_defs"]))

        return walk(record, 0), tuple(constants)

    def call_method(self, graph: InternalGraph, state: dict[str, Any]) -> Expr:
        method = _word(state["method"])
        if method == tm_tensors.METHOD:  # makes a tensor of values
            plain = self.arguments(state | {"const_val": tm_tensors.without_class(state["const_val"])})
            arguments = tm_tensors.as_call(plain, len(state["inputs"]))
            return CallFunction(graph, int(state["_id"]), {}, arguments, tm_tensors.FUNCTION)
        expr = CallMethod(graph, int(state["_id"]), {}, self.arguments(state), method)
        expr._out_def = self.out_def(state)
        return expr

    def call_function(self, graph: InternalGraph, state: dict[str, Any]) -> Expr:
        qualified = tm_versions.current_name(_stored_name(state))
        arguments = tm_versions.upgrade_call(qualified, self.arguments(state), _text(state.get("version")) or "")
        expr = CallFunction(graph, int(state["_id"]), {}, arguments, qualified)
        expr._out_def = self.out_def(state)
        return expr

    def out_def(self, state: dict[str, Any]) -> TreeDef | None:
        """The nesting of the results of a call; None for a single tensor."""
        if state.get("out_def") is None:
            return None
        structure = self.structure(state["out_def"], of_results=True)[0]
        return None if structure.kind is None else structure

    def get_attr(self, graph: InternalGraph, state: dict[str, Any]) -> Expr:
        name = _word(state["name"])
        check_path(name)
        return GetAttr(graph, int(state["_id"]), {}, name)

    def constant_expr(self, graph: InternalGraph, state: dict[str, Any]) -> Expr:
        value = self.value(state["value"], "a constant")
        if not isinstance(value, Tensor):
            raise FileFormatError(f"a constant is a {type(value).__name__}; expected a tensor")
        plain = value if not isinstance(value, Parameter) else Tensor(value)
        return Constant(graph, int(state["_id"]), {}, plain)

    def apply(self, graph: InternalGraph, state: dict[str, Any]) -> Expr:
        """An op that the user's code applied: a call of its function here, if there is one."""
        described = dict(state.get("opdef_state") or {})
        kind = described.pop("opdef_type", state.get("opdef"))
        name = _word(str(kind) if isinstance(kind, Global) else kind).rpartition(".")[2]
        if name in tm_versions.OPS and described.get("axis", 7) == 7 and len(state["inputs"]) == 1:
            return Apply(graph, int(state["_id"]), {}, name, {})
        options = {key: self.constant(value) for key, value in described.items() if key != "comp_node"}
        options = tm_loaders.loaded_op(name, options, state["inputs"], _text(state.get("version")))
        try:
            qualified, options = opdefs.call_of(name, options)
        except MegEngineError as exc:
            text = f"the file applies the op {name[:60]!r}, which has no counterpart here: {exc}"
            raise FileFormatError(text) from None
        leaves, structure = flatten(((0,) * len(state["inputs"]), options))
        self.spend(len(options))
        constants = tuple(enumerate(leaves))[len(state["inputs"]) :]
        expr = CallFunction(graph, int(state["_id"]), {}, (structure, constants), qualified)
        count = len(state["outputs"])
        expr._out_def = None if count == 1 else flatten((0,) * count)[1]
        return expr


_EXPRS: dict[str, Callable[[_Reader, InternalGraph, dict[str, Any]], Expr]] = {
    "Input": lambda reader, graph, state: Input(graph, int(state["_id"]), {}),
    "GetAttr": _Reader.get_attr,
    "CallMethod": _Reader.call_method,
    "CallFunction": _Reader.call_function,
    "Constant": _Reader.constant_expr,
    "Apply": _Reader.apply,
}


def _stored_name(state: dict[str, Any]) -> str:
    """The name of the called function in the file; "" for calls of methods and ops."""
    home, name = state.get("func", ("", ""))
    return f"{_word(home)}.{_word(name)}" if home else ""


def _state(record: Any) -> dict[str, Any]:
    if not isinstance(record, Record) or not isinstance(record.state, dict):
        raise FileFormatError(f"a {type(record).__name__} where an object with state was expected")
    return record.state


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _word(value: Any) -> str:
    if not isinstance(value, str) or len(value) > tm_versions.LONGEST_NAME:
        raise FileFormatError(f"{brief(value)} where a name was expected")
    return value


def _layer_of(record: Record) -> Module:
    """A layer of a module that was saved after its traced form, which MegEngine writes as in that."""
    home, name = record.state["module"]
    path = Global(_word(home), _word(name))
    layer = AllowedClasses(OBJECTS, ())[str(path)](Record(path, (), record.state["state"]))
    tm_versions.upgrade_layer(layer)
    return layer


OBJECTS[ROOT] = Whole(read_tm)
OBJECTS[_LAYER] = _layer_of
