"""Filters of the expressions of a graph of ops, by MegEngine's names; see `comp_graph_tools` for vars and oprs."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from megengine.core import absent
from megengine.core.effectless import warn_once
from megengine.core.errors import GraphError
from megengine.core.exports import own_names
from megengine.core.text import counted
from megengine.utils.comp_graph_tools import get_opr_type, get_oprs_seq

Type = str | type
_symbolic_shape = [True]


def set_symbolic_shape(option: bool) -> bool:
    """Keep the value, and return the one before. It has no effect here, as a warning says."""
    warn_once("megengine.utils.network.set_symbolic_shape", "shapes are tensors in a graph where they were computed")
    before, _symbolic_shape[0] = _symbolic_shape[0], bool(option)
    return before


def use_symbolic_shape() -> bool:
    """The value that was set last; it has no effect here."""
    return _symbolic_shape[0]


def as_oprnode(obj: Any) -> Any:
    """The expression that makes a node, or the expression given. Raises GraphError for anything else."""
    if hasattr(obj, "inputs") and hasattr(obj, "outputs"):
        return obj
    if not hasattr(obj, "expr"):
        raise GraphError(f"as_oprnode: got {type(obj).__name__}; expected a node or an expression of a graph")
    return obj.expr


def as_varnode(obj: Any) -> Any:
    """The node given, or the one result of an expression. Raises GraphError for anything else."""
    if hasattr(obj, "expr"):
        return obj
    outputs = as_oprnode(obj).outputs
    if len(outputs) != 1:
        raise GraphError(f"as_varnode: {obj.name!r} has {counted(len(outputs), 'result')}; expected one; see .outputs")
    return outputs[0]


def _is(node: Any, node_type: Type) -> bool:
    return get_opr_type(node) == node_type if isinstance(node_type, str) else isinstance(node, node_type)


class NodeFilter:
    """Expressions in order, which methods filter; nothing is computed before iteration.

    >>> NodeFilter.make_all_deps(*graph.outputs).type("conv2d").name("layer1*").as_list()
    """

    def __init__(self, node_iter: Iterable[Any]) -> None:
        self._iter = node_iter

    def __iter__(self) -> Iterator[Any]:
        return (node for node in self._iter if self._keeps(node))

    def _keeps(self, node: Any) -> bool:
        return True

    @classmethod
    def make_all_deps(cls, *dest_vars: Any) -> NodeFilter:
        """All expressions that nodes are computed by, constants too."""
        return cls(get_oprs_seq([as_varnode(v) for v in dest_vars], prune_immtensor=False))

    def type(self, node_type: Type) -> NodeFilter:
        """Those of an op ("conv2d") or class."""
        return NodeFilterType(self, node_type)

    def check_type(self, node_type: Type) -> NodeFilter:
        """All, which must be of an op or class: GraphError names the first that is not."""
        return NodeFilterCheckType(self, node_type)

    def not_type(self, node_type: Type) -> NodeFilter:
        """Those not of an op or class."""
        return NodeFilterNotType(self, node_type)

    def has_input(self, var: Any) -> NodeFilter:
        """Those that use a node."""
        return NodeFilterHasInput(self, var)

    def name(self, pattern: str | re.Pattern[str], ignorecase: bool = True) -> NodeFilter:
        """Those whose name matches "conv*", or a compiled regular expression."""
        return NodeFilterName(self, pattern, ignorecase)

    def data_provider(self) -> NodeFilter:
        """The inputs of the graph."""
        return self.type("Input")

    def param_provider(self) -> NodeFilter:
        """The constants of the graph."""
        return self.type("Constant")

    def as_list(self) -> list[Any]:
        """All of them."""
        return list(self)

    def as_count(self) -> int:
        """Their number."""
        return sum(1 for _ in self)

    def as_dict(self) -> dict[str, Any]:
        """Name -> expression."""
        return {node.name: node for node in self}

    def as_unique(self) -> Any:
        """The only one. Raises GraphError for none or several."""
        nodes = self.as_list()
        if len(nodes) != 1:
            names = ", ".join(node.name for node in nodes[:5])
            raise GraphError(
                f"as_unique: {counted(len(nodes), 'expression')}{f' ({names})' if names else ''}; expected one"
            )
        return nodes[0]


class NodeFilterType(NodeFilter):
    """Those of an op or class."""

    def __init__(self, node_iter: Iterable[Any], node_type: Type) -> None:
        super().__init__(node_iter)
        self._type = node_type

    def _keeps(self, node: Any) -> bool:
        return _is(node, self._type)


class NodeFilterNotType(NodeFilterType):
    """Those not of an op or class."""

    def _keeps(self, node: Any) -> bool:
        return not _is(node, self._type)


class NodeFilterCheckType(NodeFilterType):
    """All, which must be of an op or class."""

    def _keeps(self, node: Any) -> bool:
        if not _is(node, self._type):
            raise GraphError(f"check_type: {node.name!r} is a {get_opr_type(node)}; expected {self._type}")
        return True


class NodeFilterHasInput(NodeFilter):
    """Those that use a node."""

    def __init__(self, node_iter: Iterable[Any], var: Any) -> None:
        super().__init__(node_iter)
        self._var = as_varnode(var)

    def _keeps(self, node: Any) -> bool:
        return any(v is self._var for v in node.inputs)


class NodeFilterName(NodeFilter):
    """Those whose name matches."""

    def __init__(self, node_iter: Iterable[Any], pattern: str | re.Pattern[str], ignorecase: bool) -> None:
        super().__init__(node_iter)
        self._re = self.make_re(pattern, ignorecase)

    @classmethod
    def make_re(cls, pattern: str | re.Pattern[str], ignorecase: bool = True) -> re.Pattern[str]:
        """The regular expression of a pattern with * and ?, or the one given."""
        if isinstance(pattern, re.Pattern):
            return pattern
        return re.compile(fnmatch.translate(pattern), re.IGNORECASE if ignorecase else 0)

    def _keeps(self, node: Any) -> bool:
        return bool(self._re.match(node.name))


__getattr__ = partial(absent.part_or_error, __name__)
__all__ = own_names(globals())
