"""Real values of stored integers, and of products of these: what fused operators of quantized networks compute with."""

from megengine import functional as F
from megengine.tensor import Tensor

Pair = tuple[Tensor | None, Tensor | None]


def real(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """What stored integers stand for: one scale, or one for each column; of three axes, for the directions first."""
    along = scale.shape if x.ndim < 3 else (scale.shape[0], 1, *(scale.shape[1:] or (1,)))
    wide = x.astype("float32")
    wide = wide if zero is None else wide - zero.astype("float32").reshape(along)
    return wide * scale.reshape(along)


def real_product(a: Tensor, b: Tensor, scales: tuple[Tensor, Tensor], zeros: Pair, bias: Tensor | None) -> Tensor:
    """The product of integers less their zero points, times their scales, and a bias."""
    wide, others = (_centred(x, zero) for x, zero in zip((a, b), zeros, strict=True))
    y = F.matmul(wide, others).astype("float32") * (scales[0] * scales[1])
    return y if bias is None else y + bias


def _centred(x: Tensor, zero: Tensor | None) -> Tensor:
    wide = x.astype("float64")
    return wide if zero is None else wide - zero.astype("float64")
