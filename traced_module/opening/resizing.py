"""Graphs of ops for another batch: lengths that were written into attributes follow it."""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import combinations
from types import MappingProxyType
from typing import Any

from megengine.core.errors import MegEngineError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import infer
from megengine.traced_module.editing.checking import specs_of
from megengine.traced_module.ir.expr import Apply, Constant, Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign, use_nodes
from megengine.traced_module.opening.own_kernels import give_groups, samples_with_kernels
from megengine.traced_module.opening.sample_places import at_every_sample, places_of_one_sample

Shape = tuple[int, ...]

_FEW = 4  # operands of which some may be repeated and others not


def at_batch(graph: InternalGraph, size: int, *, last: bool = False) -> InternalGraph:
    """A copy of a graph of ops whose inputs have another first length.

    Lengths in attributes follow as the records of their ops say. Values that belong to every sample (a token in front
    of a sequence) are repeated where an op needs them for each, if the batch was one. Whether these are the right axes
    has to be tried with values. Of several axes of length 1 side by side the first one follows, or the `last`.

    Raises:
        ShapeError: an op does not take the batch; the message names its node.
    """
    made = graph.clone()
    was = {id(n): n.spec.shape for expr in made.exprs() for n in expr.outputs}
    below: dict[int, int] = {}  # of a value: the elements of the axis that follows which belong to one sample
    for expr in list(made.exprs()):
        if isinstance(expr, Apply) and (samples := samples_with_kernels(expr, [was[id(n)] for n in expr.inputs])):
            _with_kernels(made, expr, samples, was, below)
            continue
        if isinstance(expr, Input):
            specs = [TensorSpec((size, *n.spec.shape[1:]), n.spec.dtype, n.spec.device) for n in expr.outputs]
        elif isinstance(expr, Apply) and (
            expr.record.follow is not None or any(n.spec.shape != was[id(n)] for n in expr.inputs)
        ):
            specs = _followed(made, expr, [was[id(n)] for n in expr.inputs], _step(expr, was, below), last=last)
        else:
            continue
        for node, spec in zip(expr.outputs, specs, strict=True):
            assign(made, node, "_spec", spec)
            _note_below(expr, node, was, below)
    return made


def _with_kernels(
    graph: InternalGraph, expr: Apply, samples: int, was: dict[int, Shape], below: dict[int, int]
) -> None:
    """Let a convolution with a kernel for each sample follow; what reads its result reads the batch in front."""
    old, shape = [was[id(n)] for n in expr.inputs], was[id(expr.output)]
    result = give_groups(graph, expr, old, samples, lambda n, axis, times: _along(graph, expr, n, axis, times))
    was[id(result)], below[id(result)] = shape, 1


def _axis(node: TensorNode, was: dict[int, Shape]) -> int | None:
    """The axis of a value that follows the batch; None without one, or if several do."""
    changed = [k for k, (m, n) in enumerate(zip(was[id(node)], node.spec.shape, strict=True)) if m != n]
    return changed[0] if len(changed) == 1 else None


def _step(expr: Apply, was: dict[int, Shape], below: dict[int, int]) -> int | None:
    """How many numbers of one sample lie below the batch in the first operand, where the batch was one."""
    data = expr.inputs[0] if expr.inputs else None
    axis = None if data is None or id(data) not in below else _axis(data, was)
    return None if data is None or axis is None else below[id(data)] * math.prod(was[id(data)][axis + 1 :])


def _note_below(expr: Expr, node: TensorNode, was: dict[int, Shape], below: dict[int, int]) -> None:
    """Note where in its axis a result has the batch that was one: as deep as an operand with an axis of that length."""
    axis = _axis(node, was)
    if axis is None:
        return
    length = was[id(node)][axis]
    step = _step(expr, was, below) if isinstance(expr, Apply) and expr.record.keeps_order else None
    if step is not None:
        below[id(node)] = step // math.prod(was[id(node)][axis + 1 :])
        return
    for data in expr.inputs:
        if id(data) in below and isinstance(data, TensorNode) and was[id(data)][_axis(data, was) or 0] == length:
            below[id(node)] = below[id(data)]
            return
    if length == 1:
        below[id(node)] = 1


def _followed(
    graph: InternalGraph, expr: Apply, old: list[Shape], step: int | None, *, last: bool
) -> tuple[TensorSpec, ...]:
    """The results of an op for inputs of another batch, of shapes `old` before; lengths in attributes follow."""
    if expr.record.follow is not None:
        choices = expr.record.follow(expr.attrs, old[0], expr.inputs[0].spec.shape, step)
        _let_follow(graph, expr, _last_first(choices, expr.output.spec.shape) if last else choices)
    if places_of_one_sample(expr, old):
        use_nodes(graph, expr, at_every_sample(graph, expr, old))
    elif expr.record.in_step:
        _let_repeat(graph, expr, old)
    for at, (axis, times) in _of_each_sample(expr, [n.spec.shape for n in expr.inputs], old).items():
        nodes = list(expr.inputs)
        use_nodes(graph, expr, [*nodes[:at], _along(graph, expr, nodes[at], axis, times), *nodes[at + 1 :]])
    try:
        return _specs(expr)
    except MegEngineError as error:
        reason = error
    _let_repeat(graph, expr, old)
    try:
        return _specs(expr)
    except MegEngineError:
        node = expr.outputs[0]
        raise ShapeError(f"open_batch: node {node.name!r} does not take another batch: {reason}") from reason


def _of_each_sample(expr: Apply, shapes: list[Shape], old: list[Shape]) -> dict[int, tuple[int, int]]:
    """Operands that hold a value for each sample, but do not follow the batch yet: their axis, and how often."""
    found = {}
    for at, (axis, leading) in expr.record.each(expr.attrs).items():
        times, left = divmod(shapes[0][leading], old[0][leading] or 1)
        if shapes[at] == old[at] and times > 1 and not left:
            found[at] = axis, times
    return found


def _last_first(choices: list[dict[str, Any]], old: Shape) -> list[dict[str, Any]]:
    """Choices of shapes for a result of shape `old`: the last of those in which an axis of length 1 follows first."""

    def alone(choice: dict[str, Any]) -> bool:
        shape = choice.get("shape", ())
        return len(shape) == len(old) and any(m == 1 != n for m, n in zip(old, shape, strict=True))

    return [*[c for c in reversed(choices) if alone(c)], *[c for c in choices if not alone(c)]]


def _let_follow(graph: InternalGraph, expr: Apply, choices: list[dict[str, Any]]) -> None:
    """Take the first of some attributes that readers with constants, such as layers, can be computed with."""
    stated = dict(expr.attrs)
    for choice in (*choices, choices[0]):
        assign(graph, expr, "_attrs", MappingProxyType({**stated, **choice}))
        if len(choices) == 1 or _is_read(expr, {}):
            return


def _is_read(expr: Apply, known: dict[int, TensorSpec]) -> bool:
    """Whether an op, and those that read its result beside constants, take what they get."""
    inputs: list[Any] = [known.get(id(n), n.spec) for n in expr.inputs]
    before = [n.spec.shape for n in expr.inputs]
    for at, (axis, times) in _of_each_sample(expr, [spec.shape for spec in inputs], before).items():
        inputs[at] = _longer(inputs[at], axis, times)
    try:
        specs = infer(expr.op, inputs, dict(expr.attrs))
    except MegEngineError:
        if expr.macs:  # a product along this axis is no product of each sample
            return False
        repeats = _repeats(expr, inputs, before)
        if not repeats:
            return False
        for at, longer in repeats.items():
            inputs[at] = _longer(inputs[at], *longer)
        specs = infer(expr.op, inputs, dict(expr.attrs))
    results = (specs,) if isinstance(specs, TensorSpec) else specs
    known = {id(n): spec for n, spec in zip(expr.outputs, results, strict=True)}
    readers = [u for n in expr.outputs for u in n.users if isinstance(u, Apply) and u.record.follow is None]
    alone = [u for u in readers if all(id(n) in known or isinstance(n.expr, Constant) for n in u.inputs)]
    return all(_is_read(u, known) for u in alone)


def _longer(spec: TensorSpec, axis: int, times: int) -> TensorSpec:
    shape = list(spec.shape)
    shape[axis] *= times
    return TensorSpec(tuple(shape), spec.dtype, spec.device)


def _specs(expr: Apply) -> tuple[TensorSpec, ...]:
    specs = specs_of(expr, expr.inputs)
    assert specs is not None, expr
    return specs


def _let_repeat(graph: InternalGraph, expr: Apply, old: list[Shape]) -> None:
    """Repeat inputs of an op for every sample, where it takes them so."""
    nodes = list(expr.inputs)
    for at, (axis, times) in _repeats(expr, [n.spec for n in nodes], old).items():
        nodes[at] = _along(graph, expr, nodes[at], axis % nodes[at].spec.ndim, times)
    use_nodes(graph, expr, nodes)


def _repeats(expr: Apply, specs: list[TensorSpec], old: list[Shape]) -> dict[int, tuple[int, int]]:
    """Operands that lie for every sample, with their axis (from the end) and how often: as many as the op takes so.

    Their axis is one in which another operand follows the batch; one of that length may be another axis (of places
    beside values), so fewer are tried too where they are few (a joined list may be long).
    """
    shapes = [spec.shape for spec in specs]
    found = {at: longer for at in range(len(old)) if (longer := _lengthened(shapes, old, at)) is not None}
    for count in range(len(found), 0 if len(found) <= _FEW else len(found) - 1, -1):
        for chosen in combinations(found, count):
            with suppress(MegEngineError):
                tried = [_longer(spec, *found[at]) if at in chosen else spec for at, spec in enumerate(specs)]
                infer(expr.op, tried, dict(expr.attrs))
                return {at: found[at] for at in chosen}
    return {}


def _lengthened(shapes: list[Shape], old: list[Shape], at: int) -> tuple[int, int] | None:
    """The axis (from the end) in which an operand that does not follow the batch lies for every sample, and how often:
    one in which another operand, of the same length there before, follows it. None without one.
    """
    if shapes[at] != old[at]:
        return None
    for axis in range(-len(old[at]), 0):
        for shape, before in zip(shapes, old, strict=True):
            if len(before) < -axis or shape[axis] == before[axis] or before[axis] != old[at][axis]:
                continue
            times, left = divmod(shape[axis], before[axis])
            return None if left else (axis, times)
    return None


def _along(graph: InternalGraph, expr: Apply, node: TensorNode, axis: int, times: int) -> TensorNode:
    """A node, repeated as a whole along an axis, in front of an op."""
    shape = node.spec.shape
    split, many = (*shape[:axis], 1, *shape[axis:]), (*shape[:axis], times, *shape[axis:])
    joint = (*shape[:axis], times * shape[axis], *shape[axis + 1 :])
    place = {"name": f"{expr.name}_samples", "before": expr, "meta": expr.meta}
    node = graph.apply("reshape", node, attrs={"shape": split}, **place)
    node = graph.apply("broadcast_to", node, attrs={"shape": many}, **place)
    return graph.apply("reshape", node, attrs={"shape": joint}, **place)
