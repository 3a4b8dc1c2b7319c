"""Import rules of QONNX, in which Brevitas and other tools of training with few bits write networks.

The operators are described in https://github.com/fastmachinelearning/qonnx/tree/main/docs/qonnx-custom-ops.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from megengine import functional as F
from megengine.convert.onnx.context import OnnxNode, Value, composition, rule
from megengine.convert.onnx.quant_rules import clipped_quantize, dequantize_stored
from megengine.dispatch import apply
from megengine.tensor import Tensor

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
ROUNDINGS = {"ROUND": partial(apply, "round_even"), "CEIL": F.ceil, "FLOOR": F.floor}


@rule(*(f"{domain}::Quant" for domain in DOMAINS))
def quant(node: OnnxNode, x: Value, scale: Value, zero: Value, bits: Value) -> Value:
    """Values rounded to steps: integers of at most 8 bits where scale and zero point are constants, else arithmetic."""
    numbers = [value for value in (zero, bits) if isinstance(value, np.ndarray)]
    if len(numbers) < 2 or np.size(bits) != 1 or not 1 <= float(np.reshape(bits, -1)[0]) <= 32:
        raise node.fail("its zero point and number of bits are not constants; expected one number from 1 to 32 of bits")
    offset, low, high = np.asarray(zero), *_ends(node, float(np.reshape(bits, -1)[0]))
    rounding = str(node.attr("rounding_mode", "ROUND")).upper()
    if rounding not in ROUNDINGS:
        raise node.fail(f"rounding_mode is {rounding!r}; expected one of {', '.join(ROUNDINGS)}")
    even, single = rounding == "ROUND", offset.size == 1 and float(offset.reshape(-1)[0]).is_integer()
    fits = [np.dtype(kind) for kind in (np.int8, np.uint8) if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max]
    if even and single and fits and isinstance(scale, np.ndarray):
        z = int(offset.reshape(-1)[0])
        if isinstance(x, np.ndarray):
            steps = np.clip(np.rint(x / scale.astype(np.float32) + np.float32(z)), low, high)
            return dequantize_stored(node, steps.astype(fits[0]), scale, np.asarray(z, fits[0]))
        if scale.size == 1 and x.dtype == np.float32 and np.iinfo(fits[0]).min <= z <= np.iinfo(fits[0]).max:
            stored = clipped_quantize(node, x, scale, np.asarray(z, fits[0]), low, high)
            return node.apply("dequantize", stored)
    return node.composed(_steps, x, scale, zero, low=low, high=high, rounded=ROUNDINGS[rounding])


def _ends(node: OnnxNode, bits: float) -> tuple[int, int]:
    """The smallest and the largest integer."""
    narrow, width = int(bool(node.attr("narrow", 0))), int(bits)
    if node.attr("signed", 1):
        return narrow - 2 ** (width - 1), 2 ** (width - 1) - 1
    return 0, 2**width - 1 - narrow


def _steps(
    node: OnnxNode, x: Tensor, scale: Tensor, zero: Tensor, *, low: int, high: int, rounded: Callable[..., Tensor]
) -> Tensor:
    steps = rounded(F.clip(x / scale + zero, float(low), float(high)))
    return (steps - zero) * scale


@composition(*(f"{domain}::BipolarQuant" for domain in DOMAINS))
def bipolar(node: OnnxNode, x: Tensor, scale: Tensor) -> Tensor:
    """Plus or minus the scale."""
    return F.where(x >= 0.0, F.ones_like(x), -F.ones_like(x)) * scale
