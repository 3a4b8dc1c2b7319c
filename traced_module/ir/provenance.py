"""Where an expression comes from: module path, source line of the user's code, passes that changed it.

It stands in `expr.meta` under "module", "source" and "passes", and goes with the expression into copies, other graphs
and files. Under "replaces" stand [name, op, module path] of what a pass put the expression in the place of, and
[name, "", ""] of what it folded into it, so that the names that a user knows are found; files do not keep these.
Under "float" stands whether quantization leaves it in float (`editing.excluding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from megengine.core.errors import FileFormatError, brief
from megengine.traced_module.ir.expr import Apply, Expr, is_call_module

FLOAT = "float"


def graph_path(graph: Any) -> str:
    """Path of the module that a graph belongs to, below the outermost one; "" for that."""
    return graph.qualname[len(graph._top.qualname) + 1 :]


def module_path(expr: Expr) -> str:
    """Path of the layer that an expression calls, or else of the module whose forward made it; "" for the outermost."""
    if is_call_module(expr):
        return expr.inputs[0].qualname[len(expr.top_graph._top.qualname) + 1 :]
    noted, own = str(expr.meta.get("module") or ""), graph_path(expr.top_graph)
    if isinstance(expr, Apply) and not expr.top_graph.of_calls:
        return noted
    return noted if not own or noted == own or noted.startswith(f"{own}.") else own


def provenance(expr: Expr) -> tuple[str, str, tuple[str, ...]]:
    """(path of the first result, source line, passes) of an expression; empty where it is not known."""
    passes = expr.meta.get("passes") or ()
    names = (passes,) if isinstance(passes, str) else tuple(map(str, passes))
    return expr.outputs[0].qualname if expr.outputs else "", str(expr.meta.get("source") or ""), names


def to_plain(meta: Mapping[str, Any]) -> list[Any]:
    """[module, source, pass, ...] for files that have no place of their own for it; empty where nothing is known."""
    parts = [str(meta.get("module") or ""), str(meta.get("source") or ""), *map(str, meta.get("passes", ()))]
    return parts if any(parts) else []


def from_plain(stored: Any) -> dict[str, Any]:
    """The meta that `to_plain` wrote. Raises FileFormatError for anything else."""
    if not isinstance(stored, list) or len(stored) < 2 or not all(isinstance(part, str) for part in stored):
        raise FileFormatError(f"the provenance of an expression is {brief(stored)}; expected a list of texts")
    module, source, *passes = stored
    return {"module": module, "source": source, **({"passes": passes} if passes else {})}


def inside(meta: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The meta of an expression of a module that is at this path now."""
    parts = (path, str(meta.get("module") or ""))
    return {**meta, "module": ".".join(part for part in parts if part)}


def meta_at(expr: Expr, path: str) -> dict[str, Any]:
    """The meta of an expression in a graph that stands at this path now.

    An expression of a graph that is flat already knows the path below it better.
    """
    own, at = graph_path(expr.top_graph), str(expr.meta.get("module") or "")
    below = at[len(own) :].strip(".") if at.startswith(own) else ""
    return inside({**expr.meta, "module": below}, path)


def replaced_by(expr: Expr) -> list[list[str]]:
    """[name, op, module path] of everything in whose place an expression of a graph of ops stands.

    Op and path are empty for what was folded into a layer: the layer is not one of that kind, nor of that module.
    """
    return list(expr.meta.get("replaces", ()))


def in_place_of(meta: Mapping[str, Any], gone: Iterable[Expr], layer: Expr | None = None) -> dict[str, Any]:
    """The meta of an expression that a pass puts in the place of others, of a graph of ops.

    With a layer, these are that one and what is folded into it.
    """
    gone = list(gone)
    parts: list[list[str]] = []
    for expr in gone:
        if isinstance(expr, Apply):
            own = [[node.name, expr.op, str(expr.meta.get("module") or "")] for node in expr.outputs]
            known = [*replaced_by(expr), *own]
            if layer is not None and expr is not layer:
                known = [[name, "", ""] for name, _, _ in known]
            parts += [part for part in known if part not in parts]
    plain = {key: value for key, value in left_in_float(meta, gone).items() if key != "replaces"}
    return {**plain, "replaces": parts} if parts else plain


def left_in_float(meta: Mapping[str, Any], gone: Iterable[Expr]) -> Mapping[str, Any]:
    """The meta of an expression in the place of others: left in float if one of them was."""
    return {**meta, FLOAT: True} if any(expr.meta.get(FLOAT) for expr in gone) else meta


def marked(meta: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A meta with passes behind those that are in it; the last one is not named twice."""
    passes: list[str] = list(meta.get("passes", ()))
    for name in names:
        if not passes or passes[-1] != name:
            passes.append(name)
    return {**meta, "passes": passes}
