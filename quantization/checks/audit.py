"""Audit: what in a float network is dangerous in integers, before it is converted, by name."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from megengine.core.text import counted
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.ranges import SMALLEST_SCALE, TensorStatistics
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.passes.affine_maps import NORM
from megengine.traced_module.passes.linear import BIAS, addition_behind

_INT32 = 2**31 - 1
_QMAX = 127
_CODES = 255


@dataclass(frozen=True, slots=True)
class Risk:
    """One danger.

    Args:
        name: the layer or the value.
        kind: "accumulator", "bias", "tiny scale", "dead channels", "zero gamma", "zero range" or "not finite".
        text: what was seen.
        handled: what conversion does about it; "" if it refuses the layer.
    """

    name: str
    kind: str
    text: str
    handled: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}: {self.text}; {self.handled or 'conversion refuses it: exclude this layer'}"


@kinds_named
def audit(graph: InternalGraph, stats: Mapping[str, TensorStatistics] | None = None) -> tuple[Risk, ...]:
    """Dangers of a float graph of ops, and of what calibration saw (by edge); those that conversion refuses first."""
    seen = stats or {}
    found = [risk for expr in graph.exprs() if isinstance(expr, Apply) for risk in _of_expr(expr, seen)]
    found += [risk for name, one in seen.items() for risk in _of_values(name, one)]
    return tuple(sorted(found, key=lambda one: bool(one.handled)))


def _of_expr(expr: Apply, seen: Mapping[str, TensorStatistics]) -> Iterator[Risk]:
    if expr.op == NORM and isinstance(expr.inputs[1].expr, Constant):
        zero = int(np.count_nonzero(expr.inputs[1].expr.value.numpy() == 0))
        if zero:
            text = f"gamma of {counted(zero, 'channel')} is 0: they are constant"
            yield Risk(expr.output.name, "zero gamma", text, "the constant goes into the bias")
    if expr.record.weighted and isinstance(expr.inputs[1].expr, Constant):
        yield from _of_layer(expr, seen.get(expr.inputs[0].name))


def _of_layer(expr: Apply, data: TensorStatistics | None) -> Iterator[Risk]:
    name, rows = expr.output.name, _rows(expr)
    if not np.isfinite(rows).all():
        bad = int(rows.size - np.isfinite(rows).sum())
        yield Risk(name, "not finite", f"{counted(bad, 'weight')} of {rows.size} NaN or infinite")
        return
    reach = np.abs(rows).max(axis=1, initial=0.0)
    dead, tiny = int(np.count_nonzero(reach == 0)), (reach > 0) & (reach < _QMAX * SMALLEST_SCALE)
    if dead:
        text = f"{dead} of {counted(len(reach), 'output channel')} have weights of 0"
        yield Risk(name, "dead channels", text, "their result is the bias")
    if tiny.any():
        text = f"the weights of channel {int(np.argmax(tiny))} reach {reach[tiny][0]:.3g}"
        yield Risk(name, "tiny scale", text, f"the smallest scale is {SMALLEST_SCALE:.3g}: nearly all of them become 0")
    scale = np.maximum(np.where(reach > 0, reach, 1.0) / _QMAX, SMALLEST_SCALE)
    largest = np.abs(np.rint(rows / scale[:, None])).sum(axis=1) * _CODES
    if (largest > _INT32).any():
        at = int(np.argmax(largest))
        yield Risk(name, "accumulator", f"the sum of channel {at} can reach {largest[at]:.3g}, more than int32 holds")
    bias = _bias(expr)
    if bias is not None and data is not None and data.count and len(bias) == len(scale):
        step = scale * max(data.maximum, 0.0, -data.minimum) / _CODES
        steps = np.abs(bias) / np.maximum(step, np.finfo(np.float64).tiny)
        if (steps > _INT32 // 2).any():
            at = int(np.argmax(steps))
            text = f"the bias of channel {at} is {bias[at]:.3g}: in steps {steps[at]:.3g}, more than int32 holds"
            yield Risk(name, "bias", text, "profiles with a float bias add it after the sum")


def _rows(expr: Apply) -> np.ndarray:
    w = expr.inputs[1].expr.value.numpy().astype(np.float64)
    if expr.record.rows:
        return w if expr.attrs.get("transpose_b") else np.swapaxes(w, -1, -2).reshape(w.shape[-1], -1)
    return np.moveaxis(w, 1 if expr.record.transposed else 0, 0).reshape(
        w.shape[1 if expr.record.transposed else 0], -1
    )


def _bias(expr: Apply) -> np.ndarray | None:
    addition = addition_behind(expr.output) if expr.record.rows else None
    nodes = expr.inputs[2:] if addition is None else (addition[BIAS],)
    constant = nodes and isinstance(nodes[0].expr, Constant)
    return nodes[0].expr.value.numpy().astype(np.float64).reshape(-1) if constant else None


def _of_values(name: str, one: TensorStatistics) -> Iterator[Risk]:
    if not one.count:
        return
    if one.minimum == one.maximum:
        text = f"all {counted(one.count, 'value')} are {one.minimum + 0.0:g}"
        yield Risk(name, "zero range", text, "one code stands for the value")
    elif one.channel_minimum is not None and one.channel_maximum is not None and len(one.channel_minimum) > 1:
        still = int(np.count_nonzero(one.channel_minimum == one.channel_maximum))
        if still:
            text = f"{still} of {counted(len(one.channel_minimum), 'channel')} never change on the calibration data"
            yield Risk(name, "dead channels", text, "they are computed as any other")
