"""Arithmetic on shapes with open axes, while importing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from megengine.convert.onnx.context import OnnxNode, spec_of
from megengine.convert.onnx.open_values import is_open_array, of_dtype, settled
from megengine.core.dtype import storage_of
from megengine.core.sizes import is_below, is_open, largest, least

MOST = 1 << 10  # elements of an array with open sizes: shapes, and a few numbers made of them


def fold_open(node: OnnxNode) -> list[np.ndarray] | None:
    """The outputs of a node whose inputs are known up to open sizes, or None where they are computed at run time."""
    made = _folded(node, [None if value is None else np.asarray(value) for value in node.inputs])
    return None if made is None else [of_dtype(one, _dtype_of(node)) for one in made]


def _dtype_of(node: OnnxNode) -> np.dtype:
    """The dtype of what a node gives."""
    if node.op_type in ("Shape", "Size"):
        return np.dtype(np.int64)
    if node.op_type == "Cast":
        return node.dtype(node.attr("to", 0))
    if node.op_type in _TRUTHS:
        return np.dtype(np.bool_)
    return storage_of(spec_of(node.input(int(node.op_type == "Where"))).dtype)


def _folded(node: OnnxNode, inputs: list[np.ndarray | None]) -> list[np.ndarray] | None:
    if sum(value.size for value in inputs if value is not None) > MOST:
        return None
    if (moved := _MOVES.get(node.op_type)) is not None:
        made = moved(node, *inputs)
        return None if made is None else [_resettled(one, inputs[0]) for one in made]
    if (function := _ELEMENTWISE.get(node.op_type)) is not None:
        operands = [value.astype(object) for value in inputs if value is not None]
        made = np.frompyfunc(function, len(inputs), 1)(*operands)
        if any(one is None for one in np.ravel(made)):  # a comparison that depends on the size
            return None
        return [_typed(np.asarray(made, object))]
    return None


def _typed(made: np.ndarray) -> np.ndarray:
    flat = [n.item() if isinstance(n, np.generic) else n for n in made.reshape(-1)]
    if flat and isinstance(flat[0], bool):
        return settled(flat, made.shape, np.bool_)
    return settled(flat, made.shape, np.float32 if any(isinstance(n, float) for n in flat) else np.int64)


def _resettled(made: np.ndarray, source: np.ndarray | None) -> np.ndarray:
    return _typed(made) if made.dtype == object else made


def _cast(node: OnnxNode, x: np.ndarray) -> list[np.ndarray]:
    to = node.dtype(node.attr("to", 0))
    if to.kind == "f":
        return [settled([n * 1.0 for n in x.reshape(-1)], x.shape, to)]
    if to.kind == "b":
        return [settled([bool(n) for n in x.reshape(-1)], x.shape, to)]
    return [settled([math.floor(n) for n in x.reshape(-1)], x.shape, to)]


def _axes(node: OnnxNode, given: np.ndarray | None) -> tuple[int, ...] | None:
    return node.ints("axes") if given is None else tuple(int(n) for n in given.reshape(-1))


def _unsqueezed(node: OnnxNode, x: np.ndarray, given: np.ndarray | None = None) -> list[np.ndarray]:
    return [np.expand_dims(x, _axes(node, given) or ())]


def _squeezed(node: OnnxNode, x: np.ndarray, given: np.ndarray | None = None) -> list[np.ndarray]:
    return [np.squeeze(x, _axes(node, given))]


def _sliced(node: OnnxNode, x: np.ndarray, *bounds: np.ndarray | None) -> list[np.ndarray] | None:
    if any(is_open_array(one) for one in bounds):
        return None
    given = [None if one is None else [int(n) for n in one.reshape(-1)] for one in bounds]
    starts, ends, axes, steps = (
        [*given, None, None][:4] if bounds else [node.ints(name) for name in ("starts", "ends", "axes", "steps")]
    )
    assert starts is not None and ends is not None
    key: list[Any] = [slice(None)] * x.ndim
    for i, axis in enumerate(axes or range(len(starts))):
        key[axis] = slice(starts[i], ends[i], None if steps is None else steps[i])
    return [x[tuple(key)]]


def _gathered(node: OnnxNode, x: np.ndarray, index: np.ndarray) -> list[np.ndarray] | None:
    if is_open_array(index):
        return None
    return [np.asarray(np.take(x, index, int(node.attr("axis", 0))), x.dtype)]


def _reshaped(node: OnnxNode, x: np.ndarray, shape: np.ndarray) -> list[np.ndarray] | None:
    return None if is_open_array(shape) else [x.reshape([int(n) for n in shape])]


def _split(node: OnnxNode, x: np.ndarray, sizes: np.ndarray | None = None) -> list[np.ndarray]:
    parts = len(node.outputs) if sizes is None else np.cumsum(sizes)[:-1].tolist()
    return list(np.split(x, parts, int(node.attr("axis", 0))))


def _reduced(function: Callable[[list[Any]], Any]) -> Callable[..., list[np.ndarray] | None]:
    def reduce(node: OnnxNode, x: np.ndarray, given: np.ndarray | None = None) -> list[np.ndarray] | None:
        axes = _axes(node, given)
        if x.ndim > 1 or (axes and axes not in ((0,), (-1,))):
            return None
        value = np.empty((1,) * x.ndim if node.attr("keepdims", 1) else (), object)
        value[...] = function(list(x.reshape(-1)))
        return [value]

    return reduce


def _expanded(node: OnnxNode, x: np.ndarray, shape: np.ndarray) -> list[np.ndarray] | None:
    return None if is_open_array(shape) else [np.broadcast_to(x, np.broadcast_shapes(x.shape, [int(n) for n in shape]))]


_MOVES: dict[str, Callable[..., list[np.ndarray] | None]] = {
    "Cast": _cast,
    "Concat": lambda node, *xs: [np.concatenate([x.astype(object) for x in xs], int(node.attr("axis", 0)))],
    "Expand": _expanded,
    "Gather": _gathered,
    "Identity": lambda node, x: [x],
    "ReduceMax": _reduced(max),
    "ReduceMin": _reduced(min),
    "ReduceProd": _reduced(math.prod),
    "ReduceSum": _reduced(sum),
    "Reshape": _reshaped,
    "Shape": lambda node, x: [np.array(x.shape, np.int64)],
    "Size": lambda node, x: [np.array(x.size, np.int64)],
    "Slice": _sliced,
    "Split": _split,
    "Squeeze": _squeezed,
    "Transpose": lambda node, x: [np.transpose(x, node.ints("perm"))],
    "Unsqueeze": _unsqueezed,
}


def _divided(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return a // b if is_open((a, b)) or (a < 0) == (b < 0) else -(-a // b)


def _negated(known: bool | None) -> bool | None:
    return None if known is None else not known


_TRUTHS = ("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or")
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": lambda a, b: a + b,
    "And": lambda a, b: bool(a) and bool(b),
    "Ceil": lambda a: math.ceil(a) * 1.0,
    "Div": _divided,
    "Equal": lambda a, b: bool(a == b),
    "Floor": lambda a: math.floor(a) * 1.0,
    "Greater": lambda a, b: is_below(b, a),
    "GreaterOrEqual": lambda a, b: _negated(is_below(a, b)),
    "Less": is_below,
    "LessOrEqual": lambda a, b: _negated(is_below(b, a)),
    "Max": lambda *xs: xs[0] if len(xs) == 1 else largest(xs[0], xs[1]),
    "Min": lambda *xs: xs[0] if len(xs) == 1 else least(xs[0], xs[1]),
    "Mod": lambda a, b: a % b,
    "Mul": lambda a, b: a * b,
    "Neg": lambda a: -a,
    "Not": lambda a: not a,
    "Or": lambda a, b: bool(a) or bool(b),
    "Reciprocal": lambda a: 1.0 / a,
    "Sub": lambda a, b: a - b,
    "Where": lambda c, a, b: a if c else b,
}
