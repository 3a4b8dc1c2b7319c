"""Elementwise ops in a row become one op, which passes over memory once. Results stay the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megengine.kernels.elementwise import MOST_INPUTS, MOST_INSTRUCTIONS, cannot_run
from megengine.kernels.problem import Problem
from megengine.plan.layouts import problem_of
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import is_among, remove_dead

WhyNot = Callable[[Problem], str | None]


def _is_elementwise(expr: Apply, why_not: WhyNot) -> bool:
    problem = problem_of(expr, rows=False)
    return len(expr.outputs) == 1 and problem is not None and why_not(problem) is None


def _sources(group: list[Apply]) -> list[TensorNode]:
    """What a group reads from outside, each once."""
    inside = {id(e) for e in group}
    return list({id(n): n for e in group for n in e.inputs if id(n.expr) not in inside}.values())


def _chain(root: Apply, candidates: dict[int, Apply], graph: InternalGraph) -> list[Apply]:
    """The root, and the ops whose results only it needs, of its shape."""
    group, grown = [root], True
    while grown:
        grown, members = False, {id(e) for e in group}
        for node in _sources(group):
            one = candidates.get(id(node.expr))
            if one is None or node.shape != root.output.shape or is_among(node, graph.outputs):
                continue
            wider = [*group, one]
            fits = len(wider) <= MOST_INSTRUCTIONS and len(_sources(wider)) <= MOST_INPUTS
            if fits and all(id(u) in members for u in node.users):
                group, grown = wider, True
                break
    return group


def _attributes(group: list[Apply]) -> dict[str, Any]:
    """Those of the op that a group becomes."""
    places = {id(n): i for i, n in enumerate((*_sources(group), *(e.output for e in group)))}
    return {"program": tuple((e.op, tuple(e.attrs.items()), tuple(places[id(n)] for n in e.inputs)) for e in group)}


def _runs(group: list[Apply], why_not: WhyNot) -> bool:
    specs = [n.spec for n in _sources(group)]
    return why_not(Problem("elementwise", specs, (group[-1].output.spec,), _attributes(group))) is None


def _fused(graph: InternalGraph, group: list[Apply]) -> TensorNode:
    inputs, root = _sources(group), group[-1]
    attrs = _attributes(group)
    return graph.apply("elementwise", *inputs, attrs=attrs, name=root.output.name, before=root, meta=root.meta)


def fuse_chains(graph: InternalGraph, why_not: WhyNot = cannot_run) -> bool:
    """Fuse in place what a kernel computes, by its reasons not to; True if something changed."""
    candidates = {id(e): e for e in graph.exprs() if isinstance(e, Apply) and _is_elementwise(e, why_not)}
    changed = False
    order = {one: place for place, one in enumerate(candidates)}
    for root in reversed(list(candidates.values())):
        if id(root) not in candidates:
            continue
        group = sorted(_chain(root, candidates, graph), key=lambda e: order[id(e)])
        for one in group:
            del candidates[id(one)]
        if len(group) > 1 and _runs(group, why_not):
            graph.replace_node({root.output: _fused(graph, group)})
            changed = True
    if changed:
        remove_dead(graph)
    return changed
