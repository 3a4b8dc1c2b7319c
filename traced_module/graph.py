"""The graph: an ordered list of expressions over named values, and the few primitives that change it.

Every public edit checks first and changes then, so a refused edit leaves the graph as it was.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from megengine.core.errors import GraphError, NameInUseError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.tensor import Tensor
from megengine.traced_module.expr import Apply, Constant, Expr, Input
from megengine.traced_module.filters import ExprFilter, NodeFilter
from megengine.traced_module.node import TensorNode

_NOT_IDENTIFIER = re.compile(r"\W")


def identifier(text: str) -> str:
    """A name made of word characters that does not start with a digit."""
    text = _NOT_IDENTIFIER.sub("_", text) or "_"
    return f"_{text}" if text[0].isdigit() or keyword.iskeyword(text) else text


class InternalGraph:
    """A flat graph of ops: inputs, constants and applied ops in execution order."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._exprs: list[Expr] = []
        self._inputs: list[TensorNode] = []
        self._outputs: list[TensorNode] = []
        self._names: dict[str, TensorNode] = {}
        self._next_id = 0

    # ------------------------------------------------------------ reading

    def exprs(self, recursive: bool = True) -> ExprFilter:
        """Expressions in execution order (inputs of the graph too)."""
        return ExprFilter(self._exprs)

    @property
    def inputs(self) -> tuple[TensorNode, ...]:
        """Input values."""
        return tuple(self._inputs)

    @property
    def outputs(self) -> tuple[TensorNode, ...]:
        """Output values."""
        return tuple(self._outputs)

    def nodes(self, recursive: bool = True) -> NodeFilter:
        """Every value, in the order in which it is made."""
        return NodeFilter(n for e in self._exprs for n in e.outputs)

    def node(self, name: str) -> TensorNode:
        """The value of that name; the error gives the nearest one."""
        from megengine.core.errors import nearest

        if name not in self._names:
            raise GraphError(f"graph {self.name!r} has no node {name!r}{nearest(name, self._names)}")
        return self._names[name]

    def get_apply_by_type(self, op: str) -> tuple[Apply, ...]:
        """Expressions that apply `op`, in order."""
        return tuple(e for e in self._exprs if isinstance(e, Apply) and e.op == op)

    def __repr__(self) -> str:
        head = f"{self.name}.Graph ({', '.join(n.name for n in self._inputs)}) {{"
        body = [f"\t{e!r}" for e in self._exprs if not isinstance(e, Input)]
        return "\n".join([head, *body, f"\treturn {', '.join(n.name for n in self._outputs)}", "}"])

    # ------------------------------------------------------------ primitives

    def _unique(self, name: str) -> str:
        base = identifier(name)
        if base not in self._names:
            return base
        i = 1
        while f"{base}_{i}" in self._names:
            i += 1
        return f"{base}_{i}"

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _attach_outputs(self, expr: Expr, specs: Sequence[TensorSpec], name: str, qualname: str) -> None:
        nodes = []
        for spec in specs:
            unique = self._unique(name)
            node = TensorNode(self, self._new_id(), unique, qualname or f"{self.name}.[{unique}]", expr.meta, spec=spec)
            node._expr = expr
            self._names[unique] = node
            nodes.append(node)
        expr._outputs = tuple(nodes)

    def _insert(self, expr: Expr, inputs: Sequence[TensorNode], position: int) -> None:
        expr._inputs = tuple(inputs)
        for n in inputs:
            n._users.append(expr)
        self._exprs.insert(position, expr)

    def _position(self, before: Expr | None, after: Expr | None) -> int:
        if before is not None:
            return self._exprs.index(before)
        return len(self._exprs) if after is None else self._exprs.index(after) + 1

    def _check_owned(self, what: str, nodes: Iterable[TensorNode]) -> None:
        for n in nodes:
            if self._names.get(n.name) is not n:
                raise GraphError(f"{what}: node {n.name!r} does not belong to graph {self.name!r}")

    # ------------------------------------------------------------ building

    def add_input(self, name: str, spec: TensorSpec) -> TensorNode:
        """Append an input."""
        expr = Input(self, self._new_id(), {})
        self._attach_outputs(expr, [spec], name, "")
        position = len(self._inputs)
        self._insert(expr, (), position)
        self._inputs.append(expr.outputs[0])
        return expr.outputs[0]

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
        expr = Constant(self, self._new_id(), dict(meta or {}), value)
        position = self._position(before, after)
        self._attach_outputs(expr, [value.spec], name, "")
        self._insert(expr, (), position)
        return expr.outputs[0]

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

        `before` / `after` place it; by default it comes last, or right after its latest input when that is not last.
        """
        self._check_owned(f"apply {op}", inputs)
        record, attrs = get_op(op), dict(attrs or {})
        specs = infer(record, [n.spec for n in inputs], attrs)
        single = isinstance(specs, TensorSpec)
        position = self._position(before, after)
        self._check_before(record.name, inputs, position)
        expr = Apply(self, self._new_id(), dict(meta or {}), record.name, attrs)
        self._attach_outputs(expr, [specs] if isinstance(specs, TensorSpec) else specs, name or f"{op}_out", qualname)
        self._insert(expr, inputs, position)
        return expr.outputs[0] if single else expr.outputs

    def _check_before(self, what: str, inputs: Iterable[TensorNode], position: int) -> None:
        if position == len(self._exprs):
            return
        earlier = set(map(id, self._exprs[:position]))
        for n in inputs:
            if id(n.expr) not in earlier:
                raise GraphError(f"{what}: input {n.name!r} is made after the place of insertion; insert later")

    def set_outputs(self, nodes: Sequence[TensorNode]) -> None:
        """Say which values the graph returns."""
        self._check_owned("set_outputs", nodes)
        self._outputs = list(nodes)

    # ------------------------------------------------------------ editing

    def rename(self, node: TensorNode, new: str) -> None:
        """Give a node another name. Raises NameInUseError if another node has it."""
        if new != identifier(new):
            raise GraphError(f"{new!r} is not a name; expected letters, digits and _; try {identifier(new)!r}")
        if self._names.get(new, node) is not node:
            raise NameInUseError(f"{new!r} already names {self._names[new].expr!r}; choose another name")
        del self._names[node.name]
        node._name = new
        self._names[new] = node

    def set_input(self, expr: Expr, index: int, node: TensorNode) -> None:
        """Make `expr` use another value; shapes and dtypes of its results must stay."""
        self._check_owned("set_input", [node])
        new = (*expr.inputs[:index], node, *expr.inputs[index + 1 :])
        self._check_before("set_input", [node], self._exprs.index(expr))
        self._check_same(expr, new, expr.attrs if isinstance(expr, Apply) else {})
        expr.inputs[index]._users.remove(expr)
        expr._inputs = new
        node._users.append(expr)

    def set_attrs(self, expr: Apply, attrs: Mapping[str, Any]) -> None:
        """Change attributes of an applied op; shapes and dtypes of its results must stay."""
        new = {**expr.attrs, **attrs}
        self._check_same(expr, expr.inputs, new)
        expr._attrs = MappingProxyType(new)

    def _check_same(self, expr: Expr, inputs: Sequence[TensorNode], attrs: Mapping[str, Any]) -> None:
        if not isinstance(expr, Apply):
            return
        specs = infer(expr.op, [n.spec for n in inputs], dict(attrs))
        specs = (specs,) if isinstance(specs, TensorSpec) else tuple(specs)
        have = tuple(n.spec for n in expr.outputs)
        if specs != have:
            raise ShapeError(
                f"{expr!r}: the edit changes its results from {list(map(str, have))} to {list(map(str, specs))}"
            )

    def replace_all_uses(self, old: TensorNode, new: TensorNode, *, except_: Iterable[Expr] = ()) -> None:
        """Let every user of `old` (and the graph's outputs) use `new`, which must have its shape and dtype."""
        self._check_owned("replace_all_uses", (old, new))
        if old.spec != new.spec:
            raise ShapeError(
                f"replace_all_uses: {old.name!r} is {old.spec}, {new.name!r} is {new.spec}; expected equal"
            )
        skipped = {id(e) for e in (*except_, new.expr)}
        order = {id(e): i for i, e in enumerate(self._exprs)}
        users = [u for u in old.users if id(u) not in skipped]
        for u in users:
            if order[id(u)] < order[id(new.expr)]:
                raise GraphError(f"replace_all_uses: {u.name!r} uses {old.name!r} before {new.name!r} is made")
        for u in users:
            u._inputs = tuple(new if n is old else n for n in u._inputs)
            moved = old._users.count(u)
            old._users = [e for e in old._users if e is not u]
            new._users.extend([u] * moved)
        self._outputs = [new if n is old else n for n in self._outputs]

    def erase(self, expr: Expr) -> None:
        """Remove an expression whose values nobody uses."""
        for n in expr.outputs:
            if n._users or any(n is o for o in self._outputs):
                used = [u.name for u in n.users] or ["the graph's outputs"]
                raise GraphError(f"erase: {n.name!r} is still used by {', '.join(used)}; replace its uses first")
        for n in expr.inputs:
            n._users.remove(expr)
        for n in expr.outputs:
            del self._names[n.name]
        self._exprs.remove(expr)
        self._inputs = [n for n in self._inputs if n.expr is not expr]

    def remove_dead(self) -> int:
        """Remove expressions that no output needs (inputs stay); returns how many."""
        wanted = {id(n) for n in self._outputs}
        removed = 0
        for expr in reversed(self.exprs()):  # users first, so one sweep is enough
            if isinstance(expr, Input) or any(n._users or id(n) in wanted for n in expr.outputs):
                continue
            self.erase(expr)
            removed += 1
        return removed

    # ------------------------------------------------------------ whole graph

    def clone(self) -> InternalGraph:
        """An independent copy with the same names and ids; constants share their (immutable) values."""
        other = InternalGraph(self.name)
        mapping: dict[int, TensorNode] = {}
        for expr in self._exprs:
            new = _copy_expr(other, expr)
            nodes = []
            for n in expr.outputs:
                copy = TensorNode(other, n.id, n.name, n.qualname, new.meta, spec=n.spec)
                copy._expr = new
                other._names[n.name] = mapping[id(n)] = copy
                nodes.append(copy)
            new._outputs = tuple(nodes)
            other._insert(new, [mapping[id(n)] for n in expr.inputs], len(other._exprs))
        other._inputs = [mapping[id(n)] for n in self._inputs]
        other._outputs = [mapping[id(n)] for n in self._outputs]
        other._next_id = self._next_id
        return other

    def lint(self) -> None:
        """Check ownership, order, uses both ways, names, shapes and dtypes. Raises GraphError at the first fault."""
        seen: set[int] = set()
        for expr in self._exprs:
            for n in expr.inputs:
                if id(n) not in seen:
                    raise GraphError(f"lint: {expr!r} uses {n.name!r} before it is made")
                if n._users.count(expr) != expr.inputs.count(n):
                    raise GraphError(f"lint: users of {n.name!r} do not agree with the inputs of {expr!r}")
            for n in expr.outputs:
                if self._names.get(n.name) is not n or n._graph is not self or n.expr is not expr:
                    raise GraphError(f"lint: {n.name!r} is not owned by graph {self.name!r}")
                seen.add(id(n))
            self._check_same(expr, expr.inputs, expr.attrs if isinstance(expr, Apply) else {})
        alive = set(map(id, self._exprs))
        for n in self._names.values():
            if id(n) not in seen:
                raise GraphError(f"lint: name {n.name!r} is left over")
            if any(id(u) not in alive for u in n._users):
                raise GraphError(f"lint: {n.name!r} is used by an expression that is not in the graph")
        for n in (*self._inputs, *self._outputs):
            if id(n) not in seen:
                raise GraphError(f"lint: input or output {n.name!r} is not made in the graph")


def _copy_expr(graph: InternalGraph, expr: Expr) -> Expr:
    meta = dict(expr.meta)
    if isinstance(expr, Apply):
        return Apply(graph, expr.id, meta, expr.op, expr.attrs)
    if isinstance(expr, Constant):
        return Constant(graph, expr.id, meta, expr.value)
    return Input(graph, expr.id, meta)
