"""If, Loop and Scan: where their course is known while importing, the graphs that they run are read in their place.

Others become ops that hold these graphs. What a graph reads from around it are inputs of the op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from megengine.convert.onnx.context import Group, OnnxNode, Value, spec_of
from megengine.convert.onnx.counted_rounds import counted_rounds, goes_on_always
from megengine.convert.onnx.open_values import is_open_array
from megengine.core.dtype import storage_of
from megengine.core.errors import FileFormatError
from megengine.core.sizes import is_open, name_of, named
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply
from megengine.tensor import Tensor
from megengine.traced_module import InternalGraph
from megengine.traced_module.bodies import Body
from megengine.traced_module.editing.expressions import add_input
from megengine.traced_module.ir.expr import Apply, Constant, Expr, Input
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign

if TYPE_CHECKING:
    import onnx

Sides = tuple[Sequence[int], Sequence[int]]  # axes, and which of them are taken from their ends
MOST_ROUNDS = 1000  # of a loop


@dataclass
class Apart:
    """A graph that a node runs, read as a graph of its own, and what it reads from around it: (there, its input)."""

    graph: InternalGraph
    captured: list[tuple[TensorNode, TensorNode]]


Run = Callable[["onnx.GraphProto", Sequence[Any], str], list[Any]]  # a graph, its inputs, where it stands
Separate = Callable[["onnx.GraphProto", Sequence[TensorSpec | Group], str], Apart]


def either(node: OnnxNode, run: Run, separate: Separate) -> Sequence[Any]:
    """The branch that a known condition takes, or an op that holds both."""
    condition = node.input(0)
    if not isinstance(condition, np.ndarray):
        try:
            branches = {name: separate(_graph(node, name), (), name) for name in ("then_branch", "else_branch")}
            if (only := _only_branch(condition, branches)) is not None:
                return run(_graph(node, only), (), only)
            outer = _with_the_same_inputs(list(branches.values()))
            then, otherwise = (Body(branch.graph) for branch in branches.values())
            return node.apply("if", condition, *outer, then=then, otherwise=otherwise)
        except FileFormatError as error:
            error.add_note(_how_to_choose(node, condition))
            raise
    branch = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    return run(_graph(node, branch), (), branch)


def _only_branch(condition: Value, branches: Mapping[str, Apart]) -> str | None:
    """The branch that takes an open axis away because it has the length 1, where the other one keeps it.

    PyTorch writes `squeeze(axis)` so. An op gives one number of axes, but the network is the one of this branch at
    every size that it takes: its reshape refuses a length that is not 1. An axis of an input, the batch above all,
    would be open for a single length.
    """
    ranks = {tuple(n.spec.ndim for n in branch.graph.outputs) for branch in branches.values()}
    if len(ranks) == 1 or not isinstance(condition, TensorNode) or _decided_by(condition) is not None:
        return None
    taken = "then_branch" if bool(_at_the_example(condition).numpy().reshape(-1)[0]) else "else_branch"
    return taken if any(map(_takes_open_axis_away, branches[taken].graph.exprs())) else None


def _takes_open_axis_away(expr: Expr) -> bool:
    if not isinstance(expr, Apply) or "shape" not in expr.attrs or not expr.inputs:
        return False
    rest = list(expr.inputs[0].spec.shape)
    for size in expr.attrs["shape"]:
        if size not in rest:
            return False
        rest.remove(size)
    return bool(rest) and all(is_open(size) and int(size) == 1 and name_of(size) is None for size in rest)


def _at_the_example(node: TensorNode) -> Tensor:
    """The value at the example's sizes of what no input decides."""
    expr = node.expr
    if isinstance(expr, Constant):
        return expr.value
    assert isinstance(expr, Apply)
    made = apply(expr.op, *map(_at_the_example, expr.inputs), **expr.attrs)
    return made[expr.outputs.index(node)] if isinstance(made, tuple) else made


def _decided_by(condition: Value) -> TensorNode | None:
    """An input of the network whose value a condition depends on; None if it follows from open sizes."""
    reached, seen = [condition], set()
    while reached:
        one = reached.pop()
        if isinstance(one, TensorNode) and id(one) not in seen:
            seen.add(id(one))
            if isinstance(one.expr, Input):
                return one
            reached.extend(one.expr.inputs if one.expr is not None else ())
    return None


def _how_to_choose(node: OnnxNode, condition: Value) -> str:
    """How a user says which branch is taken, where the other one cannot be read."""
    if (one := _decided_by(condition)) is not None:
        return (
            f"which branch If node {node.name!r} takes depends on {one.name!r}; where it is always the other, "
            f"say so: input_values={{{one.name!r}: ...}}"
        )
    return (
        f"which branch If node {node.name!r} takes depends on open sizes; where it is always the other, fix them: "
        "input_shapes"
    )


def _graph(node: OnnxNode, name: str) -> onnx.GraphProto:
    """A graph that a node runs. Raises FileFormatError if it is not there."""
    graph: Any = node.attrs.get(name)
    if not hasattr(graph, "initializer"):
        raise node.fail(f"its graph {name!r} is missing; the file is damaged")
    return graph


def _with_the_same_inputs(parts: Sequence[Apart]) -> list[TensorNode]:
    """Let graphs have inputs for everything that one of them reads from around them, which is returned."""
    outer = {id(there): there for part in parts for there, _ in part.captured}
    for part in parts:
        own = {id(there): inner for there, inner in part.captured}
        for key, there in outer.items():
            if key not in own:
                own[key] = add_input(part.graph, there.name, there.spec)
        count = len(part.graph.inputs) - len(own)
        assign(part.graph, part.graph, "_inputs", (*part.graph.inputs[:count], *(own[key] for key in outer)))
    return list(outer.values())


def rounds(node: OnnxNode, run: Run, separate: Separate) -> Sequence[Any]:
    """The rounds of a loop one after the other; an op where it is not known how many there are, or there are many."""
    body = _graph(node, "body")
    limit, going = node.optional(0), node.optional(1)
    computed = any(isinstance(value, TensorNode) or is_open_array(value) for value in (limit, going))
    if computed or (limit is not None and limit.item() > MOST_ROUNDS):
        return _looped(node, separate)
    most = math.inf if limit is None else int(limit.reshape(-1)[0])
    more = going is None or bool(going.reshape(-1)[0])
    states = [node.input(index) for index in range(2, len(node.inputs))]
    scanned: list[list[Any]] = [[] for _ in body.output[1 + len(states) :]]
    done = 0
    while more and done < most:
        if done == MOST_ROUNDS:
            return _looped(node, separate)
        made = run(body, (np.asarray(done, np.int64), np.asarray(True), *states), f"round {done}")
        if not isinstance(made[0], np.ndarray):
            return _looped(node, separate)
        more, states = bool(made[0].reshape(-1)[0]), made[1 : 1 + len(states)]
        for column, value in zip(scanned, made[1 + len(states) :], strict=True):
            column.append(value)
        done += 1
    if not done and scanned:
        results = _of_no_round(node, separate, [*_ROUND, *_specs(node, states)], 1 + len(states))
        return [*states, *results]
    return [*states, *(_stacked(node, column, 0) for column in scanned)]


def _looped(node: OnnxNode, separate: Separate) -> Sequence[Any]:
    """The op that goes on while its body says so. A length of a state that a round changes is open in the body."""
    body = _graph(node, "body")
    states = [node.input(index) for index in range(2, len(node.inputs))]
    if any(isinstance(state, Group) and (state.values or state.optional or state.rows) for state in states):
        raise node.fail("a sequence with values is carried through rounds whose number depends on the network's input")
    first = [node.as_node(state) for state in states if not isinstance(state, Group)]
    specs = [state.spec for state in first]

    def once(specs: Sequence[TensorSpec]) -> Apart:
        given = iter(specs)
        taken = (Group([], grows=True) if isinstance(state, Group) else next(given) for state in states)
        return separate(body, (*_ROUND, *taken), "body")

    part = once(specs)
    if node.optional(0) is None and goes_on_always(part.graph):
        raise node.fail("it has no number of rounds, and its body always asks for another one; expected one that ends")
    after = [n.spec for n in part.graph.outputs[1 : 1 + len(first)]]
    opened = [_opened(node, k, *pair) for k, pair in enumerate(zip(specs, after, strict=True))]
    if opened != specs:
        part = once(opened)
    outer = _with_the_same_inputs([part])
    ends = [node.as_node(value) for value in (node.optional(0), node.optional(1)) if value is not None]
    flags: dict[str, Any] = {"limited": node.optional(0) is not None, "asked": node.optional(1) is not None}
    values = [state for state in states if not isinstance(state, Group)]
    if (length := counted_rounds(node.optional(0), node.optional(1), values, part.graph)) is not None:
        flags["rounds"] = length
    made = node.apply("loop", *ends, *first, *outer, body=Body(part.graph), states=len(first), **flags)
    made = made if isinstance(made, tuple) else (made,)
    scans = len(body.output) - 1 - len(states)
    last, grown = iter(made[: len(first)]), iter(made[len(first) + scans :])
    kept = [Group([], rows=next(grown)) if isinstance(state, Group) else next(last) for state in states]
    return [*kept, *made[len(first) : len(first) + scans]]


_ROUND = (TensorSpec((), np.dtype(np.int64)), TensorSpec((), np.dtype(np.bool_)))


def _opened(node: OnnxNode, k: int, before: TensorSpec, after: TensorSpec) -> TensorSpec:
    if before.dtype != after.dtype or before.ndim != after.ndim:
        raise node.fail(f"a round makes its state {k} {after} of {before}; expected one dtype and number of axes")
    lengths = zip(before.shape, after.shape, strict=True)
    shape = [a if a == b else named(f"{node.name}_{k}_{axis}", max(int(a), 1)) for axis, (a, b) in enumerate(lengths)]
    return TensorSpec(tuple(shape), before.dtype, before.device)


def known_scan(node: OnnxNode, run: Run, separate: Separate) -> list[Any]:
    """One round for each element of the scanned inputs; in opset 8 for each entry of a batch, along axis 1."""
    if node.opset >= 9:
        return _scanned(node, run, separate, [node.input(index) for index in range(len(node.inputs))])
    if node.optional(0) is not None:
        raise node.fail("lengths of the sequences are not supported; expected one length for the whole batch")
    values = [node.input(index) for index in range(1, len(node.inputs))]
    batches = {x.shape[0] for x in values}
    if len(batches) != 1 or max(batches) * values[-1].shape[1] > MOST_ROUNDS:
        stated = f"its batch axes have the lengths {sorted(batches)}"
        raise node.fail(f"{stated}; expected one, and at most {MOST_ROUNDS} rounds in all")
    rows = [_scanned(node, run, separate, [_element(node, x, 0, b) for x in values]) for b in range(*batches)]
    return [_stacked(node, column, 0) for column in zip(*rows, strict=True)]


def _scan_as_loop(node: OnnxNode, separate: Separate, length: int, took: Sides, gave: Sides) -> list[Any]:
    """A scan over a length that follows from open sizes: a loop that takes the elements of its inputs by number."""
    import onnx

    body, values = _graph(node, "body"), node.inputs
    states, kept = len(values) - len(took[0]), len(took[0])
    make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    inputs = [info("scan round", 7, ()), info("scan goes on", 9, ()), *body.input[:states]]
    nodes = [make("Identity", ["scan goes on"], ["scan goes on then"])]
    for k, (axis, flip, item) in enumerate(zip(*took, body.input[states:], strict=True)):
        source, place = f"scan input {k}", "scan round"
        inputs.append(info(source, item.type.tensor_type.elem_type, None))
        if flip:
            place = f"scan place {k}"
            nodes += [
                make("Shape", [source], [f"scan shape {k}"]),
                make("Constant", [], [f"scan axis {k}"], value_int=axis),
                make("Constant", [], [f"scan one {k}"], value_int=1),
                make("Gather", [f"scan shape {k}", f"scan axis {k}"], [f"scan length {k}"]),
                make("Sub", [f"scan length {k}", f"scan one {k}"], [f"scan end {k}"]),
                make("Sub", [f"scan end {k}", "scan round"], [place]),
            ]
        nodes += [
            make("Gather", [source, place], [item.name], axis=axis),
            make("Identity", [source], [f"{source} then"]),
        ]
    passed = [info(f"scan input {k} then", 1, None) for k in range(kept)]
    outputs = [info("scan goes on then", 9, ()), *body.output[:states], *passed, *body.output[states:]]
    made = onnx.helper.make_graph([*nodes, *body.node], body.name, inputs, outputs, list(body.initializer))
    results = _looped(replace(node, inputs=[np.asarray(length, object), None, *values], attrs={"body": made}), separate)
    scans = []
    for x, axis, flip in zip(results[states + kept :], *gave, strict=True):
        axis = node.axis(axis, len(x.shape))
        if flip:
            steps = tuple(1 if i else -1 for i in range(len(x.shape)))
            x = node.apply("slice", x, starts=(None,) * len(steps), stops=(None,) * len(steps), steps=steps)
        perm = [*range(1, axis + 1), 0, *range(axis + 1, len(x.shape))]
        scans.append(node.apply("transpose", x, perm=tuple(perm)) if axis else x)
    return [*results[:states], *scans]


def _scanned(node: OnnxNode, run: Run, separate: Separate, values: list[Value]) -> list[Any]:
    """The states behind the last round, and what the rounds give, from the first states and the scanned inputs."""
    body, count = _graph(node, "body"), int(node.attrs["num_scan_inputs"])
    states, sources = values[: len(values) - count], values[len(values) - count :]
    outputs = len(body.output) - len(states)
    axes = node.ints("scan_input_axes", (0,) * count) or ()
    back = node.ints("scan_input_directions" if node.opset >= 9 else "directions", (0,) * count) or ()
    out_axes, out_back = (node.ints(f"scan_output_{what}", (0,) * outputs) or () for what in ("axes", "directions"))
    axes = tuple(node.axis(axis, len(x.shape)) for axis, x in zip(axes, sources, strict=True))
    lengths = {x.shape[axis] for axis, x in zip(axes, sources, strict=True)}
    if is_open(list(lengths)) and len(lengths) == 1 and len(values) == len(node.inputs):
        return _scan_as_loop(node, separate, max(lengths), (axes, back), (out_axes, out_back))
    if len(lengths) != 1 or max(lengths) > MOST_ROUNDS:
        raise node.fail(f"the scanned axes have the lengths {sorted(lengths)}; expected one, at most {MOST_ROUNDS}")
    (length,), columns = lengths, [[] for _ in range(outputs)]
    if not length and outputs:
        shapes = [tuple(n for i, n in enumerate(x.shape) if i != axis) for x, axis in zip(sources, axes, strict=True)]
        parts = [TensorSpec(shape, spec_of(x).dtype) for shape, x in zip(shapes, sources, strict=True)]
        results = _of_no_round(node, separate, [*_specs(node, states), *parts], len(states), out_axes)
        return [*states, *results]
    for t in range(length):
        places = (length - 1 - t if flip else t for flip in back)
        parts = [_element(node, x, axis, at) for x, axis, at in zip(sources, axes, places, strict=True)]
        made = run(body, (*states, *parts), f"round {t}")
        states = made[: len(states)]
        for column, value in zip(columns, made[len(states) :], strict=True):
            column.append(value)
    ordered = [column[::-1] if flip else column for column, flip in zip(columns, out_back, strict=True)]
    return [*states, *(_stacked(node, column, axis) for column, axis in zip(ordered, out_axes, strict=True))]


def _element(node: OnnxNode, x: Value, axis: int, at: int) -> Value:
    """X without the axis, at one place of it."""
    if isinstance(x, np.ndarray):
        return np.take(x, at, axis)
    bounds = [(at, at + 1, 1) if i == axis else (0, n, 1) for i, n in enumerate(x.shape)]
    starts, stops, steps = zip(*bounds, strict=True)
    part = node.apply("slice", x, starts=starts, stops=stops, steps=steps)
    return node.reshape(part, [n for i, n in enumerate(x.shape) if i != axis])


def _specs(node: OnnxNode, states: Sequence[Value | Group]) -> list[TensorSpec]:
    if any(isinstance(state, Group) for state in states):
        raise node.fail("it makes no round and carries a sequence; the shape of what its rounds give is not known")
    return [spec_of(state) for state in states if not isinstance(state, Group)]


def _of_no_round(
    node: OnnxNode, separate: Separate, given: Sequence[TensorSpec], first: int, axes: Sequence[int] = ()
) -> list[np.ndarray]:
    """Results of rounds, from the `first` result of the body on, where there is no round: empty along a new axis."""
    made = []
    for k, result in enumerate(separate(_graph(node, "body"), given, "body").graph.outputs[first:]):
        shape = result.spec.shape
        if is_open(shape):
            raise node.fail("it makes no round, and the shape of results of its rounds is open")
        axis = node.axis(axes[k] if axes else 0, len(shape) + 1)
        made.append(np.zeros((*shape[:axis], 0, *shape[axis:]), storage_of(result.spec.dtype)))
    return made


def _stacked(node: OnnxNode, values: Sequence[Value], axis: int) -> Value:
    """The values along a new axis."""
    if not values:
        raise node.fail("it makes no round for any entry of its batch; the shape of its results is not known")
    if all(isinstance(value, np.ndarray) for value in values):
        return np.stack(values, axis)  # pyright: ignore[reportArgumentType, reportCallIssue]
    shape = values[0].shape
    axis = node.axis(axis, len(shape) + 1)
    wide = [node.reshape(value, (*shape[:axis], 1, *shape[axis:])) for value in values]
    return wide[0] if len(wide) == 1 else node.apply("concat", *wide, axis=axis)


CONTROL = {"If": either, "Loop": rounds, "Scan": known_scan}
