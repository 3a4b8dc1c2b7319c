"""One table: what quantization does with each op. Everything else in this package asks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from megengine.core.dtype import QuantizedDType, qint8, quint8

Attrs = Any


@dataclass(frozen=True, slots=True)
class QuantRule:
    """One row: how an op takes part in an integer network.

    Args:
        kind: "weighted" (a layer with constant weights: the anchor of a group), "add", "mul" (a product of two
            computed tensors), "pool" (a mean with a scale of its own), "clamp" (absorbed by what stands before it),
            "shape" (moves integers, keeps the scale), "concat" (its inputs take its scale) or "table" (any function
            of one value).
        weight_axis: output-channel axis of the weight, from the attributes; None if it has none of its own.
        clamp: real bounds (lo, hi) of a clamp, None where open.
        fixed: dtype of the output whatever the data says.
        non_negative: "always", "inherit" (if all inputs are), or "never" known to be.
        usable: attributes -> None, or why this form stays in float.
    """

    kind: str
    weight_axis: Callable[[Attrs], int | None] | None = None
    clamp: Callable[[Attrs], tuple[float | None, float | None]] | None = None
    fixed: QuantizedDType | None = None
    non_negative: str = "never"
    usable: Callable[[Attrs], str | None] = field(default=lambda attrs: None)


def _matmul_axis(attrs: Attrs) -> int:
    return 0 if attrs.get("transpose_b") else 1


def _transposed_axis(attrs: Attrs) -> int | None:
    return 1 if attrs.get("groups", 1) == 1 else None  # [I, O/groups, kh, kw]: groups share the axis


def _plain_matmul(attrs: Attrs) -> str | None:
    return "its first operand is transposed" if attrs.get("transpose_a") else None


def _zero_padding(attrs: Attrs) -> str | None:
    if attrs.get("mode", "constant") != "constant":
        return None
    return None if attrs.get("value", 0) == 0 else f"it pads with {attrs.get('value')}"


def _pool_over_space(attrs: Attrs) -> str | None:
    return None if attrs.get("axis") is not None else "it takes the mean over all axes"


_TABLE = QuantRule("table")
_SHAPE = QuantRule("shape", non_negative="inherit")
_TANH = qint8(1 / 128)

RULES: dict[str, QuantRule] = {
    "conv2d": QuantRule("weighted", weight_axis=lambda attrs: 0),
    "conv_transpose2d": QuantRule("weighted", weight_axis=_transposed_axis),
    "matmul": QuantRule("weighted", weight_axis=_matmul_axis, usable=_plain_matmul),
    "add": QuantRule("add", non_negative="inherit"),
    "mul": QuantRule("mul", non_negative="inherit"),
    "mean": QuantRule("pool", non_negative="inherit", usable=_pool_over_space),
    "avg_pool2d": QuantRule("pool", non_negative="inherit"),
    "relu": QuantRule("clamp", clamp=lambda attrs: (0.0, None), non_negative="always"),
    "relu6": QuantRule("clamp", clamp=lambda attrs: (0.0, 6.0), non_negative="always"),
    "clip": QuantRule("clamp", clamp=lambda attrs: (attrs.get("lo"), attrs.get("hi"))),
    "max_pool2d": _SHAPE,
    "reshape": _SHAPE,
    "transpose": _SHAPE,
    "slice": _SHAPE,
    "pad": QuantRule("shape", non_negative="inherit", usable=_zero_padding),
    "concat": QuantRule("concat", non_negative="inherit"),
    "sigmoid": QuantRule("table", fixed=quint8(1 / 256), non_negative="always"),
    "hsigmoid": QuantRule("table", fixed=quint8(1 / 255), non_negative="always"),
    "tanh": QuantRule("table", fixed=_TANH),
    "hswish": _TABLE,
    "silu": _TABLE,
    "gelu": _TABLE,
    "leaky_relu": _TABLE,
}


def rule_of(op: str) -> QuantRule | None:
    """The row of an op, or None: the op stays in float."""
    return RULES.get(op)


def clamp_of(op: str, attrs: Attrs) -> tuple[float | None, float | None] | None:
    """Real bounds if the op is a clamp, else None."""
    rule = RULES.get(op)
    return rule.clamp(attrs) if rule is not None and rule.clamp is not None else None
