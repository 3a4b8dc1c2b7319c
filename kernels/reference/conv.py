"""NumPy references of convolution, its two gradients, and pooling windows. Shapes are NCHW; any float or integer dtype.

padding is ((top, bottom), (left, right)) everywhere.
"""

from __future__ import annotations

import numpy as np

from megengine.kernels.reference.order import in_order

Pairs = tuple[tuple[int, int], tuple[int, int]]


def out_length(n: int, k: int, stride: int, pad: tuple[int, int], dilation: int = 1) -> int:
    """Length of one axis after a window of k elements moved over it."""
    return (n + pad[0] + pad[1] - dilation * (k - 1) - 1) // stride + 1


def windows(
    x: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: Pairs,
    dilation: tuple[int, int] = (1, 1),
    value: float = 0,
) -> np.ndarray:
    """View-based windows of x [N,C,H,W] -> [N,C,oh,ow,kh,kw]."""
    x = np.pad(x, ((0, 0), (0, 0), *padding), constant_values=x.dtype.type(value))
    span = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    view = np.lib.stride_tricks.sliding_window_view(x, span, (2, 3))
    return view[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def fold(
    cols: np.ndarray, size: tuple[int, int], stride: tuple[int, int], padding: Pairs, dilation: tuple[int, int] = (1, 1)
) -> np.ndarray:
    """Adjoint of `windows`: sum [N,C,oh,ow,kh,kw] back into [N,C,H,W] with (H, W) = size."""
    n, c, oh, ow, kh, kw = cols.shape
    (top, bottom), (left, right) = padding
    out = np.zeros((n, c, size[0] + top + bottom, size[1] + left + right), cols.dtype)
    for i in range(kh):
        for j in range(kw):
            a, b = i * dilation[0], j * dilation[1]
            out[:, :, a : a + stride[0] * oh : stride[0], b : b + stride[1] * ow : stride[1]] += cols[..., i, j]
    return np.ascontiguousarray(out[:, :, top : top + size[0], left : left + size[1]])


def conv2d(
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    stride: tuple[int, int],
    padding: Pairs,
    dilation: tuple[int, int],
    groups: int,
) -> np.ndarray:
    """X [N,C,H,W], w [O,C/g,kh,kw], b [O] -> [N,O,oh,ow]."""
    x, w = in_order(x), in_order(w)
    n, o = x.shape[0], w.shape[0]
    win = windows(x, w.shape[2:], stride, padding, dilation)
    oh, ow = win.shape[2:4]
    k = int(np.prod(w.shape[1:]))
    cols = (
        win.reshape(n, groups, w.shape[1], oh, ow, *w.shape[2:])
        .transpose(1, 0, 3, 4, 2, 5, 6)
        .reshape(groups, n * oh * ow, k)
    )
    out = np.matmul(cols, w.reshape(groups, o // groups, k).transpose(0, 2, 1))
    out = out.reshape(groups, n, oh, ow, o // groups).transpose(1, 0, 4, 2, 3).reshape(n, o, oh, ow)
    return out if b is None else out + b.reshape(1, -1, 1, 1)


def conv2d_backward_data(
    ct: np.ndarray,
    w: np.ndarray,
    *,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: Pairs,
    dilation: tuple[int, int],
    groups: int,
) -> np.ndarray:
    """Gradient of conv2d for its input of height and width `size`: ct [N,O,oh,ow], w [O,C/g,kh,kw] -> [N,C,H,W]."""
    ct, w = in_order(ct), in_order(w)
    n, o, oh, ow = ct.shape
    k = int(np.prod(w.shape[1:]))
    rows = ct.reshape(n, groups, o // groups, oh * ow).transpose(1, 0, 3, 2).reshape(groups, n * oh * ow, o // groups)
    cols = np.matmul(rows, w.reshape(groups, o // groups, k))
    cols = cols.reshape(groups, n, oh, ow, w.shape[1], *w.shape[2:]).transpose(1, 0, 4, 2, 3, 5, 6)
    cols = cols.reshape(n, groups * w.shape[1], oh, ow, *w.shape[2:])
    return fold(cols, size, stride, padding, dilation)


def conv2d_backward_weight(
    x: np.ndarray,
    ct: np.ndarray,
    *,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: Pairs,
    dilation: tuple[int, int],
    groups: int,
) -> np.ndarray:
    """Gradient of conv2d for its weight: x [N,C,H,W], ct [N,O,oh,ow] -> [O,C/g,kh,kw]."""
    x, ct = in_order(x), in_order(ct)
    n, o, oh, ow = ct.shape
    c = x.shape[1]
    win = windows(x, kernel, stride, padding, dilation)[:, :, :oh, :ow]
    cols = win.reshape(n, groups, c // groups, oh, ow, *kernel).transpose(1, 2, 5, 6, 0, 3, 4)
    cols = cols.reshape(groups, c // groups * kernel[0] * kernel[1], n * oh * ow)
    rows = ct.reshape(n, groups, o // groups, oh * ow).transpose(1, 2, 0, 3).reshape(groups, o // groups, n * oh * ow)
    return np.matmul(rows, cols.transpose(0, 2, 1)).reshape(o, c // groups, *kernel)
