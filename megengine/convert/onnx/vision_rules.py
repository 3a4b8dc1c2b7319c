"""Import rules of sampling and windows: GridSample, RoiAlign, DeformConv, normalisations over neighbours."""

import math
from collections.abc import Sequence

from megengine import functional as F
from megengine.convert.onnx.context import OnnxNode, Value, composition, rule
from megengine.core.sizes import is_open
from megengine.dispatch import apply
from megengine.ops.common import counting, size_tensor
from megengine.ops.grid import BORDERS, INTERPOLATIONS, grid_sample
from megengine.ops.sampling import deformable_conv2d, roi_samples
from megengine.tensor import Tensor

_INTERPOLATIONS = {"bilinear": "linear", "bicubic": "cubic"}  # names before opset 20


@composition("GridSample", "com.microsoft::GridSample")
def sample(node: OnnxNode, x: Tensor, grid: Tensor) -> Tensor:
    """Values between elements, at the points of a grid."""
    stated = node.attr("mode", "linear")
    mode, border = _INTERPOLATIONS.get(stated, stated), node.attr("padding_mode", "zeros")
    if mode not in INTERPOLATIONS or border not in BORDERS:
        raise node.fail(f"mode {stated!r}, padding_mode {border!r}; expected of {INTERPOLATIONS} and {BORDERS}")
    return grid_sample(x, grid, interpolation=mode, border=border, corners=bool(node.attr("align_corners", 0)))


@rule("AffineGrid")
def affine_grid(node: OnnxNode, theta: Value, size: Value) -> Value:
    """Points of a grid over a picture or volume, moved by one matrix a sample: [N, (D,) H, W, axes]."""
    sizes = tuple(node.const_ints(1, "size") or [])
    shape = theta.shape
    axes = len(sizes) - 2
    if axes not in (2, 3) or len(shape) != 3 or shape[1:] != (axes, axes + 1):
        raise node.fail(f"theta is {shape}, size {sizes}; expected [N, 2, 3] and 4 sizes, or [N, 3, 4] and 5")
    if is_open(shape[0]) != is_open(sizes[0]) or int(shape[0]) != int(sizes[0]):
        raise node.fail(
            f"theta is {shape}, its first size {sizes[0]} in {sizes}; expected equal numbers: export the model "
            f"with both open, or fix the open one with input_shapes={{...}}"
        )
    corners = bool(node.attr("align_corners", 0))
    return node.composed(_moved_grid, theta, lengths=sizes[2:], corners=corners)


def _moved_grid(node: OnnxNode, theta: Tensor, *, lengths: Sequence[int], corners: bool) -> Tensor:
    """The points [x, y, (z,) 1] of a grid from -1 to 1, multiplied with each matrix; a line of one point is 0."""
    axes, parts = len(lengths), []
    for axis in reversed(range(axes)):  # the last axis is x
        length = size_tensor(lengths[axis]).astype("float32")
        place = counting(lengths[axis]).astype("float32")
        line = (2 * place - (length - 1)) / (F.maximum(length - 1, 1) if corners else length)
        along = tuple(-1 if i == axis else 1 for i in range(axes))
        parts.append(F.broadcast_to(line.reshape(along), lengths).reshape(math.prod(lengths), 1))
    ones = F.broadcast_to(Tensor(1.0), (math.prod(lengths), 1))
    points = F.concat([*parts, ones], axis=1).astype(theta.dtype)
    moved = F.matmul(points, F.transpose(theta, (0, 2, 1)))
    return moved.reshape(theta.shape[0], *lengths, axes)


@rule("LRN")
def local_response(node: OnnxNode, x: Value) -> Value:
    """X / (bias + alpha / size * the sum of squares over neighbouring channels) ^ beta."""
    size = int(node.attr("size", 0))
    if size < 1 or len(x.shape) < 2:
        raise node.fail(f"size is {size}, its input {x.shape}; expected at least 1, and a channel axis")
    plane = node.reshape(node.apply("mul", x, x), (x.shape[0], 1, x.shape[1], math.prod(x.shape[2:])))
    padding = (((size - 1) // 2, size // 2), (0, 0))
    window = {"kernel": (size, 1), "stride": (1, 1), "padding": padding}
    mean = node.reshape(node.apply("avg_pool2d", plane, count_include_pad=True, **window), x.shape)
    scaled = node.apply("add", node.apply("mul", mean, node.attr("alpha", 1e-4)), node.attr("bias", 1.0))
    return node.apply("div", x, node.apply("pow", scaled, node.attr("beta", 0.75)))


@rule("LpNormalization")
def unit_length(node: OnnxNode, x: Value) -> Value:
    """X divided by its norm along an axis; 0 where the norm is."""
    axis, p = node.axis(int(node.attr("axis", -1)), len(x.shape)), int(node.attr("p", 2))
    if p not in (1, 2):
        raise node.fail(f"p is {p}; expected 1 or 2")
    powers = node.apply("abs", x) if p == 1 else node.apply("mul", x, x)
    norm = node.apply("sum", powers, axis=(axis,), keepdims=True)
    norm = node.apply("sqrt", norm) if p == 2 else norm
    none = node.apply("equal", norm, 0.0)
    safe = node.apply("where", none, node.as_node(1.0, x), norm)
    return node.apply("where", none, node.as_node(0.0, x), node.apply("div", x, safe))


@composition("RoiAlign")
def regions(node: OnnxNode, x: Tensor, rois: Tensor, pictures: Tensor) -> Tensor:
    """Means, or largest values, of samples in the cells of regions."""
    size = (int(node.attr("output_height", 1)), int(node.attr("output_width", 1)))
    samples, mode = int(node.attr("sampling_ratio", 0)), node.attr("mode", "avg")
    if mode not in ("avg", "max") or samples < 1:
        raise node.fail(
            f"mode is {mode!r}, sampling_ratio {samples}; supported are avg and max of a fixed number of samples: set "
            "sampling_ratio to 2, or what the network was trained with, before the export"
        )
    shifted = node.attr("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "") == "half_pixel"
    scale = float(node.attr("spatial_scale", 1.0))
    return roi_samples(x, rois, pictures, size=size, samples=samples, scale=scale, shifted=shifted, mode=mode)


@composition("DeformConv")
def deformed(
    node: OnnxNode, x: Tensor, w: Tensor, offset: Tensor, bias: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """A convolution whose taps are moved by offsets, and weighted by a mask."""
    if x.ndim != 4:
        raise node.fail(f"its input is {x.shape}; supported is [N, C, H, W]")
    pads = node.ints("pads", (0,) * 4) or ()
    if pads[:2] != pads[2:]:
        raise node.fail(f"pads is {pads}; supported is the same padding at both ends")
    shape = (offset.shape[0], offset.shape[1] // 2, *offset.shape[2:])
    weights = apply("broadcast_to", Tensor(1.0), shape=shape) if mask is None else mask
    stride, dilation = (node.ints(name, (1, 1)) or () for name in ("strides", "dilations"))
    return deformable_conv2d(x, w, offset, weights, bias, stride, pads[:2], dilation, int(node.attr("group", 1)))
