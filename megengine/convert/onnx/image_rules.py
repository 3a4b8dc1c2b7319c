"""Import rules of resizing, rearranging and normalising, composed of smaller ops."""

import math

import numpy as np

from megengine.convert.onnx.context import OnnxNode, Value, rule
from megengine.core.text import counted

MAX_WEIGHTS = 1 << 26  # of the matrix that resizes an axis
NEAREST = {
    "round_prefer_floor": lambda place: np.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: np.floor(place + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
PLACES = {  # the input place of each output index, as ONNX's Resize defines it: (index, scale, old, new) -> place
    "half_pixel": lambda i, scale, old, new: (i + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda i, scale, old, new: (i + 0.5) / scale - 0.5 if new > 1 else i * 0.0,
    "align_corners": lambda i, scale, old, new: i * (old - 1) / (scale * old - 1) if new > 1 else i * 0.0,
    "asymmetric": lambda i, scale, old, new: i / scale,
}


@rule("Resize", "Upsample")
def resize(node: OnnxNode, x: Value) -> Value:
    """Nearest and linear resizing: every axis is one product with a constant matrix; whole factors repeat values."""
    shape = x.shape
    scales, sizes = _resized(node, shape)
    mode = node.attr("mode", "nearest")
    if mode not in ("nearest", "linear") or node.attr("antialias", 0) or node.attr("exclude_outside", 0):
        raise node.fail(f"mode {mode!r} (or antialias, exclude_outside) is not supported; expected nearest or linear")
    old_form = node.op_type == "Upsample" or node.opset < 11
    where = node.attr("coordinate_transformation_mode", "asymmetric" if old_form else "half_pixel")
    rounding = node.attr("nearest_mode", "floor" if old_form else "round_prefer_floor")
    if where not in PLACES or rounding not in NEAREST:
        raise node.fail(f"coordinates {where!r} with rounding {rounding!r} are not supported")
    for axis, (old, new) in enumerate(zip(shape, sizes, strict=True)):
        if old == new and scales[axis] == 1:
            continue
        if old * new > MAX_WEIGHTS:
            raise node.fail(f"axis {axis} is resized from {old} to {new}, by more than {MAX_WEIGHTS} weights")
        places = PLACES[where](np.arange(new, dtype=np.float64), scales[axis], old, new)
        if mode == "linear":
            x = _times(node, x, axis, _linear(places, old))
            continue
        index = np.clip(NEAREST[rounding](places), 0, old - 1).astype(np.int64)
        whole = new % old == 0 and np.array_equal(index, np.arange(new) // (new // old))
        x = _repeat(node, x, axis, new // old) if whole else _times(node, x, axis, np.eye(old)[index])
    return x


def _resized(node: OnnxNode, shape: tuple[int, ...]) -> tuple[list[float], list[int]]:
    """Factor and new length of every axis, from `scales` or `sizes` (inputs 2 and 3; `scales` is input 1 before 11)."""
    old_form = node.op_type == "Upsample" or node.opset < 11
    scales = node.const(1 if old_form else 2, "scales")
    sizes = None if old_form else node.const_ints(3, "sizes")
    rank = len(shape)
    axes = [node.axis(axis, rank) for axis in node.ints("axes") or range(rank)]
    factors, lengths = [1.0] * rank, list(shape)
    if node.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise node.fail("keep_aspect_ratio_policy is not supported; give the sizes themselves")
    given = sizes if sizes else [] if scales is None else scales.reshape(-1).tolist()
    if len(given) != len(axes):
        raise node.fail(
            f"{counted(len(given), 'scale')} or sizes for {counted(len(axes), 'axis')}; expected one for each"
        )
    for axis, value in zip(axes, given, strict=True):
        lengths[axis] = int(value) if sizes else math.floor(shape[axis] * value)
        factors[axis] = value / shape[axis] if sizes else value
        if lengths[axis] < 1 or lengths[axis] > 1 << 16:
            raise node.fail(f"axis {axis} becomes {lengths[axis]} long; expected 1 to 65536")
    return factors, lengths


def _linear(places: np.ndarray, old: int) -> np.ndarray:
    """[new, old]: each row weighs the two neighbours of a place; the border repeats."""
    places = np.clip(places, 0, old - 1)
    low = np.floor(places).astype(np.int64)
    high = np.minimum(low + 1, old - 1)
    rows, part = np.arange(len(places)), places - low
    matrix = np.zeros((len(places), old))
    np.add.at(matrix, (rows, low), 1 - part)
    np.add.at(matrix, (rows, high), part)
    return matrix


def _times(node: OnnxNode, x: Value, axis: int, matrix: np.ndarray) -> Value:
    """`matrix` [new, old] applied along one axis."""
    shape = x.shape
    flat = node.reshape(x, (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])))
    if axis == len(shape) - 1:
        flat = node.reshape(flat, (math.prod(shape[:-1]), shape[-1]))
        y = node.apply("matmul", flat, np.ascontiguousarray(matrix.T, np.float32), transpose_a=False, transpose_b=False)
    else:
        weights = np.broadcast_to(matrix.astype(np.float32), (flat.shape[0], *matrix.shape))
        y = node.apply("matmul", np.ascontiguousarray(weights), flat, transpose_a=False, transpose_b=False)
    return node.reshape(y, (*shape[:axis], len(matrix), *shape[axis + 1 :]))


def _repeat(node: OnnxNode, x: Value, axis: int, times: int) -> Value:
    shape = x.shape
    wide = node.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    more = node.apply("broadcast_to", wide, shape=(*shape[: axis + 1], times, *shape[axis + 1 :]))
    return node.reshape(more, (*shape[:axis], shape[axis] * times, *shape[axis + 1 :]))


@rule("DepthToSpace", "SpaceToDepth")
def depth(node: OnnxNode, x: Value) -> Value:
    """Blocks of channels to blocks of pixels, and back (PixelShuffle is DepthToSpace with mode CRD)."""
    block = int(node.attr("blocksize", 0))
    shape = x.shape
    if len(shape) != 4 or block < 1:
        raise node.fail(f"its input is {shape} and blocksize {block}; expected [N, C, H, W] and a positive number")
    n, c, h, w = shape
    if node.op_type == "SpaceToDepth":
        cut = (n, c, h // block, block, w // block, block)
        perm = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
        made = (n, c * block * block, h // block, w // block)
    elif node.attr("mode", "DCR") == "DCR":
        cut, perm = (n, block, block, c // block**2, h, w), (0, 3, 4, 1, 5, 2)
        made = (n, c // block**2, h * block, w * block)
    else:
        cut, perm = (n, c // block**2, block, block, h, w), (0, 1, 4, 2, 5, 3)
        made = (n, c // block**2, h * block, w * block)
    if math.prod(cut) != math.prod(shape):
        raise node.fail(f"blocks of {block} do not divide {shape}")
    return node.reshape(node.apply("transpose", node.reshape(x, cut), perm=perm), made)


def _standard(node: OnnxNode, x: Value, axes: tuple[int, ...], eps: float) -> tuple[Value, Value, Value]:
    """(x - mean) / sqrt(variance + eps) over some axes, the mean, and the square root."""
    mean = node.apply("mean", x, axis=axes, keepdims=True)
    centred = node.apply("sub", x, mean)
    variance = node.apply("mean", node.apply("square", centred), axis=axes, keepdims=True)
    deviation = node.apply("sqrt", node.apply("add", variance, eps))
    return node.apply("div", centred, deviation), mean, deviation


@rule("LayerNormalization")
def layer_norm(node: OnnxNode, x: Value, scale: Value, shift: Value | None = None) -> tuple[Value, ...]:
    """Over all axes from `axis` on; scale and shift have the shape of those axes."""
    rank = len(x.shape)
    axis = node.axis(int(node.attr("axis", -1)), rank)
    y, mean, deviation = _standard(node, x, tuple(range(axis, rank)), float(node.attr("epsilon", 1e-5)))
    y = node.apply("mul", y, scale)
    if shift is not None:
        y = node.apply("add", y, shift)
    if not any(node.outputs[1:]):
        return (y,)
    return (y, mean, node.apply("div", np.ones((), np.float32), deviation))


@rule("InstanceNormalization")
def instance_norm(node: OnnxNode, x: Value, scale: Value, shift: Value) -> Value:
    """Each channel of each sample by itself; scale and shift per channel."""
    y, _, _ = _standard(node, x, tuple(range(2, len(x.shape))), float(node.attr("epsilon", 1e-5)))
    return _per_channel(node, y, scale, shift)


@rule("GroupNormalization")
def group_norm(node: OnnxNode, x: Value, scale: Value, shift: Value) -> Value:
    """Groups of channels; scale and shift per channel (per group before opset 21)."""
    groups = int(node.attr("num_groups", 0))
    shape = x.shape
    if len(shape) < 3 or groups < 1 or shape[1] % groups:
        raise node.fail(f"{counted(groups, 'group')} do not divide the channels of {shape}")
    grouped = node.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups))
    y, _, _ = _standard(node, grouped, (2,), float(node.attr("epsilon", 1e-5)))
    if node.opset < 21:
        return node.reshape(_per_channel(node, y, scale, shift), shape)
    return _per_channel(node, node.reshape(y, shape), scale, shift)


def _per_channel(node: OnnxNode, y: Value, scale: Value, shift: Value) -> Value:
    """Y [N, C, ...] times `scale` plus `shift`, one of each a channel."""
    along = (1, y.shape[1], *(1,) * (len(y.shape) - 2))
    return node.apply("add", node.apply("mul", y, node.reshape(scale, along)), node.reshape(shift, along))


@rule("Mish")
def mish(node: OnnxNode, x: Value) -> Value:
    """X * tanh(log(1 + exp(x))) (Misra 2019)."""
    return node.apply("mul", x, node.apply("tanh", node.apply("softplus", x)))
