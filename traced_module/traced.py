"""TracedModule: a captured model that is called like the module it came from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from megengine.core.collecting import collection_paused
from megengine.core.errors import ArgumentError, GraphError
from megengine.core.pytree import flatten, flatten_as, unflatten
from megengine.core.text import counted
from megengine.dispatch.refusal import kinds_named
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.editing.attaching import own_history
from megengine.traced_module.editing.flattening import flattened
from megengine.traced_module.interpret import OnValue, interpret
from megengine.traced_module.ir.containers import keys_of_parts, part_count, part_name, part_names
from megengine.traced_module.ir.copying import Copier, copied, holds
from megengine.traced_module.ir.expr import Constant, Expr
from megengine.traced_module.ir.filters import NodeFilter
from megengine.traced_module.ir.functions import (
    argspec_of,
    arguments_key,
    constant_key,
    normalized,
    unflatten_arguments,
    without_self,
)
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.lookup import node_named
from megengine.traced_module.ir.methods import methods
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.owner import GraphOwner
from megengine.traced_module.moving import move
from megengine.traced_module.pictures.dot import GraphPicture, to_graphviz
from megengine.traced_module.pictures.drawing import notebook_html, notebook_svg
from megengine.traced_module.pictures.summary import Summary, summarize
from megengine.traced_module.reserved import keep_in_reach, state_names
from megengine.traced_module.tracing.specialization import Specialization


class TracedModule(GraphOwner):
    """A model as a graph. Calling it runs the graph; editing `graph` changes what a call does.

    Its submodules, parameters and buffers are attributes, under the names of the module that was traced. A module
    that was called with several nestings of arguments has a graph for each.
    """

    def __init__(self, graph: InternalGraph | None = None, name: str | None = None) -> None:
        super().__init__(name or (graph.name if graph is not None else None))
        self._graphs: dict[Any, InternalGraph] = {}
        self.forward_signature: inspect.Signature | None = None
        self.specializations: tuple[Specialization, ...] = ()
        self.origin: str | None = None  # class of the module that was traced, where that is known
        self.is_qat = False
        self.watch_points: list[TensorNode] = []
        self.end_points: list[TensorNode] = []
        self.watch_node_value: dict[TensorNode, Tensor] = {}
        if graph is not None:
            self._add_graph(graph)

    def __setattr__(self, name: str, value: Any) -> None:
        old = object.__getattribute__(self, "__dict__").get(name)
        if holds(value) and not holds(old):
            self._check_readable(name)
        if not holds(old) or old is value or not methods.assigned(self, name, old, value):
            object.__setattr__(self, name, value)  # its own state is none of the settings that graphs hear of

    def _check_readable(self, name: str) -> None:
        """A layer or tensor is set: graphs of ops read none."""
        graphs = object.__getattribute__(self, "__dict__").get("_graphs") or {}
        graph = next(iter(graphs.values()), None)
        if graph is not None and not graph.of_calls:
            raise GraphError(
                f"{name!r} cannot be set: {graph.name!r} is a graph of ops, which reads no layers and has its weights "
                "as constants (graph.constant and replace_node change them); trace_module(model, *inputs) makes a "
                "graph of calls of it, into which layers are inserted"
            )

    def __delattr__(self, name: str) -> None:
        if holds(object.__getattribute__(self, "__dict__").get(name)):
            methods.check_deletable(self, name)
        object.__delattr__(self, name)

    def __getitem__(self, index: int | slice | str) -> Any:
        """A part of a list, tuple or Sequential of modules by its place, or of any module by its name.

        Places may count from the end; a slice gives a list.

        Raises:
            ArgumentError: a TypeError: parts of this module have no places, or the index is of another kind.
            IndexOutOfRangeError, StateDictError: there is no such place; no such name (a KeyError).
        """
        name = part_name(self, index)
        return [self._part(one) for one in name] if isinstance(name, list) else self._part(name)

    def _part(self, name: str) -> Any:
        return object.__getattribute__(self, "__dict__")[name]  # a method may have the name

    def __setitem__(self, index: int | str, value: Any) -> None:
        """Another part in the place of one: an edit, as `traced.layers.name = value` is. Raises as that does."""
        name = part_name(self, index)
        if isinstance(name, list):
            raise ArgumentError("slices of parts cannot be assigned; assign them one by one")
        setattr(self, name, value)

    def __delitem__(self, index: int | str) -> None:
        """Take a part away that no graph reads."""
        name = part_name(self, index)
        if isinstance(name, list):
            raise ArgumentError("slices of parts cannot be deleted; delete them one by one")
        delattr(self, name)

    def __len__(self) -> int:
        return part_count(self)

    def __iter__(self) -> Iterator[Any]:
        """The parts of a list, tuple or Sequential; the keys of a dict."""
        keys = keys_of_parts(self)
        return iter([self._part(name) for name in part_names(self)]) if keys is None else keys

    def __contains__(self, part: object) -> bool:
        keys = keys_of_parts(self)
        return any(self._part(name) is part for name in part_names(self)) if keys is None else part in set(keys)

    def __bool__(self) -> bool:
        return True  # a module is there, however many parts it has

    @classmethod
    def from_graph(cls, graph: InternalGraph) -> TracedModule:
        """Wrap an op-level graph; a single output is returned as a tensor, several as a tuple."""
        return cls(graph)

    def _move(self, device: str) -> None:
        super()._move(device)
        for graph in self._graphs.values():
            move(graph, device)

    def _add_graph(self, graph: InternalGraph) -> None:
        self._graphs[None if graph.arguments is None else arguments_key(graph.arguments)] = graph

    @property
    def graph(self) -> InternalGraph:
        """The graph, to read and to edit. Raises GraphError when there are several or none (see `graphs`)."""
        if len(self._graphs) != 1:
            raise GraphError(
                f"{self.name or 'the module'} has {counted(len(self._graphs), 'graph')}; expected one; "
                "use .graphs, one for each nesting of arguments it was called with"
            )
        return next(iter(self._graphs.values()))

    @property
    def argspec(self) -> inspect.FullArgSpec | None:
        """Parameters of the forward that was traced, the module first, as MegEngine keeps them; None if unknown."""
        return argspec_of(self.forward_signature)

    @property
    def argdef_graph_map(self) -> Mapping[Any, InternalGraph]:
        """The graphs by the nesting of the arguments each was traced with; `graphs` lists them."""
        return MappingProxyType(self._graphs)

    @property
    def argdef_outdef_map(self) -> Mapping[Any, Any]:
        """The nesting of the results of each graph, by the same keys."""
        return MappingProxyType({key: graph.out_def for key, graph in self._graphs.items()})

    @property
    def edit_log(self) -> Any:
        """The edits of all its graphs so far, as an `EditLog` that can be saved and replayed on another copy.

        Raises GraphError when it has no graph.
        """
        if not self._graphs:
            raise GraphError(f"{self.name or 'the module'} has no graph, so nothing in it was edited")
        return self.graphs[0].edit_log

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the graph on tensors (or arrays) in place of the traced arguments.

        With end points set, their values are returned instead (as a list); values of watch points are kept in
        `watch_node_value`.
        """
        if not self.watch_points and not self.end_points:
            return self.run(inputs, kwargs=kwargs)
        self.watch_node_value = {}
        wanted = {id(n): n for n in self.end_points}
        ends: dict[int, Tensor] = {}
        watched = {id(n) for n in self.watch_points}

        def on_value(node: Any, value: Tensor) -> None:
            if id(node) in watched:
                self.watch_node_value[node] = value
            if id(node) in wanted:
                ends[id(node)] = value
                if len(ends) == len(wanted):
                    raise _EndReached

        try:
            result = self.run(inputs, on_value, kwargs=kwargs)
        except _EndReached:
            return [ends[id(n)] for n in self.end_points]
        return result

    def _only_runs_its_graph(self) -> bool:
        """True if a call does nothing but run a graph: no points, no hooks, no forward of a subclass."""
        plain = not (self.watch_points or self.end_points or self._forward_hooks or self._forward_pre_hooks)
        return plain and type(self).forward is TracedModule.forward

    def set_watch_points(self, nodes: Any) -> None:
        """Keep the values of these nodes in `watch_node_value` at each run.

        Nodes may be of any submodule's graph, and be given by name, path (`layer1.0.relu_out`) or qualname. Of what a
        shared submodule computes several times in one run, the last value is kept; `run(inputs, on_value)` sees all.

        Raises:
            GraphError: one is no tensor node of this module.
            OptionError: a name is unknown or stands for several; the nearest or all of them are given.
        """
        self.watch_points = self._points("set_watch_points", nodes)

    def clear_watch_points(self) -> None:
        """Keep no values."""
        self.watch_points, self.watch_node_value = [], {}

    def set_end_points(self, nodes: Any) -> None:
        """Run up to these nodes only, and return their values, the first of each, as a list.

        Nodes are given, and errors raised, as in `set_watch_points`.
        """
        self.end_points = self._points("set_end_points", nodes)

    def clear_end_points(self) -> None:
        """Run to the end."""
        self.end_points = []

    def _points(self, what: str, nodes: Any) -> list[TensorNode]:
        listed: list[Any] = list(nodes) if isinstance(nodes, (list, tuple, NodeFilter)) else [nodes]
        graphs = tuple(self._graphs.values())
        own = {id(n) for g in graphs for n in g.nodes()}
        points = [node_named(graphs, node) if isinstance(node, str) else node for node in listed]
        for node in points:
            if not isinstance(node, TensorNode) or id(node) not in own:
                hint = "; its outputs are nodes" if isinstance(node, Expr) else ""
                raise GraphError(f"{what}: {node!r} is not a tensor node of this module{hint}")
        return points

    def run(self, inputs: Sequence[Any], on_value: OnValue | None = None, *, kwargs: dict | None = None) -> Any:
        """Run the graph on a list of arguments; `on_value(node, tensor)` sees every value and may replace it."""
        if not isinstance(inputs, (list, tuple)):
            raise ArgumentError(f"run: inputs is a {type(inputs).__name__}; expected a list of the arguments of a call")
        graph, leaves = self.select(inputs, kwargs or {})
        results = interpret(graph, leaves, on_value=on_value)
        if graph.out_def is not None and graph.out_def.num_leaves == len(results):
            return unflatten(graph.out_def, results)
        return results[0] if len(results) == 1 else tuple(results)

    @kinds_named
    def select(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[InternalGraph, list[Any]]:
        """The graph for these arguments, and the tensors among them in the order of its inputs.

        Raises GraphError when the module was never called like this while it was traced.
        """
        only = next(iter(self._graphs.values())) if len(self._graphs) == 1 else None
        if only is not None and only.arguments is None:
            return only, list(args)
        if self.forward_signature is not None:
            signature = without_self(self.forward_signature)
            try:
                args, kwargs = normalized(signature, args, kwargs)
            except TypeError as error:
                name, written = self.name or self.origin or "the module", _written(args, kwargs)
                raise ArgumentError(f"{name}: {error}; got ({written}); expected {name}{signature}") from None
        for graph in self._graphs.values():
            tensors = _fitting(graph, (tuple(args), dict(kwargs)))
            if tensors is not None:
                return graph, tensors
        if only is not None and self.forward_signature is None:  # its inputs were edited: nodes name them
            for completed in _completed(only, args, kwargs):
                tensors = _fitting(only, completed)
                if tensors is not None:
                    return only, tensors
        known = "; ".join(_structure(g) for g in self._graphs.values()) or "no call at all"
        raise GraphError(
            f"{self.name or self.origin or 'the module'} was not traced with these arguments "
            f"({_written(args, kwargs)}); it knows {known}; trace it again with them"
        )

    def _tensors(self, prefix: str | None, recursive: bool) -> Iterator[tuple[str, Tensor, Module]]:
        # Parameters and buffers; of an op-level graph, its constants by node name.
        graph = next(iter(self._graphs.values()), None)
        if graph is None or graph.arguments is not None or graph.of_calls:
            yield from super()._tensors(prefix, recursive)
            return
        head = f"{prefix}." if prefix else ""
        for expr in graph.exprs():
            if isinstance(expr, Constant):
                yield head + expr.name, expr.value, self

    def clone(self) -> TracedModule:
        """A traced module of its own with the same graphs, names and ids, and with layers and tensors of its own.

        Nothing that is done to the copy shows in this one. Weights share memory until one of them is written.
        """
        return self._cloned(Copier())

    def _cloned(self, copier: Copier | None) -> TracedModule:
        """A clone with the layers and tensors that a copier makes; without one they are shared."""
        with collection_paused():
            copies = self._copies(copier)
            own_history([g for m in copies.values() for g in m._graphs.values()])
        return copies[id(self)]

    def _copies(self, copier: Copier | None, *, graphs: bool = True) -> dict[int, TracedModule]:
        """Copies of the module and of those below it, by their ids, the module's own first.

        Layers and tensors are copied by the copier, or shared. `graphs` says whether its own graphs are copied; those
        of the others always are.
        """
        modules: dict[int, TracedModule] = {}
        todo = [self]
        while todo:
            at = todo.pop()
            if id(at) not in modules:
                modules[id(at)] = at
                below = object.__getattribute__(at, "__dict__").values()
                todo += [v for v in reversed(below) if isinstance(v, TracedModule)]
        copies: dict[int, TracedModule] = {key: object.__new__(TracedModule) for key in modules}
        for key, new in copies.items():
            state = object.__getattribute__(modules[key], "__dict__")
            own: dict[str, Any] = {
                name: copies[id(value)]
                if id(value) in copies
                else copier.of(value)
                if copier and holds(value)
                else value
                for name, value in state.items()
            }
            own.update(_graphs={}, watch_points=[], end_points=[], watch_node_value={})
            own.update({name: state[name].copy() for name in ("_forward_hooks", "_forward_pre_hooks")})
            object.__getattribute__(new, "__dict__").update(own)
            for arguments, graph in state["_graphs"].items() if graphs or new is not copies[id(self)] else ():
                own["_graphs"][arguments] = other = copied(graph, copier)
                other._owner = new if graph.owner is not None else None
        return copies

    def flatten(self) -> TracedModule:
        """A traced module of one graph in which every call of a submodule that has a graph is replaced by its body.

        It has layers and tensors of its own, as a `clone` has.
        """
        with collection_paused():
            return flattened(self)

    def summary(self, depth: int | None = None) -> Summary:
        """A `Summary`, which prints as a table: calls, shapes, parameters, multiply-accumulates.

        `depth` levels of submodules are opened, all by default. Raises GraphError when there are several graphs;
        `summary.summarize(graph)` takes each of them.
        """
        return summarize(self.graph, depth=depth)

    def to_graphviz(self, *, depth: int | None = None) -> GraphPicture:
        """The graph as a `graphviz.Digraph`: see `megengine.traced_module.pictures.dot.to_graphviz`.

        Raises GraphError when there are several graphs; each of `graphs` can be drawn.
        """
        if len(self._graphs) != 1:
            raise GraphError(
                f"to_graphviz: there are {counted(len(self._graphs), 'graph')}; expected one; draw each one of .graphs"
            )
        return to_graphviz(self.graph, depth=depth)

    def _repr_svg_(self) -> str | None:
        return notebook_svg(self.graphs)

    def _repr_html_(self) -> str | None:
        return notebook_html(self.graphs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What `pickle` and `copy.deepcopy` take: all but the history of edits, watch and end points."""
        return methods.rebuilt, methods.pieces(self)

    def __repr__(self) -> str:
        return "\n".join(repr(g) for g in self._graphs.values()) or super().__repr__()

    def __str__(self) -> str:
        """The tree of modules, as MegEngine prints it; `print(model.graph)` shows the graph."""
        return self._tree(str)


STATE_NAMES = state_names(TracedModule)  # under which no submodule or tensor can be
keep_in_reach(TracedModule)


class _EndReached(BaseException):
    """The last end point has its value: nothing may catch this on the way."""


def _fitting(graph: InternalGraph, call_arguments: Any) -> list[Any] | None:
    """The tensors of a call's arguments in the order of the graph's inputs; None if it was traced for other ones.

    Arrays may stand for tensors, and dicts may have another order.
    """
    assert graph.arguments is not None
    arg_def, constants = graph.arguments
    leaves = flatten_as(arg_def, call_arguments)
    if leaves is None:
        return None
    fixed = {i: (type(v).__name__, constant_key(v)) for i, v in constants}
    tensors = []
    for i, leaf in enumerate(leaves):
        if i in fixed:
            if isinstance(leaf, Tensor) or (type(leaf).__name__, constant_key(leaf)) != fixed[i]:
                return None
        elif isinstance(leaf, Tensor) or hasattr(leaf, "__array__"):
            tensors.append(leaf)
        else:
            return None
    return tensors


def _completed(graph: InternalGraph, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Calls of a graph whose inputs were edited that these arguments may stand for.

    Inputs may be given by the names of their nodes, and what was fixed when it was traced may be left out.
    """
    own_args, own_kwargs = _own_arguments(graph)
    fixed = {name: value for name, value in own_kwargs.items() if not _has_inputs(value)}
    with_inputs = [i for i, value in enumerate(own_args) if _has_inputs(value)]
    for places in (range(len(own_args)), with_inputs):  # everything that is given by position, or inputs only
        given, named = dict(zip(places, args, strict=False)), dict(kwargs)
        for i in with_inputs:
            name = own_args[i].name if isinstance(own_args[i], TensorNode) else None
            if i not in given and name in named:
                given[i] = named.pop(name)
        if len(args) <= len(places) and all(i in given for i in with_inputs):
            yield tuple(given.get(i, value) for i, value in enumerate(own_args)), {**fixed, **named}


def _own_arguments(graph: InternalGraph) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a graph takes; nodes stand for tensors."""
    assert graph.arguments is not None
    return unflatten_arguments(graph.arguments, [n for n in graph.inputs if isinstance(n, TensorNode)])


def _has_inputs(argument: Any) -> bool:
    return any(isinstance(leaf, TensorNode) for leaf in flatten(argument)[0])


def _written(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    parts = [_kind(a) for a in args] + [f"{k}={_kind(v)}" for k, v in kwargs.items()]
    return ", ".join(parts)


def _kind(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_kind, value))}]"
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else repr(value)


def _structure(graph: InternalGraph) -> str:
    if graph.arguments is None:
        return f"({', '.join(n.name for n in graph.inputs)})"
    args, kwargs = _own_arguments(graph)
    return f"({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in kwargs.items())])})"
