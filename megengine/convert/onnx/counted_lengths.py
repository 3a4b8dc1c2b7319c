"""Lengths that a file computes as the number of values that are true: those of `nonzero`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from megengine.convert.onnx.open_values import settled
from megengine.core.sizes import is_open
from megengine.traced_module.ir.expr import Apply, Constant, Input
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.patterns import call, match

_SUM, _RESHAPED, _CAST, _JOINED = call("sum"), call("reshape"), call("cast"), call("concat")


def counted_lengths(add: Callable[..., Any], value: TensorNode) -> np.ndarray | None:
    """The numbers that a value holds where they are constants and numbers of true values; None for others.

    `add` adds an op to the graph: `OnnxNode.apply`.
    """
    made = _numbers(add, value)
    return None if made is None else settled(made, value.shape)


def _numbers(add: Callable[..., Any], value: TensorNode) -> list[Any] | None:
    expr = value.expr
    if isinstance(expr, Constant) and np.dtype(value.dtype).kind in "iu":
        return expr.value.numpy().reshape(-1).tolist()
    if not isinstance(expr, Apply):
        return None
    if match(_SUM, value) and value.spec.size == 1:
        return _true_values(add, expr.inputs[0])
    if match(_RESHAPED, value) or (match(_CAST, value) and np.dtype(value.dtype).kind in "iu"):
        return _numbers(add, expr.inputs[0])
    if match(_JOINED, value) and len(value.shape) == 1:
        parts = [_numbers(add, part) for part in expr.inputs]
        return None if any(part is None for part in parts) else [n for part in parts for n in part or ()]
    return None


def _true_values(add: Callable[..., Any], summed: TensorNode) -> list[Any] | None:
    """How many of the truth values that a sum adds as numbers hold."""
    if not match(_CAST, summed) or summed.expr.inputs[0].dtype != np.dtype(np.bool_):
        return None
    found = add("nonzero", summed.expr.inputs[0])
    return [n for n in found.shape if is_open(n)][:1] or None


def inputs_behind(value: Any) -> list[str]:
    """The names of the graph's inputs that a value is computed from."""
    reached, seen, names = [value], set(), []
    while reached:
        one = reached.pop()
        if isinstance(one, TensorNode) and id(one) not in seen:
            seen.add(id(one))
            if isinstance(one.expr, Input):
                names.append(one.name)
            reached.extend(one.expr.inputs if one.expr is not None else ())
    return sorted(names)
