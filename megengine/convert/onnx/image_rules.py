"""Import rules of resizing, rearranging and normalising, composed of smaller ops."""

import math

import numpy as np

from megengine.convert.onnx.context import Call, Value, rule
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
def resize(call: Call) -> Value:
    """Nearest and linear resizing: every axis is one product with a constant matrix; whole factors repeat values."""
    x = call.input(0)
    shape = call.shape(x)
    scales, sizes = _resized(call, shape)
    mode = call.attr("mode", "nearest")
    if mode not in ("nearest", "linear") or call.attr("antialias", 0) or call.attr("exclude_outside", 0):
        raise call.fail(f"mode {mode!r} (or antialias, exclude_outside) is not supported; expected nearest or linear")
    old_form = call.op_type == "Upsample" or call.opset < 11
    where = call.attr("coordinate_transformation_mode", "asymmetric" if old_form else "half_pixel")
    rounding = call.attr("nearest_mode", "floor" if old_form else "round_prefer_floor")
    if where not in PLACES or rounding not in NEAREST:
        raise call.fail(f"coordinates {where!r} with rounding {rounding!r} are not supported")
    for axis, (old, new) in enumerate(zip(shape, sizes, strict=True)):
        if old == new and scales[axis] == 1:
            continue
        if old * new > MAX_WEIGHTS:
            raise call.fail(f"axis {axis} is resized from {old} to {new}, by more than {MAX_WEIGHTS} weights")
        places = PLACES[where](np.arange(new, dtype=np.float64), scales[axis], old, new)
        if mode == "linear":
            x = _times(call, x, axis, _linear(places, old))
            continue
        index = np.clip(NEAREST[rounding](places), 0, old - 1).astype(np.int64)
        whole = new % old == 0 and np.array_equal(index, np.arange(new) // (new // old))
        x = _repeat(call, x, axis, new // old) if whole else _times(call, x, axis, np.eye(old)[index])
    return x


def _resized(call: Call, shape: tuple[int, ...]) -> tuple[list[float], list[int]]:
    """Factor and new length of every axis, from `scales` or `sizes` (inputs 2 and 3; `scales` is input 1 before 11)."""
    old_form = call.op_type == "Upsample" or call.opset < 11
    scales = call.const(1 if old_form else 2, "scales")
    sizes = None if old_form else call.const_ints(3, "sizes")
    rank = len(shape)
    axes = [call.axis(axis, rank) for axis in call.ints("axes") or range(rank)]
    factors, lengths = [1.0] * rank, list(shape)
    if call.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise call.fail("keep_aspect_ratio_policy is not supported; give the sizes themselves")
    given = sizes if sizes else [] if scales is None else scales.reshape(-1).tolist()
    if len(given) != len(axes):
        raise call.fail(
            f"{counted(len(given), 'scale')} or sizes for {counted(len(axes), 'axis')}; expected one for each"
        )
    for axis, value in zip(axes, given, strict=True):
        lengths[axis] = int(value) if sizes else math.floor(shape[axis] * value)
        factors[axis] = value / shape[axis] if sizes else value
        if lengths[axis] < 1 or lengths[axis] > 1 << 16:
            raise call.fail(f"axis {axis} becomes {lengths[axis]} long; expected 1 to 65536")
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


def _times(call: Call, x: Value, axis: int, matrix: np.ndarray) -> Value:
    """`matrix` [new, old] applied along one axis."""
    shape = call.shape(x)
    flat = call.reshape(x, (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])))
    if axis == len(shape) - 1:
        flat = call.reshape(flat, (math.prod(shape[:-1]), shape[-1]))
        y = call.apply("matmul", flat, np.ascontiguousarray(matrix.T, np.float32), transpose_a=False, transpose_b=False)
    else:
        weights = np.broadcast_to(matrix.astype(np.float32), (call.shape(flat)[0], *matrix.shape))
        y = call.apply("matmul", np.ascontiguousarray(weights), flat, transpose_a=False, transpose_b=False)
    return call.reshape(y, (*shape[:axis], len(matrix), *shape[axis + 1 :]))


def _repeat(call: Call, x: Value, axis: int, times: int) -> Value:
    shape = call.shape(x)
    wide = call.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    more = call.apply("broadcast_to", wide, shape=(*shape[: axis + 1], times, *shape[axis + 1 :]))
    return call.reshape(more, (*shape[:axis], shape[axis] * times, *shape[axis + 1 :]))


@rule("DepthToSpace", "SpaceToDepth")
def depth(call: Call) -> Value:
    """Blocks of channels to blocks of pixels, and back (PixelShuffle is DepthToSpace with mode CRD)."""
    x, block = call.input(0), int(call.attr("blocksize", 0))
    shape = call.shape(x)
    if len(shape) != 4 or block < 1:
        raise call.fail(f"its input is {shape} and blocksize {block}; expected [N, C, H, W] and a positive number")
    n, c, h, w = shape
    if call.op_type == "SpaceToDepth":
        cut = (n, c, h // block, block, w // block, block)
        perm = (0, 3, 5, 1, 2, 4) if call.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
        made = (n, c * block * block, h // block, w // block)
    elif call.attr("mode", "DCR") == "DCR":
        cut, perm = (n, block, block, c // block**2, h, w), (0, 3, 4, 1, 5, 2)
        made = (n, c // block**2, h * block, w * block)
    else:
        cut, perm = (n, c // block**2, block, block, h, w), (0, 1, 4, 2, 5, 3)
        made = (n, c // block**2, h * block, w * block)
    if math.prod(cut) != math.prod(shape):
        raise call.fail(f"blocks of {block} do not divide {shape}")
    return call.reshape(call.apply("transpose", call.reshape(x, cut), perm=perm), made)


def _standard(call: Call, x: Value, axes: tuple[int, ...], eps: float) -> tuple[Value, Value, Value]:
    """(x - mean) / sqrt(variance + eps) over some axes, the mean, and the square root."""
    mean = call.apply("mean", x, axis=axes, keepdims=True)
    centred = call.apply("sub", x, mean)
    variance = call.apply("mean", call.apply("square", centred), axis=axes, keepdims=True)
    deviation = call.apply("sqrt", call.apply("add", variance, eps))
    return call.apply("div", centred, deviation), mean, deviation


@rule("LayerNormalization")
def layer_norm(call: Call) -> tuple[Value, ...]:
    """Over all axes from `axis` on; scale and shift have the shape of those axes."""
    x = call.input(0)
    rank = len(call.shape(x))
    axis = call.axis(int(call.attr("axis", -1)), rank)
    y, mean, deviation = _standard(call, x, tuple(range(axis, rank)), float(call.attr("epsilon", 1e-5)))
    y = call.apply("mul", y, call.input(1))
    if (shift := call.optional(2)) is not None:
        y = call.apply("add", y, shift)
    if not any(call.outputs[1:]):
        return (y,)
    return (y, mean, call.apply("div", np.ones((), np.float32), deviation))


@rule("InstanceNormalization")
def instance_norm(call: Call) -> Value:
    """Each channel of each sample by itself; scale and shift per channel."""
    x = call.input(0)
    shape = call.shape(x)
    y, _, _ = _standard(call, x, tuple(range(2, len(shape))), float(call.attr("epsilon", 1e-5)))
    return _per_channel(call, y, shape[1], len(shape))


@rule("GroupNormalization")
def group_norm(call: Call) -> Value:
    """Groups of channels; scale and shift per channel (per group before opset 21)."""
    x, groups = call.input(0), int(call.attr("num_groups", 0))
    shape = call.shape(x)
    if len(shape) < 3 or groups < 1 or shape[1] % groups:
        raise call.fail(f"{counted(groups, 'group')} do not divide the channels of {shape}")
    grouped = call.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups))
    y, _, _ = _standard(call, grouped, (2,), float(call.attr("epsilon", 1e-5)))
    if call.opset < 21:
        return call.reshape(_per_channel(call, y, groups, 3), shape)
    return _per_channel(call, call.reshape(y, shape), shape[1], len(shape))


def _per_channel(call: Call, y: Value, channels: int, rank: int) -> Value:
    along = (1, channels, *(1,) * (rank - 2))
    return call.apply(
        "add", call.apply("mul", y, call.reshape(call.input(1), along)), call.reshape(call.input(2), along)
    )


@rule("Mish")
def mish(call: Call) -> Value:
    """X * tanh(log(1 + exp(x))) (Misra 2019)."""
    x = call.input(0)
    return call.apply("mul", x, call.apply("tanh", call.apply("softplus", x)))
