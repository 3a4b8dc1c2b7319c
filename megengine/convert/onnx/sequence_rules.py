"""Import rules of sequences and optional values: lists of values that are known while importing."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.convert.onnx.context import Group, OnnxNode, Value, rule
from megengine.convert.onnx.open_values import settled
from megengine.convert.onnx.shape_rules import cut
from megengine.core.text import counted


def _group(node: OnnxNode, value: Any) -> list[Any]:
    if not isinstance(value, Group):
        raise node.fail("its first input is no sequence; the file is damaged")
    if value.rows is not None:
        takers = "ConcatFromSequence and SequenceLength take such"
        raise node.fail(f"the length of its sequence depends on the network's input; only {takers}")
    return value.values


def _place(node: OnnxNode, index: int, count: int) -> int:
    value = node.const(index, "position")
    at = int(value.reshape(-1)[0]) if value is not None else count
    if not -count <= at <= count:
        raise node.fail(f"position {at} does not exist in a sequence of {counted(count, 'value')}")
    return at + count if at < 0 else at


MOST_PARTS = 10_000  # of a tensor as a sequence


@rule("SequenceConstruct")
def construct(node: OnnxNode, *values: Value) -> Group:
    """The inputs in their order."""
    return Group(list(values))


@rule("SequenceEmpty")
def empty(node: OnnxNode) -> Group:
    """No values."""
    return Group([])


@rule("SequenceAt")
def at(node: OnnxNode, values: Any, position: Value) -> Value:
    """One of the values."""
    items = _group(node, values)
    place = _place(node, 1, len(items))
    if place == len(items):
        raise node.fail(f"position {place} does not exist in a sequence of {counted(len(items), 'value')}")
    return items[place]


@rule("SequenceInsert")
def insert(node: OnnxNode, values: Any, value: Value, position: Value | None = None) -> Group:
    """With a value in front of a position, or behind all."""
    items = _group(node, values)
    if values.grows and position is not None:
        raise node.fail("puts a value at a position of a sequence whose length depends on the network's input")
    place = _place(node, 2, len(items))
    return Group([*items[:place], value, *items[place:]], grows=values.grows)


@rule("SequenceErase")
def erase(node: OnnxNode, values: Any, position: Value | None = None) -> Group:
    """Without one of the values, the last by default."""
    items = _group(node, values)
    if not items:
        raise node.fail("its sequence is empty")
    place = len(items) - 1 if position is None else _place(node, 1, len(items))
    return Group([*items[:place], *items[place + 1 :]])


@rule("SequenceLength")
def length(node: OnnxNode, values: Any) -> Value:
    """The number of values."""
    if isinstance(values, Group) and values.rows is not None:
        return settled(values.rows.shape[:1], ())
    return np.asarray(len(_group(node, values)), np.int64)


@rule("ConcatFromSequence")
def join(node: OnnxNode, values: Any) -> Value:
    """The values along an axis, with new_axis along one that they do not have."""
    if isinstance(values, Group) and values.rows is not None:
        return _joined_rows(node, values.rows)
    items = _group(node, values)
    if not items or "axis" not in node.attrs:
        raise node.fail("its sequence is empty, or its axis missing")
    shape, axis = items[0].shape, int(node.attr("axis"))
    if node.attr("new_axis", 0):
        axis = node.axis(axis, len(shape) + 1)
        items = [node.reshape(x, (*shape[:axis], 1, *shape[axis:])) for x in items]
    return items[0] if len(items) == 1 else node.apply("concat", *items, axis=node.axis(axis, len(items[0].shape)))


def _joined_rows(node: OnnxNode, rows: Value) -> Value:
    """Values along a first axis along another one: their own, or a new one."""
    count, *shape = rows.shape
    new = bool(node.attr("new_axis", 0))
    axis = node.axis(int(node.attr("axis", 0)), len(shape) + new)
    perm = [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)]
    turned = rows if axis == 0 else node.apply("transpose", rows, perm=tuple(perm))
    if new:
        return turned
    return node.reshape(turned, (*shape[:axis], count * shape[axis], *shape[axis + 1 :]))


@rule("SplitToSequence")
def split(node: OnnxNode, x: Value, sizes: Value | None = None) -> Group:
    """Parts along an axis: of length 1 (without the axis, unless keepdims), of one length, or of several."""
    shape, given = x.shape, node.const(1, "split")
    axis = node.axis(int(node.attr("axis", 0)), len(shape))
    total = shape[axis]
    if given is None or given.ndim == 0:
        step = 1 if given is None else int(given)
        if step < 1:
            raise node.fail(f"split is {step}; expected at least 1")
        if -(-int(total) // step) > MOST_PARTS:
            raise node.fail(f"parts of {step} of an axis of {total}; at most {MOST_PARTS} parts are accepted")
        lengths = [min(step, total - start) for start in range(0, total, step)]
    else:
        lengths = [int(n) for n in given]
    if sum(lengths) != total or min(lengths, default=0) < 0:
        raise node.fail(f"split {lengths} does not make up axis {axis} of {shape}")
    parts, start = [], 0
    for n in lengths:
        parts.append(cut(node, x, {axis: (start, start + n, 1)}))
        start += n
    if given is None and node.attr("keepdims", 1) != 1:
        parts = [node.reshape(part, [*shape[:axis], *shape[axis + 1 :]]) for part in parts]
    return Group(parts)


@rule("Optional")
def optional(node: OnnxNode, value: Any = None) -> Any:
    """The value, which is there or not."""
    return Group([], optional=True) if value is None else value


@rule("OptionalHasElement")
def has_element(node: OnnxNode, value: Any = None) -> Value:
    """Whether it is there."""
    return np.asarray(value is not None and not (isinstance(value, Group) and value.optional))


@rule("OptionalGetElement")
def get_element(node: OnnxNode, value: Any) -> Any:
    """The value, which must be there."""
    if isinstance(value, Group) and value.optional:
        raise node.fail("its optional value is not there")
    return value
