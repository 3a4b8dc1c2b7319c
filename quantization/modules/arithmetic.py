"""The arithmetic of MegEngine's quantized modules, on the integer kernels; docs/integer-arithmetic.md has its rules.

QAT modules and quantized modules both compute with these functions, so simulation and execution are the same numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.dtype import QuantizedDType, known_quantized
from megengine.core.tensor.dtype import create_quantized_dtype, meta_of
from megengine.dispatch import apply, get_op
from megengine.tensor import Tensor

Pairs = tuple[tuple[int, int], tuple[int, int]]
_FLOAT = {"lo": 0, "hi": 0, "ratio": 0.0, "dtype": "float32"}


def pair(value: Any) -> tuple[int, int]:
    """One number for height and width, or both."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


@dataclass(frozen=True, slots=True)
class Product:
    """A layer that sums products: its op (a convolution, or a matrix product) and its geometry.

    Pairs are (height, width), `padding` is ((top, bottom), (left, right)).
    """

    op: str
    stride: tuple[int, int] = (1, 1)
    padding: Pairs = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    output_padding: tuple[int, int] = (0, 0)

    @property
    def rows(self) -> bool:
        return get_op(self.op).rows

    @property
    def transposed(self) -> bool:
        return get_op(self.op).transposed

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes of the op on real values."""
        if self.rows:
            return {"transpose_a": False, "transpose_b": True}
        attrs = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        if self.transposed:
            attrs["output_padding"] = self.output_padding
        return {**attrs, "groups": self.groups}


def accumulator_weight(product: Product, w: np.ndarray) -> np.ndarray:
    """Weights as the integer kernels take them: [O, I/groups, kh, kw], or [O, I] of a linear layer.

    A transposed convolution is a convolution of the input with zeros between its pixels, with turned weights.
    """
    if product.rows:
        return w
    w = w.reshape(-1, *w.shape[-3:])
    if not product.transposed:
        return w
    g, (i, o, kh, kw) = product.groups, w.shape
    turned = w.reshape(g, i // g, o, kh, kw).transpose(0, 2, 1, 3, 4)[..., ::-1, ::-1]
    return np.ascontiguousarray(turned).reshape(g * o, i // g, kh, kw)


def spread(product: Product, x: Any, kernel: tuple[int, ...], apply: Callable[..., Any]) -> tuple[Any, Pairs]:
    """The input [N,C,H,W] of a transposed convolution, prepared by ops, and the padding of the convolution then.

    Zero points are put between the pixels, stride - 1 of them; what the padding takes away is cut off.
    """
    n, c, *size = x.shape
    sh, sw = product.stride
    if product.stride != (1, 1):
        widths = ((0, 0), (0, 0), (0, 0), (0, sh - 1), (0, 0), (0, sw - 1))
        x = apply("reshape", x, shape=(n, c, size[0], 1, size[1], 1))
        x = apply("pad", x, widths=widths, mode="constant", value=0.0)
        x = apply("reshape", x, shape=(n, c, size[0] * sh, size[1] * sw))
    starts, stops, pairs = [0, 0], [n, c], []
    for i in range(2):
        full = product.dilation[i] * (kernel[i] - 1)
        before, after = (full - p for p in product.padding[i])
        after += product.output_padding[i]
        starts.append(max(-before, 0))
        stops.append((size[i] - 1) * product.stride[i] + 1 - max(-after, 0))
        pairs.append((max(before, 0), max(after, 0)))
    if any(starts) or stops != [n, c, size[0] * sh, size[1] * sw]:
        x = apply("slice", x, starts=tuple(starts), stops=tuple(stops), steps=(1, 1, 1, 1))
    return x, (pairs[0], pairs[1])


@dataclass(frozen=True, slots=True)
class Constants:
    """What a layer's kernel is given: integer weights, b, M and B; then `factor` of the conversion (None: 1 / s_y)."""

    weight: Tensor
    b: Tensor
    M: Tensor
    B: Tensor
    factor: float | None = None


def bias_dtype(s_x: Any, s_w: Any) -> QuantizedDType:
    """Dtype of a bias: 32-bit integers of scale fl32(s_x * s_w), one or one per output channel."""
    scale = np.float32(s_x) * np.asarray(s_w, np.float32)
    return create_quantized_dtype(meta_of("qint32"), scale if scale.size > 1 else scale.reshape(()), None)


def bias_steps(bias: np.ndarray | None, s_x: Any, s_w: np.ndarray) -> np.ndarray:
    """Int32 bias of each output channel, as `fake_quant_bias` rounds it."""
    if bias is None:
        return np.zeros(s_w.shape, np.int32)
    return to_stored(Tensor(bias.reshape(-1)), bias_dtype(s_x, s_w)).numpy()


def form_of(product: Product, w: np.ndarray, *, relu: bool) -> str:
    """How MegEngine 1.13 scales the accumulator (measured): "products", "together" or "scaled", see `constants`."""
    if product.rows or product.transposed:
        return "scaled"
    o, per_group, kh, kw = w.shape
    channelwise = per_group == 1 and o == product.groups
    own_kernel = channelwise and kh == kw and kh in (2, 3, 5, 7) and product.stride in ((1, 1), (2, 2))
    if product.dilation == (1, 1) and not own_kernel:
        return "products"
    return "together" if relu else "scaled"


def constants(
    product: Product,
    weight: Tensor,
    bias: np.ndarray | None,
    source: QuantizedDType,
    *,
    relu: bool = False,
    target: QuantizedDType | None = None,
) -> Constants:
    """Constants of a layer with p = s_x * s_w (float32), by MegEngine's rules; `pipeline/epilogue.py` has ours:

    * products: t = acc * p + b * p, converted with 1 / s_y (also the real values, target None)
    * together: t = (acc + b) * p, converted with 1 / s_y
    * scaled: t = (acc + b) * (p / s_y), converted as it is
    """
    w = accumulator_weight(product, weight.numpy())
    s_w = np.broadcast_to(np.asarray(weight.dtype.scale, np.float32), (len(w),))
    p = np.float32(source.only_scale) * s_w
    steps = bias_steps(bias, source.only_scale, s_w)
    form = "products" if target is None else form_of(product, w, relu=relu)
    none = np.zeros(len(w), np.float32)
    stored = Tensor._wrap(np.ascontiguousarray(w), first_axis(known_quantized(weight.dtype)), weight.device)
    if form == "products":
        b, M, B = np.zeros(len(w), np.int32), p, steps.astype(np.float32) * p
    else:
        b, M, B = steps, p if form == "together" or target is None else p / np.float32(target.only_scale), none
    placed = (Tensor(v, device=weight.device) for v in (b, M, B))
    return Constants(stored, *placed, factor=1.0 if form == "scaled" else None)


def first_axis(dtype: QuantizedDType) -> QuantizedDType:
    """The dtype of weights whose output channels were brought to the front."""
    if dtype.axis in (None, 0):
        return dtype
    return QuantizedDType(dtype.name, dtype.storage, dtype.qmin, dtype.qmax, dtype.scale, dtype.zero_point, 0)


def accumulate(product: Product, x: Tensor, c: Constants) -> Tensor:
    """(acc + b) * M + B in float32, acc the exact integer sums of the quantized tensor x with the weights."""
    operands = (c.weight, c.b, c.M, c.B)
    if product.rows:
        return apply("qlinear", x, *operands, **_FLOAT)
    stride, padding = product.stride, product.padding
    if product.transposed:
        x, padding = spread(product, x, c.weight.shape[2:], apply)
        stride = (1, 1)
    window = {"stride": stride, "padding": padding, "dilation": product.dilation, "groups": product.groups}
    return apply("qconv2d", x, *operands, **window, **_FLOAT)


def stored_result(product: Product, x: Tensor, c: Constants, target: QuantizedDType, *, relu: bool) -> Tensor:
    t = accumulate(product, x, c)
    return apply("quantize_away", F.relu(t) if relu else t, dtype=target, factor=c.factor)


def to_stored(x: Tensor, dtype: QuantizedDType) -> Tensor:
    """Integers of real values (of values on the grid already: the integers they are)."""
    return apply("quantize_away", x, dtype=dtype, factor=None)


def rescaled(x: Tensor, target: QuantizedDType) -> Tensor:
    """The quantized tensor x on another scale: q * fl32(s_x / s_y), ties away from zero."""
    if x.dtype == target:
        return x
    ratio = np.float32(known_quantized(x.dtype).only_scale) / np.float32(target.only_scale)
    return apply("quantize_away", x, dtype=target, factor=float(ratio))
