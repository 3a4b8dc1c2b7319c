"""How many rounds a loop makes, where that follows from open sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.convert.onnx.open_values import is_open_array
from megengine.core.sizes import largest, least, whole
from megengine.traced_module import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.patterns import call, constant_value, match

_LESS, _SUM, _ONES, _ADD, _RESHAPED = map(call, (F.less, F.sum, F.broadcast_to, F.add, F.reshape))


def counted_rounds(limit: Any, going: Any, states: Sequence[Any], body: InternalGraph) -> int | None:
    """The number of rounds of a loop that its limit alone ends, or a state that counts to a size; None for others.

    `limit`, `going` and the first `states` are values of the graph around the loop; arrays are known.
    """
    started = going is None or (isinstance(going, np.ndarray) and not is_open_array(going) and bool(going.all()))
    if not started or not (limit is None or _is_number(limit)):
        return None
    most = None if limit is None else largest(0, whole(limit.reshape(-1)[0]))
    if goes_on_always(body):
        return most
    counted = _counted(body.outputs[0], states, body)
    return counted if counted is None or most is None else least(most, counted)


def goes_on_always(body: InternalGraph) -> bool:
    """Whether each round of a loop asks for another one."""
    more = body.outputs[0]
    known = constant_value(more)
    return more is body.inputs[1] or (known is not None and bool(known.all()))


def _is_number(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.size == 1


def _counted(more: Any, states: Sequence[Any], body: InternalGraph) -> int | None:
    """The rounds of `while state < length: state += step`, of which the first one is made."""
    if not match(_LESS, more):
        return None
    after, end = more.expr.inputs
    place = next((k for k in range(len(states)) if body.outputs[1 + k] is after), None)
    if place is None or not match(_ADD, after) or not _is_number(states[place]):
        return None
    before, step = body.inputs[2 + place], [x for x in after.expr.inputs if x is not body.inputs[2 + place]]
    by, length = constant_value(step[0]) if len(step) == 1 else None, _length(end)
    if by is None or by.size != 1 or by.item() < 1 or length is None or np.dtype(before.dtype).kind not in "iu":
        return None
    first = whole(states[place].reshape(-1)[0])
    return largest(1, (length - first + by.item() - 1) // by.item())


def _length(value: TensorNode) -> int | None:
    """The number that a value is: a constant, or a sum of as many ones."""
    while match(_RESHAPED, value):
        value = value.expr.inputs[0]
    number = constant_value(value)
    if number is not None:
        return whole(number.item()) if number.size == 1 and number.dtype.kind in "iu" else None
    if not match(_SUM, value) or value.spec.size != 1 or not match(_ONES, value.expr.inputs[0]):
        return None
    ones = value.expr.inputs[0]
    one = constant_value(ones.expr.inputs[0])
    return math.prod(ones.shape) if one is not None and one.size == 1 and one.item() == 1 else None


__all__ = ["counted_rounds", "goes_on_always"]
