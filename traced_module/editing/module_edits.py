"""Editing at module level: MegEngine's operations, each checked before anything is changed."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from megengine.core.dtype import as_dtype
from megengine.core.errors import ArgumentError, GraphError, MegEngineError, ShapeError
from megengine.core.pytree import flatten, unflatten
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.editing.attaching import all_exprs, free_attribute, is_of_top
from megengine.traced_module.editing.inputs import TOLD, add_input, set_call, set_inputs
from megengine.traced_module.editing.results import set_results, value_in
from megengine.traced_module.ir.expr import Call, Constant, Expr, GetAttr, Input, is_call_module
from megengine.traced_module.ir.names import identifier
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.primitives import is_among
from megengine.traced_module.ir.queries import child_graph

if TYPE_CHECKING:
    from megengine.traced_module.ir.graph import InternalGraph


class ModuleEdits:
    """Public edits of a graph."""

    # ------------------------------------------------------------ inserting

    def inserting_after(self: InternalGraph, place: Expr | Node) -> AbstractContextManager[None]:  # type: ignore[misc]
        """As `insert_exprs`: new expressions go right behind this one, or behind what makes this node."""
        return self.insert_exprs(place._expr if isinstance(place, Node) else place)

    def inserting_before(self: InternalGraph, place: Expr | Node) -> AbstractContextManager[None]:  # type: ignore[misc]
        """As `inserting_after`, in front of it."""
        from megengine.traced_module.editing.inserting import Insertion

        return Insertion(self, place._expr if isinstance(place, Node) else place, before=True)

    def insert_exprs(self: InternalGraph, expr: Expr | None = None) -> AbstractContextManager[None]:  # type: ignore[misc]
        """In the body, functions, methods and modules called on nodes add expressions to the graph.

        They go right behind `expr`; without it, behind the last expression that they use. If the body raises, the
        graph is as it was. Without a call of `replace_node` nothing uses what was added.

        Example:
            >>> with graph.insert_exprs():  # doctest: +SKIP
            ...     graph.replace_node({node: F.relu(node)})
        """
        from megengine.traced_module.editing.inserting import Insertion

        return Insertion(self, expr)

    # ------------------------------------------------------------ rewiring

    def replace_node(self: InternalGraph, repl_dict: Mapping[Any, Any]) -> None:  # type: ignore[misc]
        """Let the users of each old node (and the graph's outputs) use its new node instead.

        Users that stand before the new node, those that it depends on among them, keep the old one: new nodes for
        all users are made right behind the old node. Shapes and dtypes behind may change; they are inferred again,
        and an edit that makes a call impossible is refused.

        Raises:
            GraphError: a node is of another graph or kind, or every user of the old node stands before the new one.
            ShapeError, DTypeError, ...: what the call that becomes impossible raises.
        """
        if not isinstance(repl_dict, Mapping):
            raise GraphError(f"replace_node: got a {type(repl_dict).__name__}; expected a dict {{old node: new node}}")
        pairs = dict(repl_dict)
        for old, new in pairs.items():
            self._check_owned("replace_node", (old, new))
            self._check_kinds("replace_node", [old], [new])
        results = self._result_specs()
        with self._edit("replace_node"):
            for old, new in pairs.items():
                self._replace_one(old, new)
            changed = [new for old, new in pairs.items() if _may_change_shapes(old, new)]
            self._infer_again([u for new in changed for u in new.users], results)

    def _replace_one(self: InternalGraph, old: Node, new: Node) -> None:  # type: ignore[misc]
        if old is new:
            return
        users = [u for u in old.users if u._key > new.expr._key]
        if old.users and not users and not is_among(old, self._outputs):
            needed = {id(e) for e in self._between(old, new)}
            early = next((u for u in old.users if id(u) not in needed), None)
            raise GraphError(
                f"replace_node: nothing is left that could use {new.name!r} for {old.name!r}; "
                + (
                    f"every user of {old.name!r} is needed to make {new.name!r}"
                    if early is None
                    else f"{early!r} uses {old.name!r} before {new.name!r} is made; "
                    f"insert what makes {new.name!r} right behind {old.name!r}"
                )
            )
        for user in users:
            self._exchange(user, old, new)
        self._exchange_outputs(old, new)

    def _between(self: InternalGraph, old: Node, new: Node) -> list[Expr]:  # type: ignore[misc]
        """Expressions behind the one that makes `old` on which `new` depends."""
        found: dict[int, Expr] = {}
        todo = [new.expr]
        while todo:
            expr = todo.pop()
            if id(expr) not in found and expr._key > old.expr._key:
                found[id(expr)] = expr
                todo.extend(n.expr for n in expr.inputs)
        return list(found.values())

    def _infer_again(
        self: InternalGraph,  # type: ignore[misc]
        changed: Sequence[Expr],
        results: list[TensorSpec] | None = None,
        *,
        entries: bool = True,
    ) -> None:
        """Bring specs up to date from these expressions on, in execution order; then where this graph is called.

        `results` are the specs of the graph's outputs before the edit, if it may have exchanged them already.
        """
        results = self._result_specs() if results is None else results
        self._infer_in_order(changed)
        wanted = self._result_specs()
        if results != wanted:
            for expr in all_exprs(self._top):
                if child_graph(expr) is self and [n.spec for n in expr.outputs] != wanted:
                    expr._graph._infer_again([expr], entries=False)
        if entries and self._top is not self:
            self._infer_entries()

    def _infer_entries(self: InternalGraph) -> None:  # type: ignore[misc]
        """Infer the calls again that enter graphs with other shapes than those they were traced with.

        What fits the graph as it was traced may not fit these; there are such calls in few models.
        """
        top = self._top
        if top._entered_otherwise is None:
            top._entered_otherwise = any(map(_enters_otherwise, all_exprs(top)))
        for expr in all_exprs(top) if top._entered_otherwise else ():
            if _enters_otherwise(expr):
                expr._graph._infer_again([expr], entries=False)

    def _result_specs(self: InternalGraph) -> list[TensorSpec]:  # type: ignore[misc]
        """Specs of the results where another graph calls this one."""
        return [] if self._top is self else [n.spec for n in self._outputs]

    def _infer_in_order(self: InternalGraph, changed: Sequence[Expr]) -> None:  # type: ignore[misc]
        waiting = {e._key: e for e in changed}
        todo = sorted(waiting)  # a heap, first in execution order on top
        while todo:
            expr = waiting.pop(heapq.heappop(todo))
            note_entry(expr)
            try:
                specs = self._possible_specs(expr)
            except MegEngineError as error:
                self._journal.postpone(expr, error)
                continue
            if postponed := self._journal.open and self._journal.open.postponed:
                postponed.pop(expr, None)
            if specs is None:
                continue
            for node, spec in zip(expr.outputs, specs, strict=True):
                if node.spec != spec:
                    self._set(node, "_spec", spec)
                elif not tells_shapes(node):
                    continue
                for user in node._users:
                    if user._key not in waiting:
                        waiting[user._key] = user
                        heapq.heappush(todo, user._key)

    def _possible_specs(self: InternalGraph, expr: Expr) -> tuple[TensorSpec, ...] | None:  # type: ignore[misc]
        specs = self._specs_of(expr, expr.inputs)
        if specs is not None and len(specs) != len(expr.outputs):
            raise ShapeError(f"{expr!r} would make {counted(len(specs), 'value')}; it makes {len(expr.outputs)}")
        return specs

    def _retry(self: InternalGraph, expr: Expr) -> None:  # type: ignore[misc]
        """At the end of a transaction: infer an expression again that was impossible; gone if no result needs it."""
        postponed = self._journal.open.postponed if self._journal.open is not None else {}
        self._infer_again([expr] if self._has(expr) else [])
        if expr in postponed and self._has(expr) and not any(e is expr for e in self._needed()):
            self.remove_dead()
        if not self._has(expr):
            postponed.pop(expr, None)

    def _has(self: InternalGraph, expr: Expr) -> bool:  # type: ignore[misc]
        return self._names.get(expr.outputs[0].name) is expr.outputs[0]

    def _needed(self: InternalGraph) -> list[Expr]:  # type: ignore[misc]
        """Expressions that a result needs, or that are to stay."""
        kept = [n for e in self._order if e._disable_remove for n in e.outputs]
        return self.get_dep_exprs([*self._outputs, *kept])

    def set_inputs(self: InternalGraph, expr: Expr, inputs: Sequence[Node]) -> None:  # type: ignore[misc]
        """Let an expression use other nodes, in the same places. Raises as `replace_node`."""
        self._check_expr("set_inputs", expr)
        self._check_owned("set_inputs", inputs)
        if len(inputs) != len(expr.inputs):
            raise GraphError(f"set_inputs: {expr!r} has {counted(len(expr.inputs), 'input')}, got {len(inputs)}")
        self._check_kinds("set_inputs", expr.inputs, inputs)
        self._check_before("set_inputs", inputs, expr)
        with self._edit("set_inputs"):
            self._use(expr, inputs)
            self._infer_again([expr])

    def set_arguments(self: InternalGraph, expr: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:  # type: ignore[misc]
        """Let a call have other arguments: nodes of this graph and constants, nested in any way."""
        from megengine.traced_module.tracing.calls import callee_signature, flatten_arguments, normalized

        self._check_owned("set_args_kwargs", [expr.outputs[0]])
        signature = callee_signature(expr)
        try:
            args, kwargs = normalized(signature, args, kwargs)
        except TypeError as error:
            raise ArgumentError(f"set_args_kwargs: {expr!r}: {error}; expected {signature}") from None
        inputs, arguments = flatten_arguments(args, kwargs, lambda v: v if isinstance(v, Node) else None)
        if is_call_module(expr) and (not inputs or inputs[0] is not expr.inputs[0]):
            raise GraphError(
                f"set_args_kwargs: the first argument of {expr!r} is the module; it stays: {expr.inputs[0]!r}"
            )
        if any(isinstance(v, Tensor) for _, v in arguments[1]):
            raise GraphError("set_args_kwargs: a tensor among the arguments; make it a node with graph.constant first")
        self._check_owned("set_args_kwargs", inputs)
        self._check_before("set_args_kwargs", inputs, expr)
        with self._edit("set_arguments"):
            set_call(self, expr, inputs, arguments)
            self._infer_again([expr])

    def set_attribute(self: InternalGraph, node: ModuleNode, name: str, value: Any) -> str:  # type: ignore[misc]
        """Give the module behind a node a new submodule or tensor, to be used by expressions inserted later.

        Of a traced module it gets a copy with the same layers and tensors, whose edits are part of this history. Any
        other module that is no layer is traced when a node that reads it is called. Where the module has a submodule
        or tensor of that name, the new one gets `_1`. Returns the name.
        """
        if not isinstance(value, Tensor):
            self._check_module(f"{name!r} of {node.name!r}", value, "a Module or a tensor")
        if name != identifier(name):
            raise GraphError(f"{name!r} is not an attribute name; try {identifier(name)!r}")
        free = free_attribute(node, name)
        with self._edit("set_attribute"):
            self._put_attribute(node, free, self._own(node, free, value))
        if self._inserting is not None:
            self._inserting.was_set(node, name, free)
        return free

    def replace_module(self: InternalGraph, node: ModuleNode, module: Any) -> None:  # type: ignore[misc]
        """Put another module in the place of the one that a node reads, under the same name.

        A module that is no layer, and is not traced, is traced for the calls of the one that goes. Every call is
        inferred again; one that becomes impossible is refused.
        """
        from megengine.traced_module.editing import composites

        self._check_owned("replace_module", [node])
        if not isinstance(node, ModuleNode) or not isinstance(node.expr, GetAttr):
            raise GraphError(
                f"replace_module: {node!r} does not read a submodule; give the node of a layer, as get_module_by_type "
                "finds it"
            )
        self._check_module(node.qualname, module)
        composites.check_not_read_inside(self, node)
        with self._edit("replace_module"):
            calls = composites.calls_to_renew(self, node)
            made = self._own(node, "", module)
            if composites.is_composite(module):
                made = composites.replacement(self, node, module)
            self._put_attribute(node.expr.inputs[0], node.expr.name, made)
            composites.give_arguments(calls)
            for graph in {id(call._graph): call._graph for call in calls}.values():
                graph._infer_again([call for call in calls if call._graph is graph])

    def _attribute_at(self: InternalGraph, node: ModuleNode, path: str) -> tuple[Any, str, Any]:  # type: ignore[misc]
        """The module that holds what is at a path below that of a node, its name there, and its value or None."""
        from megengine.traced_module.tracing.calls import get_subattr

        parent, _, name = path.rpartition(".")
        owner = self.module_of(node)
        holder = get_subattr(owner, parent) if parent else owner
        if not isinstance(holder, Module):
            raise GraphError(f"{path!r} of {node.qualname}: {parent!r} is a {type(holder).__name__}, not a module")
        return holder, name, object.__getattribute__(holder, "__dict__").get(name)

    def _put_attribute(self: InternalGraph, node: ModuleNode, path: str, value: Any) -> None:  # type: ignore[misc]
        from megengine.traced_module.editing.composites import is_composite

        holder, name, was = self._attribute_at(node, path)
        if is_composite(value):  # the log has the module that is made of it, in its first call
            record: tuple[Any, ...] = TOLD
        else:
            record = ("module", self, node, path, None if is_composite(was) else was, value)
        self._set_in_module(holder, name, value, record)

    def _own(self: InternalGraph, node: ModuleNode, name: str, value: Any) -> Any:  # type: ignore[misc]
        """What becomes the attribute of a module: a traced module is copied, layers and tensors are shared."""
        from megengine.traced_module.editing.attaching import attached
        from megengine.traced_module.traced import TracedModule

        if not isinstance(value, TracedModule):
            return value
        above = [node.expr.name] if isinstance(node.expr, GetAttr) else []
        return attached(self, ".".join([*above, name] if name else above), value)

    def _check_module(self: InternalGraph, what: str, module: Any, kinds: str = "a Module") -> None:  # type: ignore[misc]
        if not isinstance(module, Module):
            raise GraphError(f"{what}: expected {kinds}, got {type(module).__name__}")
        if module is self._owner:
            raise GraphError(f"{what}: the module of the graph {self.qualname} cannot be a part of itself")

    # ------------------------------------------------------------ removing

    def compile(self: InternalGraph) -> None:  # type: ignore[misc]
        """Remove expressions, here and in graphs that calls enter, that no result needs; then what no graph reads."""
        from megengine.traced_module.editing.dead_parts import drop_dead_parts

        with self._edit("compile"):
            drop_dead_parts(self)

    # ------------------------------------------------------------ inputs and outputs

    def add_input_node(
        self: InternalGraph,  # type: ignore[misc]
        shape: Sequence[int],
        dtype: Any = "float32",
        name: str = "args",
    ) -> TensorNode:
        """Append an input of the traced module; it becomes the last positional argument of a call.

        In the graph of a submodule, every call of it gets the value of an input that the graph around it gets.
        """
        try:
            lengths = tuple(map(operator.index, shape))
        except TypeError:
            lengths = (-1,)
        if min(lengths, default=0) < 0:
            raise ShapeError(f"add_input_node: shape is {shape!r}; expected lengths, 0 or more each")
        if not isinstance(name, str):
            raise GraphError(f"add_input_node: name is {name!r}; expected a text")
        with self._edit("add_input_node"):
            return add_input(self, name, TensorSpec(lengths, as_dtype(dtype)))

    def add_output_node(self: InternalGraph, node: TensorNode | str, *, through: Expr | None = None) -> None:  # type: ignore[misc]
        """Return one more value: the module's result becomes (what it was, the value).

        The value may be one of a submodule, or its path, as for `value_of`. In the graph of a submodule, every call
        of it gets the result.
        """
        with self._edit("add_output_node"):
            found = value_in(self, node, what="add_output_node", through=through)
            self._check_owned("add_output_node", [found])
            current = self._result()
            self.reset_outputs((*current, found) if isinstance(current, tuple) else (current, found))

    def reset_outputs(self: InternalGraph, outputs: Any) -> None:  # type: ignore[misc]
        """Return these nodes, nested in tuples, lists and dicts as the result is to be.

        They may be values of submodules, or paths, as for `value_of`. In the graph of a submodule, every call of it
        gives these results; one that is used there has to stay.
        """
        leaves, structure = flatten(outputs)
        if not leaves or not all(isinstance(n, (TensorNode, str)) for n in leaves):
            self._check_owned("reset_outputs", leaves)
            wrong = next((n.name for n in leaves if not isinstance(n, TensorNode)), None)
            got = "nothing" if wrong is None else f"{wrong!r}, which is a module"
            raise GraphError(f"reset_outputs: got {got}; expected tensor nodes, one or more, nested in any way")
        with self._edit("reset_outputs"):
            leaves = [value_in(self, node, what="reset_outputs") for node in leaves]
            self._check_owned("reset_outputs", leaves)
            set_results(self, leaves, structure)

    def value_of(self: InternalGraph, node: TensorNode | str, *, through: Expr | None = None) -> TensorNode:  # type: ignore[misc]
        """The node of this graph that has the value of a submodule's node.

        Where there is none yet, the graphs between return one more result, (what it was, the value), and every call
        of them gives it. Of a submodule that is called several times it is the value of the first call; or that of
        the call `through`, or of the first along a path that is given in place of the node.

        Example:
            >>> graph.value_of("layer2.1.relu_out")  # doctest: +SKIP

        Raises:
            GraphError: this graph does not compute the value.
        """
        with self._edit("value_of"):
            found = value_in(self, node, what="value_of", through=through)
            self._check_owned("value_of", [found])
        return found

    def reset_inputs(self: InternalGraph, *args: Any, **kwargs: Any) -> list[TensorNode]:  # type: ignore[misc]
        """Give the graph new inputs for these example tensors; the old ones must be unused then.

        Returns the new input nodes; use `replace_node` to connect them, then `compile` removes nothing else. In the
        graph of a submodule, calls of it get the values of inputs that the graphs around it get.
        """
        leaves, structure = flatten((args, kwargs))
        if wrong := [leaf for leaf in leaves if not isinstance(leaf, Tensor)]:
            raise GraphError(f"reset_inputs: expected tensors, got {type(wrong[0]).__name__}")
        with self._edit("reset_inputs"):
            return set_inputs(self, [leaf.spec for leaf in leaves], structure)

    def _check_top(self: InternalGraph, what: str) -> None:  # type: ignore[misc]
        if not is_of_top(self):
            raise GraphError(f"{what}: {self.qualname} is called by another graph; flatten the module, or edit the top")

    def _result(self: InternalGraph) -> Any:  # type: ignore[misc]
        if self.out_def is not None:
            return unflatten(self.out_def, self._outputs)
        return self._outputs[0] if len(self._outputs) == 1 else self._outputs

    def _example(self: InternalGraph) -> tuple[tuple[Any, ...], dict[str, Any]]:  # type: ignore[misc]
        """(args, kwargs) of a call with input nodes in place of tensors (without the newest input)."""
        assert self.arguments is not None
        leaves: list[Any] = [n for n in self._inputs[:-1] if isinstance(n, TensorNode)]
        for index, value in self.arguments[1]:
            leaves.insert(index, value)
        return unflatten(self.arguments[0], leaves)

    def _set_signature(self: InternalGraph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:  # type: ignore[misc]
        """Inputs in the order of a call's arguments; the module takes calls of that form from now on."""
        from megengine.traced_module.tracing.calls import flatten_arguments

        inputs, arguments = flatten_arguments(args, kwargs, lambda v: v if isinstance(v, Node) else None)
        head = [n for n in self._inputs if isinstance(n, ModuleNode)]
        dropped = [n for n in self._inputs if n not in inputs and n not in head]
        for node in dropped:
            if node._users:
                raise GraphError(f"reset_inputs: {node.name!r} is still used; replace it first, with transaction()")
        for node in dropped:
            assert isinstance(node.expr, Input)
            self._unlink(node.expr)
        self._set(self, "_inputs", (*head, *inputs))
        self._set(self, "arguments", arguments)
        self._own_call()

    def _own_call(self: InternalGraph) -> None:  # type: ignore[misc]
        """Let the module take calls as this graph says."""
        owner = self._owner
        if owner is not None and self.arguments is not None:
            from megengine.traced_module.tracing.calls import arguments_key

            graphs = {k: g for k, g in owner._graphs.items() if g is not self}  # type: ignore[attr-defined]
            if arguments_key(self.arguments) in graphs:
                raise GraphError(f"{self.qualname} has another graph for calls of that form; flatten the module first")
            self._set(owner, "_graphs", {**graphs, arguments_key(self.arguments): self}, ("owner", self))
            self._set(owner, "forward_signature", None, TOLD)  # arguments are taken as they are given

    # ------------------------------------------------------------ running

    def interpret(self: InternalGraph, *inputs: Any) -> list[Tensor]:  # type: ignore[misc]
        """Run the graph on tensors for its inputs (the module itself may come first); returns its outputs."""
        from megengine.traced_module.interpret import interpret

        given = [x for x in inputs if not isinstance(x, Module)]
        return interpret(self, given)

    eval = interpret


def _enters_otherwise(expr: Expr) -> bool:
    """True for a call that gives a graph other shapes than those that it was traced with."""
    child = child_graph(expr)
    return child is not None and [n.spec for n in expr.inputs[1:]] != [n.spec for n in child._inputs[1:]]


def note_entry(expr: Expr) -> None:
    """Remember if there is such a call."""
    if _enters_otherwise(expr):
        expr.top_graph._top._entered_otherwise = True


def _may_change_shapes(old: Any, new: Any) -> bool:
    """True if what uses `new` in place of `old` may have results of other shapes."""
    return isinstance(old, ModuleNode) or old.spec != new.spec or tells_shapes(old) or tells_shapes(new)


def tells_shapes(node: Node) -> bool:
    """True for a value that is known and may be a shape: computed from shapes of others, or a constant."""
    if not isinstance(node, TensorNode) or node._spec.size > 16:
        return False
    expr = node._expr
    return expr._from_shapes or (isinstance(expr, Constant) and getattr(node._spec.dtype, "kind", "") in ("i", "u"))
