"""What one can ask a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from megengine.core.errors import GraphError
from megengine.core.text import one_line
from megengine.module import Module
from megengine.traced_module.ir.expr import (
    CallMethod,
    Expr,
    Input,
    is_apply_def,
    is_call_function,
    is_call_tensor_method,
)
from megengine.traced_module.ir.filters import ExprFilter, NodeFilter
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode

if TYPE_CHECKING:
    from megengine.traced_module.ir.graph import InternalGraph
    from megengine.traced_module.ir.names import NameSpace
    from megengine.traced_module.ir.order import ExprOrder


class Queries:
    """Reading a graph. With `recursive` the graphs of submodules are included, each after the call that enters it."""

    name: str
    _order: ExprOrder
    _inputs: tuple[Any, ...]
    _outputs: tuple[TensorNode, ...]
    _names: NameSpace
    _top: InternalGraph

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Input nodes; at module level the first is the module's own."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorNode, ...]:
        """Output values."""
        return self._outputs

    @property
    def top_graph(self) -> InternalGraph | None:
        """The graph with the first call that enters this one; None for that of the outermost module."""
        return next((expr._graph for expr in self._top.exprs() if child_graph(expr) is self), None)

    @property
    def _exprs(self) -> list[Expr]:
        """Expressions without the inputs, as MegEngine's users know it."""
        return [e for e in self._order if not isinstance(e, Input)]

    def child_graphs(self) -> list[InternalGraph]:
        """Graphs that calls of submodules enter, each once, in the order of their first call."""
        found: dict[int, InternalGraph] = {}
        for expr in self._order:
            child = child_graph(expr)
            if child is not None:
                found.setdefault(id(child), child)
        return list(found.values())

    def _walk(self, recursive: bool) -> Iterator[Expr]:
        return (expr for expr, _ in self._visits(recursive)) if recursive else iter(self._order)

    def _visits(self, recursive: bool) -> Iterator[tuple[Expr, Any]]:
        """Expressions, each with the module that it calls, which is looked up once, or None."""
        seen = {id(self)}
        entered = [iter(self._order)]
        while entered:
            for expr in entered[-1]:
                module = _called_module(expr)
                yield expr, module
                child = _graph_of(module, expr) if recursive else None
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    entered.append(iter(child._order))
                    break
            else:
                entered.pop()

    def exprs(self, recursive: bool = True) -> ExprFilter:
        """Expressions in execution order (inputs of the graph too)."""
        return ExprFilter(self._walk(recursive))

    def nodes(self, recursive: bool = True) -> NodeFilter:
        """Every node, in the order in which they are made."""
        return NodeFilter(n for e in self._walk(recursive) for n in e.outputs)

    def get_function_by_type(self, func: Callable[..., Any] | None = None, recursive: bool = True) -> ExprFilter:
        """Calls of a function. Raises GraphError for what cannot be called."""
        if func is not None and not callable(func):
            raise GraphError(f"get_function_by_type: got {func!r}; expected a function, as F.relu")
        return self.exprs(recursive)._keep(lambda e: is_call_function(e, func))

    def get_method_by_type(self, method: str | None = None, recursive: bool = True) -> ExprFilter:
        """Calls of a method of tensors, or of modules for "__call__"."""
        if method in (None, "__call__"):
            return self.exprs(recursive)._keep(
                lambda e: isinstance(e, CallMethod) and method in (None, e.method)  # type: ignore[attr-defined]
            )
        return self.exprs(recursive)._keep(lambda e: is_call_tensor_method(e, method))

    def get_apply_by_type(self, op: str, recursive: bool = True) -> ExprFilter:
        """Expressions that apply the op of that name."""
        return self.exprs(recursive)._keep(lambda e: is_apply_def(e, op))

    def get_module_by_type(self, module_cls: type, recursive: bool = True) -> NodeFilter:
        """Nodes of modules of a class. Raises GraphError for anything else."""
        _check_class("get_module_by_type", module_cls)
        fits = _fitting(module_cls)
        every = issubclass(Module, module_cls)  # with the modules that graphs belong to
        return self.nodes(recursive)._keep(
            lambda n: isinstance(n, ModuleNode) and fits(n.owner) and (every or not isinstance(n.expr, Input))
        )

    def get_calls_of(self, module_cls: type, recursive: bool = True) -> ExprFilter:
        """Calls of modules of a class. Raises GraphError for anything else."""
        _check_class("get_calls_of", module_cls)
        fits = _fitting(module_cls)
        return ExprFilter(expr for expr, module in self._visits(recursive) if module is not None and fits(module))

    def get_node_by_id(self, node_id: int | Sequence[int] | None = None, recursive: bool = True) -> NodeFilter:
        """Nodes with one of these ids."""
        nodes = self.nodes(recursive)
        return nodes if node_id is None else nodes.node_id(node_id)

    def get_node_by_name(self, name: str | None = None, ignorecase: bool = True, recursive: bool = True) -> NodeFilter:
        """Nodes whose name matches a pattern in which `*` stands for anything (`conv*_out`).

        A pattern with a `.` is one of paths and qualnames (`layer1.*.relu_out`, `*.[func_relu]`).
        """
        nodes = self.nodes(recursive)
        return nodes if name is None else nodes.name(name, ignorecase)

    def get_expr_by_id(self, expr_id: int | Sequence[int] | None = None, recursive: bool = True) -> ExprFilter:
        """Expressions with one of these ids."""
        exprs = self.exprs(recursive)
        return exprs if expr_id is None else exprs.expr_id(expr_id)

    def get_dep_exprs(self, nodes: Node | Sequence[Node]) -> list[Expr]:
        """Expressions that the nodes depend on, in execution order (inputs of the graph left out)."""
        todo = [nodes] if isinstance(nodes, Node) else list(nodes) if isinstance(nodes, Sequence) else [nodes]
        for node in todo:
            if not isinstance(node, Node):
                raise GraphError(f"get_dep_exprs: got {node!r}, a {type(node).__name__}; expected nodes")
        found: dict[int, Expr] = {}
        while todo:
            expr = todo.pop().expr
            if id(expr) not in found and not isinstance(expr, Input):
                found[id(expr)] = expr
                todo.extend(expr.inputs)
        return sorted(found.values(), key=lambda e: e._key)

    def __repr__(self) -> str:
        head = f"{one_line(self.name)}.Graph ({', '.join(n.name for n in self._inputs)}) {{"
        body = [f"\t{e!r}" for e in self._order if not isinstance(e, Input)]
        return "\n".join([head, *(body or ["\t"]), f"\treturn {', '.join(n.name for n in self._outputs)}", "}"])


def _check_class(what: str, module_cls: Any) -> None:
    kinds = module_cls if isinstance(module_cls, tuple) else (module_cls,)
    for kind in kinds:
        if not isinstance(kind, type):
            raise GraphError(f"{what}: got {kind!r}; expected a class of modules, as M.Conv2d")


def _fitting(module_cls: Any) -> Callable[[Any], bool]:
    """Whether a module is one of a class; a traced one is a plain Module, or of the class that it keeps."""
    traced, is_plain = traced_module_class(), issubclass(Module, module_cls)
    kept: set[str] = set()
    todo = list(module_cls) if isinstance(module_cls, tuple) else [module_cls]
    while not is_plain and todo:
        kind = todo.pop()
        kept.add(f"{kind.__module__}.{kind.__qualname__}")
        todo += kind.__subclasses__()

    def fits(module: Any) -> bool:
        kind = type(module)
        return is_plain or module._kept_class in kept if issubclass(kind, traced) else issubclass(kind, module_cls)

    return fits


def child_graph(expr: Expr) -> InternalGraph | None:
    """The graph that the call of a traced submodule enters."""
    return expr.graph if isinstance(expr, CallMethod) else None


def _called_module(expr: Expr) -> Any:
    calls = isinstance(expr, CallMethod) and expr._method == "__call__"
    return expr._graph.module_of(expr._inputs[0]) if calls else None


def _graph_of(module: Any, call: Expr) -> InternalGraph | None:
    return module.graph_of_call(call) if issubclass(type(module), traced_module_class()) else None


@functools.cache
def traced_module_class() -> Any:
    """TracedModule, which is defined with the help of graphs."""
    from megengine.traced_module.traced import TracedModule

    return TracedModule
