"""Import rules that choose, place and order elements: gather, scatter, largest elements, masks of places."""

import math
from collections.abc import Sequence

import numpy as np

from megengine import functional as F
from megengine.convert.onnx.context import MAX_ELEMENTS, OnnxNode, Value, composition, rule
from megengine.convert.onnx.masked_places import chosen_by_mask
from megengine.convert.onnx.open_values import is_open_array, settled
from megengine.convert.onnx.reading import array_of
from megengine.convert.onnx.shape_rules import chosen, cut
from megengine.core.dtype import is_float
from megengine.core.sizes import from_start, is_open, largest
from megengine.core.text import counted
from megengine.dispatch import apply
from megengine.ops.common import counting, size_tensor
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import constant_value


@rule("Gather", quantized=True)
def gather(node: OnnxNode, x: Value, index: Value) -> Value:
    """Entries of an axis; places that are known are checked, and become slices where these are few."""
    shape = x.shape
    axis = node.axis(int(node.attr("axis", 0)), len(shape))
    if isinstance(index, TensorNode):
        whole = (None, None, None)
        return node.apply("index", x, index, pattern=tuple("i" if a == axis else whole for a in range(len(shape))))
    if index.size == 1 and (is_open_array(index) or is_open(shape[axis])):
        (place,) = index.reshape(-1).tolist()
        place = from_start(place, shape[axis])
        return node.reshape(
            cut(node, x, {axis: (place, place + 1, 1)}), (*shape[:axis], *index.shape, *shape[axis + 1 :])
        )
    if is_open_array(index) or (is_open(shape[axis]) and index.size and index.min() < 0):
        return gather(node, x, node.as_node(index))
    if index.size and not (-shape[axis] <= index.min() and index.max() < shape[axis]):
        raise node.fail(f"index {index.tolist()} is outside axis {axis} of {shape}")
    places = np.where(index < 0, index + shape[axis], index).reshape(-1)
    return node.reshape(chosen(node, x, axis, places), (*shape[:axis], *index.shape, *shape[axis + 1 :]))


@rule("GatherND", quantized=True)
def gather_nd(node: OnnxNode, x: Value, indices: Value) -> Value:
    """Elements or slices at places that the last axis of the indices names, behind `batch_dims` common axes."""
    shape, wide, batch = x.shape, indices.shape, int(node.attr("batch_dims", 0))
    depth = wide[-1] if wide else 0
    if not wide or not 0 < depth <= len(shape) - batch or wide[:batch] != shape[:batch] or batch >= len(wide):
        expected = f"expected the same first {batch} and [..., 1 to {len(shape) - batch}]"
        raise node.fail(f"indices of shape {wide} do not fit shape {shape}; {expected}")
    along = [
        node.reshape(node.counting(n), [n if axis == a else 1 for axis in range(len(wide) - 1)])
        for a, n in enumerate(wide[:batch])
    ]
    whole = ((None, None, None),) * (len(shape) - batch - depth)
    columns = [_column(node, indices, i) for i in range(depth)]
    return node.apply("index", x, *along, *columns, pattern=("i",) * (batch + depth) + whole)


def _column(node: OnnxNode, indices: Value, i: int) -> Value:
    if isinstance(indices, np.ndarray):
        return np.asarray(indices[..., i], order="C")
    shape, made = indices.shape, indices.expr
    is_joined = isinstance(made, Apply) and made.op == "concat" and made.attrs["axis"] == len(shape) - 1
    if is_joined and len(made.inputs) == shape[-1]:  # one column each
        known = constant_value(made.inputs[i])
        return node.reshape(made.inputs[i] if known is None else np.asarray(known), shape[:-1])
    return node.reshape(cut(node, indices, {len(shape) - 1: (i, i + 1, 1)}), shape[:-1])


@rule("ScatterElements", "Scatter")
def scatter_elements(node: OnnxNode, x: Value, index: Value, updates: Value) -> Value:
    """Updates at the places that the index names along an axis, put there or combined with what is there."""
    axis = node.axis(int(node.attr("axis", 0)), len(x.shape))
    return node.apply("scatter_elements", x, index, updates, axis=axis, reduction=node.attr("reduction", "none"))


@rule("ScatterND")
def scatter_nd(node: OnnxNode, x: Value, index: Value, updates: Value) -> Value:
    """Updates at the places that the last axis of the index names, put there or combined with what is there."""
    reduction = node.attr("reduction", "none")
    if reduction == "none" and (made := chosen_by_mask(node, x, index, updates)) is not None:
        return made
    return node.apply("scatter_nd", x, index, updates, reduction=reduction)


@rule("TensorScatter")
def tensor_scatter(node: OnnxNode, past: Value, update: Value, first: Value | None = None) -> Value:
    """Rows of a cache replaced from a place on, for each sample of the batch; circular ones go on at the beginning."""
    axis, rank = node.axis(int(node.attr("axis", -2)), len(past.shape)), len(past.shape)
    batch, length, rows = past.shape[0], past.shape[axis], update.shape[axis]
    along = np.arange(rows, dtype=np.int64).reshape(1, rows)
    if first is not None:
        along = node.apply("add", node.reshape(first, (batch, 1)), along)
    if node.attr("mode", "linear") == "circular":
        along = node.apply("mod", along, node.as_node(settled([length], ())))
    pair = (node.reshape(node.counting(batch), (batch, 1, 1)), node.reshape(along, (*along.shape, 1)))
    index = node.apply("concat", *(node.apply("broadcast_to", v, shape=(batch, rows, 1)) for v in pair), axis=2)
    order = (0, axis, *(a for a in range(1, rank) if a != axis))
    back = tuple(int(a) for a in np.argsort(order))
    moved = [node.apply("transpose", value, perm=order) for value in (past, update)]
    made = node.apply("scatter_nd", moved[0], index, moved[1], reduction="none")
    return node.apply("transpose", made, perm=back)


@composition("TopK")
def topk(node: OnnxNode, x: Tensor) -> tuple[Tensor, Tensor]:
    """The k largest or smallest elements along an axis and their places; equal ones in their order."""
    count = node.const_ints(1, "k") if node.opset >= 10 else (int(node.attr("k", -1)),)
    axis = node.axis(int(node.attr("axis", -1)), x.ndim)
    if not count or not 0 <= count[0] <= x.shape[axis]:
        raise node.fail(f"k is {count}; expected 0 to {x.shape[axis]}")
    order = (*(a for a in range(x.ndim) if a != axis), axis)
    turned = x if axis == x.ndim - 1 else F.transpose(x, order)
    if count[0] == 0:
        values, where = turned[..., :0], F.zeros((*turned.shape[:-1], 0), dtype="int32")
    else:
        values, where = apply("topk", turned, k=count[0], descending=bool(node.attr("largest", 1)))
    back = tuple(int(a) for a in np.argsort(order))
    results = (values, where.astype("int64"))
    return results if axis == x.ndim - 1 else (F.transpose(results[0], back), F.transpose(results[1], back))


@composition("OneHot")
def one_hot(node: OnnxNode, x: Tensor, _: Tensor, values: Tensor) -> Tensor:
    """Codes along a new axis; an index counts from the end too, and one that is no place gives zeros."""
    depth = node.const_ints(1, "depth")
    if not depth or not 0 <= depth[0] <= MAX_ELEMENTS:
        raise node.fail(f"its depth is {depth}; expected one number of classes")
    axis = node.axis(int(node.attr("axis", -1)), x.ndim + 1)
    index = F.expand_dims(x.astype("int64"), axis)
    index = F.where(index < 0, index + depth[0], index)
    along = counting(depth[0]).reshape([depth[0] if a == axis else 1 for a in range(x.ndim + 1)])
    return F.where(F.equal(index, along), values[1], values[0])


@composition("Trilu", "com.microsoft::Trilu")
def trilu(node: OnnxNode, x: Tensor, k: Tensor | None = None) -> Tensor:
    """The upper or lower triangle of matrices, from the k-th diagonal on; zeros elsewhere."""
    rows, columns = F.expand_dims(counting(x.shape[-2]), 1), F.expand_dims(counting(x.shape[-1]), 0)
    beyond = columns - rows - (0 if k is None else k.reshape(()))
    kept = beyond >= 0 if node.attr("upper", 1) else beyond <= 0
    if x.dtype == np.bool_:
        return F.logical_and(kept, x)
    return F.where(kept, x, F.zeros((), dtype=x.dtype))


@composition("EyeLike")
def eye_like(node: OnnxNode, x: Tensor) -> Tensor:
    """Ones on the k-th diagonal."""
    if x.ndim != 2:
        raise node.fail(f"its input is {x.shape}; expected a matrix")
    dtype = x.dtype if node.attr("dtype") is None else node.dtype(node.attr("dtype"))
    beyond = F.expand_dims(counting(x.shape[1]), 0) - F.expand_dims(counting(x.shape[0]), 1)
    return F.equal(beyond, int(node.attr("k", 0))).astype(dtype)


def _known(node: OnnxNode) -> list[np.ndarray]:
    """The inputs of an operator whose result has a shape that follows from their values."""
    values = [node.input(index) for index in range(len(node.inputs))]
    return [node.known(value, "shape") if isinstance(value, TensorNode) else value for value in values]


@composition("ConstantOfShape")
def filled(node: OnnxNode, shape: Tensor) -> Tensor:
    """One number in a shape."""
    _known(node)
    lengths, value = node.const_ints(0, "shape"), node.attr("value")
    number = np.zeros((), np.float32) if value is None else array_of(value).reshape(())
    return apply("broadcast_to", Tensor._wrap(number), shape=lengths)


@rule("NonZero")
def places(node: OnnxNode, x: Value) -> Value:
    """Where elements are not zero, a row for each axis; of one number in a shape that is known, all places."""
    made = x.expr if isinstance(x, TensorNode) else None
    if isinstance(made, Apply) and made.op == "broadcast_to" and x.shape:
        number = constant_value(made.inputs[0])
        if number is not None and np.all(number):
            return node.composed(_all_places, shape=x.shape)
    return node.apply("nonzero", x)


def _all_places(node: OnnxNode, *, shape: Sequence[int]) -> Tensor:
    total = counting(math.prod(shape))
    rows = []
    for axis, length in enumerate(shape):
        row = total if axis + 1 == len(shape) else F.floor_div(total, size_tensor(math.prod(shape[axis + 1 :])))
        rows.append(row if axis == 0 else F.mod(row, size_tensor(length)))
    return F.stack(rows, axis=0)


@composition("Range")
def numbers(node: OnnxNode, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """From `start` on in steps, up to an open limit; known ones are computed while importing."""
    if any(isinstance(value, TensorNode) for value in node.inputs):
        span, delta = limit - start, delta.reshape(())
        rounds = F.ceil(span / delta) if is_float(span.dtype) else -F.floor_div(-span, delta)
        return apply("numbers", rounds.reshape(()).astype("int64")).astype(start.dtype) * delta + start.reshape(())
    first, last, step = (value.reshape(-1).tolist()[0] for value in _known(node))
    count = largest(0, math.ceil((last - first) / step))
    return counting(count).astype(start.dtype) * (delta if is_open(step) else step) + start


@rule("Size", quantized=True)
def size(node: OnnxNode, x: Value) -> Value:
    """The number of elements: known while importing, up to open sizes."""
    return settled([math.prod(x.shape)], ())


@rule("Compress")
def compress(node: OnnxNode, x: Value) -> Value:
    """The entries of an axis, or of all elements without one, where a condition holds."""
    condition = node.input(1)
    if node.attr("axis") is None:
        x, axis = node.reshape(x, (math.prod(x.shape),)), 0
    else:
        axis = node.axis(int(node.attr("axis")), len(x.shape))
    if isinstance(condition, TensorNode):
        index = node.reshape(node.apply("nonzero", condition), (-1,))
        whole = (None, None, None)
        return node.apply("index", x, index, pattern=tuple("i" if a == axis else whole for a in range(len(x.shape))))
    places = np.flatnonzero(condition)
    if places.size and places[-1] >= x.shape[axis]:
        raise node.fail(f"its condition has {counted(condition.size, 'value')} for an axis of {x.shape[axis]}")
    return chosen(node, x, axis, places)


@rule("Unique")
def unique(node: OnnxNode, x: Value) -> tuple[Value, ...]:
    """Different values (or parts along an axis), first places, places of the originals, counts."""
    axis = node.attr("axis")
    axis = None if axis is None else node.axis(int(axis), len(x.shape))
    return node.apply("unique", x, axis=axis, sort=bool(node.attr("sorted", 1)))


@rule("NonMaxSuppression")
def suppressed(
    node: OnnxNode,
    boxes: Value,
    scores: Value,
    limit: Value | None = None,
    overlap: Value | None = None,
    least: Value | None = None,
) -> Value:
    """Batch, class and place of the boxes of each class that no better one overlaps by too much."""
    limit = np.zeros(1, np.int64) if limit is None else limit
    overlap = np.zeros(1, np.float32) if overlap is None else overlap
    least = np.full(1, -np.inf, np.float32) if least is None else least
    return node.apply(
        "batched_nms", boxes, scores, limit, overlap, least, center=bool(node.attr("center_point_box", 0))
    )


@composition("ReverseSequence")
def reverse_sequence(node: OnnxNode, x: Tensor, lengths: Tensor) -> Tensor:
    """The first entries of each sample in the opposite order: as many as `lengths` says."""
    time, batch = int(node.attr("time_axis", 0)), int(node.attr("batch_axis", 1))
    if {time, batch} != {0, 1}:
        raise node.fail(f"its time axis is {time} and its batch axis {batch}; expected 0 and 1")
    at, rows = (F.expand_dims(counting(x.shape[a]), 1 - a) for a in (time, batch))
    count = lengths.astype("int64").reshape(rows.shape)
    turned = F.where(at < count, count - 1 - at, at)
    return x[(turned, rows) if time == 0 else (rows, turned)]


@composition("Hardmax")
def hardmax(node: OnnxNode, x: Tensor) -> Tensor:
    """1 at the first largest element along an axis (before opset 13 of all axes from it on), 0 elsewhere."""
    axis = node.axis(int(node.attr("axis", -1 if node.opset >= 13 else 1)), x.ndim)
    flat = x if node.opset >= 13 else x.reshape(*x.shape[:axis], -1)
    shape = [flat.shape[axis] if a == axis else 1 for a in range(flat.ndim)]
    along = counting(flat.shape[axis], np.int32).reshape(shape)
    return F.equal(F.argmax(flat, axis=axis, keepdims=True), along).astype(x.dtype).reshape(x.shape)


@composition("Tile")
def tile(node: OnnxNode, x: Tensor) -> Tensor:
    """The values beside themselves along each axis; more of them than elements are held are refused."""
    repeats = node.const_ints(1, "repeats")
    if repeats is None or len(repeats) != x.ndim or min(repeats, default=0) < 0:
        raise node.fail(f"its repeats are {repeats}; expected {counted(x.ndim, 'number')} from 0 on")
    return F.tile(x, repeats) if x.ndim else x


@composition("Einsum")
def einsum(node: OnnxNode, *inputs: Tensor) -> Tensor:
    """Sum of products by Einstein's notation."""
    return F.einsum(str(node.attr("equation", "")), *inputs)


@composition("CumSum")
def cumsum(node: OnnxNode, x: Tensor, _: Tensor) -> Tensor:
    """Sums of the elements up to each along an axis."""
    axis, reverse = _running(node, x)
    return apply("cumsum", _shifted(node, x, axis, reverse, 0), axis=axis, reverse=reverse)


@composition("CumProd")
def cumprod(node: OnnxNode, x: Tensor, _: Tensor) -> Tensor:
    """Products of the elements up to each along an axis: each one of a row of a triangle."""
    axis, reverse = _running(node, x)
    rows = F.expand_dims(F.swapaxes(_shifted(node, x, axis, reverse, 1), axis, x.ndim - 1), -2)
    first, second = (F.expand_dims(counting(x.shape[axis]), a) for a in (1, 0))
    mask = first <= second if reverse else first >= second
    made = apply("prod", F.where(mask, rows, F.ones((), dtype=x.dtype)), axis=(-1,), keepdims=False)
    return F.swapaxes(made, axis, x.ndim - 1)


def _running(node: OnnxNode, x: Tensor) -> tuple[int, bool]:
    axis = node.const_ints(1, "axis")
    if not axis:
        raise node.fail("its axis is missing")
    return node.axis(axis[0], x.ndim), bool(node.attr("reverse", 0))


def _shifted(node: OnnxNode, x: Tensor, axis: int, reverse: bool, first: int) -> Tensor:
    """An exclusive sum or product is that of the elements one place further, with a neutral one in front."""
    if not node.attr("exclusive", 0) or not x.shape[axis]:
        return x
    kept = x[(*[slice(None)] * axis, slice(1, None) if reverse else slice(None, -1))]
    widths = tuple((0, 0) if a != axis else (0, 1) if reverse else (1, 0) for a in range(x.ndim))
    return apply("pad", kept, widths=widths, mode="constant", value=float(first))


@composition("CenterCropPad")
def center_crop_pad(node: OnnxNode, x: Tensor, _: Tensor) -> Tensor:
    """The middle of axes that are longer than wanted, and zeros around those that are shorter."""
    wanted = node.const_ints(1, "shape")
    axes = node.ints("axes", range(x.ndim)) or ()
    if wanted is None or len(wanted) != len(axes):
        raise node.fail(f"its shape is {wanted}; expected a length for each of axes {tuple(axes)}")
    for axis, length in zip((node.axis(a, x.ndim) for a in axes), wanted, strict=True):
        x = _centred_along(x, axis, length)
    return x


def _centred_along(x: Tensor, axis: int, length: int) -> Tensor:
    have = x.shape[axis]
    if have == length:
        return x
    if not is_open((have, length)):
        start, before = max(have - length, 0) // 2, max(length - have, 0) // 2
        x = x[(*[slice(None)] * axis, slice(start, start + length))]
        after = length - before - x.shape[axis]
        widths = tuple((before, after) if a == axis else (0, 0) for a in range(x.ndim))
        return apply("pad", x, widths=widths, mode="constant", value=0.0) if before or after else x
    size = size_tensor(have)  # a slice and a border would have long formulas
    more = size - length
    start = F.where(more >= 0, F.floor_div(more, 2), -F.floor_div(-more, 2))
    places = counting(length) + start
    pattern = tuple("i" if a == axis else (None, None, None) for a in range(x.ndim))
    taken = apply("index", x, F.maximum(F.minimum(places, size - 1), 0), pattern=pattern)
    inside = F.logical_and(places >= 0, places < size).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    return F.where(inside, taken, F.zeros((), dtype=x.dtype))


@composition("Col2Im")
def col2im(node: OnnxNode, x: Tensor) -> Tensor:
    """Sums of the blocks that overlap in a picture: the opposite of cutting it into columns."""
    image, block = node.const_ints(1, "image_shape"), node.const_ints(2, "block_shape")
    if image is None or block is None or len(image) != len(block) or x.ndim != 3:
        raise node.fail(f"its image is {image}, its block {block}; expected as many sizes, and an input [N, C, L]")
    dims = len(image)
    pads, ones = node.ints("pads", (0,) * 2 * dims) or (), (1,) * dims
    dilations, strides = node.ints("dilations", ones) or ones, node.ints("strides", ones) or ones
    padded = [n + a + b for n, a, b in zip(image, pads[:dims], pads[dims:], strict=True)]
    channels = x.shape[1] // math.prod(block)
    lead = (x.shape[0], channels)
    starts, stops = (0, 0, *pads[:dims]), (*lead, *(a + n for a, n in zip(pads[:dims], image, strict=True)))
    inner = {"starts": starts, "stops": stops, "steps": (1,) * (2 + dims)}
    if strides == block and dilations == ones:
        y = _side_by_side(x, block, padded)
        return apply("slice", y, **inner) if any(pads) else y
    at = np.zeros((1,) * 2 * dims, np.int64)
    for k, (n, b, d, s) in enumerate(zip(padded, block, dilations, strides, strict=True)):
        place = np.arange(b)[:, None] * d + np.arange(0, n - d * (b - 1), s)
        along = [1] * 2 * dims
        along[k], along[dims + k] = place.shape
        at = at * n + place.reshape(along)
    index = apply("broadcast_to", Tensor._wrap(at.reshape(1, 1, -1)), shape=(*lead, at.size))
    zeros = apply("broadcast_to", Tensor(0, dtype=x.dtype), shape=(*lead, math.prod(padded)))
    values = apply("reshape", x, shape=(*lead, at.size))
    summed = apply("scatter_elements", zeros, index, values, axis=2, reduction="add")
    return apply("slice", apply("reshape", summed, shape=(*lead, *padded)), **inner)


def _side_by_side(x: Tensor, block: Sequence[int], size: Sequence[int]) -> Tensor:
    """Blocks [N, C * elements of a block, blocks] that do not overlap, and zeros where no block fits."""
    dims, lead = len(block), (x.shape[0], x.shape[1] // math.prod(block))
    counts = [n // b for n, b in zip(size, block, strict=True)]
    apart = apply("reshape", x, shape=(*lead, *block, *counts))
    perm = (0, 1, *(axis + k for k in range(2, 2 + dims) for axis in (dims, 0)))
    covered = tuple(n * b for n, b in zip(counts, block, strict=True))
    y = apply("reshape", apply("transpose", apart, perm=perm), shape=(*lead, *covered))
    left = tuple((0, largest(0, n - end)) for n, end in zip(size, covered, strict=True))
    if not any(is_open(end) or end for _, end in left):
        return y
    return apply("pad", y, widths=((0, 0), (0, 0), *left), mode="constant", value=0.0)
