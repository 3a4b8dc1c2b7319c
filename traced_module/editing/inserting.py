"""Expressions made by calling functions, methods and modules on nodes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from megengine.core import hooks
from megengine.core.dtype import storage_of
from megengine.core.errors import GraphError, nearest
from megengine.core.pytree import flatten, tree_map, unflatten
from megengine.dispatch.apply import begin, end
from megengine.module import Module
from megengine.tensor import DeferredValueError, Tensor
from megengine.traced_module.editing.attaching import attach
from megengine.traced_module.editing.checking import check_before, check_expr, check_owned
from megengine.traced_module.editing.composites import is_composite, traced_for
from megengine.traced_module.editing.inferring import infer_again, note_entry
from megengine.traced_module.editing.parts import put_attribute, set_attribute
from megengine.traced_module.ir.expr import CallMethod, Expr, GetAttr
from megengine.traced_module.ir.functions import (
    flatten_arguments,
    forward_signature,
    named_only,
    normalized,
)
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import identifier, without_count
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode, get_subattr
from megengine.traced_module.ir.primitives import is_among
from megengine.traced_module.tracing.building import Builder, Read, Scope, shape_of
from megengine.traced_module.tracing.calls import alias, stand_in, untouched
from megengine.traced_module.tracing.deferred import Deferring
from megengine.traced_module.tracing.specs import function_spec, layer_result
from megengine.traced_module.tracing.views import check_name


class Inserter(Builder, hooks.TraceHooks):
    """The trace hooks while a graph is edited: calls that get nodes add expressions, others run as always.

    Random functions do, too. Modules, lengths and values are read as they are; reading through nodes makes expressions.
    """

    def __init__(self, graph: InternalGraph, place: Expr | None, before: bool) -> None:
        super().__init__(Scope(graph, graph.owner))
        self.anchor = graph._anchor(place if before else None, place)
        if place is not None and place.kind == "Input":
            self.anchor = graph.first_call  # never between inputs
        self.placed, self.fixed = place is not None, before
        self.first_id = graph.journal.next_expr
        self.tensors: dict[int, Tensor] = {}  # node -> the tensor that stands for it
        self.ends: dict[int, Expr] = {}  # expression -> the last one that was inserted behind it
        self.unbuilt: dict[str, Unbuilt] = {}  # path -> a module that is traced when it is called
        self.set_as: dict[str, str] = {}  # path that was set -> the path that it got
        self.read_as: dict[int, str] = {}  # node of a module that is read again -> what names of its calls begin with

    def _tensor(self, node: TensorNode) -> Tensor:
        if id(node) not in self.tensors:
            check_owned(self.graph, "call", [node])
            self.tensors[id(node)] = tensor = stand_in(node)
            self.scope.bind(tensor, node)
        return self.tensors[id(node)]

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, TensorNode):
            return self._tensor(leaf)
        return leaf.owner if isinstance(leaf, ModuleNode) else leaf

    def _to_nodes(self, result: Any) -> Any:
        return self._to_node(result) if type(result) is Tensor else tree_map(self._to_node, result)

    def _to_node(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or id(leaf) not in self.scope.nodes:
            return leaf
        node = self.scope.nodes[id(leaf)]
        self.tensors[id(node)] = leaf
        return node

    def _place(self, nodes: Sequence[Node]) -> None:
        """Without a given place, or with one that is too early, expressions go behind the last node they use."""
        latest = nodes[0] if len(nodes) == 1 else max(nodes, key=lambda n: n.expr.position)
        expr = latest.expr
        early = not self.fixed and self.anchor is not None and expr.position >= self.anchor.position
        if early or not self.placed:  # the place is after it, the inputs, and what was inserted there before
            first = self.graph.first_call
            at = self.ends.get(id(expr), expr)
            if not at.in_graph:
                at = expr  # what was inserted was erased since
            following = at.following
            if following is not None and first is not None and following.comes_before(first):
                following = first
            while following is not None and (following.kind == "Input" or following.id >= self.first_id):
                at = self.ends[id(expr)] = following
                following = at.following
            self.anchor = following

    def function(self, record: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        plain = named_only(record.signature, args, kwargs)
        given, structure = flatten(plain or (args, kwargs))
        leaves = [self.graph.assignments.latest(leaf) for leaf in given]
        nodes = [leaf for leaf in leaves if isinstance(leaf, Node)]
        if not nodes and not record.random:
            return run()
        self._place(nodes or [self.graph.inputs[-1]])
        if self.anchor is not None:
            check_before("insert_exprs", nodes, self.anchor)
        spec = function_spec(record, leaves, structure) if plain else None
        if spec is not None:
            return self._to_nodes(self.make_recorded(record, leaves, structure, Tensor._deferred(spec)))
        return self._recorded(record, leaves, structure, given[0] if given else None)

    def _recorded(self, record: Any, leaves: list[Any], structure: Any, target: Any) -> Any:
        """The call of a function whose result is not known from specs alone, or that assigns to `target`."""
        args, kwargs = unflatten(structure, map(self._value, leaves))
        with hooks.unheard():
            try:
                result = record.function(*args, **kwargs)
            except DeferredValueError:
                result = _without_values(record, args)
        if type(result) is not Tensor and not any([isinstance(leaf, Tensor) for leaf in flatten(result)[0]]):
            return result
        changed = leaves[0]
        leaves, structure = flatten(normalized(record.signature, args, kwargs))
        made = self._to_nodes(self.make_recorded(record, leaves, structure, result))
        if record.name == "__setitem__" and record.is_method and isinstance(changed, TensorNode):
            self._assigned(target, changed, made)
        return made

    def _assigned(self, target: TensorNode, node: TensorNode, new: TensorNode) -> None:
        """`target[key] = value`, whose value `node` has: what stands behind it, and the outputs, use the result."""
        if is_among(node, self.graph.outputs) or any(user.position > new.expr.position for user in node.users):
            self.graph.replace_node({node: new})
        self.graph.assignments.note(target, new)

    def shape(self, tensor: Any) -> Any:
        """`node.shape`; shapes of tensors are what they are."""
        if not isinstance(tensor, TensorNode):
            return None
        tensor = self.graph.assignments.latest(tensor)
        self._place([tensor])
        with hooks.unheard():
            return self._to_nodes(shape_of(self, self._tensor(tensor), tensor))

    def alias(self, tensor: Tensor) -> Tensor:
        return alias(tensor)

    def module(self, module: Module, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        """A module called directly on nodes becomes a part of the graph's module, if it is none yet."""
        if not any(isinstance(leaf, Node) for leaf in flatten((args, kwargs))[0]):
            return run()
        return self._part(module)(*args, **kwargs)

    def _part(self, module: Module) -> Any:
        """What reads a module: where it is a part already, or under a name made of its own or of its class."""
        owner: Any = self.graph.inputs[0]
        for path, part in self.unbuilt.items():
            if part._module is module:
                return self.unbuilt[path]
        path = next((path for path, part in self.scope.owner.named_modules() if part is module and path), None)
        if path is not None:
            return self.attribute_at(path)
        wanted = identifier(module.name or type(module).__name__.lower())
        name = wanted if not hasattr(type(self.scope.owner), wanted) else f"{wanted}_1"
        return self.read(owner, set_attribute(owner, name, module))

    def method(self, node: TensorNode, name: str, args: tuple, kwargs: dict) -> Any:
        """`node.method(...)` and operators."""
        try:
            return getattr(Tensor, name)(node, *args, **kwargs)
        except AttributeError as error:
            if error.obj is not node:
                raise
        raise GraphError(
            f"insert_exprs: {name} of {node.name!r}: it changes or gives the value of a tensor, and a node has none; "
            "node[:] = value puts another value in its place"
        )

    def attribute_of(self, node: ModuleNode, name: str) -> Any:
        """`module_node.name`: a submodule or tensor; what was set under that name here, if anything was."""
        path = _below(node, name)
        name = self.set_as.get(path, path).rpartition(".")[2]
        entries = object.__getattribute__(node.owner, "__dict__")
        if name not in entries:
            raise AttributeError(f"{node.qualname} has no attribute {name!r}{nearest(name, entries)}")
        check_name(name, node.qualname, entries[name])
        return self.read(node, name)

    def attribute_at(self, path: str) -> Any:
        """The submodule or tensor at a path, which there must be."""
        return self.read(self.graph.inputs[0], path)

    def read(self, node: ModuleNode, name: str) -> Any:
        """What a node of a module has at a path."""
        path = _below(node, name)
        value = get_subattr(node.owner, name)
        if path not in self.unbuilt and is_composite(value):
            self.unbuilt[path] = Unbuilt(self, node, name, value)
        known = self._known(path)
        if isinstance(known, ModuleNode) and known.expr.id < self.first_id and id(known) not in self.read_as:
            # MegEngine reads a module once more in each body of insert_exprs, under a numbered name
            numbered = identifier(path.replace(".", "_"))
            base, count, read_names = without_count(numbered), 1, self.read_as.values()
            names = self.graph.names
            while (numbered := f"{base}_{count}") in names or f"{numbered}_out" in names or numbered in read_names:
                count += 1
            self.read_as[id(known)] = numbered
        if path in self.unbuilt:
            return self.unbuilt[path]
        if known is not None or not isinstance(value, (Module, Tensor)):
            return value if known is None else known
        return self._make_read(node, path, value)

    def _known(self, path: str) -> Node | None:
        if not self.scope.attributes:
            self.scope.attributes.update(
                (e.name, e.output) for e in self.graph.exprs(recursive=False) if isinstance(e, GetAttr)
            )
        known = self.scope.attributes.get(path)
        return known if known is not None and known.expr.in_graph else None

    def _make_read(self, node: ModuleNode, path: str, value: Any) -> Node:
        self._place([node])
        name = self.graph.names.unique(path.replace(".", "_"))
        read = self.make_attribute(self.graph.inputs[0], path, f"{self.graph.qualname}.{path}", value, name)
        if isinstance(value, Tensor):
            self.scope.bind(value, cast(TensorNode, read))
        self.scope.attributes[path] = read
        return read

    def was_set(self, node: ModuleNode, name: str, free: str) -> None:
        """An attribute was set under a name that was free: reading it by the name that was meant gives it."""
        self.set_as[_below(node, name)] = _below(node, free)

    def call_module(self, node: ModuleNode, args: tuple, kwargs: dict) -> Any:
        """`module_node(...)`."""
        module = node.owner
        leaves, structure = flatten((args, kwargs))
        leaves = [self.graph.assignments.latest(leaf) for leaf in leaves]
        nodes = [node, *(leaf for leaf in leaves if isinstance(leaf, Node))]
        self._place(nodes)
        check_before("insert_exprs", nodes, self.anchor)
        args, kwargs = unflatten(structure, [self._value(leaf) for leaf in leaves])
        args, kwargs = normalized(forward_signature(module), args, kwargs)
        self.scope.reads[id(module)] = Read(node, node.name)
        inputs, arguments = flatten_arguments((module, *args), kwargs, self.node_of)
        expr = CallMethod(self.graph, self.graph.journal.new_expr_id(), self.meta(), arguments, "__call__")
        tensors = [v for v in flatten((args, kwargs))[0] if isinstance(v, Tensor)]
        with hooks.unheard():
            result = layer_result(expr, [module, *tensors], lambda: _result(module, args, kwargs))
        name = f"{self.read_as.get(id(node), node.name)}_out"
        results = self._to_nodes(self.make_call(expr, inputs, result, name, f"{node.qualname}.[out]"))
        note_entry(expr)
        return results

    def build(self, part: Unbuilt, args: tuple, kwargs: dict) -> Any:
        """The call of a module that is no layer: it is traced for it, if it was not for such a call before."""
        leaves, structure = flatten((args, kwargs))
        if not any(isinstance(leaf, Node) for leaf in leaves):
            return part._module(*args, **kwargs)
        call_arguments = unflatten(structure, [self._value(leaf) for leaf in leaves])
        call_arguments = normalized(forward_signature(part._module), *call_arguments)
        counts = (0, 0)
        try:
            if not part._takes(call_arguments):
                counts = self._trace(part, call_arguments)
            return self.call_module(self._read_built(part), args, kwargs)
        finally:  # after the ids of the read and the call, which come first for a reader
            self.graph.journal.skip(counts)

    def _trace(self, part: Unbuilt, call_arguments: Any) -> tuple[int, int]:
        """Trace a module for one more kind of call; returns how many nodes and expressions its graphs have."""
        path = _below(part._node, part._name)
        with hooks.unheard():
            traced = traced_for(part._module, [*part._calls, call_arguments], f"insert_exprs: {path}")
        part._calls.append(call_arguments)
        counts = traced.graphs[0].journal.counts
        known = self._known(path)
        results = len(traced.select(*call_arguments)[0].outputs)
        attach(self.graph, path, traced, (results + (known is None), 1 + (known is None)))
        put_attribute(self.graph, part._node, part._name, traced)
        if known is not None:
            infer_again(self.graph, known.users)
        return counts

    def _read_built(self, part: Unbuilt) -> Any:
        path = _below(part._node, part._name)
        return self._known(path) or self._make_read(part._node, path, get_subattr(part._node.owner, part._name))


class Unbuilt:
    """A module of the user's that is an attribute, is no layer, and is traced when it is called."""

    def __init__(self, inserter: Inserter, node: ModuleNode, name: str, module: Module) -> None:
        self._inserter, self._node, self._name, self._module = inserter, node, name, module
        self._calls: list[Any] = []  # arguments that it was traced for

    def _takes(self, call_arguments: Any) -> bool:
        if not self._calls:
            return False
        try:
            get_subattr(self._node.owner, self._name).select(*call_arguments)
        except GraphError:
            return False
        return True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._inserter.build(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not self._calls:
            kind = type(self._module).__name__
            raise GraphError(
                f"insert_exprs: {self._name!r} is a {kind}, which is traced when it is called; call it, then read "
                f"{name!r} of it"
            )
        return getattr(self._inserter._read_built(self), name)

    def __getitem__(self, index: Any) -> Any:
        return self.__getattr__(str(index))

    def __repr__(self) -> str:
        return f"{self._name} ({type(self._module).__name__}, traced when it is called)"


def _below(node: ModuleNode, name: str) -> str:
    return f"{node.expr.name}.{name}" if isinstance(node.expr, GetAttr) else name


def _zeros(leaf: Any) -> Any:
    """A tensor without a value as zeros; all else as it is."""
    if not isinstance(leaf, Tensor) or leaf._value is not None:
        return leaf
    return Tensor._wrap(np.zeros(leaf.spec.shape, storage_of(leaf.dtype)), leaf.dtype, leaf.device)


def _without_values(record: Any, args: Any) -> Tensor:
    """What a function gives that asks for values: `x[mask] = value` has the spec of x, of others it is not known."""
    if record.name != "__setitem__":
        raise DeferredValueError(
            f"insert_exprs: the shape that {record.name} gives depends on values, and nodes have none; "
            "F.where(condition, a, b) chooses values and keeps the shape, -1 stands for a length that values tell"
        ) from None
    target, key, _ = args
    return record.function(target, tree_map(_zeros, key), 0)  # the mask has to fit, with any values in it


def _result(module: Module, args: tuple, kwargs: dict) -> Any:
    """What a module gives for tensors without values; it stays as it is."""
    try:
        with untouched(module):
            return module(*args, **kwargs)
    except DeferredValueError:  # observers look at values: a copy gets zeros
        call_arguments = [tree_map(_zeros, list(args)), tree_map(_zeros, dict(kwargs))]
        result = copy.deepcopy(module)(*call_arguments[0], **call_arguments[1])
        return tree_map(lambda leaf: Tensor._deferred(leaf.spec) if isinstance(leaf, Tensor) else leaf, result)


class Insertion:
    """The body of `graph.insert_exprs(expr)`: an inserter hears calls, and what it does is one step."""

    __slots__ = ("before", "deferring", "expr", "graph", "inserter", "step", "token")

    def __init__(self, graph: InternalGraph, expr: Expr | None, *, before: bool = False) -> None:
        self.graph, self.expr, self.before = graph, expr, before
        self._check()

    def _check(self) -> None:
        """At the call, so that errors are raised there, and once more when the body begins."""
        if not self.graph.of_calls:
            raise GraphError(
                f"insert_exprs: {self.graph.name!r} is a graph of ops; graph.apply adds ops, and "
                "trace_module(model, *inputs) makes a graph of calls of it, in which functions and layers are inserted"
            )
        if self.expr is not None:
            check_expr(self.graph, "insert_exprs", self.expr)

    def __enter__(self) -> None:
        self._check()
        graph, expr = self.graph, self.expr
        if graph._inserting is not None:
            raise GraphError(
                f"insert_exprs: expressions are already being inserted into {graph.name!r}; leave it first"
            )
        self.inserter, self.deferring = Inserter(graph, expr, self.before), Deferring()
        self.step = graph.journal.transaction("insert_exprs")
        self.step.__enter__()
        graph._inserting = self.inserter
        self.token = hooks.active.set(self.inserter)
        begin(self.deferring)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        end(self.deferring)
        hooks.active.reset(self.token)
        self.graph.assignments.end(self.inserter.first_id)
        self.graph._inserting = None
        self.step.__exit__(kind, error, trace)
