"""Normalisations of groups of channels take the weights and biases of channels behind them, as one op."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.kernels.half_conversion import HALVES
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import is_among, remove_dead
from megengine.traced_module.patterns import any_, call, const, constant_value, match

_X, _FACTOR = any_(), const()
_WEIGHTED, _SHIFTED, _RESHAPED = call("mul", _X, _FACTOR), call("add", _X, _FACTOR), call("reshape", _X)
_MOST = 2  # weights, each with the bias behind it


class _Factors:
    """Weights and biases of channels, in the order in which they are applied."""

    def __init__(self) -> None:
        self.pairs: list[dict[str, np.ndarray]] = []

    def take(self, kind: str, values: np.ndarray) -> bool:
        """False if there would be too many. `kind` is weight or bias."""
        if not self.pairs or "bias" in self.pairs[-1] or kind in self.pairs[-1]:
            if len(self.pairs) == _MOST:
                return False
            self.pairs.append({})
        self.pairs[-1][kind] = values
        return True

    def table(self, channels: int, dtype: Any) -> np.ndarray:
        """[2 or 4, channels]; a one and the zero that changes no sign stand for what is not there."""
        missing = {"weight": np.ones(channels), "bias": np.full(channels, -0.0)}
        whole = [missing | pair for pair in self.pairs]
        return np.stack([pair[kind].astype(dtype) for pair in whole for kind in missing])


def _factor(user: Apply, value: TensorNode, channels: int) -> tuple[str, np.ndarray] | None:
    """The kind of a constant operand of channels, and its number for each channel; None if it is no such one."""
    weighted = match(_WEIGHTED, user.output)
    found = weighted or match(_SHIFTED, user.output)
    if found is None or found[_X] is not value or user.output.shape != value.shape:
        return None
    factor = constant_value(found[_FACTOR])
    if factor is None or factor.dtype != value.dtype:
        return None
    lengths, own = (1,) * (value.spec.ndim - factor.ndim) + factor.shape, value.shape[1]
    if any(n != 1 for axis, n in enumerate(lengths) if axis != 1):
        return None
    numbers = np.repeat(np.broadcast_to(factor.reshape(-1), (own,)), channels // own)
    return "weight" if weighted else "bias", numbers


def _behind(value: TensorNode, shape: tuple[int, ...], graph: InternalGraph) -> tuple[TensorNode, _Factors]:
    """The last value that only factors lead to, in `shape` at the latest there, and these factors."""
    factors, last = _Factors(), value
    while len(value.users) == 1 and not is_among(value, graph.outputs):
        (user,) = value.users
        if not isinstance(user, Apply) or len(user.outputs) > 1:  # split and topk give several values
            break
        if match(_RESHAPED, user.outputs[0]) is None or user.output.shape != shape:
            found = _factor(user, value, shape[1])
            if found is None or not factors.take(*found):
                break
        value = user.output
        last = value if value.shape == shape else last
    return last, factors


def _normed(expr: Apply) -> TensorNode | None:
    """What a norm of all axes but the first two has as its operand, in the shape before groups were made."""
    (x, *factors), a = expr.inputs, expr.attrs
    if factors or a["axes"] != x.spec.ndim - 2 or not a["centred"] or a["reciprocal"]:
        return None
    if (found := match(_RESHAPED, x)) is not None:
        source = found[_X]
        if source.spec.ndim > 2 and source.shape[0] == x.shape[0] and x.shape[1] and source.shape[1] % x.shape[1] == 0:
            return source
    return x


def join_factors(graph: InternalGraph, *, exact: bool) -> bool:
    """Rewrite in place; True if something changed. Of halves results are rounded once, so exact plans keep theirs."""
    changed = False
    for expr in list(graph.exprs()):
        if not isinstance(expr, Apply) or expr.op != "fused_norm" or (exact and expr.output.dtype in HALVES):
            continue
        source = _normed(expr)
        if source is None or not math.prod(source.shape):
            continue
        last, factors = _behind(expr.output, source.shape, graph)
        if not factors.pairs or last.shape != source.shape:
            continue
        root = last.expr
        table = graph.constant(factors.table(source.shape[1], source.dtype), "factors", before=root)
        attrs = {"groups": expr.inputs[0].shape[1], "eps": expr.attrs["eps"]}
        made = graph.apply(
            "fused_channel_norm", source, table, attrs=attrs, name=last.name, before=root, meta=root.meta
        )
        graph.replace_node({last: made})
        changed = True
    if changed:
        remove_dead(graph)
    return changed
