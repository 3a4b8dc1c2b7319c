"""Assignments to the places of a mask (`x[x < 0] = 0` and `x[m] *= 0.1` of torch), as choices without open lengths."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megengine.convert.onnx.context import OnnxNode, Value
from megengine.convert.onnx.open_values import is_open_array
from megengine.core.dtype import is_float
from megengine.core.sizes import is_open
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import constant_value
from megengine.traced_module.patterns import Pattern, call, match

_PLAIN = call("add") | call("sub") | call("mul") | call("neg")  # finite for finite operands, and so are their gradients
_REPEATED, _INDEXED = call("broadcast_to"), call("index")
_TURNED, _PLACES, _RESHAPED, _CUT = call("transpose"), call("nonzero"), call("reshape"), call("slice")
_HARMLESS = 0.5  # what other functions take where their result is not chosen: within the domains of most


def chosen_by_mask(node: OnnxNode, x: Value, index: Value, updates: Value) -> Value | None:
    """The assignment as `where`; None unless the index is that of a mask, and each update comes from its own place."""
    mask = _mask_of(index)
    if mask is None or mask.dtype != np.bool_ or mask.shape != x.shape[: len(mask.shape)]:
        return None
    rest = x.shape[len(mask.shape) :]
    if len(updates.shape) != 1 + len(rest) or not is_open(updates.shape[0]):
        return None
    steps = list(_steps(updates, mask, len(rest)))
    if None in steps:
        return None
    beside = node.reshape(mask, (*mask.shape, *[1] * len(rest)))
    guarded = any(isinstance(one, Apply) and match(_PLAIN, one.outputs[0]) is None for one in steps)
    values = _spread(node, updates, beside, guarded, len(rest))
    return node.apply("where", beside, values, _one_number(x) if not rest else x)


def _one_number(x: Value) -> Value:
    """A constant whose elements are all the same (`zeros_like`) as that number, which fits any batch."""
    known = x if isinstance(x, np.ndarray) else constant_value(x)
    if known is None or is_open_array(known) or not known.size or (known != known.reshape(-1)[0]).any():
        return x
    return np.asarray(known).reshape(-1)[:1].reshape(())


def _steps(value: Value, mask: TensorNode, rank: int) -> Iterator[Apply | None]:
    """The functions behind values at places of the mask; None for what does not go place by place."""
    if _is_common(value, rank):
        return
    made = value.expr if isinstance(value, TensorNode) else None
    if not isinstance(made, Apply):
        yield None
    elif match(_REPEATED, made.outputs[0]) is not None:
        yield from _steps(made.inputs[0], mask, rank)
    elif match(_INDEXED, made.outputs[0]) is not None:
        whole = ((None, None, None),) * rank
        count = len(mask.shape)
        fits = made.attrs["pattern"] == (*"i" * count, *whole) and made.inputs[0].shape[:count] == mask.shape
        if not fits or [_column_of(v) for v in made.inputs[1:]] != [(mask, k) for k in range(count)]:
            yield None
    elif made.record.rule.pointwise and not made.record.quantizes:
        yield made
        for operand in made.inputs:
            yield from _steps(operand, mask, rank)
    else:
        yield None


def _spread(node: OnnxNode, value: Value, mask: Value, guarded: bool, rank: int) -> Value:
    """The values, computed at all places."""
    if _is_common(value, rank):
        return node.reshape(value, value.shape[1:]) if len(value.shape) > rank else value
    made = value.expr if isinstance(value, TensorNode) else None
    if not isinstance(made, Apply):  # `_steps` refused it
        return value
    if match(_REPEATED, made.outputs[0]) is not None:
        return _spread(node, made.inputs[0], mask, guarded, rank)
    if match(_INDEXED, made.outputs[0]) is None:
        return node.apply(made.op, *(_spread(node, v, mask, guarded, rank) for v in made.inputs), **made.attrs)
    y = made.inputs[0]
    if not guarded:
        return y
    return node.apply("where", mask, y, np.asarray(_HARMLESS if is_float(y.dtype) else 1, y.dtype))


def _is_common(value: Value, rank: int) -> bool:
    """True for values that are the same at all places."""
    axes = len(value.shape)
    return axes <= rank or (axes == rank + 1 and not is_open(value.shape[0]) and value.shape[0] == 1)


def _mask_of(index: Value) -> TensorNode | None:
    """The mask of which an index [places, axes] holds the true ones."""
    turned = _made_by(index, _TURNED)
    found = _made_by(turned.inputs[0], _PLACES) if turned is not None and turned.attrs["perm"] == (1, 0) else None
    return None if found is None else found.inputs[0]


def _column_of(value: Value) -> tuple[TensorNode | None, int] | None:
    """The mask and the axis along which an index holds its places."""
    flat = _made_by(value, _RESHAPED)
    part = _made_by(flat.inputs[0], _CUT) if flat is not None else None
    if part is None or len(part.attrs["starts"]) != 2 or part.attrs["steps"] != (1, 1):
        return None
    return _mask_of(part.inputs[0]), part.attrs["starts"][1]


def _made_by(value: Value, pattern: Pattern) -> Apply | None:
    made = value.expr if isinstance(value, TensorNode) else None
    return made if isinstance(made, Apply) and match(pattern, made.outputs[0]) is not None else None


__all__ = ["chosen_by_mask"]
