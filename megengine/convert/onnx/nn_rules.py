"""Import rules of layers: convolution, pooling, normalisation, matrix products."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.convert.onnx.context import OnnxNode, Value, rule
from megengine.convert.onnx.operators import exported_as
from megengine.core.text import counted

MAX_SIZE = (1 << 31) - 1  # of a window, in any direction
Padding = tuple[tuple[int, int], ...]


def window_padding(node: OnnxNode, size: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...]) -> Padding:
    """((begin, end), ...) of a sliding window, from `pads` or `auto_pad`."""
    mode = node.attr("auto_pad", "NOTSET")
    dims = len(size)
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
    padding = []
    for length, window, step in zip(size, kernel, stride, strict=True):
        total = max(0, (-(-length // step) - 1) * step + window - length)
        small, large = total // 2, total - total // 2
        padding.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return tuple(padding)


def per_axis(node: OnnxNode, name: str, dims: int, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """An attribute of one positive integer a spatial axis."""
    value = node.ints(name, default or (1,) * dims)
    if value is None or len(value) != dims or min(value) < 1 or max(value) > MAX_SIZE:
        raise node.fail(f"{name} is {value}; expected {counted(dims, 'positive integer')} of at most {MAX_SIZE}")
    return value


def spatial(node: OnnxNode, x: Value) -> tuple[int, ...]:
    """Spatial sizes of an [N, C, ...] tensor with one or two spatial axes."""
    shape = node.shape(x)
    if len(shape) not in (3, 4):
        raise node.fail(f"its input is {shape}; supported are [N, C, L] and [N, C, H, W]")
    return shape[2:]


def as_image(node: OnnxNode, x: Value) -> Value:
    """[N, C, L] as [N, C, 1, L]."""
    shape = node.shape(x)
    return x if len(shape) == 4 else node.reshape(x, (*shape[:2], 1, shape[2]))


def like_input(node: OnnxNode, y: Value, x: Value) -> Value:
    """Drops the axis that `as_image` added."""
    if len(node.shape(x)) == 4:
        return y
    n, c, _, length = node.shape(y)
    return node.reshape(y, (n, c, length))


def two(values: tuple[int, ...], fill: int = 1) -> tuple[int, ...]:
    """One number as two."""
    return values if len(values) == 2 else (fill, *values)


def two_pads(padding: Padding) -> Padding:
    """One pair as two."""
    return padding if len(padding) == 2 else ((0, 0), *padding)


@dataclass(frozen=True, slots=True)
class Window:
    """What Conv and ConvTranspose state alike."""

    size: tuple[int, ...]
    reach: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


def _window(node: OnnxNode) -> Window:
    x, w = node.input(0), node.input(1)
    size, kernel = spatial(node, x), node.shape(w)[2:]
    if len(kernel) != len(size):
        raise node.fail(f"weight {node.shape(w)} does not fit the input {node.shape(x)}")
    if node.ints("kernel_shape", kernel) != tuple(kernel):
        raise node.fail(f"kernel_shape is {node.ints('kernel_shape')}; its weight is {node.shape(w)}")
    stride, dilation = (per_axis(node, name, len(size)) for name in ("strides", "dilations"))
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    return Window(size, reach, stride, dilation)


def _convolved(node: OnnxNode, window: Window, padding: Padding, **more: Any) -> Value:
    """The op on images; one spatial axis gets a second of size 1 and loses it again."""
    inputs = [as_image(node, node.input(0)), as_image(node, node.input(1))]
    if (bias := node.optional(2)) is not None:
        inputs.append(bias)
    options = {"stride": two(window.stride), "padding": two_pads(padding), "dilation": two(window.dilation)}
    y = node.apply(exported_as(node.op_type).name, *inputs, **options, groups=int(node.attr("group", 1)), **more)
    return like_input(node, y, node.input(0))


@rule("Conv")
def conv(node: OnnxNode) -> Value:
    """Conv 1-D and 2-D."""
    window = _window(node)
    return _convolved(node, window, window_padding(node, window.size, window.reach, window.stride))


@rule("ConvTranspose")
def conv_transpose(node: OnnxNode) -> Value:
    """ConvTranspose 1-D and 2-D; `output_shape` and `auto_pad` become paddings."""
    window = _window(node)
    dims = len(window.size)
    extra = node.ints("output_padding", (0,) * dims) or (0,) * dims
    padding, extra = _transposed_padding(node, window.size, window.reach, window.stride, extra)
    return _convolved(node, window, padding, output_padding=two(extra, 0))


def _transposed_padding(
    node: OnnxNode, size: tuple[int, ...], reach: tuple[int, ...], stride: tuple[int, ...], extra: tuple[int, ...]
) -> tuple[Padding, tuple[int, ...]]:
    """Padding and output padding; a wanted shape beyond the full one is reached by output padding."""
    mode, wanted = node.attr("auto_pad", "NOTSET"), node.ints("output_shape")
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(length * step for length, step in zip(size, stride, strict=True))
    if wanted is None:
        return window_padding(node, size, reach, stride), extra
    padding, extended = [], []
    for length, window, step, more, out in zip(size, reach, stride, extra, wanted[-len(size) :], strict=True):
        total = step * (length - 1) + more + window - out
        extended.append(more - min(total, 0))
        total = max(total, 0)
        small, large = total // 2, total - total // 2
        padding.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return tuple(padding), tuple(extended)


def ceil_extension(
    size: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], padding: Padding
) -> tuple[int, ...]:
    """How much more padding at the end makes a rounded-down window count the rounded-up one."""
    more = []
    for length, window, step, (begin, end) in zip(size, kernel, stride, padding, strict=True):
        room = length + begin + end - window
        count = -(-room // step) + 1
        if (count - 1) * step >= length + begin:  # a window that would start in the padding is left out
            count -= 1
        more.append(max(0, (count - 1) * step - room))
    return tuple(more)


@rule("MaxPool", "AveragePool")
def pool(node: OnnxNode) -> Value:
    """Pooling; `ceil_mode` becomes padding at the end, which never counts in an average."""
    x = node.input(0)
    size = spatial(node, x)
    dims = len(size)
    given = node.ints("kernel_shape")
    kernel, stride = given and per_axis(node, "kernel_shape", dims), per_axis(node, "strides", dims)
    if kernel is None:
        raise node.fail(f"kernel_shape is missing; expected {counted(dims, 'integer')}")
    if set(per_axis(node, "dilations", dims)) != {1}:
        raise node.fail("dilations other than 1 are not supported")
    if any(node.outputs[1:]) or node.attr("storage_order", 0):
        raise node.fail("its Indices output is not supported")
    padding = window_padding(node, size, kernel, stride)
    more = ceil_extension(size, kernel, stride, padding) if node.attr("ceil_mode", 0) else (0,) * dims
    wide = tuple((begin, end + extra) for (begin, end), extra in zip(padding, more, strict=True))
    image = as_image(node, x)
    options = {"kernel": two(kernel), "stride": two(stride)}
    if node.op_type == "MaxPool":
        return like_input(node, node.apply("max_pool2d", image, padding=two_pads(wide), **options), x)
    borders = bool(node.attr("count_include_pad", 0))
    if borders and any(more):  # declared padding counts, the extension does not: pad by hand first
        image = node.apply("pad", image, widths=((0, 0), (0, 0), *two_pads(padding)), mode="constant", value=0.0)
        wide, borders = tuple((0, extra) for extra in more), False
    y = node.apply("avg_pool2d", image, padding=two_pads(wide), count_include_pad=borders, **options)
    return like_input(node, y, x)


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node: OnnxNode) -> Value:
    """Mean or maximum over the spatial axes, which stay with size 1."""
    x = node.input(0)
    axes = tuple(range(2, len(node.shape(x))))
    return node.apply("mean" if node.op_type == "GlobalAveragePool" else "max", x, axis=axes, keepdims=True)


@rule("BatchNormalization")
def batch_norm(node: OnnxNode) -> Value:
    """Evaluation form only."""
    if node.attr("training_mode", 0) or any(node.outputs[1:]):
        raise node.fail("is in training mode; export the model in evaluation mode")
    if not node.attr("spatial", 1):
        raise node.fail("spatial=0 is not supported")
    x = node.input(0)
    image = _as_four(node, x)
    y = node.apply("batch_norm", image, *(node.input(i) for i in range(1, 5)), eps=float(node.attr("epsilon", 1e-5)))
    return node.reshape(y, node.shape(x))


def _as_four(node: OnnxNode, x: Value) -> Value:
    shape = node.shape(x)
    if len(shape) < 2:
        raise node.fail(f"its input is {shape}; expected a batch and a channel axis")
    if len(shape) == 4:
        return x
    rest = int(np.prod(shape[2:], dtype=np.int64))
    return node.reshape(x, (shape[0], shape[1], 1, rest))


@rule("Gemm")
def gemm(node: OnnxNode) -> Value:
    """Alpha * A' @ B' + beta * C; factors are folded into constants."""
    a, b, c = node.input(0), node.input(1), node.optional(2)
    alpha, beta = float(node.attr("alpha", 1.0)), float(node.attr("beta", 1.0))
    if len(node.shape(a)) != 2 or len(node.shape(b)) != 2:
        raise node.fail(f"its inputs are {node.shape(a)} and {node.shape(b)}; expected two matrices")
    if alpha != 1.0 and isinstance(b, np.ndarray):
        b, alpha = (b * np.float32(alpha)).astype(b.dtype), 1.0
    y = node.apply("matmul", a, b, transpose_a=bool(node.attr("transA", 0)), transpose_b=bool(node.attr("transB", 0)))
    if alpha != 1.0:
        y = node.apply("mul", y, alpha)
    if c is None or beta == 0.0:
        return y
    if beta != 1.0:
        c = (c * np.float32(beta)).astype(c.dtype) if isinstance(c, np.ndarray) else node.apply("mul", c, beta)
    return node.apply("add", y, c)


@rule("MatMul")
def matmul(node: OnnxNode) -> Value:
    """Matrix product with NumPy's meaning of vectors and batches."""
    a, b = node.input(0), node.input(1)
    if min(len(node.shape(a)), len(node.shape(b))) == 0:
        raise node.fail("an input is a single number; expected vectors, matrices or batches of matrices")
    left, right = len(node.shape(a)) == 1, len(node.shape(b)) == 1
    wide_a = node.reshape(a, (1, *node.shape(a))) if left else a
    wide_b = node.reshape(b, (*node.shape(b), 1)) if right else b
    y = node.apply("matmul", wide_a, wide_b, transpose_a=False, transpose_b=False)
    shape = list(node.shape(y))
    if right:
        shape.pop(-1)
    if left:
        shape.pop(-1 if right else -2)
    return node.reshape(y, shape)


@rule("Softmax", "LogSoftmax")
def softmax(node: OnnxNode) -> Value:
    """Along one axis; before opset 13 along all axes from `axis` on together."""
    x = node.input(0)
    op = "softmax" if node.op_type == "Softmax" else "log_softmax"
    shape = node.shape(x)
    axis = node.axis(int(node.attr("axis", -1 if node.opset >= 13 else 1)), len(shape))
    if node.opset >= 13 or axis == len(shape) - 1:
        return node.apply(op, x, axis=axis)
    flat = node.reshape(x, (*shape[:axis], int(np.prod(shape[axis:], dtype=np.int64))))
    return node.reshape(node.apply(op, flat, axis=axis), shape)


@rule("Dropout", "Identity")
def identity(node: OnnxNode) -> Value:
    """Nothing at evaluation."""
    if any(node.outputs[1:]):
        raise node.fail("its mask output is used; export the model in evaluation mode")
    training = node.const(2, "training_mode") if node.op_type == "Dropout" else None
    if training is not None and bool(training.reshape(-1)[0]):
        raise node.fail("is in training mode; export the model in evaluation mode")
    return node.input(0)
