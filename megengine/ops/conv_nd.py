"""Convolutions over one and three axes, with weights per position or region, and windows: compositions of ops."""

from __future__ import annotations

from typing import Any

from megengine.core.errors import OptionError, ShapeError
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import apply, mixed, public
from megengine.ops.common import (
    Integers,
    as_tensor,
    check_modes,
    floating,
    operands,
    pad_pairs,
    pair,
    tuple_of,
)
from megengine.ops.conv import bias_of_channels, conv2d, convolved, one_dtype
from megengine.ops.matmul import product
from megengine.tensor import Tensor

_HOME = "megengine.functional.nn"


def _axes(op: str, x: Tensor, n: int) -> None:
    if x.ndim != n:
        raise ShapeError(f"{op}: inp has shape {x.shape}; expected {counted(n, 'axis')}: N, C and {n - 2} of space")


@public(home=_HOME, by_spec=True)
def conv1d(
    inp: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Convolution of inp [N,C,L] with weight [O,C/groups,k] or (groups,O/groups,C/groups,k); bias (1,O,1) or [O]."""
    check_modes("conv1d", conv_mode, compute_mode)
    x, w = as_tensor(inp), as_tensor(weight)
    _axes("conv1d", x, 3)
    if w.ndim not in (3, 4):
        raise ShapeError(f"conv1d: weight has shape {w.shape}; expected [O,C/groups,k] or (groups,O/groups,C/groups,k)")
    geometry = zip(_GEOMETRY, (stride, padding, dilation), strict=True)
    s, p, d = (tuple_of("conv1d", n, v, 1)[0] for n, v in geometry)
    x = apply("reshape", x, shape=(*x.shape[:2], 1, x.shape[2]))
    w = apply("reshape", w, shape=(*w.shape[:-1], 1, w.shape[-1]))
    b = None if bias is None else as_tensor(bias)
    if b is not None:  # what broadcasts to the three axes of the result, or a number per channel in any shape
        b = apply("reshape", b, shape=(*b.shape[:2], 1, *b.shape[2:]) if b.ndim == 3 else (1, b.size, 1, 1))
    y = conv2d(x, w, b, (1, s), (0, p), (1, d), groups)
    return apply("reshape", y, shape=(*y.shape[:2], y.shape[3]))


_GEOMETRY = ("stride", "padding", "dilation")


@public(home=_HOME, by_spec=True)
def conv3d(
    inp: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Integers = 1,
    padding: Integers = 0,
    dilation: Integers = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
) -> Tensor:
    """Convolution of inp [N,C,D,H,W] with weight [O,C/groups,kd,kh,kw] or (groups,O/groups,C/groups,kd,kh,kw).

    bias: (1,O,1,1,1) or [O].
    """
    check_modes("conv3d", conv_mode)
    return convolved("conv3d", one_dtype("conv3d", inp, weight, bias), stride, padding, dilation, groups, 3)


@public(home=_HOME)
def conv_transpose3d(
    inp: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Integers = 1,
    padding: Integers = 0,
    output_padding: Integers = 0,
    dilation: Integers = 1,
    groups: int = 1,
) -> Tensor:
    """The adjoint of conv3d: inp [N,I,D,H,W], weight [I,O/groups,kd,kh,kw]; bias (1,O,1,1,1) or [O]."""
    op, extra = "conv_transpose3d", tuple_of("conv_transpose3d", "output_padding", output_padding, 3)
    tensors = one_dtype(op, inp, weight, bias)
    return convolved(op, tensors, stride, padding, dilation, groups, 3, output_padding=extra)


def _unfold(op: str, x: Tensor, kernel: Any, padding: Any, stride: Any, dilation: Any) -> Tensor:
    _axes(op, x, 4)
    return apply(
        "unfold",
        x,
        kernel=tuple(kernel),
        stride=pair(op, "stride", stride),
        padding=pad_pairs(op, padding),
        dilation=pair(op, "dilation", dilation),
        value=0.0,
    )


@public(home=_HOME)
def sliding_window(
    inp: TensorLike, kernel_size: Integers, padding: Integers = 0, stride: Integers = 1, dilation: Integers = 1
) -> Tensor:
    """The windows of the zero-padded inp [N,C,H,W]: [N,C,oh,ow,kh,kw]."""
    op = "sliding_window"
    return _unfold(op, as_tensor(inp), pair(op, "kernel_size", kernel_size), padding, stride, dilation)


@public(home=_HOME)
def sliding_window_transpose(
    inp: TensorLike,
    output_size: Integers,
    kernel_size: Integers,
    padding: Integers = 0,
    stride: Integers = 1,
    dilation: Integers = 1,
) -> Tensor:
    """The adjoint of sliding_window: sums of the windows [N,C,oh,ow,kh,kw] at their positions, [N,C,*output_size]."""
    op = "sliding_window_transpose"
    x, kernel = as_tensor(inp), pair(op, "kernel_size", kernel_size)
    if x.ndim != 6 or x.shape[4:] != kernel:
        raise ShapeError(f"{op}: inp has shape {x.shape}; expected [N,C,oh,ow,{kernel[0]},{kernel[1]}]")
    return apply(
        "fold",
        x,
        size=pair(op, "output_size", output_size),
        stride=pair(op, "stride", stride),
        padding=pad_pairs(op, padding),
        dilation=pair(op, "dilation", dilation),
    )


@public(home=_HOME)
def local_conv2d(
    inp: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Integers = 1,
    padding: Integers = 0,
    dilation: Integers = 1,
    conv_mode: str = "cross_correlation",
) -> Tensor:
    """A convolution with weights for each position: inp [N,C,H,W], weight (groups,oh,ow,C/groups,kh,kw,O/groups)."""
    op = "local_conv2d"
    check_modes(op, conv_mode)
    x, w = operands(op, inp, weight)
    if w.ndim != 7 or x.ndim != 4 or w.shape[0] * w.shape[3] != x.shape[1]:
        raise ShapeError(
            f"{op}: inp has shape {x.shape}, weight {w.shape}; "
            "expected [N,C,H,W] and (groups,oh,ow,C/groups,kh,kw,O/groups)"
        )
    g, oh, ow, c, kh, kw, o = w.shape
    windows = _unfold(op, x, (kh, kw), padding, stride, dilation)
    n = x.shape[0]
    if windows.shape[2:4] != (oh, ow):
        raise ShapeError(f"{op}: weight is for positions {oh}x{ow}, inp {x.shape} gives {windows.shape[2:4]}")
    split = apply("reshape", windows, shape=(n, g, c, oh, ow, kh, kw))
    rows = apply("reshape", apply("transpose", split, perm=(1, 3, 4, 0, 2, 5, 6)), shape=(g, oh, ow, n, c * kh * kw))
    flat = apply("reshape", w, shape=(g, oh, ow, c * kh * kw, o))
    with mixed.kept():  # as in MegEngine, whose autocast leaves this layer alone
        y = product(rows, flat)
    y = apply("reshape", apply("transpose", y, perm=(3, 0, 4, 1, 2)), shape=(n, g * o, oh, ow))
    return y if bias is None else y + as_tensor(bias)


@public(home=_HOME)
def region_restricted_conv(
    inp: TensorLike,
    weight: TensorLike,
    rin: TensorLike,
    rout: TensorLike,
    bias: TensorLike | None = None,
    stride: Integers = 1,
    padding: Integers = 0,
    dilation: Integers = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """A convolution whose taps count only where input and output lie in the same region.

    inp [N,C,H,W]; weight (groups,O/groups,C/groups,kh,kw); rin [N,H,W] and rout [N,oh,ow]: integers naming regions.
    """
    op = "region_restricted_conv"
    check_modes(op, conv_mode, compute_mode)
    x, w = operands(op, inp, weight)
    w = apply("reshape", w, shape=(groups, w.shape[0] // groups, *w.shape[1:])) if w.ndim == 4 else w
    if w.ndim != 5 or x.ndim != 4 or w.shape[0] != groups or groups * w.shape[2] != x.shape[1]:
        raise ShapeError(f"{op}: inp has shape {x.shape}, weight {w.shape}, groups={groups}; they do not fit")
    g, o, c, kh, kw = w.shape
    windows = _unfold(op, x, (kh, kw), padding, stride, dilation)
    n, _, oh, ow = windows.shape[:4]
    regions_in, regions_out = as_tensor(rin) + 1, as_tensor(rout) + 1  # 0 is outside
    if regions_in.shape != (n, *x.shape[2:]) or regions_out.shape != (n, oh, ow):
        raise ShapeError(f"{op}: rin has shape {regions_in.shape}, rout {regions_out.shape}; inp {x.shape}")
    seen = apply("reshape", regions_in, shape=(n, 1, *x.shape[2:]))
    seen = _unfold(op, seen, (kh, kw), padding, stride, dilation)
    same = apply("equal", seen, apply("reshape", regions_out, shape=(n, 1, oh, ow, 1, 1)))
    windows = windows * apply("cast", same, dtype=windows.dtype)
    split = apply("reshape", windows, shape=(n, g, c, oh, ow, kh, kw))
    rows = apply("transpose", split, perm=(1, 0, 3, 4, 2, 5, 6))
    rows = apply("reshape", rows, shape=(g, n * oh * ow, c * kh * kw))
    y = product(rows, apply("reshape", w, shape=(g, o, c * kh * kw)), tb=True)
    y = apply("transpose", apply("reshape", y, shape=(g, n, oh, ow, o)), perm=(1, 0, 4, 2, 3))
    y = apply("reshape", y, shape=(n, g * o, oh, ow))
    return y if bias is None else y + bias_of_channels(as_tensor(bias), y.shape)


@public(home=_HOME)
def local_response_norm(
    inp: TensorLike, kernel_size: int = 5, k: float = 2.0, alpha: float = 1e-4, beta: float = 0.75
) -> Tensor:
    """X / (k + alpha * sum of squares over kernel_size neighbouring channels) ** beta, inp [N,C,H,W].

    Source: Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep Convolutional Neural Networks", 2012.
    """
    op = "local_response_norm"
    x = floating(inp)
    _axes(op, x, 4)
    (n,) = tuple_of(op, "kernel_size", kernel_size, 1)
    if n < 1 or n % 2 == 0:
        raise OptionError(f"{op}: kernel_size is {n}; expected an odd number of at least 1")
    c = x.shape[1]
    half = min(n // 2, max(c - 1, 0))  # there are no channels further away
    squares = apply("pad", x * x, widths=((0, 0), (half, half), (0, 0), (0, 0)), mode="constant", value=0.0)
    total = squares[:, :c]
    for shift in range(1, 2 * half + 1):
        total = total + squares[:, shift : shift + c]
    return x / (total * alpha + k) ** beta
