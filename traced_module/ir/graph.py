"""The graph: expressions in order over named nodes, and the few primitives that change it.

One class serves both levels: at module level a graph belongs to a module (its first input is that module's node) and
holds calls as the user wrote them; at op level it holds only Input, Constant and Apply. Every public edit checks
first and changes then, so a refused edit leaves the graph as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import numpy as np

from megengine.core import hooks
from megengine.core.dtype import storage_of
from megengine.core.errors import GraphError, NameInUseError, ShapeError
from megengine.core.pytree import TreeDef
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import get_op
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.drawable import Drawable
from megengine.traced_module.editing.checking import Checks, inferred
from megengine.traced_module.editing.layer_settings import know
from megengine.traced_module.editing.module_edits import ModuleEdits, tells_shapes
from megengine.traced_module.editing.renaming import rename_node
from megengine.traced_module.ir.copying import Copier
from megengine.traced_module.ir.expr import Apply, Arguments, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.journal import Journal
from megengine.traced_module.ir.lookup import node_of
from megengine.traced_module.ir.names import NameSpace, identifier
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.order import ExprOrder
from megengine.traced_module.ir.primitives import Primitives, begin_use, is_among
from megengine.traced_module.ir.queries import Queries, traced_module_class
from megengine.traced_module.tracing.calls import get_subattr

__all__ = ["InternalGraph", "identifier"]


class InternalGraph(Queries, Checks, Primitives, ModuleEdits, Drawable):
    """Expressions in execution order over named nodes.

    `metadata` holds texts about the model, as ONNX files do: how its inputs are prepared, who made it. They go with
    copies of the graph and with its `.mgt` and `.onnx` files.
    """

    def __init__(self, name: str = "graph", qualname: str | None = None, *, owner: Module | None = None) -> None:
        self.name = name
        self.qualname = name if qualname is None else qualname
        self._owner = owner
        self._order = ExprOrder()
        self._inputs: tuple[Node, ...] = ()
        self._outputs: tuple[TensorNode, ...] = ()
        self._names = NameSpace()
        self._journal = Journal()
        self._top: InternalGraph = self
        self._inserting: Any = None
        self._entered_otherwise: bool | None = None  # of the top; None: nobody has looked (`_infer_entries`)
        self.arguments: Arguments | None = None  # how a call's arguments become the inputs after `self`
        self.out_def: TreeDef | None = None
        self.metadata: dict[str, str] = {}
        know(self)

    def _graphs_to_draw(self) -> list[InternalGraph]:
        return [self]

    # ------------------------------------------------------------ steps that can be undone

    def transaction(self, what: str = "transaction") -> AbstractContextManager[None]:
        """Edits in the body are one step for `undo`; if the body raises, none of them is left.

        Shapes may be wrong in between (a stage is dropped, then the head is replaced): they are checked at the end.
        Calls that are impossible then are removed if no result needs them; else the error names the first edit that
        none of the others repairs, and nothing is left. `what` is the name of the step in the edit log.
        """
        return self._journal.step(what, deferring=True)

    def _edit(self, what: str = "transaction") -> AbstractContextManager[None]:
        """A step each of whose changes is checked at once, unless it is a part of a transaction."""
        return self._journal.step(what)

    def _computed(self, function: Callable[..., Any], *given: Any) -> Any:
        """What a function that is declared by `computed_again` gives; logs of edits that use it compute it again."""
        made = function(*given)
        self._journal.note_origins(function.__name__, given, made)
        return made

    def undo(self) -> bool:
        """Take back the last edit (or transaction) of the traced module; False if there is none."""
        return self._journal.undo()

    def redo(self) -> bool:
        """Do again what was undone last; False if there is nothing."""
        return self._journal.redo()

    def keep_edits(self) -> None:
        """From now on edits can be undone, and stand in `edit_log`.

        Modules that were traced or read do so from the beginning. Graphs of ops do not, as what a pass replaces would
        stay in memory.
        """
        self._journal.recording = True

    @property
    def _total_ids(self) -> tuple[int, int]:
        """The ids that the next node and the next expression get: MegEngine's name."""
        return self._journal.next_node, self._journal.next_expr

    @property
    def _namespace(self) -> NameSpace:
        """The names of the graph: MegEngine's name."""
        return self._names

    @property
    def edit_log(self) -> Any:
        """The edits of the whole traced module so far, as an `EditLog`; undone ones are not in it."""
        from megengine.traced_module.editing.edit_log import log_of

        return log_of(self._journal)

    # ------------------------------------------------------------ making nodes and expressions

    def _new_expr_id(self) -> int:
        self._journal.next_expr += 1
        return self._journal.next_expr - 1

    def _make_node(self, expr: Expr, spec: TensorSpec | None, name: str, qualname: str) -> Node:
        ident = self._journal.next_node
        self._journal.next_node = ident + 1
        if spec is None:
            return ModuleNode.made(self, ident, name, qualname, expr)
        return TensorNode(self, ident, name, qualname, expr, spec)

    def _attach_outputs(self, expr: Expr, specs: Sequence[TensorSpec | None], name: str, qualname: str) -> None:
        nodes = []
        for spec in specs:
            unique = self._names.unique(name)
            self._names.take(unique, None)  # so that the next result of the same expression gets another one
            nodes.append(self._make_node(expr, spec, unique, qualname or f"{self.qualname}.[{unique}]"))
        expr._outputs = tuple(nodes)

    def _anchor(self, before: Expr | None, after: Expr | None) -> Expr | None:
        """The expression in front of which a new one goes; None for the end."""
        return before if before is not None else after._next if after is not None else None

    def add_self(self) -> ModuleNode:
        """The node of the module that the graph belongs to: the first input at module level."""
        expr = Input(self, self._new_expr_id(), {})
        name = self._names.unique("self")
        node = self._make_node(expr, None, name, self.qualname)
        expr._outputs = (node,)
        self._link(expr, (), None)
        self._set(self, "_inputs", (node, *self._inputs))
        return node  # type: ignore[return-value]

    def add_input(self, name: str, spec: TensorSpec, qualname: str = "") -> TensorNode:
        """Append an input."""
        if not isinstance(spec, TensorSpec):
            raise GraphError(f"add_input: {name!r} has the spec {spec!r}; expected a TensorSpec")
        with self._edit("add_input"):
            expr = Input(self, self._new_expr_id(), {})
            self._attach_outputs(expr, [spec], name, qualname or f"{self.qualname}.[{name}]")
            self._link(expr, (), self._inputs[-1].expr._next if self._inputs else self._order._first)
            self._set(self, "_inputs", (*self._inputs, expr._outputs[0]))
        return expr._outputs[0]

    def constant(
        self,
        value: Any,
        name: str = "const_tensor",
        *,
        before: Expr | None = None,
        after: Expr | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> TensorNode:
        """Add a constant from a tensor or an array (kept in its own dtype)."""
        value = value if isinstance(value, Tensor) else Tensor._wrap(np.asarray(value))
        if storage_of(value.dtype).kind in "OUSmM":
            raise GraphError(f"constant: {name!r} has elements of {value.dtype}; expected numbers")
        with self._edit("constant"):
            expr = Constant(self, self._new_expr_id(), dict(meta or {}), value)
            self._attach_outputs(expr, [value.spec], name, f"{self.qualname}.[{name}]" if self._inputs_self() else "")
            self._link(expr, (), self._anchor(before, after))
        return expr._outputs[0]

    def _inputs_self(self) -> bool:
        return bool(self._inputs) and isinstance(self._inputs[0], ModuleNode)

    def apply(
        self,
        op: str,
        *inputs: TensorNode,
        attrs: Mapping[str, Any] | None = None,
        name: str = "",
        before: Expr | None = None,
        after: Expr | None = None,
        meta: Mapping[str, Any] | None = None,
        qualname: str = "",
    ) -> Any:
        """Add an op; specs are inferred, so an impossible call is refused here. Returns its node or nodes.

        `before` / `after` place it; by default it comes last.
        """
        self._check_owned(f"apply {op}", inputs)
        record, attrs = get_op(op), dict(attrs or {})
        specs = inferred(record, inputs, attrs)
        single = isinstance(specs, TensorSpec)
        anchor = self._anchor(before, after)
        self._check_before(record.name, inputs, anchor)
        outputs = [specs] if isinstance(specs, TensorSpec) else specs
        with self._edit("apply"):
            expr = Apply(self, self._new_expr_id(), dict(meta or {}), record.name, attrs)
            self._attach_outputs(expr, outputs, name or f"{op}_out", qualname)
            self._link(expr, inputs, anchor)
        return expr._outputs[0] if single else expr._outputs

    def set_outputs(self, nodes: Sequence[Node]) -> None:
        """Say which values the graph returns."""
        self._check_owned("set_outputs", nodes)
        if not nodes or not all(isinstance(n, TensorNode) for n in nodes):
            raise GraphError(f"set_outputs: got {list(nodes)}; expected one tensor node or more")
        if self._top is not self and len(nodes) != len(self._outputs):
            raise GraphError(
                f"set_outputs: {self.qualname} is called by another graph, "
                f"which uses {counted(len(self._outputs), 'result')}; "
                f"got {len(nodes)}"
            )
        results = self._result_specs()
        with self._edit("set_outputs"):
            self._set(self, "_outputs", tuple(nodes))
            self._infer_again([], results)

    # ------------------------------------------------------------ editing

    def rename(self, node: Node, new: str) -> None:
        """Give a node another name. Raises NameInUseError if another node has it."""
        self._check_owned("rename", [node])
        if not isinstance(new, str):
            raise GraphError(f"rename: {node.name!r} to {new!r}; expected a text")
        if new != identifier(new):
            raise GraphError(f"{new!r} is not a name; expected letters, digits and _; try {identifier(new)!r}")
        holder = self._names.get(new)
        if holder is not None and holder is not node:
            raise NameInUseError(f"{new!r} already names {holder.expr!r}; choose another name")
        with self._edit("rename"):
            rename_node(self, node, new)

    def set_input(self, expr: Expr, index: int, node: Node) -> None:
        """Make `expr` use another value; shapes and dtypes of its results must stay, except in a transaction."""
        self._check_expr("set_input", expr)
        self._check_owned("set_input", [node])
        if not 0 <= index < len(expr.inputs):
            raise GraphError(f"set_input: {expr!r} has {counted(len(expr.inputs), 'input')}, so none of number {index}")
        new = (*expr.inputs[:index], node, *expr.inputs[index + 1 :])
        self._check_kinds("set_input", expr.inputs, new)
        self._check_before("set_input", [node], expr)
        self._check_kept(expr, new)
        before = expr.inputs[index]
        with self._edit("set_input"):
            self._use(expr, new)
            if self._journal.deferring or any(map(tells_shapes, (node, before, *expr.outputs))):
                self._infer_again([expr])

    def set_attrs(self, expr: Apply, attrs: Mapping[str, Any]) -> None:
        """Change attributes of an applied op; its results keep shapes and dtypes, except in a transaction."""
        self._check_expr("set_attrs", expr, Apply)
        new = {**expr.attrs, **attrs}
        self._check_kept(expr, expr.inputs, new)
        with self._edit("set_attrs"):
            self._set(expr, "_attrs", MappingProxyType(new))
            if self._journal.deferring:
                self._infer_again([expr])

    def replace_all_uses(self, old: TensorNode, new: TensorNode, *, except_: Iterable[Expr] = ()) -> None:
        """Let every user of `old` (and the graph's outputs) use `new`, of equal spec except in a transaction."""
        self._check_owned("replace_all_uses", (old, new))
        if old.spec != new.spec and not self._journal.deferring:
            raise ShapeError(
                f"replace_all_uses: {old.name!r} is {old.spec}, {new.name!r} is {new.spec}; expected equal"
            )
        skipped = {id(e) for e in (*except_, new.expr)}
        users = [u for u in old.users if id(u) not in skipped]
        for u in users:
            if u._key < new.expr._key:
                raise GraphError(f"replace_all_uses: {u.name!r} uses {old.name!r} before {new.name!r} is made")
        with self._edit("replace_all_uses"):
            for u in users:
                self._exchange(u, old, new)
            self._exchange_outputs(old, new)
            if old.spec != new.spec or tells_shapes(old) or tells_shapes(new):
                self._infer_again(users)

    def erase(self, expr: Expr) -> None:
        """Remove an expression whose values nobody uses; an input only of a graph of ops, which nobody calls."""
        self._check_expr("erase", expr)
        if isinstance(expr, Input) and self.arguments is not None:
            raise GraphError(
                f"erase: {expr.output.name!r} is an argument of calls of {self.qualname}; reset_inputs gives a top "
                "graph other inputs"
            )
        for n in expr.outputs:
            if n._users or is_among(n, self._outputs):
                used = [u.name for u in n.users] or ["the graph's outputs"]
                raise GraphError(f"erase: {n.name!r} is still used by {', '.join(used)}; replace its uses first")
        with self._edit("erase"):
            self._unlink(expr)
            if isinstance(expr, Input):
                self._set(self, "_inputs", tuple(n for n in self._inputs if n.expr is not expr))

    def remove_dead(self) -> int:
        """Remove expressions that no output needs (inputs stay); returns how many."""
        wanted = {id(n) for n in self._outputs}
        removed = 0
        with self._edit("remove_dead"):
            for expr in reversed(self.exprs(recursive=False)):  # users first, so one sweep is enough
                kept = isinstance(expr, Input) or expr._disable_remove
                if kept or any(n._users or id(n) in wanted for n in expr.outputs):
                    continue
                self._unlink(expr)
                removed += 1
        return removed

    # ------------------------------------------------------------ whole graph

    def clone(self) -> InternalGraph:
        """An independent copy with the same names and ids.

        A copy of a module-level graph belongs to the same module.
        """
        return self._copied(Copier())

    def _copied(self, copier: Copier | None) -> InternalGraph:
        """A clone with the constants that a copier makes; without one they are shared."""
        other = InternalGraph(self.name, self.qualname, owner=self._owner)
        mapping: dict[int, Node] = {}
        for expr in self._order:
            new = expr._copy(other)
            new._inputs = inputs = tuple([mapping[id(n)] for n in expr._inputs])
            new._from_shapes = expr._from_shapes
            if copier is not None and type(new) is Constant:
                new._value = copier.of(new._value)
            made = []
            for node in expr._outputs:
                mapping[id(node)] = copied = node._copy(other, new)
                made.append(copied)
            new._outputs = tuple(made)
            other._order.append(new)
            begin_use(new, inputs)
        other._names = self._names.copy({id(None): None, **mapping})
        other._inputs = tuple(mapping[id(n)] for n in self._inputs)
        other._outputs = tuple(mapping[id(n)] for n in self._outputs)  # type: ignore[assignment]
        other._journal.next_node, other._journal.next_expr = self._journal.next_node, self._journal.next_expr
        other.arguments, other.out_def = self.arguments, self.out_def
        other.metadata = dict(self.metadata)
        return other

    def node(self, name: str) -> Any:
        """The node of a name in this graph, or of a path or qualname in the graphs of its submodules too.

        Example:
            >>> graph.node("layer2.1.relu_out")  # doctest: +SKIP

        Raises:
            GraphError: there is none, and the nearest one is given; or there are several, and their paths are.
        """
        return node_of(self, name)

    # ------------------------------------------------------------ modules

    def module_of(self, node: Node) -> Any:
        """The module (or tensor) that a node made by reading attributes stands for."""
        expr = node._expr
        if not isinstance(expr, GetAttr):
            return self._owner
        holder, path = expr._inputs[0], expr._path
        module = self.module_of(holder) if isinstance(holder._expr, GetAttr) else self._owner
        at = module
        for part in path.split("."):  # mostly of modules in modules, and asked very often
            own: dict[str, Any] = object.__getattribute__(at, "__dict__") if issubclass(type(at), Module) else {}
            if part not in own:
                break
            at = own[part]
        else:
            return at
        with hooks.unheard():  # to look at a graph reads nothing
            return get_subattr(module, path)

    def module_type_of(self, node: Node) -> type:
        """Class of the module; plain `Module` for a module that is itself a graph."""
        found = type(self.module_of(node))
        return Module if issubclass(found, traced_module_class()) else found

    def _class_name_of(self, node: Node) -> str:
        """Name of the class of a module, as graphs print it: that which a traced one keeps, or Module."""
        module = self.module_of(node)
        if not issubclass(type(module), traced_module_class()):
            return type(module).__name__
        kept = module._kept_class
        return kept.rpartition(".")[2] if isinstance(kept, str) else Module.__name__
