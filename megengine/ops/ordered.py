"""Convolutions and products of float layers inside integer networks: the same ops, with sums of one order.

A float that differs in its last bit may round to another integer behind it, so kernels may not choose the order.
"""

from typing import Any

from megengine.dispatch import FLOAT_ONLY, Op, define

ORDERED: dict[str, str] = {}  # op -> the one with sums of one order
_SAME = ("infer", "vjp", "onnx", "samples", "error_samples", "macs", "lift")


def define_ordered(op: Op, reference: Any) -> None:
    """Define the twin of an op whose reference, and so each of its kernels, adds in one order."""
    ORDERED[op.name] = f"ordered_{op.name}"
    define(ORDERED[op.name], reference=reference, quant=FLOAT_ONLY, **{name: getattr(op, name) for name in _SAME})
