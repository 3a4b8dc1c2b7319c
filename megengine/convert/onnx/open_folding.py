"""Arithmetic on shapes with open axes, while importing."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial, reduce
from typing import Any

import numpy as np

from megengine.convert.onnx.context import OnnxNode, spec_of
from megengine.convert.onnx.open_values import is_open_array, of_dtype, settled
from megengine.core.dtype import storage_of
from megengine.core.sizes import OpenRatio, equals, is_below, is_open, largest, least, truncated

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
        return _each(function, *inputs)
    if (function := _BY_NODE.get(node.op_type)) is not None:
        return _each(partial(function, node), *inputs)
    return None


def _each(function: Callable[..., Any], *inputs: np.ndarray | None) -> list[np.ndarray] | None:
    """A function of each element; None where what it gives depends on the size."""
    operands = [value.astype(object) for value in inputs if value is not None]
    made = np.frompyfunc(function, len(operands), 1)(*operands)
    return None if any(one is None for one in np.ravel(made)) else [_typed(np.asarray(made, object))]


def _typed(made: np.ndarray) -> np.ndarray:
    flat = [n.item() if isinstance(n, np.generic) else n for n in made.reshape(-1)]
    if flat and isinstance(flat[0], bool):
        return settled(flat, made.shape, np.bool_)
    return settled(flat, made.shape, np.float32 if any(isinstance(n, float) for n in flat) else np.int64)


def _resettled(made: np.ndarray, source: np.ndarray | None) -> np.ndarray:
    return _typed(made) if made.dtype == object else made


def _cast(node: OnnxNode, x: np.ndarray) -> list[np.ndarray] | None:
    to = node.dtype(node.attr("to", 0))
    of = (lambda n: n * 1.0) if to.kind == "f" else _is_true if to.kind == "b" else partial(rounded, np.trunc)
    made = [of(n) for n in x.reshape(-1)]
    return None if any(n is None for n in made) else [settled(made, x.shape, to)]


def _is_true(n: Any) -> bool | None:
    return _negated(equals(n, 0))


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
        value = np.empty((1,) * x.ndim if node.attr("keepdims", 1) == 1 else (), object)
        value[...] = function(list(x.reshape(-1)))
        return [value]

    return reduce


def _expanded(node: OnnxNode, x: np.ndarray, shape: np.ndarray) -> list[np.ndarray] | None:
    return None if is_open_array(shape) else [np.broadcast_to(x, np.broadcast_shapes(x.shape, [int(n) for n in shape]))]


def _clipped(
    node: OnnxNode, x: np.ndarray, low: np.ndarray | None = None, high: np.ndarray | None = None
) -> list[np.ndarray] | None:
    ends = (node.attr("min") if low is None else low, node.attr("max") if high is None else high)
    for of, end in zip((largest, least), ends, strict=True):
        made = [x] if end is None else _each(of, x, np.asarray(end))
        if made is None:
            return None
        (x,) = made
    return [x]


_MOVES: dict[str, Callable[..., list[np.ndarray] | None]] = {
    "Cast": _cast,
    "Clip": _clipped,
    "Concat": lambda node, *xs: [np.concatenate([x.astype(object) for x in xs], int(node.attr("axis", 0)))],
    "Expand": _expanded,
    "Gather": _gathered,
    "Identity": lambda node, x: [x],
    "ReduceMax": _reduced(partial(reduce, largest)),
    "ReduceMin": _reduced(partial(reduce, least)),
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


TRIED = np.arange(1, 4097)  # sizes at which products with constants are compared with their roundings
_EXACT: dict[str, Callable[[Any, Any], Any]] = {"Mul": lambda a, b: a * b, "Div": lambda a, b: a / b}


class _Scaled(OpenRatio):
    """A size times a constant, or divided by one: files compute it in floats, which round."""

    rounded: np.ndarray  # at the sizes that are tried
    share: Fraction  # what a size of 1 gives exactly

    def whole(self, *, up: bool) -> list[float]:
        """The exact numbers at the sizes that are tried, rounded up or down to integers."""
        p, q = self.share.numerator, self.share.denominator
        return [float(-(-n * p // q) if up else n * p // q) for n in map(int, TRIED)]


def scaled(size: Any, constant: float, dtype: Any = np.float32, op: str = "Mul") -> Any:
    """The formula with the simplest fraction that the dtype rounds to the constant: 7/10 for 0.7."""
    exact = _EXACT[op]
    near = Fraction(constant).limit_denominator(1000)
    share = near if dtype(float(near)) == dtype(constant) else Fraction(constant)
    made = exact(size, share)
    if not isinstance(made, OpenRatio) or share.denominator == 1:
        return made
    made = _Scaled(float(made), made.formula)
    made.rounded = exact(TRIED.astype(dtype), dtype(constant))
    made.share = exact(Fraction(1), share)
    return made


def rounded(function: Callable[..., Any], a: Any) -> Any:
    """A number rounded to an integer; None where the rounding of floats decides at some sizes."""
    of = {np.floor: math.floor, np.ceil: math.ceil, np.trunc: truncated}[function]
    if isinstance(a, _Scaled):
        up = of is math.ceil or (of is truncated and a.share < 0)
        if not np.array_equal(function(a.rounded), a.whole(up=up)):
            return None
    return of(a)


def _as_float(n: Any) -> Any:
    return None if n is None else n * 1.0


def _multiplied(node: OnnxNode, a: Any, b: Any) -> Any:
    dtype = _dtype_of(node)
    if dtype.kind != "f" or is_open(a) == is_open(b):
        return a * b
    return scaled(a, b, dtype.type) if is_open(a) else scaled(b, a, dtype.type)


def _quotient(node: OnnxNode, a: Any, b: Any) -> Any:
    """A quotient of integers is cut off: -3 / 2 is -1."""
    dtype = _dtype_of(node)
    if dtype.kind == "f":
        return scaled(a, b, dtype.type, "Div") if is_open(a) and not is_open(b) and b else a / b
    if b == 0 or (below_zero := is_below(b, 0)) is None:
        return None
    if not is_open((a, b)):
        return truncated(Fraction(a, b))
    return truncated((-a if below_zero else a) / (-b if below_zero else b))


def _remainder(node: OnnxNode, a: Any, b: Any) -> Any:
    if not node.attr("fmod", 0):
        return a % b
    whole = None if _dtype_of(node).kind == "f" else _quotient(node, a, b)
    return None if whole is None else a - b * whole


def _negated(known: bool | None) -> bool | None:
    return None if known is None else not known


_TRUTHS = ("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or")
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": lambda a, b: a + b,
    "And": lambda a, b: bool(a) and bool(b),
    "Abs": lambda a: largest(a, -a),
    "Ceil": lambda a: _as_float(rounded(np.ceil, a)),
    "Equal": equals,
    "Floor": lambda a: _as_float(rounded(np.floor, a)),
    "Greater": lambda a, b: is_below(b, a),
    "GreaterOrEqual": lambda a, b: _negated(is_below(a, b)),
    "Less": is_below,
    "LessOrEqual": lambda a, b: _negated(is_below(b, a)),
    "Max": lambda *xs: reduce(largest, xs),
    "Min": lambda *xs: reduce(least, xs),
    "Neg": lambda a: -a,
    "Not": lambda a: not a,
    "Or": lambda a, b: bool(a) or bool(b),
    "Reciprocal": lambda a: 1.0 / a,
    "Relu": lambda a: largest(a, 0),
    "Sub": lambda a, b: a - b,
    "Where": lambda c, a, b: a if c else b,
}
_BY_NODE: dict[str, Callable[..., Any]] = {"Div": _quotient, "Mod": _remainder, "Mul": _multiplied}
