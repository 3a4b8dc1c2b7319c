"""Questions about a graph of ops, and small edits, by MegEngine's names.

A var is a node of a graph that `megengine.traced_module.lower` gives, an opr is the expression that makes it.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from megengine.core import absent
from megengine.core.errors import GraphError, nearest
from megengine.core.exports import own_names
from megengine.core.text import counted

Var = Any
Opr = Any


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def get_opr_type(opr: Opr) -> str:
    """The op's name ("conv2d"), or the kind of an expression that is no op ("Input", "Constant")."""
    return getattr(opr, "op", None) or type(opr).__name__


def get_owner_opr_type(var: Var) -> str:
    """`get_opr_type` of the opr that makes a var."""
    return get_opr_type(var.expr)


def get_owner_opr_inputs(var: Var) -> list[Var]:
    """The inputs of the opr that makes a var."""
    return list(var.expr.inputs)


def _needed(outputs: Any) -> list[Opr]:
    """The oprs that vars are computed by, each after those it depends on."""
    oprs: dict[int, Opr] = {}
    left = [(var.expr, False) for var in reversed(_listed(outputs))]
    while left:  # no recursion: graphs are deeper than Python's stack
        opr, done = left.pop()
        if done:
            oprs.setdefault(id(opr), opr)
        elif id(opr) not in oprs:
            left.append((opr, True))
            left.extend((var.expr, False) for var in reversed(opr.inputs))
    return list(oprs.values())


def get_dep_vars(var: Var | Sequence[Var], var_type: str | Sequence[str] | None = None) -> list[Var]:
    """The vars that others are computed from, themselves included; of some types of opr only, if they are named."""
    types = None if var_type is None else set(_listed(var_type))
    return [v for opr in _needed(var) if types is None or get_opr_type(opr) in types for v in opr.outputs]


def get_oprs_seq(outputs: Var | Sequence[Var], prune_reshape: bool = False, prune_immtensor: bool = True) -> list[Opr]:
    """The oprs that vars are computed by, in order; without reshapes, or without constants, where asked."""
    left_out = {"reshape"} if prune_reshape else set()
    left_out |= {"Constant"} if prune_immtensor else set()
    return [opr for opr in _needed(outputs) if get_opr_type(opr) not in left_out]


def graph_traversal(outputs: Var | Sequence[Var]) -> tuple[dict, dict, dict, dict, dict, dict]:
    """Tables of all that vars are computed by; oprs and vars are known by their ids.

    Returns: oprs by id, vars by id, the opr that makes each var, the oprs that use each opr, the oprs of each
    indegree, and the indegree of each opr (the number of different oprs that it uses).
    """
    oprs = {opr.id: opr for opr in _needed(outputs)}
    variables = {var.id: var for opr in oprs.values() for var in opr.outputs}
    makers = {var.id: opr.id for opr in oprs.values() for var in opr.outputs}
    receivers: dict[int, list[int]] = {ident: [] for ident in oprs}
    by_degree, degrees = collections.defaultdict(list), {}
    for ident, opr in oprs.items():
        sources = dict.fromkeys(makers[var.id] for var in opr.inputs)
        for source in sources:
            receivers[source].append(ident)
        degrees[ident] = len(sources)
        by_degree[len(sources)].append(ident)
    return oprs, variables, makers, receivers, dict(by_degree), degrees


def find_vars_by_name(dst: Var | Sequence[Var], names: Iterable[str]) -> list[Var]:
    """The vars of these names among those that `dst` is computed from. Raises GraphError for one that is not."""
    known = {var.name: var for var in get_dep_vars(dst)}
    names = list(names)
    for name in names:
        if name not in known:
            raise GraphError(f"find_vars_by_name: no var {name!r} among {len(known)}{nearest(name, known)}")
    return [known[name] for name in names]


def replace_vars(dst: Sequence[Var], varmap: Mapping[Var, Var]) -> list[Var]:
    """Let the graph use other vars for these, and return the vars that replace `dst`. The edit can be undone."""
    for old, new in varmap.items():
        if old.graph is not new.graph:
            raise GraphError(f"replace_vars: {old.name!r} and {new.name!r} are of different graphs; expected one")
    for old, new in varmap.items():
        old.graph.replace_node({old: new})
    return [varmap.get(var, var) for var in dst]


def replace_oprs(dst: Sequence[Var], oprmap: Mapping[Opr, Opr]) -> list[Var]:
    """As `replace_vars`, for all results of oprs. Raises GraphError unless both have the same number of results."""
    for old, new in oprmap.items():
        if len(old.outputs) != len(new.outputs):
            results = counted(len(old.outputs), "result")
            raise GraphError(f"replace_oprs: {old.name!r} has {results}, {new.name!r} has {len(new.outputs)}")
    pairs = [p for old, new in oprmap.items() for p in zip(old.outputs, new.outputs, strict=True)]
    return replace_vars(dst, dict(pairs))


__getattr__ = partial(absent.part_or_error, __name__)
__all__ = own_names(globals())
