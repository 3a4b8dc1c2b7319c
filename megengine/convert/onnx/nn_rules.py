"""Import rules of layers: convolution, pooling, normalisation, matrix products."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.convert.onnx.context import Call, Value, rule
from megengine.convert.onnx.operators import exported_as
from megengine.core.text import counted

MAX_SIZE = (1 << 31) - 1  # of a window, in any direction
Padding = tuple[tuple[int, int], ...]


def window_padding(call: Call, size: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...]) -> Padding:
    """((begin, end), ...) of a sliding window, from `pads` or `auto_pad`."""
    mode = call.attr("auto_pad", "NOTSET")
    dims = len(size)
    if mode in ("NOTSET", ""):
        pads = call.ints("pads", (0,) * 2 * dims)
        if pads is None or len(pads) != 2 * dims:
            raise call.fail(f"pads is {pads}; expected {counted(2 * dims, 'integer')}")
        if min(pads) < 0:
            raise call.fail(f"pads is {pads}; negative padding is not supported")
        if max(pads) > MAX_SIZE:
            raise call.fail(f"pads is {pads}; expected at most {MAX_SIZE}")
        return tuple(zip(pads[:dims], pads[dims:], strict=True))
    if mode == "VALID":
        return ((0, 0),) * dims
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise call.fail(f"auto_pad is {mode!r}; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    padding = []
    for length, window, step in zip(size, kernel, stride, strict=True):
        total = max(0, (-(-length // step) - 1) * step + window - length)
        small, large = total // 2, total - total // 2
        padding.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return tuple(padding)


def per_axis(call: Call, name: str, dims: int, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """An attribute of one positive integer a spatial axis."""
    value = call.ints(name, default or (1,) * dims)
    if value is None or len(value) != dims or min(value) < 1 or max(value) > MAX_SIZE:
        raise call.fail(f"{name} is {value}; expected {counted(dims, 'positive integer')} of at most {MAX_SIZE}")
    return value


def spatial(call: Call, x: Value) -> tuple[int, ...]:
    """Spatial sizes of an [N, C, ...] tensor with one or two spatial axes."""
    shape = call.shape(x)
    if len(shape) not in (3, 4):
        raise call.fail(f"its input is {shape}; supported are [N, C, L] and [N, C, H, W]")
    return shape[2:]


def as_image(call: Call, x: Value) -> Value:
    """[N, C, L] as [N, C, 1, L]."""
    shape = call.shape(x)
    return x if len(shape) == 4 else call.reshape(x, (*shape[:2], 1, shape[2]))


def like_input(call: Call, y: Value, x: Value) -> Value:
    """Drops the axis that `as_image` added."""
    if len(call.shape(x)) == 4:
        return y
    n, c, _, length = call.shape(y)
    return call.reshape(y, (n, c, length))


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


def _window(call: Call) -> Window:
    x, w = call.input(0), call.input(1)
    size, kernel = spatial(call, x), call.shape(w)[2:]
    if len(kernel) != len(size):
        raise call.fail(f"weight {call.shape(w)} does not fit the input {call.shape(x)}")
    if call.ints("kernel_shape", kernel) != tuple(kernel):
        raise call.fail(f"kernel_shape is {call.ints('kernel_shape')}; its weight is {call.shape(w)}")
    stride, dilation = (per_axis(call, name, len(size)) for name in ("strides", "dilations"))
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    return Window(size, reach, stride, dilation)


def _convolved(call: Call, window: Window, padding: Padding, **more: Any) -> Value:
    """The op on images; one spatial axis gets a second of size 1 and loses it again."""
    inputs = [as_image(call, call.input(0)), as_image(call, call.input(1))]
    if (bias := call.optional(2)) is not None:
        inputs.append(bias)
    options = {"stride": two(window.stride), "padding": two_pads(padding), "dilation": two(window.dilation)}
    y = call.apply(exported_as(call.op_type).name, *inputs, **options, groups=int(call.attr("group", 1)), **more)
    return like_input(call, y, call.input(0))


@rule("Conv")
def conv(call: Call) -> Value:
    """Conv 1-D and 2-D."""
    window = _window(call)
    return _convolved(call, window, window_padding(call, window.size, window.reach, window.stride))


@rule("ConvTranspose")
def conv_transpose(call: Call) -> Value:
    """ConvTranspose 1-D and 2-D; `output_shape` and `auto_pad` become paddings."""
    window = _window(call)
    dims = len(window.size)
    extra = call.ints("output_padding", (0,) * dims) or (0,) * dims
    padding, extra = _transposed_padding(call, window.size, window.reach, window.stride, extra)
    return _convolved(call, window, padding, output_padding=two(extra, 0))


def _transposed_padding(
    call: Call, size: tuple[int, ...], reach: tuple[int, ...], stride: tuple[int, ...], extra: tuple[int, ...]
) -> tuple[Padding, tuple[int, ...]]:
    """Padding and output padding; a wanted shape beyond the full one is reached by output padding."""
    mode, wanted = call.attr("auto_pad", "NOTSET"), call.ints("output_shape")
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(length * step for length, step in zip(size, stride, strict=True))
    if wanted is None:
        return window_padding(call, size, reach, stride), extra
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
def pool(call: Call) -> Value:
    """Pooling; `ceil_mode` becomes padding at the end, which never counts in an average."""
    x = call.input(0)
    size = spatial(call, x)
    dims = len(size)
    given = call.ints("kernel_shape")
    kernel, stride = given and per_axis(call, "kernel_shape", dims), per_axis(call, "strides", dims)
    if kernel is None:
        raise call.fail(f"kernel_shape is missing; expected {counted(dims, 'integer')}")
    if set(per_axis(call, "dilations", dims)) != {1}:
        raise call.fail("dilations other than 1 are not supported")
    if any(call.outputs[1:]) or call.attr("storage_order", 0):
        raise call.fail("its Indices output is not supported")
    padding = window_padding(call, size, kernel, stride)
    more = ceil_extension(size, kernel, stride, padding) if call.attr("ceil_mode", 0) else (0,) * dims
    wide = tuple((begin, end + extra) for (begin, end), extra in zip(padding, more, strict=True))
    image = as_image(call, x)
    options = {"kernel": two(kernel), "stride": two(stride)}
    if call.op_type == "MaxPool":
        return like_input(call, call.apply("max_pool2d", image, padding=two_pads(wide), **options), x)
    borders = bool(call.attr("count_include_pad", 0))
    if borders and any(more):  # declared padding counts, the extension does not: pad by hand first
        image = call.apply("pad", image, widths=((0, 0), (0, 0), *two_pads(padding)), mode="constant", value=0.0)
        wide, borders = tuple((0, extra) for extra in more), False
    y = call.apply("avg_pool2d", image, padding=two_pads(wide), count_include_pad=borders, **options)
    return like_input(call, y, x)


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Value:
    """Mean or maximum over the spatial axes, which stay with size 1."""
    x = call.input(0)
    axes = tuple(range(2, len(call.shape(x))))
    return call.apply("mean" if call.op_type == "GlobalAveragePool" else "max", x, axis=axes, keepdims=True)


@rule("BatchNormalization")
def batch_norm(call: Call) -> Value:
    """Evaluation form only."""
    if call.attr("training_mode", 0) or any(call.outputs[1:]):
        raise call.fail("is in training mode; export the model in evaluation mode")
    if not call.attr("spatial", 1):
        raise call.fail("spatial=0 is not supported")
    x = call.input(0)
    image = _as_four(call, x)
    y = call.apply("batch_norm", image, *(call.input(i) for i in range(1, 5)), eps=float(call.attr("epsilon", 1e-5)))
    return call.reshape(y, call.shape(x))


def _as_four(call: Call, x: Value) -> Value:
    shape = call.shape(x)
    if len(shape) < 2:
        raise call.fail(f"its input is {shape}; expected a batch and a channel axis")
    if len(shape) == 4:
        return x
    rest = int(np.prod(shape[2:], dtype=np.int64))
    return call.reshape(x, (shape[0], shape[1], 1, rest))


@rule("Gemm")
def gemm(call: Call) -> Value:
    """Alpha * A' @ B' + beta * C; factors are folded into constants."""
    a, b, c = call.input(0), call.input(1), call.optional(2)
    alpha, beta = float(call.attr("alpha", 1.0)), float(call.attr("beta", 1.0))
    if len(call.shape(a)) != 2 or len(call.shape(b)) != 2:
        raise call.fail(f"its inputs are {call.shape(a)} and {call.shape(b)}; expected two matrices")
    if alpha != 1.0 and isinstance(b, np.ndarray):
        b, alpha = (b * np.float32(alpha)).astype(b.dtype), 1.0
    y = call.apply("matmul", a, b, transpose_a=bool(call.attr("transA", 0)), transpose_b=bool(call.attr("transB", 0)))
    if alpha != 1.0:
        y = call.apply("mul", y, alpha)
    if c is None or beta == 0.0:
        return y
    if beta != 1.0:
        c = (c * np.float32(beta)).astype(c.dtype) if isinstance(c, np.ndarray) else call.apply("mul", c, beta)
    return call.apply("add", y, c)


@rule("MatMul")
def matmul(call: Call) -> Value:
    """Matrix product with NumPy's meaning of vectors and batches."""
    a, b = call.input(0), call.input(1)
    if min(len(call.shape(a)), len(call.shape(b))) == 0:
        raise call.fail("an input is a single number; expected vectors, matrices or batches of matrices")
    left, right = len(call.shape(a)) == 1, len(call.shape(b)) == 1
    wide_a = call.reshape(a, (1, *call.shape(a))) if left else a
    wide_b = call.reshape(b, (*call.shape(b), 1)) if right else b
    y = call.apply("matmul", wide_a, wide_b, transpose_a=False, transpose_b=False)
    shape = list(call.shape(y))
    if right:
        shape.pop(-1)
    if left:
        shape.pop(-1 if right else -2)
    return call.reshape(y, shape)


@rule("Softmax", "LogSoftmax")
def softmax(call: Call) -> Value:
    """Along one axis; before opset 13 along all axes from `axis` on together."""
    x = call.input(0)
    op = "softmax" if call.op_type == "Softmax" else "log_softmax"
    shape = call.shape(x)
    axis = call.axis(int(call.attr("axis", -1 if call.opset >= 13 else 1)), len(shape))
    if call.opset >= 13 or axis == len(shape) - 1:
        return call.apply(op, x, axis=axis)
    flat = call.reshape(x, (*shape[:axis], int(np.prod(shape[axis:], dtype=np.int64))))
    return call.reshape(call.apply(op, flat, axis=axis), shape)


@rule("Dropout", "Identity")
def identity(call: Call) -> Value:
    """Nothing at evaluation."""
    if any(call.outputs[1:]):
        raise call.fail("its mask output is used; export the model in evaluation mode")
    training = call.const(2, "training_mode") if call.op_type == "Dropout" else None
    if training is not None and bool(training.reshape(-1)[0]):
        raise call.fail("is in training mode; export the model in evaluation mode")
    return call.input(0)
