"""Filters: what `graph.exprs()` and `graph.nodes()` give, narrowed step by step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from megengine.core.errors import GraphError, listed, nearest
from megengine.module import Module
from megengine.traced_module.ir.expr import CallMethod, Expr, is_call_function, is_call_tensor_method
from megengine.traced_module.ir.lookup import known_as, node_path
from megengine.traced_module.ir.node import ModuleNode, Node
from megengine.traced_module.ir.owner import GraphOwner

T = TypeVar("T", Expr, Node)


class BaseFilter(Sequence[T]):
    """A fixed sequence of expressions or nodes, taken when it was asked for: editing while iterating is safe."""

    def __init__(self, items: Iterable[T], hint: Callable[[], str] = str) -> None:
        self._items = tuple(items)
        self._hint = hint  # what to say where nothing was found

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{list(self._items)!r}"

    def as_list(self) -> list[T]:
        """All of them."""
        return list(self._items)

    def as_dict(self) -> dict[int, T]:
        """All of them by id."""
        return {item._id: item for item in self._items}

    def as_unique(self) -> T:
        """The only one. Raises GraphError when there are none or several."""
        if len(self._items) != 1:
            paths = ", ".join(map(_path_of, self._items[:5])) or "nothing"
            paths += ", ..." if len(self._items) > 5 else ""
            hint = "" if self._items else self._hint()
            raise GraphError(f"as_unique: expected exactly one item, found {len(self._items)} ({paths}){hint}")
        return self._items[0]

    def as_count(self) -> int:
        """How many there are."""
        return len(self._items)

    def _keep(self, condition: Callable[[T], bool], hint: Callable[[], str] = str) -> Any:
        return type(self)((i for i in self._items if condition(i)), hint)

    def _by_id(self, wanted: int | Sequence[int]) -> Any:
        ids = {wanted} if isinstance(wanted, int) else set(wanted)
        if not all(isinstance(one, int) for one in ids):
            raise GraphError(f"got {wanted!r}; expected ids, which are integers; get_node_by_name finds nodes by name")
        return self._keep(lambda item: item._id in ids)


def among(wanted: str, known: Iterable[str]) -> str:
    """The end of a message that there is nothing of a name: the nearest name, and what there is."""
    names = sorted(set(known))
    return f" for {wanted!r}{nearest(wanted, names)}" + (f"; there are {listed(names)}" if names else "")


def _path_of(item: Any) -> str:
    """Where a node, or what an expression makes, is found."""
    node = item if isinstance(item, Node) else next(iter(item.outputs), None)
    return "?" if node is None else node_path(node)


class ExprFilter(BaseFilter[Expr]):
    """Expressions."""

    def call_function(self, func: Callable[..., Any] | None) -> ExprFilter:
        """Calls of a function. Raises GraphError for what cannot be called."""
        if func is not None and not callable(func):
            raise GraphError(f"call_function: got {func!r}; expected a function, as F.relu")
        wanted = getattr(func, "__name__", "a function")
        return self._keep(lambda e: is_call_function(e, func), lambda: _absent(wanted, "function", self))

    def call_method(self, method: str | None) -> ExprFilter:
        """Calls of a method of tensors, or of modules for "__call__"."""
        if method in (None, "__call__"):
            return self._keep(lambda e: isinstance(e, CallMethod) and method in (None, e.method))
        return self._keep(lambda e: is_call_tensor_method(e, method), lambda: _absent(method, "method", self))

    def expr_id(self, expr_id: int | Sequence[int]) -> ExprFilter:
        return self._by_id(expr_id)


class NodeFilter(BaseFilter[Node]):
    """Nodes."""

    def name(self, name: str, ignorecase: bool = True) -> NodeFilter:
        """Those whose name matches a pattern: `*` stands for anything (`conv*_out`), `?` for one character.

        A pattern with a `.` is one of paths and qualnames (`layer1.*.relu_out`). Others may also match the name behind
        that of its graph, as in MegEngine (`Net_conv_out`, `Net_sub_relu_out` in the graph of `sub`, `*sub*`).
        """
        pattern = re.compile(
            "".join({"*": ".*", "?": "."}.get(part, re.escape(part)) for part in re.split(r"([*?])", name)),
            re.IGNORECASE if ignorecase else 0,
        )
        known = self._items
        texts = known_as if "." in name else lambda node: (node.name,)
        matching = self._keep(
            lambda node: any(map(pattern.fullmatch, (*texts(node), f"{node.graph.name}_{node.name}")))
        )
        matching._hint = lambda: f" for {name!r}{nearest(name, [text for node in known for text in texts(node)])}"
        return matching

    def type(self, owner_type: Any) -> NodeFilter:
        """Nodes of modules of a class. Raises GraphError for anything but a class."""
        fits = is_of("type", owner_type)
        modules = [n for n in self if isinstance(n, ModuleNode)]
        wanted = getattr(owner_type, "__name__", "the classes")

        def hint() -> str:
            return among(wanted, (n._class_name for n in modules)) + _ops(n.expr for n in self)

        return NodeFilter((n for n in modules if fits(n.owner)), hint)

    def node_id(self, node_id: int | Sequence[int]) -> NodeFilter:
        return self._by_id(node_id)


def _absent(wanted: str, kind: str, exprs: Sequence[Expr]) -> str:
    """The end of a message that there is no call of a name."""
    return among(wanted, _callees(exprs, kind)) + _ops(exprs)


def _ops(exprs: Iterable[Expr]) -> str:
    """The end of a message that there is no call: how a graph of ops is searched."""
    names = sorted(set(_callees(exprs, "op")))
    return f"; it is a graph of ops ({listed(names)}), of which expr.op is the name" if names else ""


def _callees(exprs: Iterable[Expr], kind: str) -> list[str]:
    """Names of the functions ("function") or methods of tensors ("method") that expressions call."""
    return [str(name).rpartition(".")[2] for of, name in (expr.callee for expr in exprs) if of == kind]


def is_of(what: str, module_cls: Any) -> Callable[[Any], bool]:
    """Whether a module is one of a class; a traced one is a plain Module, or of the class that it keeps.

    Raises GraphError, which names `what` asks, for anything but a class.
    """
    todo = list(module_cls) if isinstance(module_cls, tuple) else [module_cls]
    for kind in todo:
        if not isinstance(kind, type):
            raise GraphError(f"{what}: got {kind!r}; expected a class of modules, as M.Conv2d")
    is_plain = issubclass(Module, module_cls)
    kept: set[str] = set()
    while not is_plain and todo:
        kind = todo.pop()
        kept.add(f"{kind.__module__}.{kind.__qualname__}")
        todo += kind.__subclasses__()

    def fits(module: Any) -> bool:
        kind = type(module)
        return issubclass(kind, module_cls) or (
            issubclass(kind, GraphOwner) and (is_plain or module._kept_class in kept)
        )

    return fits
