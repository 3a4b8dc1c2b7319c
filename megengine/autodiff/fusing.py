"""Elementwise ops of a recorded gradient rule become one op each chain, which a GPU computes in one pass over memory.

The values are those of the ops one by one, bit for bit, and the op has a gradient itself.
"""

from __future__ import annotations

from collections.abc import Collection

from megengine.dispatch import get_op
from megengine.dispatch.notes import Notes
from megengine.kernels import cuda
from megengine.kernels.elementwise import MOST_INSTRUCTIONS
from megengine.kernels.problem import Problem
from megengine.tensor import Tensor

_MOST_INPUTS = 12  # tensors that one op reads: more are seldom, and cost registers


def _problem(notes: Notes, step: int) -> Problem | None:
    """The problem of a step with one result that is a tensor."""
    (op, attrs, tensors), result = notes.steps[step], notes.results[step]
    return None if isinstance(result, tuple) else Problem(op.name, [t.spec for t in tensors], (result.spec,), attrs)


def _sources(notes: Notes, group: Collection[int]) -> dict[int, Tensor]:
    """What the steps of a group read from outside, by identity, in order."""
    made = {id(notes.results[k]) for k in group}
    return {id(t): t for k in sorted(group) for t in notes.steps[k][2] if id(t) not in made}


def _program(notes: Notes, group: list[int], sources: dict[int, Tensor]) -> tuple:
    places = {key: i for i, key in enumerate((*sources, *(id(notes.results[k]) for k in group)))}
    steps = [notes.steps[k] for k in group]
    return tuple((op.name, tuple(attrs.items()), tuple(places[id(t)] for t in tensors)) for op, attrs, tensors in steps)


def _group(notes: Notes, root: int, candidates: set[int], users: dict[int, set[int]]) -> list[int]:
    """The step and those before it whose results only the group reads, of the shape of its result."""
    group, shape = {root}, notes.results[root].spec.shape
    waiting = True
    while waiting:
        waiting = False
        for step in sorted(candidates - group, reverse=True):
            result = notes.results[step]
            if result.spec.shape != shape or not users[id(result)] <= group:
                continue
            wider = group | {step}
            if len(wider) <= MOST_INSTRUCTIONS and len(_sources(notes, wider)) <= _MOST_INPUTS:
                group, waiting = wider, True
    return sorted(group)


def fuse(notes: Notes, wanted: Collection[Tensor]) -> None:
    """Replace chains of elementwise steps, whose values nobody else reads, by one step each."""
    usable = cuda.elementwise.usable
    problems = {k: _problem(notes, k) for k in range(len(notes.steps))}
    candidates = {k for k, problem in problems.items() if problem is not None and usable(problem) is None}
    users: dict[int, set[int]] = {id(t): {-1} for t in wanted}  # steps that read a value; -1 stands for the caller
    for k, (_, _, tensors) in enumerate(notes.steps):
        for t in tensors:
            users.setdefault(id(t), set()).add(k)
    dropped: set[int] = set()
    for root in sorted(candidates, reverse=True):
        if root not in candidates:
            continue
        group = _group(notes, root, candidates, users)
        candidates -= {*group}
        sources, spec = _sources(notes, group), notes.results[root].spec
        attrs = {"program": _program(notes, group, sources)}
        problem = Problem("elementwise", [t.spec for t in sources.values()], (spec,), attrs)
        if len(group) > 1 and usable(problem) is None:
            notes.steps[root] = (get_op("elementwise"), attrs, tuple(sources.values()))
            dropped |= {*group} - {root}
            for t in sources.values():
                users[id(t)] = users[id(t)] - {*group} | {root}
    kept = [k for k in range(len(notes.steps)) if k not in dropped]
    notes.steps, notes.results = [notes.steps[k] for k in kept], [notes.results[k] for k in kept]
