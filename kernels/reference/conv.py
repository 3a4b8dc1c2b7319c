"""NumPy references of convolution, its two gradients, and pooling windows, over any number of spatial axes.

Values are [N,C,...]; any float or integer dtype. padding is ((begin, end), ...), a pair for each spatial axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from megengine.kernels.reference.order import add_in_turn, in_order

Pairs = tuple[tuple[int, int], ...]
Sizes = tuple[int, ...]


def out_length(n: int, k: int, stride: int, pad: tuple[int, int], dilation: int = 1) -> int:
    """Length of one axis after a window of k elements moved over it."""
    return (n + pad[0] + pad[1] - dilation * (k - 1) - 1) // stride + 1


def windows(
    x: np.ndarray, kernel: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes | None = None, value: float = 0
) -> np.ndarray:
    """View-based windows of x [N,C,*size] -> [N,C,*out,*kernel]."""
    dilation = dilation or (1,) * len(kernel)
    x = np.pad(x, ((0, 0), (0, 0), *padding), constant_values=x.dtype.type(value))
    span = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    view = np.lib.stride_tricks.sliding_window_view(x, span, tuple(range(2, x.ndim)))
    steps = (slice(None, None, step) for step in (*stride, *dilation))
    return view[:, :, *steps]


def places_of_taps(
    kernel: Sizes, counts: Sizes, stride: Sizes, dilation: Sizes, *, last_first: bool = False
) -> Iterator[tuple[Sizes, tuple[slice, ...]]]:
    """Taps of a window, and the elements that each reads in `counts` places of the window."""
    for tap in itertools.product(*(range(k)[:: -1 if last_first else 1] for k in kernel)):
        starts = [t * d for t, d in zip(tap, dilation, strict=True)]
        yield tap, tuple(slice(a, a + s * n, s) for a, s, n in zip(starts, stride, counts, strict=True))


def with_bias(y: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """Y [N,O,*out] with b [O] added, if there is one."""
    return y if b is None else y + b.reshape(1, -1, *(1,) * (y.ndim - 2))


def fold(cols: np.ndarray, size: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes | None = None) -> np.ndarray:
    """Adjoint of `windows`: sum [N,C,*out,*kernel] back into [N,C,*size]."""
    axes = len(size)
    dilation = dilation or (1,) * axes
    counts, kernel = cols.shape[2 : 2 + axes], cols.shape[2 + axes :]
    out = np.zeros((*cols.shape[:2], *(n + a + b for n, (a, b) in zip(size, padding, strict=True))), cols.dtype)
    for tap, places in places_of_taps(kernel, counts, stride, dilation):
        out[:, :, *places] += cols[..., *tap]
    inside = (slice(a, a + n) for n, (a, _) in zip(size, padding, strict=True))
    return np.ascontiguousarray(out[:, :, *inside])


def convolution(
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    groups: int,
    in_turn: bool = False,
) -> np.ndarray:
    """X [N,C,*size], w [O,C/g,*kernel], b [O] -> [N,O,*out].

    `in_turn`: products are added one after the other, for each tap of the kernel those of its channels.
    """
    x, w = in_order(x), in_order(w)
    add_up = _in_turn if in_turn else _by_products
    return with_bias(add_up(windows(x, w.shape[2:], stride, padding, dilation), w, groups), b)


def _by_products(win: np.ndarray, w: np.ndarray, groups: int) -> np.ndarray:
    """Sums of windows [N,C,*out,*kernel] times w, by a matrix product for each group."""
    n, o, kernel = win.shape[0], w.shape[0], w.shape[2:]
    axes, depth = len(kernel), math.prod(w.shape[1:])
    out = win.shape[2 : 2 + axes]
    cols = win.reshape(n, groups, w.shape[1], *out, *kernel)
    cols = np.moveaxis(np.moveaxis(cols, 1, 0), 2, 2 + axes).reshape(groups, n * math.prod(out), depth)
    y = np.matmul(cols, w.reshape(groups, o // groups, depth).transpose(0, 2, 1))
    return y.reshape(groups, n, math.prod(out), o // groups).transpose(1, 0, 3, 2).reshape(n, o, *out)


def _in_turn(win: np.ndarray, w: np.ndarray, groups: int) -> np.ndarray:
    """The same sums, product by product."""
    sums = np.zeros((win.shape[0], w.shape[0], *win.shape[2 : win.ndim - len(w.shape[2:])]), win.dtype)
    for tap in np.ndindex(*w.shape[2:]):
        add_channels(sums, win[..., *tap], w[:, :, *tap], groups)
    return sums


def add_channels(sums: np.ndarray, x: np.ndarray, w: np.ndarray, groups: int) -> None:
    """Sums [N,O,*size] += channels of x [N,C,*size] times w [O,C/groups], one channel of a group after the other."""
    (n, o, *size), each = sums.shape, w.shape[1]
    parts, weights = x.reshape(n, groups, each, *size), w.reshape(groups, o // groups, each, *(1,) * len(size))
    of_group = sums.reshape(n, groups, o // groups, *size)
    add_in_turn(of_group, ((parts[:, :, c : c + 1], weights[:, :, c]) for c in range(each)))


def backward_data(
    ct: np.ndarray, w: np.ndarray, *, size: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes, groups: int
) -> np.ndarray:
    """Gradient of a convolution for its input of this size: ct [N,O,*out], w [O,C/g,*kernel] -> [N,C,*size]."""
    ct, w = in_order(ct), in_order(w)
    n, o, *out = ct.shape
    count, depth = math.prod(out), math.prod(w.shape[1:])
    rows = ct.reshape(n, groups, o // groups, count).transpose(1, 0, 3, 2).reshape(groups, n * count, o // groups)
    cols = np.matmul(rows, w.reshape(groups, o // groups, depth))
    cols = np.moveaxis(cols.reshape(groups, n, *out, *w.shape[1:]), (0, 2 + len(out)), (1, 2))
    return fold(cols.reshape(n, groups * w.shape[1], *out, *w.shape[2:]), size, stride, padding, dilation)


def backward_weight(
    x: np.ndarray, ct: np.ndarray, *, kernel: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes, groups: int
) -> np.ndarray:
    """Gradient of a convolution for its weight: x [N,C,*size], ct [N,O,*out] -> [O,C/g,*kernel]."""
    x, ct = in_order(x), in_order(ct)
    n, o, *out = ct.shape
    each, axes, count = x.shape[1] // groups, len(out), math.prod(out)
    win = windows(x, kernel, stride, padding, dilation)[:, :, *(slice(length) for length in out)]
    cols = win.reshape(n, groups, each, *out, *kernel)
    cols = np.moveaxis(cols, (0, *range(3, 3 + axes)), (2 + axes, *range(3 + axes, 3 + 2 * axes)))
    cols = cols.reshape(groups, each * math.prod(kernel), n * count)
    rows = ct.reshape(n, groups, o // groups, count).transpose(1, 2, 0, 3).reshape(groups, o // groups, n * count)
    return np.matmul(rows, cols.transpose(0, 2, 1)).reshape(o, each, *kernel)
