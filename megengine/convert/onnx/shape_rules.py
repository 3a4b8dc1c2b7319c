"""Import rules that move values without computing: reshape, transpose, slices, pads, joins."""

import math

import numpy as np

from megengine import functional as F
from megengine.convert.onnx.context import MAX_AXES, OnnxNode, Value, rule, spec_of
from megengine.convert.onnx.open_values import settled
from megengine.core.dtype import QuantizedDType, is_float, storage_of
from megengine.core.errors import brief
from megengine.core.sizes import broadcast, is_open, largest, least, sign_beside, slice_bounds
from megengine.core.text import counted
from megengine.dispatch import apply
from megengine.ops.common import counting, size_tensor
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import constant_value


@rule("Shape", quantized=True)
def shape(node: OnnxNode, x: Value) -> Value:
    """The lengths of all axes, or of those from `start` to `end`: known while importing, up to open sizes."""
    sizes = x.shape[node.attr("start", 0) : node.attr("end", len(x.shape))]
    return settled(sizes, (len(sizes),))


@rule("Reshape", quantized=True)
def reshape(node: OnnxNode, x: Value) -> Value:
    """A shape with 0 (same size as before) and -1 (the rest)."""
    wanted = node.ints("shape") if node.opset < 5 else node.const_ints(1, "shape")
    if wanted is None:
        raise node.fail("its shape is missing")
    old = x.shape
    if not node.attr("allowzero", 0):
        if any(size == 0 and i >= len(old) for i, size in enumerate(wanted)):
            raise node.fail(f"shape {wanted} copies an axis that {old} does not have")
        wanted = tuple(old[i] if size == 0 else size for i, size in enumerate(wanted))
    if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        raise node.fail(f"shape {wanted} is not a shape")
    known = math.prod(size for size in wanted if size != -1)
    count = math.prod(old)
    if -1 in wanted and known and int(count) % int(known) == 0:
        wanted = tuple(count // known if size == -1 else size for size in wanted)
    if -1 in wanted or int(math.prod(wanted)) != int(count):
        raise node.fail(f"{counted(count, 'value')} of shape {old} do not fit shape {wanted}")
    return node.reshape(x, wanted)


@rule("Flatten", quantized=True)
def flatten(node: OnnxNode, x: Value) -> Value:
    """To a matrix: axes before `axis`, and the others."""
    shape = x.shape
    axis = int(node.attr("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    if not 0 <= axis <= len(shape):
        raise node.fail(f"axis {axis} does not exist in a tensor of {counted(len(shape), 'dimension')}")
    return node.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))


@rule("Transpose", quantized=True)
def transpose(node: OnnxNode, x: Value) -> Value:
    """Without `perm` the axes are reversed."""
    rank = len(x.shape)
    perm = node.ints("perm", tuple(reversed(range(rank)))) or ()
    if sorted(perm) != list(range(rank)):
        raise node.fail(f"perm {perm} is no permutation of {counted(rank, 'axis')}")
    return x if perm == tuple(range(rank)) else node.apply("transpose", x, perm=perm)


@rule("Squeeze", quantized=True)
def squeeze(node: OnnxNode, x: Value) -> Value:
    """Without axes every axis of size 1 goes."""
    shape = x.shape
    axes = node.ints("axes") if node.opset < 13 else node.const_ints(1, "axes")
    gone = {node.axis(a, len(shape)) for a in axes} if axes else {i for i, size in enumerate(shape) if size == 1}
    if any(int(shape[axis]) != 1 for axis in gone):  # an open size may be 1 wherever the network runs
        raise node.fail(f"axes {sorted(gone)} of {shape} are not all of size 1")
    return node.reshape(x, [size for i, size in enumerate(shape) if i not in gone])


@rule("Unsqueeze", quantized=True)
def unsqueeze(node: OnnxNode, x: Value) -> Value:
    """New axes of size 1, counted in the result."""
    axes = node.ints("axes") if node.opset < 13 else node.const_ints(1, "axes")
    if axes is None:
        raise node.fail("its axes are missing")
    shape = list(x.shape)
    rank = len(shape) + len(axes)
    for axis in sorted(node.axis(a, rank) for a in axes):
        shape.insert(axis, 1)
    return node.reshape(x, shape)


@rule("Concat", quantized=True)
def concat(node: OnnxNode, *values: Value) -> Value:
    """Along one axis."""
    if "axis" not in node.attrs:
        raise node.fail("its axis is missing")
    if len({spec_of(value).dtype for value in values}) > 1:  # several scales: only the integers are alike
        values = tuple(node.stored(value) for value in values)
    axis = node.axis(int(node.attr("axis")), len(values[0].shape))
    return values[0] if len(values) == 1 else node.apply("concat", *values, axis=axis)


@rule("Split", quantized=True)
def split(node: OnnxNode, x: Value) -> tuple[Value, ...]:
    """Equal parts, or parts of given sizes; each part is a slice, so an unused one costs nothing."""
    shape = x.shape
    axis = node.axis(int(node.attr("axis", 0)), len(shape))
    sizes = node.ints("split") if node.opset < 13 else node.const_ints(1, "split")
    if sizes is None:
        parts = len(node.outputs)
        if int(node.attr("num_outputs", parts)) != parts:
            raise node.fail(f"num_outputs is {node.attr('num_outputs')}; it has {counted(parts, 'output')}")
        step = -(-shape[axis] // parts)
        sizes = tuple(least(step, shape[axis] - step * i) for i in range(parts))
    if int(sum(sizes)) != int(shape[axis]) or min(sizes) < 0 or len(sizes) < len(node.outputs):
        raise node.fail(f"sizes {sizes} do not make up axis {axis} of {shape} in {counted(len(node.outputs), 'part')}")
    made, start = [], 0
    for size in sizes:
        made.append(cut(node, x, {axis: (start, start + size, 1)}))
        start += size
    return tuple(made)


def cut(node: OnnxNode, x: Value, ranges: dict[int, tuple[int, int | None, int]]) -> Value:
    """The slice of some axes; start, stop, step are already inside the axis."""
    shape = x.shape
    whole = [(0, size, 1) for size in shape]
    wanted = [ranges.get(axis, whole[axis]) for axis in range(len(shape))]
    if wanted == whole:
        return x
    starts, stops, steps = (tuple(part) for part in zip(*wanted, strict=True))
    return node.apply("slice", x, starts=starts, stops=stops, steps=steps)


_WINDOWS = ("conv2d", "conv3d", "max_pool2d", "avg_pool2d")  # refused where no window fits


@rule("Slice", quantized=True)
def slice_(node: OnnxNode, x: Value) -> Value:
    """Bounds count from the end when negative and are cut to the axis."""
    if any(isinstance(node.optional(k), TensorNode) for k in (1, 2)):
        return _between(node, x)
    shape = x.shape
    if node.opset < 10:
        starts, ends, axes, steps = node.ints("starts"), node.ints("ends"), node.ints("axes"), None
    else:
        starts, ends = node.const_ints(1, "starts"), node.const_ints(2, "ends")
        axes, steps = node.const_ints(3, "axes"), node.const_ints(4, "steps")
    if starts is None or ends is None:
        raise node.fail("its starts or ends are missing")
    axes = axes or tuple(range(len(starts)))
    steps = steps or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.fail(f"starts {starts}, ends {ends}, axes {axes} and steps {steps} differ in length")
    ranges = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise node.fail("step 0 goes nowhere; expected another number")
        axis = node.axis(axis, len(shape))
        if step > 0:
            start, end = (_from_front(node, place, shape[axis]) for place in (start, end))
        low, high, _ = slice_bounds(start, end, step, shape[axis])
        empty = (high - low) * step <= 0 and not is_open((low, high))
        if step < 0 and is_open(high):  # from the end, where -1 - length is in front of the first element
            high = high - shape[axis]
        elif high < 0:
            high = None
        ranges[axis] = (low, low if empty else high, step)
    return cut(node, x, ranges)


def _from_front(node: OnnxNode, place: int, length: int) -> int:
    """A bound that follows from sizes, counted from the front where the sizes that windows fit tell its sign.

    `x[..., -y.shape[-1]:]` of a convolution's result y (WaveNet) begins behind the front of x: y has a place.
    """
    if not is_open((place, length)) or sign_beside(place, ()) in (0, 1):
        return place
    if sign_beside(place, ()) == -1 and (other := sign_beside(place + length, ())) is not None:
        return place + length if other >= 0 else place  # no window has to tell it
    sizes = (expr.output.shape[2:] for expr in node.graph.exprs() if isinstance(expr, Apply) and expr.op in _WINDOWS)
    fitting = list(dict.fromkeys(size for shape in sizes for size in shape if is_open(size)))
    if sign_beside(place, fitting) == -1 and sign_beside(place + length, fitting) in (0, 1):
        return place + length
    return place


def _between(node: OnnxNode, x: Value) -> Value:
    """A slice whose bounds are computed at run time: the places between them, as many as there are."""
    starts, ends, steps = node.input(1), node.input(2), node.const_ints(4, "steps") or (1,)
    axes = node.const_ints(3, "axes") or (() if is_open(starts.shape) else tuple(range(starts.shape[0])))
    if set(steps) != {1} or not starts.shape == ends.shape == (len(axes),):
        raise node.fail(
            f"its bounds {starts.shape} and {ends.shape} are computed at run time, with steps {steps} along "
            f"{counted(len(axes), 'axis')}; expected steps of 1 and a bound for each axis (or give fixed input shapes)"
        )
    for place, axis in enumerate(axes):
        axis = node.axis(axis, len(x.shape))
        bounds = {"place": place, "length": x.shape[axis]}
        if _is_next(ends, starts):
            index = node.composed(_first_place, starts, **bounds)
        else:
            index = node.reshape(node.apply("nonzero", node.composed(_places_between, starts, ends, **bounds)), (-1,))
        pattern = tuple("i" if a == axis else (None, None, None) for a in range(len(x.shape)))
        x = node.apply("index", x, index, pattern=pattern)
    return x


def _is_next(ends: Value, starts: Value) -> bool:
    """Whether bounds are computed as others and 1, which leave one place between them."""
    (one, more), (other, less) = _less_added(ends), _less_added(starts)
    return one is other and more - less == 1


def _less_added(value: Value) -> tuple[Value, int]:
    """A value without a whole number that is added to it, and this number."""
    if not isinstance(value, TensorNode) or not isinstance(value.expr, Apply) or not value.expr.record.rule.adds:
        return value, 0
    for inner, added in (value.expr.inputs, value.expr.inputs[::-1]):
        number = np.asarray(constant_value(added))
        if number.dtype.kind == "i" and number.size == 1 and inner.shape == value.shape:
            return inner, int(number.reshape(()))
    return value, 0


def _first_place(node: OnnxNode, starts: Tensor, *, place: int, length: int) -> Tensor:
    """The one place that a slice takes; it is beyond the end, where an index is refused, if there is none."""
    first, total = starts[place].astype("int64"), size_tensor(length)
    last = F.logical_or(first == -1, first < -total)  # from -1 to 0 there is no place
    return F.where(last, total, first).reshape(1)


def _places_between(node: OnnxNode, starts: Tensor, ends: Tensor, *, place: int, length: int) -> Tensor:
    """Of so many places, those from one bound to the other, which count from the end where they are negative."""
    places, total = counting(length), size_tensor(length)
    low, high = (bound[place].astype("int64") for bound in (starts, ends))
    low, high = (F.where(bound < 0, bound + total, bound) for bound in (low, high))
    return F.logical_and(places >= low, places < high)


MAX_RUNS = 64  # neighbours that are taken as slices


def chosen(node: OnnxNode, x: Value, axis: int, places: np.ndarray) -> Value:
    """Entries of an axis at places from 0 on: a slice or a few of them, else an index."""
    if not places.size:
        return cut(node, x, {axis: (0, 0, 1)})
    steps = np.diff(places)
    if places.size > 1 and steps[0] and np.all(steps == steps[0]):
        stop = int(places[-1] + steps[0])
        return cut(node, x, {axis: (int(places[0]), None if stop < 0 else least(stop, x.shape[axis]), int(steps[0]))})
    runs = np.split(places, np.flatnonzero(steps != 1) + 1)
    if len(runs) > MAX_RUNS:
        pattern = tuple("i" if a == axis else (None, None, None) for a in range(len(x.shape)))
        return node.apply("index", x, places, pattern=pattern)
    parts = [cut(node, x, {axis: (int(run[0]), int(run[-1]) + 1, 1)}) for run in runs]
    return parts[0] if len(parts) == 1 else node.apply("concat", *parts, axis=axis)


@rule("Pad", quantized=True)
def pad(node: OnnxNode, x: Value) -> Value:
    """Constant, reflect, edge and wrap padding; negative widths cut."""
    rank = len(x.shape)
    pads = node.ints("pads") if node.opset < 11 else node.const_ints(1, "pads")
    axes = node.const_ints(3, "axes") if node.opset >= 18 else None
    axes = tuple(node.axis(a, rank) for a in axes) if axes is not None else tuple(range(rank))
    if pads is None or len(pads) != 2 * len(axes):
        raise node.fail(f"pads is {pads}; expected {counted(2 * len(axes), 'integer')}")
    shape, cuts, widths = x.shape, {}, [(0, 0)] * rank
    for i, axis in enumerate(axes):
        begin, end = pads[i], pads[i + len(axes)]
        widths[axis] = (largest(begin, 0), largest(end, 0))
        cuts[axis] = (largest(-begin, 0), shape[axis] - largest(-end, 0), 1)
    x = cut(node, x, cuts)
    if not any(n or is_open(n) for pair in widths for n in pair):
        return x
    mode = node.attr("mode", "constant")
    if mode == "constant":
        return _filled(node, x, tuple(widths), np.asarray(node.attr("value", 0.0), np.float32))
    if mode not in ("reflect", "edge", "wrap"):
        raise node.fail(f"mode {mode!r} is not supported; expected constant, reflect, edge or wrap")
    near = mode == "edge" or all(is_open((*pair, n)) or max(pair) < n for pair, n in zip(widths, x.shape, strict=True))
    if mode != "wrap" and near:
        return node.apply("pad", x, widths=tuple(widths), mode=mode, value=0.0)
    for axis, pair in enumerate(widths):  # further than the elements reach: places, again and again
        if is_open((*pair, x.shape[axis])) and pair != (0, 0):
            x = node.composed(_turned, x, axis=axis, pair=pair, wrap=mode == "wrap")
        elif any(pair):
            x = chosen(node, x, axis, np.pad(np.arange(x.shape[axis]), pair, mode=mode))
    return x


def _turned(node: OnnxNode, x: Tensor, *, axis: int, pair: tuple[int, int], wrap: bool) -> Tensor:
    """An axis of an open length wrapped or reflected at its ends, any number of times."""
    length, (begin, end) = x.shape[axis], pair
    places, last = counting(begin + length + end) - size_tensor(begin), size_tensor(length) - 1
    around = last + 1 if wrap else F.maximum(2 * last, 1)
    turned = apply("mod", places, around)
    index = turned if wrap else F.minimum(turned, around - turned)
    return apply("index", x, index, pattern=tuple("i" if a == axis else (None, None, None) for a in range(x.ndim)))


def _filled(node: OnnxNode, x: Value, widths: tuple[tuple[int, int], ...], stated: np.ndarray) -> Value:
    """X with a constant around it; a computed one, or an integer that floats do not hold, is put there afterwards."""
    fill = stated if node.opset < 11 else node.optional(2)
    fill = np.zeros((), storage_of(spec_of(x).dtype)) if fill is None else fill
    number = 0.0 if isinstance(fill, TensorNode) else float(fill.reshape(-1)[0])
    if isinstance(own := spec_of(x).dtype, QuantizedDType):
        return node.apply("pad", x, widths=widths, mode="constant", value=(number - own.zero_point) * own.only_scale)
    made = node.apply("pad", x, widths=widths, mode="constant", value=number)
    if isinstance(fill, np.ndarray) and (is_float(fill.dtype) or number == fill.reshape(-1)[0]):
        return made
    ones = node.apply("broadcast_to", np.ones((), bool), shape=x.shape)
    inside = node.apply("pad", ones, widths=widths, mode="constant", value=0.0)
    return node.apply("where", inside, made, node.reshape(fill, ()))


@rule("Expand", quantized=True)
def expand(node: OnnxNode, x: Value) -> Value:
    """Broadcasts to a shape, both ways as NumPy."""
    wanted = node.const_ints(1, "shape")
    if wanted is None:
        raise node.fail("its shape is missing")
    if len(wanted) > MAX_AXES or min(wanted, default=0) < 0:
        raise node.fail(f"its shape is {brief(wanted)}; expected at most {MAX_AXES} sizes from 0 on")
    try:
        np.broadcast_shapes(x.shape, wanted)
    except ValueError:
        raise node.fail(f"{x.shape} does not broadcast to {wanted}") from None
    shape = broadcast((x.shape, wanted))
    return x if shape == x.shape else node.apply("broadcast_to", x, shape=shape)


@rule("Cast")
def cast(node: OnnxNode, x: Value) -> Value:
    """To another number type."""
    return node.cast(x, node.dtype(node.attr("to", 0)))


@rule("CastLike")
def cast_like(node: OnnxNode, x: Value, like: Value) -> Value:
    """To the number type of another value."""
    return node.cast(x, storage_of(spec_of(like).dtype))


@rule("BitCast")
def bit_cast(node: OnnxNode, x: Value) -> Value:
    """The same bits as numbers of another type."""
    return node.apply("bitcast", x, dtype=node.dtype(node.attr("to", 0)))
