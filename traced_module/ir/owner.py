"""What graphs know of the module that they belong to."""

from __future__ import annotations

from typing import Any

from megengine.module import Module
from megengine.traced_module.ir.functions import constant_key


class GraphOwner(Module):
    """A module whose calls run graphs: the base of `TracedModule`."""

    _kept_class: str | None = None  # of the user's module that an edit put in; graphs print it and find it by it
    _graphs: dict[Any, Any]  # by the arguments that each was traced for

    @property
    def graphs(self) -> tuple[Any, ...]:
        """All graphs, values of InternalGraph: one for each nesting of arguments (and constants among them)."""
        return tuple(self._graphs.values())

    def graph_of_call(self, expr: Any) -> Any:
        """The graph that a call expression of another graph enters; None if it would not find one."""
        arg_def, constants = expr.arguments
        args, kwargs = arg_def.children
        for graph in self._graphs.values():
            if graph.arguments is None:
                continue
            wanted, fixed = graph.arguments
            same = wanted.children[0].children == args.children[1:] and wanted.children[1] == kwargs
            if same and len(fixed) == len(constants) and _same_constants(fixed, constants):
                return graph
        return None


def _same_constants(fixed: Any, constants: Any) -> bool:
    """True if a graph was traced for the constants of a call, whose first leaf is the module."""
    return all(
        i + 1 == j and type(a) is type(b) and (a is b or constant_key(a) == constant_key(b))
        for (i, a), (j, b) in zip(fixed, constants, strict=True)
    )
