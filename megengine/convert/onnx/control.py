"""If, Loop and Scan whose course is known while importing: the graphs that they run are read in their place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from megengine.convert.onnx.context import OnnxNode, Value

if TYPE_CHECKING:
    import onnx

MOST_ROUNDS = 1000  # of a loop
Run = Callable[["onnx.GraphProto", Sequence[Any], str], list[Any]]  # a graph, its inputs, where it stands


def known_if(node: OnnxNode, run: Run) -> list[Any]:
    """The branch that a known condition takes."""
    condition = node.input(0)
    if not isinstance(condition, np.ndarray):
        raise node.fail(
            "its condition depends on the network's input; give the value of the input that decides with input_values"
        )
    branch = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    return run(node.attrs[branch], (), branch)


def known_loop(node: OnnxNode, run: Run) -> list[Any]:
    """The rounds of a loop one after the other; whether there is another must be known."""
    body = node.attrs["body"]
    limit, going = (_known(node, index, what) for index, what in ((0, "number of rounds"), (1, "condition")))
    most = math.inf if limit is None else int(limit.reshape(-1)[0])
    more = going is None or bool(going.reshape(-1)[0])
    states = [node.input(index) for index in range(2, len(node.inputs))]
    scanned: list[list[Any]] = [[] for _ in body.output[1 + len(states) :]]
    done = 0
    while more and done < most:
        if done == MOST_ROUNDS:
            raise node.fail(f"it takes more than {MOST_ROUNDS} rounds; export the model without the loop")
        made = run(body, (np.asarray(done, np.int64), np.asarray(True), *states), f"round {done}")
        if not isinstance(made[0], np.ndarray):
            raise node.fail("whether it goes on depends on the network's input; export the model without the loop")
        more, states = bool(made[0].reshape(-1)[0]), made[1 : 1 + len(states)]
        for column, value in zip(scanned, made[1 + len(states) :], strict=True):
            column.append(value)
        done += 1
    return [*states, *(_stacked(node, column, 0) for column in scanned)]


def known_scan(node: OnnxNode, run: Run) -> list[Any]:
    """One round for each element of the scanned inputs."""
    body, count = node.attrs["body"], int(node.attrs["num_scan_inputs"])
    if node.opset < 9:
        raise node.fail("the form of opset 8 is not supported (convert with onnx.version_converter)")
    values = [node.input(index) for index in range(len(node.inputs))]
    states, sources = values[: len(values) - count], values[len(values) - count :]
    outputs = len(body.output) - len(states)
    axes = node.ints("scan_input_axes", (0,) * count) or ()
    back = node.ints("scan_input_directions", (0,) * count) or ()
    out_axes, out_back = (node.ints(f"scan_output_{what}", (0,) * outputs) or () for what in ("axes", "directions"))
    axes = tuple(node.axis(axis, len(x.shape)) for axis, x in zip(axes, sources, strict=True))
    lengths = {x.shape[axis] for axis, x in zip(axes, sources, strict=True)}
    if len(lengths) != 1 or max(lengths) > MOST_ROUNDS:
        raise node.fail(f"the scanned axes have the lengths {sorted(lengths)}; expected one, at most {MOST_ROUNDS}")
    (length,), columns = lengths, [[] for _ in range(outputs)]
    for t in range(length):
        places = (length - 1 - t if flip else t for flip in back)
        parts = [_element(node, x, axis, at) for x, axis, at in zip(sources, axes, places, strict=True)]
        made = run(body, (*states, *parts), f"round {t}")
        states = made[: len(states)]
        for column, value in zip(columns, made[len(states) :], strict=True):
            column.append(value)
    ordered = [column[::-1] if flip else column for column, flip in zip(columns, out_back, strict=True)]
    return [*states, *(_stacked(node, column, axis) for column, axis in zip(ordered, out_axes, strict=True))]


def _known(node: OnnxNode, index: int, what: str) -> np.ndarray | None:
    value = node.optional(index)
    if value is not None and not isinstance(value, np.ndarray):
        raise node.fail(f"its {what} depends on the network's input; export the model without the loop")
    return value


def _element(node: OnnxNode, x: Value, axis: int, at: int) -> Value:
    """X without the axis, at one place of it."""
    if isinstance(x, np.ndarray):
        return np.take(x, at, axis)
    bounds = [(at, at + 1, 1) if i == axis else (0, n, 1) for i, n in enumerate(x.shape)]
    starts, stops, steps = zip(*bounds, strict=True)
    part = node.apply("slice", x, starts=starts, stops=stops, steps=steps)
    return node.reshape(part, [n for i, n in enumerate(x.shape) if i != axis])


def _stacked(node: OnnxNode, values: Sequence[Value], axis: int) -> Value:
    """The values along a new axis."""
    if not values:
        raise node.fail("it makes no round, and results of its rounds are read; their shape is not known")
    if all(isinstance(value, np.ndarray) for value in values):
        return np.stack(values, axis)  # pyright: ignore[reportArgumentType, reportCallIssue]
    shape = values[0].shape
    axis = node.axis(axis, len(shape) + 1)
    wide = [node.reshape(value, (*shape[:axis], 1, *shape[axis:])) for value in values]
    return wide[0] if len(wide) == 1 else node.apply("concat", *wide, axis=axis)


CONTROL = {"If": known_if, "Loop": known_loop, "Scan": known_scan}
