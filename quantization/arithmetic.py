"""The arithmetic of MegEngine's quantized modules, on the integer kernels; docs/integer-arithmetic.md has its rules.

QAT modules and quantized modules both compute with these functions, so simulation and execution are the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.dtype import QuantizedDType
from megengine.dispatch import apply
from megengine.kernels.reference import integer
from megengine.tensor import Tensor

Pairs = tuple[tuple[int, int], tuple[int, int]]
_FLOAT = {"lo": 0, "hi": 0, "ratio": 0.0, "dtype": "float32"}


@dataclass(frozen=True, slots=True)
class Product:
    """A layer that sums products: which op, and its geometry.

    Args:
        op: "conv2d", "conv_transpose2d" or "linear".
        stride, padding, dilation, output_padding: (height, width); padding is the same before and after.
        groups: number of groups.
    """

    op: str
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    output_padding: tuple[int, int] = (0, 0)

    @property
    def float_op(self) -> str:
        """The op that computes it on real values."""
        return "matmul" if self.op == "linear" else self.op

    @property
    def float_attrs(self) -> dict[str, Any]:
        """Attributes of `float_op`."""
        if self.op == "linear":
            return {"transpose_a": False, "transpose_b": True}
        attrs = {"stride": self.stride, "padding": _both(self.padding), "dilation": self.dilation}
        if self.op == "conv_transpose2d":
            attrs["output_padding"] = self.output_padding
        return {**attrs, "groups": self.groups}


def _both(padding: tuple[int, int]) -> Pairs:
    return (padding[0], padding[0]), (padding[1], padding[1])


def accumulator_weight(product: Product, w: np.ndarray) -> np.ndarray:
    """Weights as the integer kernels take them: [O, I/groups, kh, kw], or [O, I] of a linear layer.

    A transposed convolution is a convolution of the input with zeros between its pixels, with turned weights.
    """
    if product.op == "linear":
        return w
    w = w.reshape(-1, *w.shape[-3:])
    if product.op == "conv2d":
        return w
    g, (i, o, kh, kw) = product.groups, w.shape
    turned = w.reshape(g, i // g, o, kh, kw).transpose(0, 2, 1, 3, 4)[..., ::-1, ::-1]
    return np.ascontiguousarray(turned).reshape(g * o, i // g, kh, kw)


def spread(x: Tensor, stride: tuple[int, int]) -> Tensor:
    """[N,C,H,W] with stride - 1 zeros (zero points) between neighbours: [N,C,(H-1)*sh+1,(W-1)*sw+1]."""
    n, c, h, w = x.shape
    (sh, sw) = stride
    if stride == (1, 1):
        return x
    x = apply("reshape", x, shape=(n, c, h, 1, w, 1))
    widths = ((0, 0), (0, 0), (0, 0), (0, sh - 1), (0, 0), (0, sw - 1))
    x = apply("pad", x, widths=widths, mode="constant", value=0.0)
    x = apply("reshape", x, shape=(n, c, h * sh, w * sw))
    return x[:, :, : (h - 1) * sh + 1, : (w - 1) * sw + 1]


def _transposed_padding(product: Product, x: Tensor, w: Tensor) -> tuple[Tensor, Pairs]:
    """The input cut and the padding left, so that a convolution of the spread input is the transposed one."""
    pairs, cuts = [], []
    for i in range(2):
        full = product.dilation[i] * (w.shape[2 + i] - 1) - product.padding[i]
        before, after = full, full + product.output_padding[i]
        cuts.append(slice(max(-before, 0), x.shape[2 + i] - max(-after, 0)))
        pairs.append((max(before, 0), max(after, 0)))
    if any(c != slice(0, x.shape[2 + i]) for i, c in enumerate(cuts)):
        x = x[:, :, cuts[0], cuts[1]]
    return x, (pairs[0], pairs[1])


@dataclass(frozen=True, slots=True)
class Constants:
    """What a layer's kernel is given: integer weights, b, M and B; then `factor` of the conversion (None: 1 / s_y)."""

    weight: Tensor
    b: Tensor
    M: Tensor
    B: Tensor
    factor: float | None = None


def bias_steps(bias: np.ndarray | None, product_scale: np.ndarray) -> np.ndarray:
    """Int32 bias of each output channel, in steps of s_x * s_w."""
    if bias is None:
        return np.zeros(product_scale.shape, np.int32)
    inverse = np.float32(1) / product_scale
    return integer.convert(bias.reshape(-1), inverse, 0, -(2**31), 2**31 - 1, np.int32)


def form_of(product: Product, w: np.ndarray, *, relu: bool) -> str:
    """How MegEngine 1.13 scales the accumulator (measured): "products", "sum" or "scaled", see `constants`."""
    if product.op != "conv2d":
        return "scaled"
    o, per_group, kh, kw = w.shape
    channelwise = per_group == 1 and o == product.groups
    own_kernel = channelwise and kh == kw and kh in (2, 3, 5, 7) and product.stride in ((1, 1), (2, 2))
    if product.dilation == (1, 1) and not own_kernel:
        return "products"
    return "sum" if relu else "scaled"


def constants(
    product: Product,
    weight: Tensor,
    bias: np.ndarray | None,
    source: QuantizedDType,
    *,
    relu: bool = False,
    target: QuantizedDType | None = None,
) -> Constants:
    """Constants of a layer with p = s_x * s_w (float32):

    * products: t = acc * p + b * p, converted with 1 / s_y (also the real values, target None)
    * sum: t = (acc + b) * p, converted with 1 / s_y
    * scaled: t = (acc + b) * (p / s_y), converted as it is
    """
    w = accumulator_weight(product, weight.numpy())
    p = np.float32(source.scale) * np.broadcast_to(np.asarray(weight.dtype.scale, np.float32), (len(w),))
    steps = bias_steps(bias, p)
    form = "products" if target is None else form_of(product, w, relu=relu)
    none = np.zeros(len(w), np.float32)
    stored = Tensor._wrap(np.ascontiguousarray(w), _first_axis(weight.dtype))
    if form == "products":
        b, M, B = np.zeros(len(w), np.int32), p, steps.astype(np.float32) * p
    else:
        b, M, B = steps, p if form == "sum" or target is None else p / np.float32(target.scale), none
    return Constants(stored, *(Tensor(v) for v in (b, M, B)), factor=1.0 if form == "scaled" else None)


def _first_axis(dtype: QuantizedDType) -> QuantizedDType:
    if dtype.axis in (None, 0):
        return dtype
    return QuantizedDType(dtype.name, dtype.storage, dtype.qmin, dtype.qmax, dtype.scale, dtype.zero_point, 0)


def accumulate(product: Product, x: Tensor, c: Constants) -> Tensor:
    """(acc + b) * M + B in float32, acc the exact integer sums of the quantized tensor x with the weights."""
    operands = (c.weight, c.b, c.M, c.B)
    if product.op == "linear":
        return apply("qlinear", x, *operands, **_FLOAT)
    stride, padding = product.stride, _both(product.padding)
    if product.op == "conv_transpose2d":
        x, padding = _transposed_padding(product, spread(x, stride), c.weight)
        stride = (1, 1)
    window = {"stride": stride, "padding": padding, "dilation": product.dilation, "groups": product.groups}
    return apply("qconv2d", x, *operands, **window, **_FLOAT)


def stored_result(product: Product, x: Tensor, c: Constants, target: QuantizedDType, *, relu: bool) -> Tensor:
    """The layer's quantized output."""
    t = accumulate(product, x, c)
    return apply("quantize_away", F.relu(t) if relu else t, dtype=target, factor=c.factor)


def to_stored(x: Tensor, dtype: QuantizedDType) -> Tensor:
    """Integers of real values (of values on the grid already: the integers they are)."""
    return apply("quantize_away", x, dtype=dtype, factor=None)


def rescaled(x: Tensor, target: QuantizedDType) -> Tensor:
    """The quantized tensor x on another scale: q * fl32(s_x / s_y), ties away from zero."""
    if x.dtype == target:
        return x
    ratio = np.float32(x.dtype.scale) / np.float32(target.scale)
    return apply("quantize_away", x, dtype=target, factor=float(ratio))
