"""Capture at module level: calls of functions, methods and modules become expressions as the user wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from megengine.core import hooks
from megengine.core.effectless import warn_caller
from megengine.core.errors import ArgumentError, GraphError
from megengine.core.pytree import flatten, keys_in_order, unflatten
from megengine.dispatch import interpose
from megengine.module import Module
from megengine.module.paths import place_of
from megengine.tensor import Tensor
from megengine.traced_module.editing.expressions import add_input, add_self
from megengine.traced_module.ir.expr import Apply, CallFunction, CallMethod, Constant, GetAttr, Input
from megengine.traced_module.ir.functions import (
    Arguments,
    arguments_key,
    flatten_arguments,
    forward_signature,
    function_of,
    named_only,
    normalized,
)
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import identifier
from megengine.traced_module.ir.node import ModuleNode, TensorNode
from megengine.traced_module.ir.owner import GraphOwner
from megengine.traced_module.ir.primitives import remove_dead, share_history
from megengine.traced_module.tracing.building import Builder, Read, Scope, shape_of
from megengine.traced_module.tracing.calls import alias, is_leaf_module, result_leaves, untouched
from megengine.traced_module.tracing.deferred import Deferring, PendingCall
from megengine.traced_module.tracing.identity import compares_values
from megengine.traced_module.tracing.source_lines import user_line
from megengine.traced_module.tracing.specialization import Specialization, SpecializationWarning
from megengine.traced_module.tracing.specs import function_spec, layer_result
from megengine.traced_module.tracing.views import MappingView, SequenceView, check_name, holds_modules

_ACROSS = "the graph is specialised to this value; pass it to the module as an argument, or return it as a result"
_ONE_OBJECT = "both are one tensor, and the graph is specialised to that; trace with two tensors for calls with two"
_TO_ONE_VALUE = "the graph is specialised to this value; compute with tensors where it depends on the input"


class ModuleTracer(hooks.TraceHooks):
    """The trace hooks of module-level capture."""

    def __init__(self) -> None:
        self.scopes: list[Builder] = []
        self.children: dict[int, tuple[Module, dict[Any, InternalGraph]]] = {}
        self.specializations: list[Specialization] = []
        self.ended: list[Scope] = []  # of the graphs that are complete
        self._before: list[tuple[Tensor, Tensor]] = []  # tensors changed in place, and their values before

    @property
    def current(self) -> Builder:
        return self.scopes[-1]

    def function(self, record: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        plain = named_only(record.signature, args, kwargs)
        leaves, structure = flatten(plain or (args, kwargs))
        spec = function_spec(record, leaves, structure) if plain else None
        if spec is not None:
            result = PendingCall(run, tuple([v for v in leaves if type(v) is Tensor])).result(spec)
            return self.current.make_recorded(record, leaves, structure, result)
        result = run()
        if type(result) is not Tensor and not any(isinstance(leaf, Tensor) for leaf in flatten(result)[0]):
            return result
        if not plain:
            leaves, structure = flatten(normalized(record.signature, args, kwargs))
        return self.current.make_recorded(record, leaves, structure, result)

    def rebind(self, tensor: Tensor, new: Tensor) -> None:
        """An operator in place, or item assignment: the tensor stands for another node from now on."""
        scope = self.current.scope
        node = scope.nodes.get(id(tensor))
        if node is None and id(new) not in scope.nodes and self._elsewhere(new) is None:
            return  # nothing of the graph: a layer that is made here gets its weights, say
        outside = (GetAttr, Constant, Input) if len(self.scopes) == 1 else (GetAttr, Constant)
        if node is None or isinstance(node.expr, outside):
            name = "tensor" if node is None else node.name
            self._note("change in place", name, "the graph computes with the new value and leaves the tensor as it is")
        self._before.append((tensor, alias(tensor)))
        scope.bind(tensor, self.current.tensor_node(new))

    def built(self, tensor: Tensor, data: Any, dtype: Any, device: Any) -> Tensor | None:
        """A tensor is made of data; where values of this trace are among them the graph makes it."""
        if not self._is_traced(data):
            return None
        constant = function_of("megengine.tensor.tensor")(data, dtype, device)
        self.current.scope.bind(tensor, self.current.scope.nodes[id(constant)])
        return constant

    def _is_traced(self, data: Any) -> bool:
        if isinstance(data, (list, tuple)):
            return any(map(self._is_traced, data))
        return isinstance(data, Tensor) and (id(data) in self.current.scope.nodes or self._elsewhere(data) is not None)

    def _elsewhere(self, tensor: Tensor) -> TensorNode | None:
        """What another graph of this trace has computed as this tensor."""
        scopes = chain((b.scope for b in self.scopes[-2::-1]), self.ended)
        node = next((s.nodes[id(tensor)] for s in scopes if id(tensor) in s.nodes), None)
        return None if node is None or isinstance(node.expr, (GetAttr, Constant)) else node

    def _across(self, tensor: Tensor) -> None:
        """A tensor that the graph does not know becomes a constant of it."""
        node = self._elsewhere(tensor)
        if node is not None:
            self._say("the value, from outside the call,", f"{node.graph.qualname}.{node.name}", _ACROSS)

    def restore(self) -> None:
        """Give tensors that were changed in place back the values they had before the trace."""
        while self._before:
            tensor, value = self._before.pop()
            tensor._reset(value)

    def replays(self, expr: Any) -> None:
        """A graph is run, and does what this expression says from now on; None: it has ended."""
        self.current.replayed = expr
        if isinstance(expr, Constant):
            self.current.constants[id(expr.value)] = expr

    def applied(self, expr: Apply, inputs: Sequence[Tensor], attrs: Any, results: tuple[Tensor, ...]) -> Any:
        """An op of a graph that is run is an op of the graph that is made."""
        builder = self.current
        nodes = [builder.tensor_node(t) for t in inputs]
        short = expr.outputs[0].qualname.rpartition(".")[2]
        with hooks.unheard():
            made = builder.graph.apply(
                expr.op,
                *nodes,
                attrs=attrs,
                name=expr.name,
                qualname=f"{builder.graph.qualname}.{short}",
                before=builder.anchor,
                meta=builder.meta(),
            )
        fresh = tuple(map(alias, results))
        for tensor, node in zip(fresh, made if isinstance(made, tuple) else (made,), strict=True):
            builder.scope.bind(tensor, node)
        return fresh

    def shape(self, tensor: Tensor) -> Any:
        """`tensor.shape` read by the user's code: a tensor, so that it follows the inputs; None if not traced."""
        builder = self.current
        node = builder.scope.nodes.get(id(tensor))
        if node is None:
            return None
        with hooks.unheard():
            return shape_of(builder, tensor, node)

    def alias(self, tensor: Tensor) -> Tensor:
        twin, node = alias(tensor), self.current.scope.nodes.get(id(tensor))
        if node is not None:
            self.current.scope.bind(twin, node)
        return twin

    def value(self, tensor: Tensor, what: str, advice: str = _TO_ONE_VALUE) -> None:
        """Python reads the value of a tensor, or makes one in a way that the graph cannot."""
        node = self.current.scope.nodes.get(id(tensor))
        if node is not None:
            self._note(what, node.name, advice)
            if what == hooks.TRUTH:
                self.shape(tensor)  # as MegEngine does: nothing uses it, but it counts for names

    def length(self, tensor: Tensor) -> None:
        """`len(x)`, `for row in x`; of a shape it is the number of axes, which a graph is made for."""
        node = self.current.scope.nodes.get(id(tensor))
        if node is not None and (isinstance(node.expr, CallFunction) or not node.expr.from_shapes):
            self._note("the length", node.name, "the graph is specialised to this length; x.shape[0] follows the input")

    def _note(self, what: str, name: str, why: str) -> None:
        self._say(what, f"{self.current.graph.qualname}.{name}", why)

    def _say(self, what: str, path: str, why: str, source: str = "") -> None:
        line = source or user_line(self.current.scope.source, _ENTRY)
        specialization = Specialization(line, what, path)
        if specialization not in self.specializations:
            self.specializations.append(specialization)
            warn_caller(f"{specialization}: {why}", SpecializationWarning)

    def attribute(self, module: Module, name: str, value: Any) -> Any:
        scope = self.current.scope
        prefix = scope.paths.get(id(module))
        if prefix is None:
            return value
        check_name(name, prefix, value)
        return self.observed(f"{prefix}.{name}" if prefix else name, value)

    def observed(self, path: str, value: Any) -> Any:
        """What the reader of a path gets: containers of modules are seen through views."""
        if issubclass(type(value), (Module, Tensor)):
            self._read(path, value)
            return value
        if not isinstance(value, (list, tuple, dict)) or not holds_modules(value):
            return value
        self._count(path)
        return (
            MappingView(self.observed, path, value)
            if isinstance(value, dict)
            else SequenceView(self.observed, path, value)
        )

    def _count(self, path: str) -> str:
        """Take a name for a read: MegEngine counts every one."""
        names = self.current.graph.names
        name = names.unique(path.replace(".", "_"))
        names.take(name, names.get(name))
        return name

    def _read(self, path: str, value: Any) -> None:
        builder, scope = self.current, self.current.scope
        name = self._count(path)
        known = scope.nodes.get(id(value)) if isinstance(value, Tensor) else None
        if known is not None and not isinstance(known.expr, GetAttr):
            return  # assigned, or changed in place, by this forward: it is what was computed
        if known is None and isinstance(value, Tensor) and self._elsewhere(value) is not None:
            return  # assigned by the forward of another module
        node = scope.attributes.get(path)
        if node is None:
            graph = builder.graph
            owner = graph.inputs[0]
            node = builder.make_attribute(owner, path, f"{graph.qualname}.{path}", value, name)
            scope.attributes[path] = node
        if isinstance(node, ModuleNode):
            scope.paths[id(value)] = path
            before = scope.reads.get(id(value))
            while before is not None and (before.called or before.node is node):
                before = before.before
            scope.reads[id(value)] = Read(node, name, before)
            scope.alive.append(value)
        elif isinstance(node, TensorNode):
            scope.bind(value, node)

    def module(self, module: Module, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        read = self.current.scope.reads.get(id(module))
        if read is None:
            return run()  # not an attribute of a traced module: its functions are recorded where it is called
        if read.called and read.before is not None:  # `self.b(self.a(x))` of one module: b was read before a
            read = self.current.scope.reads[id(module)] = read.before
        read.called = True
        builder = self.current
        args, kwargs = normalized(forward_signature(module), args, kwargs)
        inputs, arguments = flatten_arguments((module, *args), kwargs, builder.node_of)
        graph = builder.graph
        expr = CallMethod(graph, graph.journal.new_expr_id(), builder.meta(), arguments, "__call__")
        if is_leaf_module(module):
            tensors = [v for v in flatten((args, kwargs))[0] if isinstance(v, Tensor)]
            with hooks.unheard():
                result = layer_result(expr, [module, *tensors], run)
        else:
            result = self._nested(module, read.node, args, kwargs, expr.meta["source"])
        return builder.make_call(expr, inputs, result, f"{read.name}_out", f"{read.node.qualname}.[out]")

    def _nested(self, module: Module, node: ModuleNode, args: tuple, kwargs: dict, source: str) -> Any:
        parent = self.current.graph
        name = f"{parent.name}_{node.expr.name.replace('.', '_')}"
        return self.trace(module, args, kwargs, name, node.qualname, parent, source)[1]

    def trace(
        self,
        module: Module,
        args: tuple,
        kwargs: dict,
        name: str,
        qualname: str,
        parent: InternalGraph | None,
        source: str,
    ) -> tuple[InternalGraph, Any]:
        """Capture one call of a module (arguments in normal form), made at a line of the user's; gives its graph and
        the result.
        """
        leaves, arg_def = flatten((args, kwargs))
        arguments = (arg_def, tuple((i, v) for i, v in enumerate(leaves) if not isinstance(v, Tensor)))
        tensors = [v for v in leaves if isinstance(v, Tensor)]
        graph = InternalGraph(name, qualname, owner=module)
        if parent is not None:
            share_history([graph], parent.top)
        scope = Scope(graph, module, paths={id(module): ""}, source=source, entry=_ENTRY)
        scope.reads[id(module)] = Read(add_self(graph), "self")
        labels = _input_names(module, args, kwargs)
        inner = self._inside(module, labels, tensors, scope)
        for label, tensor in zip(labels, inner, strict=True):
            node = add_input(graph, label, tensor.spec)
            if id(tensor) not in scope.nodes:
                scope.bind(tensor, node)
        known = [scope.nodes[id(tensor)] for tensor in inner]
        builder = Builder(scope)
        builder.outsider = self._across
        supply = iter(inner)
        inner_args, inner_kwargs = unflatten(arg_def, [next(supply) if isinstance(v, Tensor) else v for v in leaves])
        self.scopes.append(builder)
        try:
            result = module._run(inner_args, inner_kwargs)
            leaves, structure = result_leaves(result, f"{type(module).__name__} ({graph.qualname})")
            graph._outputs = tuple(builder.tensor_node(t) for t in leaves)
            graph.out_def = structure
        finally:
            self.scopes.pop()
            self.ended.append(scope)
        for argument, tensor, node in zip(tensors, inner, known, strict=True):
            if self.scopes and scope.nodes[id(tensor)] is not node:
                self.current.scope.changed[id(argument)] = f"{graph.qualname}.{node.name}"
        graph.arguments = arguments
        return self._remember(module, arguments, graph), result

    def _inside(self, module: Module, labels: Sequence[str], tensors: Sequence[Tensor], scope: Scope) -> list[Tensor]:
        """What a call sees of its tensors: objects of its own, one for each argument.

        One that is given twice is two, so that the graph holds for two; it is one where the module's code compares.
        """
        inner = [alias(t) for t in tensors]
        first: dict[int, int] = {}
        for i, tensor in enumerate(tensors):
            j = first.setdefault(id(tensor), i)
            if j != i and compares_values(type(module)):
                inner[i] = inner[j]
                path = f"{scope.graph.qualname}.{labels[j]} and {labels[i]}"
                self._say("the identity", path, _ONE_OBJECT, scope.source)
        return inner

    def _remember(self, module: Module, arguments: Arguments, graph: InternalGraph) -> InternalGraph:
        """Keep the graph of a call; a later call with the same nesting and constants must look the same."""
        _, graphs = self.children.setdefault(id(module), (module, {}))
        remove_dead(graph)
        key = arguments_key(arguments)
        have = graphs.setdefault(key, graph)
        if have is graph:
            return have
        with hooks.unheard():  # what is written there is read from modules, and would count as reads of the user's
            same = _outline(have) == _outline(graph)
        if not same:
            raise GraphError(
                f"{graph.qualname} ({type(module).__name__}) is called twice with the same arguments but different "
                f"shapes, and does not compute the same: {_shapes(have)} and {_shapes(graph)}; "
                "use two modules, or do not branch on shapes"
            )
        return have


_ENTRY = ModuleTracer.trace.__code__  # a frame of it stands between what a module does and the line that called it


def _outline(graph: InternalGraph) -> list[str]:
    return [f"{e._made()} = {e.described()}" for e in graph.exprs(recursive=False) if e.kind != "Input"]


def _shapes(graph: InternalGraph) -> str:
    return ", ".join(f"{n.name} {n.spec}" for n in graph.inputs[1:])


def _input_names(module: Module, args: tuple, kwargs: dict) -> list[str]:
    """A name for each tensor among the arguments: the parameter's, with an index below it where it nests."""
    with hooks.unheard():
        graphs = module.graphs if issubclass(type(module), GraphOwner) else ()
    if graphs and not graphs[0].of_calls:
        return [node.name for node in graphs[0].inputs]
    bound = forward_signature(module).bind(*args, **kwargs)
    names = []
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind not in (kind.VAR_KEYWORD, kind.KEYWORD_ONLY):
            names.extend(_names_below(name, value))
    for key in keys_in_order(kwargs):
        names.extend(_names_below(key, kwargs[key]))
    return names


def _names_below(name: str, value: Any) -> Iterator[str]:
    leaves = flatten(value)[0]
    if len(leaves) == 1 and leaves[0] is value:
        if isinstance(value, Tensor):
            yield name
        return
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            yield f"{name}_{i}"


@contextmanager
def tracing(tracer: ModuleTracer) -> Iterator[None]:
    with hooks.listening(tracer), interpose(Deferring()):
        yield


def capture(module: Module, args: tuple, kwargs: dict, source: str) -> tuple[ModuleTracer, InternalGraph]:
    """Trace `module(*args, **kwargs)`, called at a line of the user's; values of the arguments are used only where
    Python asks for them.
    """
    signature = forward_signature(module)
    try:
        args, kwargs = normalized(signature, args, kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"trace_module: {error}; expected the arguments of {type(module).__name__}{signature}"
        ) from None
    leaves, structure = flatten((args, kwargs))
    # values are put off, so that nothing is computed on them without need
    deferred = {id(v): Tensor._deferred(v.spec, v._storage) for v in leaves if isinstance(v, Tensor)}
    args, kwargs = unflatten(structure, [deferred.get(id(v), v) for v in leaves])
    tracer = ModuleTracer()
    path = place_of(module).path or type(module).__name__
    try:
        with untouched(module), tracing(tracer):
            graph, _ = tracer.trace(module, args, kwargs, identifier(path), path, None, source)
    finally:
        tracer.restore()
    return tracer, graph
