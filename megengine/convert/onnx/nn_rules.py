"""Import rules of layers: convolution, pooling, normalisation, matrix products."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.convert.onnx.context import OnnxNode, Value, rule, spec_of
from megengine.core.dtype import storage_of
from megengine.core.sizes import is_open, largest, least
from megengine.core.text import counted

MAX_SIZE = (1 << 31) - 1  # of a window, in any direction
Sizes = tuple[int, ...]
Padding = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Window:
    """A window that slides over one to three spatial axes."""

    size: Sizes  # of the input
    kernel: Sizes
    stride: Sizes
    dilation: Sizes

    @property
    def dims(self) -> int:
        """Spatial axes."""
        return len(self.size)

    @property
    def reach(self) -> Sizes:
        """Lengths of the window with the gaps that dilation makes."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))


def _window(node: OnnxNode, x: Value, kernel: Sizes) -> Window:
    dims = _spatial_axes(node, x)
    return Window(x.shape[2:], kernel, *(_per_axis(node, name, dims) for name in ("strides", "dilations")))


def _spatial_axes(node: OnnxNode, x: Value) -> int:
    if len(x.shape) not in (3, 4, 5):
        raise node.fail(f"its input is {x.shape}; supported are [N, C, L], [N, C, H, W] and [N, C, D, H, W]")
    return len(x.shape) - 2


def _per_axis(node: OnnxNode, name: str, dims: int) -> Sizes:
    """An attribute of one positive integer a spatial axis, 1 by default."""
    value = node.ints(name, (1,) * dims)
    if value is None or len(value) != dims or min(value) < 1 or max(value) > MAX_SIZE:
        raise node.fail(f"{name} is {value}; expected {counted(dims, 'positive integer')} of at most {MAX_SIZE}")
    return value


def _padding(node: OnnxNode, window: Window) -> Padding:
    """((begin, end), ...) of a sliding window, from `pads` or `auto_pad`."""
    mode, dims = node.attr("auto_pad", "NOTSET"), window.dims
    if mode in ("NOTSET", ""):
        pads = node.ints("pads", (0,) * 2 * dims)
        if pads is None or len(pads) != 2 * dims:
            raise node.fail(f"pads is {pads}; expected {counted(2 * dims, 'integer')}")
        if min(pads) < 0:
            raise node.fail(f"pads is {pads}; negative padding is not supported")
        if max(pads) > MAX_SIZE:
            raise node.fail(f"pads is {pads}; expected at most {MAX_SIZE}")
        return tuple(zip(pads[:dims], pads[dims:], strict=True))
    if mode == "VALID":
        return ((0, 0),) * dims
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.fail(f"auto_pad is {mode!r}; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    lengths = zip(window.size, window.reach, window.stride, strict=True)
    return tuple(_halves(largest(0, (-(-n // step) - 1) * step + reach - n), mode) for n, reach, step in lengths)


def _halves(total: int, mode: str) -> tuple[int, int]:
    """Padding at both ends; SAME_UPPER puts the odd element at the end, all others at the beginning."""
    small, large = total // 2, total - total // 2
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def _image(node: OnnxNode, x: Value) -> Value:
    """[N, C, L] as [N, C, 1, L]."""
    return node.reshape(x, (*x.shape[:2], 1, x.shape[2])) if len(x.shape) == 3 else x


def _as_image(dims: int, **options: Any) -> dict[str, Any]:
    """Options of a window over one axis as those over two: of length 1 along the first."""
    if dims != 1:
        return options
    ones = {"padding": (0, 0), "output_padding": 0}
    return {name: (ones.get(name, 1), *value) for name, value in options.items()}


def _flat(node: OnnxNode, y: Value, dims: int) -> Value:
    """Without the axis that `_image` added."""
    return node.reshape(y, (*y.shape[:2], y.shape[3])) if dims == 1 else y


def _layer_window(node: OnnxNode, x: Value, w: Value) -> Window:
    kernel = w.shape[2:]
    if len(kernel) != _spatial_axes(node, x):
        raise node.fail(f"weight {w.shape} does not fit the input {x.shape}")
    if node.ints("kernel_shape") not in (None, kernel):
        raise node.fail(f"kernel_shape is {node.ints('kernel_shape')}; its weight is {w.shape}")
    return _window(node, x, kernel)


def _convolved(
    node: OnnxNode, x: Value, w: Value, bias: Value | None, window: Window, padding: Padding, **more: Any
) -> Value:
    inputs = [_image(node, x), _image(node, w), *([] if bias is None else [bias])]
    options = _as_image(window.dims, stride=window.stride, padding=padding, dilation=window.dilation, **more)
    op = f"{'conv' if node.op_type == 'Conv' else 'conv_transpose'}{max(window.dims, 2)}d"
    return _flat(node, node.apply(op, *inputs, **options, groups=int(node.attr("group", 1))), window.dims)


@rule("Conv")
def conv(node: OnnxNode, x: Value, w: Value, bias: Value | None = None) -> Value:
    """Conv over one to three axes."""
    window = _layer_window(node, x, w)
    return _convolved(node, x, w, bias, window, _padding(node, window))


@rule("ConvTranspose")
def conv_transpose(node: OnnxNode, x: Value, w: Value, bias: Value | None = None) -> Value:
    """ConvTranspose over one to three axes; `output_shape` and `auto_pad` become paddings."""
    window = _layer_window(node, x, w)
    extra = node.ints("output_padding") or (0,) * window.dims
    padding, extra = _transposed_padding(node, window, extra)
    return _convolved(node, x, w, bias, window, padding, output_padding=extra)


def _transposed_padding(node: OnnxNode, window: Window, extra: Sizes) -> tuple[Padding, Sizes]:
    """Padding and output padding; a wanted shape beyond the full one is reached by output padding."""
    mode, wanted = node.attr("auto_pad", "NOTSET"), node.ints("output_shape")
    if wanted is not None:
        wanted = wanted[-window.dims :]
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(length * step for length, step in zip(window.size, window.stride, strict=True))
    else:
        return _padding(node, window), extra
    padding, extended = [], []
    for length, reach, step, more, out in zip(window.size, window.reach, window.stride, extra, wanted, strict=True):
        total = step * (length - 1) + more + reach - out
        extended.append(more - least(total, 0))
        padding.append(_halves(largest(total, 0), mode))
    return tuple(padding), tuple(extended)


def _ceil_extension(window: Window, padding: Padding) -> Sizes:
    """How much more padding at the end makes a rounded-down window count the rounded-up one."""
    more = []
    for length, reach, step, (begin, end) in zip(window.size, window.reach, window.stride, padding, strict=True):
        room = length + begin + end - reach
        count = -(-room // step) + 1
        count = least(count, -(-(length + begin) // step))  # a window that would start in the padding is left out
        more.append(largest(0, (count - 1) * step - room))
    return tuple(more)


def _pool_window(node: OnnxNode, x: Value) -> tuple[Window, Padding, Sizes]:
    """The window, its padding, and by how much `ceil_mode` goes beyond."""
    dims = _spatial_axes(node, x)
    if node.ints("kernel_shape") is None:
        raise node.fail(f"kernel_shape is missing; expected {counted(dims, 'integer')}")
    window = _window(node, x, _per_axis(node, "kernel_shape", dims))
    padding = _padding(node, window)
    more = _ceil_extension(window, padding) if node.attr("ceil_mode", 0) else (0,) * dims
    return window, padding, more


def _pooled(node: OnnxNode, x: Value, window: Window, padding: Padding, *, largest: bool, borders: bool) -> Value:
    options = {"kernel": window.kernel, "stride": window.stride, "padding": padding}
    include = {"count_include_pad": borders}
    if set(window.dilation) != {1} or window.dims == 3:
        return node.apply("pool", x, largest=largest, dilation=window.dilation, **options, **include)
    options, image = _as_image(window.dims, **options), _image(node, x)
    if largest:
        return _flat(node, node.apply("max_pool2d", image, **options), window.dims)
    return _flat(node, node.apply("avg_pool2d", image, **options, **include), window.dims)


@rule("MaxPool", quantized=True)
def max_pool(node: OnnxNode, x: Value) -> tuple[Value, ...]:
    """Maxima and, where they are read, their places; `ceil_mode` becomes padding at the end."""
    window, padding, more = _pool_window(node, x)
    wide = tuple((begin, end + extra) for (begin, end), extra in zip(padding, more, strict=True))
    y = _pooled(node, x, window, wide, largest=True, borders=False)
    if not any(node.outputs[1:]):
        return (y,)
    options = {"kernel": window.kernel, "stride": window.stride, "padding": wide, "dilation": window.dilation}
    return y, node.apply("max_pool_indices", x, columns_first=bool(node.attr("storage_order", 0)), **options)


@rule("AveragePool")
def average_pool(node: OnnxNode, x: Value) -> Value:
    """Means; what `ceil_mode` adds at the end never counts."""
    window, padding, more = _pool_window(node, x)
    borders = bool(node.attr("count_include_pad", 0))
    if borders and any(
        is_open(n) or n for n in more
    ):  # declared padding counts, the extension does not: pad by hand first
        x = node.apply("pad", x, widths=((0, 0), (0, 0), *padding), mode="constant", value=0.0)
        padding, borders = ((0, 0),) * window.dims, False
    wide = tuple((begin, end + extra) for (begin, end), extra in zip(padding, more, strict=True))
    return _pooled(node, x, window, wide, largest=False, borders=borders)


@rule("LpPool")
def lp_pool(node: OnnxNode, x: Value) -> Value:
    """(sum of |x|^p) ^ (1 / p) of each window."""
    window, padding, more = _pool_window(node, x)
    wide = tuple((begin, end + extra) for (begin, end), extra in zip(padding, more, strict=True))
    p = float(node.attr("p", 2))
    powers = node.apply("pow", node.apply("abs", x), p)
    mean = _pooled(node, powers, window, wide, largest=False, borders=True)
    return node.apply("pow", node.apply("mul", mean, float(math.prod(window.kernel))), 1 / p)


@rule("GlobalLpPool")
def global_lp_pool(node: OnnxNode, x: Value) -> Value:
    """(sum of |x|^p over the spatial axes) ^ (1 / p)."""
    p = float(node.attr("p", 2))
    powers = node.apply("pow", node.apply("abs", x), p)
    total = node.apply("sum", powers, axis=tuple(range(2, len(x.shape))), keepdims=True)
    return node.apply("pow", total, 1 / p)


@rule("MaxUnpool")
def max_unpool(node: OnnxNode, x: Value, places: Value, shape: Value | None = None) -> Value:
    """Values at their places in the flat result, zeros elsewhere; the size is that which MaxPool was given."""
    dims = _spatial_axes(node, x)
    wanted = node.const_ints(2, "output_shape")
    if (kernel := node.ints("kernel_shape")) is None:
        raise node.fail(f"kernel_shape is missing; expected {counted(dims, 'integer')}")
    pads, strides = node.ints("pads", (0,) * 2 * dims) or (), _per_axis(node, "strides", dims)
    sizes = zip(x.shape[2:], strides, kernel, pads[:dims], pads[dims:], strict=True)
    natural = (*x.shape[:2], *((n - 1) * s + k - a - b for n, s, k, a, b in sizes))
    inputs = (node.reshape(value, (math.prod(x.shape),)) for value in (x, places))
    zeros, (values, at) = np.zeros(math.prod(natural), storage_of(spec_of(x).dtype)), inputs
    flat = node.apply("scatter_elements", zeros, at, values, axis=0, reduction="none")
    y = node.reshape(flat, natural)
    if wanted in (None, natural):
        return y
    widths = tuple((0, m - n) for m, n in zip(wanted, natural, strict=True))
    return node.apply("pad", y, widths=widths, mode="constant", value=0.0)


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node: OnnxNode, x: Value) -> Value:
    """Mean or maximum over the spatial axes, which stay with size 1."""
    axes = tuple(range(2, len(x.shape)))
    return node.apply("mean" if node.op_type == "GlobalAveragePool" else "max", x, axis=axes, keepdims=True)


@rule("BatchNormalization")
def batch_norm(node: OnnxNode, x: Value, scale: Value, shift: Value, mean: Value, variance: Value) -> Any:
    """With stored statistics, or (from opset 14 on) with those of the batch, which are mixed into the stored ones."""
    if node.attr("training_mode", 0):
        return _batch_norm_training(node, x, scale, shift, mean, variance)
    if any(node.outputs[1:]):
        raise node.fail("is in the training mode of opsets before 14; export the model in evaluation mode")
    if not node.attr("spatial", 1):  # every element of a sample has statistics of its own
        length = node.apply("sqrt", node.apply("add", variance, float(node.attr("epsilon", 1e-5))))
        ratio = node.apply("div", node.apply("sub", x, mean), length)
        return node.apply("add", node.apply("mul", ratio, scale), shift)
    if len(x.shape) < 2:
        raise node.fail(f"its input is {x.shape}; expected a batch and a channel axis")
    image = x if len(x.shape) == 4 else node.reshape(x, (*x.shape[:2], 1, math.prod(x.shape[2:])))
    y = node.apply("batch_norm", image, scale, shift, mean, variance, eps=float(node.attr("epsilon", 1e-5)))
    return node.reshape(y, x.shape)


def _batch_norm_training(node: OnnxNode, x: Value, *parameters: Value) -> tuple[Value, ...]:
    axes = (0, *range(2, len(x.shape)))
    scale, shift, *stored = (node.reshape(p, (1, -1, *(1,) * (len(x.shape) - 2))) for p in parameters)
    mean = node.apply("mean", x, axis=axes, keepdims=True)
    centred = node.apply("sub", x, mean)
    variance = node.apply("mean", node.apply("mul", centred, centred), axis=axes, keepdims=True)
    length = node.apply("sqrt", node.apply("add", variance, float(node.attr("epsilon", 1e-5))))
    y = node.apply("add", node.apply("mul", node.apply("div", centred, length), scale), shift)
    kept = float(node.attr("momentum", 0.9))
    mixed = (
        node.apply("add", node.apply("mul", old, kept), node.apply("mul", new, 1 - kept))
        for old, new in zip(stored, (mean, variance), strict=True)
    )
    return y, *(node.reshape(value, x.shape[1:2]) for value in mixed)


@rule("Gemm")
def gemm(node: OnnxNode, a: Value, b: Value, c: Value | None = None) -> Value:
    """Alpha * A' @ B' + beta * C; factors are folded into constants."""
    alpha, beta = float(node.attr("alpha", 1.0)), float(node.attr("beta", 1.0))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise node.fail(f"its inputs are {a.shape} and {b.shape}; expected two matrices")
    if alpha != 1.0 and isinstance(b, np.ndarray):
        b, alpha = (b * np.float32(alpha)).astype(b.dtype), 1.0
    y = node.apply("matmul", a, b, transpose_a=bool(node.attr("transA", 0)), transpose_b=bool(node.attr("transB", 0)))
    if alpha != 1.0:
        y = node.apply("mul", y, alpha)
    if c is None or beta == 0.0:
        return y
    if beta == 1.0:
        return node.apply("add", y, c)
    scaled = (c * np.float32(beta)).astype(c.dtype) if isinstance(c, np.ndarray) else node.apply("mul", c, beta)
    return node.apply("add", y, scaled)


@rule("MatMul")
def matmul(node: OnnxNode, a: Value, b: Value) -> Value:
    """Matrix product with NumPy's meaning of vectors and batches."""
    if min(len(a.shape), len(b.shape)) == 0:
        raise node.fail("an input is a single number; expected vectors, matrices or batches of matrices")
    left, right = len(a.shape) == 1, len(b.shape) == 1
    wide_a = node.reshape(a, (1, *a.shape)) if left else a
    wide_b = node.reshape(b, (*b.shape, 1)) if right else b
    y = node.apply("matmul", wide_a, wide_b, transpose_a=False, transpose_b=False)
    return node.reshape(y, (*y.shape[:-2], *(() if left else y.shape[-2:-1]), *(() if right else y.shape[-1:])))


@rule("Softmax", "LogSoftmax")
def softmax(node: OnnxNode, x: Value) -> Value:
    """Along one axis; before opset 13 along all axes from `axis` on together."""
    op = "softmax" if node.op_type == "Softmax" else "log_softmax"
    shape = x.shape
    axis = node.axis(int(node.attr("axis", -1 if node.opset >= 13 else 1)), len(shape))
    if node.opset >= 13 or axis == len(shape) - 1:
        return node.apply(op, x, axis=axis)
    flat = node.reshape(x, (*shape[:axis], math.prod(shape[axis:])))
    return node.reshape(node.apply(op, flat, axis=axis), shape)


@rule("Identity", quantized=True)
def identity(node: OnnxNode, x: Value) -> Value:
    """The value itself."""
    return x


@rule("Dropout", quantized=True)
def dropout(node: OnnxNode, x: Value) -> tuple[Value, ...]:
    """Nothing at evaluation, or where it drops nothing; the mask keeps all."""
    ratio, training = node.const(1, "ratio"), node.const(2, "training_mode")
    drops = ratio is None or bool(ratio.reshape(-1)[0])
    if training is not None and bool(training.reshape(-1)[0]) and drops:
        raise node.fail("is in training mode; export the model in evaluation mode")
    return x, node.apply("broadcast_to", np.ones((), bool), shape=x.shape) if any(node.outputs[1:]) else x
