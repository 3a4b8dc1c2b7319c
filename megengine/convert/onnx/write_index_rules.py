"""Write rules of slices, indexing, item assignment, one-hot codes, largest elements and resizing."""

import math

import numpy as np

from megengine.convert.onnx.write_integer_rules import resized_integers
from megengine.convert.onnx.writing import Writer, quantized, storage, writer
from megengine.core.sizes import broadcast, is_open, slice_bounds
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode


@writer("resize")
def resize(w: Writer, expr: Apply) -> None:
    """Resize to given lengths; of integers, products with whole weights."""
    if quantized(expr.inputs[0]) is not None:
        return resized_integers(w, expr)
    mode, corners = expr.attrs["mode"], expr.attrs["corners"]
    where = "asymmetric" if mode == "nearest" else "align_corners" if corners else "half_pixel"
    sizes = w.constant(list(expr.outputs[0].spec.shape), f"{expr.outputs[0].name}_sizes", np.int64)
    attrs = {"nearest_mode": "floor"} if mode == "nearest" else {}
    names = [w.value(expr.inputs[0]), "", "", sizes]
    w.emit("Resize", expr, names, mode=mode, coordinate_transformation_mode=where, **attrs)


@writer("numbers")
def numbers(w: Writer, expr: Apply) -> None:
    """The numbers from 0 up to a limit."""
    name = expr.outputs[0].name
    first, step = (w.constant(n, f"{name}_{n}", np.int64) for n in (0, 1))
    w.emit("Range", expr, [first, w.value(expr.inputs[0]), step])


@writer("one_hot")
def one_hot(w: Writer, expr: Apply) -> None:
    """OneHot along a new last axis."""
    import onnx

    x, name = expr.inputs[0], expr.outputs[0].name
    depth = w.constant(expr.attrs["depth"], f"{name}_depth", np.int64)
    off_on = w.constant([0, 1], f"{name}_off_on", np.int64)  # runtimes have few types of OneHot: int64 is one of them
    wide = w.add("Cast", [w.value(x)], f"{name}_wide", to=onnx.TensorProto.INT64)
    if not x.shape:
        wide = w.add("Reshape", [wide, w.constant([1], f"{name}_one", np.int64)], f"{name}_row")
    made = w.add("OneHot", [wide, depth, off_on], f"{name}_codes", axis=-1)
    if not x.shape:
        made = w.add("Reshape", [made, w.constant([-1], f"{name}_flat", np.int64)], f"{name}_code")
    w.emit("Cast", expr, [made], to=onnx.TensorProto.INT32)


@writer("topk")
def topk(w: Writer, expr: Apply) -> None:
    """TopK along the last axis; ONNX gives int64 indices, ours are int32."""
    import onnx

    values, indices = expr.outputs
    count = w.constant([expr.attrs["k"]], f"{values.name}_k", np.int64)
    wide, largest = w.free(f"{indices.name}_wide"), int(bool(expr.attrs["descending"]))
    names = [w.value(expr.inputs[0]), count]
    w.add("TopK", names, [values.name, wide], axis=-1, largest=largest, sorted=1)
    w.add("Cast", [wide], [indices.name], to=onnx.TensorProto.INT32)


@writer("index")
def index(w: Writer, expr: Apply) -> None:
    """Slice, then Gather for one index tensor, or GatherND for several.

    GatherND takes indices of leading axes: indexed axes are moved to the front, and what was taken is moved to where
    NumPy has it (in the place of the indexed axes if these lie side by side, else in front).
    """
    data, pattern = expr.inputs[0], expr.attrs["pattern"]
    if 0 in (made := expr.outputs[0].shape) and not is_open(made):  # an open length may be 0 at the example alone
        w.emit_empty(expr)
        return
    indexed = [axis for axis, part in enumerate(pattern) if part == "i"]
    names = _slice_inputs(w, data, pattern, expr.outputs[0].name)
    name = w.add("Slice", names, f"{expr.outputs[0].name}_sliced") if len(names) > 1 else names[0]
    if len(indexed) == 1:
        w.emit("Gather", expr, [name, _wide(w, expr.inputs[1])], axis=indexed[0])
        return
    others = [axis for axis in range(len(pattern)) if axis not in indexed]
    label = expr.outputs[0].name
    perm = [*indexed, *others]
    moved = name if perm == sorted(perm) else w.add("Transpose", [name], f"{label}_moved", perm=perm)
    shape = broadcast([n.spec.shape for n in expr.inputs[1:]])
    names = [moved, _together(w, tuple(expr.inputs[1:]), shape, label)]
    rank, before = len(shape), indexed[0] if indexed == list(range(indexed[0], indexed[-1] + 1)) else 0
    if before == 0:
        w.emit("GatherND", expr, names)
        return
    taken = w.add("GatherND", names, f"{label}_taken")
    perm = [*range(rank, rank + before), *range(rank), *range(rank + before, rank + len(others))]
    w.emit("Transpose", expr, [taken], perm=perm)


@writer("slice")
def slice_(w: Writer, expr: Apply) -> None:
    """Slice with constant bounds."""
    pattern = tuple(zip(*(expr.attrs[name] for name in _BOUNDS), strict=True))
    names = _slice_inputs(w, expr.inputs[0], pattern, expr.outputs[0].name)
    w.emit("Slice" if len(names) > 1 else "Identity", expr, names)


def _slice_inputs(w: Writer, data: TensorNode, pattern: tuple, label: str) -> list[str]:
    """The value and the bounds of the axes that are not taken whole; the value alone where all are."""
    ranges = {axis: _bounds(part, data.spec.shape[axis]) for axis, part in enumerate(pattern) if part != "i"}
    ranges = {axis: bounds for axis, bounds in ranges.items() if bounds != (0, data.shape[axis], 1)}
    if not ranges:
        return [w.value(data)]
    columns = dict(zip(_BOUNDS, zip(*ranges.values(), strict=True), strict=True))
    parts = {"starts": columns["starts"], "stops": columns["stops"], "axes": ranges, "steps": columns["steps"]}
    return [w.value(data), *(w.constant(list(c), f"{label}_{name}", np.int64) for name, c in parts.items())]


_BOUNDS = ("starts", "stops", "steps")


def _bounds(part: tuple, length: int) -> tuple[int, int, int]:
    """Start, stop and step that mean the same in ONNX, where a negative bound counts from the end in any case."""
    if is_open((part, length)):
        start, stop, step = part
        start, stop, step = slice_bounds(start, stop, step, length)
        return start, stop - length if step < 0 else stop, step
    places = range(*slice(*part).indices(length))
    if len(places) <= 1:
        return (places[0], places[0] + 1, 1) if places else (0, 0, 1)
    past = places[-1] + places.step
    return places[0], past if past >= 0 else -length - 1, places.step


def _together(w: Writer, indices: tuple[TensorNode, ...], shape: tuple[int, ...], label: str) -> str:
    """Index tensors as one of int64 [..., number of them]."""
    if all(isinstance(n.expr, Constant) for n in indices):
        arrays = np.broadcast_arrays(*(storage(n) for n in indices))
        return w.constant(np.stack(arrays, -1), f"{label}_indices", np.int64)
    last = w.constant([len(shape)], f"{label}_last", np.int64)
    target = w.constant(list(shape), f"{label}_shape", np.int64)
    parts = []
    for node in indices:
        wide = _wide(w, node)
        wide = w.add("Expand", [wide, target], f"{node.name}_expanded") if node.shape != shape else wide
        parts.append(w.add("Unsqueeze", [wide, last], f"{node.name}_column"))
    return w.add("Concat", parts, f"{label}_indices", axis=len(shape))


def _wide(w: Writer, node: TensorNode) -> str:
    """An index tensor as int64: ONNX takes no narrow ones."""
    import onnx

    if isinstance(node.expr, Constant):
        return w.constant(storage(node), f"{node.name}_wide", np.int64)
    if node.dtype == np.int64:
        return w.value(node)
    return w.add("Cast", [w.value(node)], f"{node.name}_wide", to=onnx.TensorProto.INT64)


@writer("scatter_elements", "scatter_nd")
def scatter(w: Writer, expr: Apply) -> None:
    """ScatterElements and ScatterND; their reductions are newer than the operators."""
    reduction = expr.attrs["reduction"]
    since = {"none": 0, "add": 16, "mul": 16}.get(reduction, 18)
    if w.opset < since:
        raise w.newer(expr, f"reduction {reduction!r}", since)
    attrs = {} if reduction == "none" else {"reduction": reduction}
    if expr.op == "scatter_elements":
        w.emit("ScatterElements", expr, axis=int(expr.attrs["axis"]), **attrs)
    else:
        x, places, updates = expr.inputs  # of int64, unlike those of ScatterElements
        w.emit("ScatterND", expr, [w.value(x), _wide(w, places), w.value(updates)], **attrs)


@writer("set_index")
def set_index(w: Writer, expr: Apply) -> None:
    """ScatterND over the flat tensor: which elements are set is known where the indices are constants."""
    data, value, *indices = expr.inputs
    if not all(isinstance(n.expr, Constant) for n in indices):
        raise w.unsupported(expr, "assignment where computed indices say; only constant indices are written")
    if is_open(data.spec.shape):
        raise w.unsupported(expr, f"assignment to a value of the open shape {data.spec.shape}; give fixed input shapes")
    supply = iter(storage(n) for n in indices)
    key = tuple(next(supply) if part == "i" else slice(*part) for part in expr.attrs["pattern"])
    places = np.arange(math.prod(data.shape)).reshape(data.shape)[key]
    if np.unique(places).size != places.size:
        raise w.unsupported(expr, "assignment to one element twice, whose order ONNX leaves open")
    if not places.size:
        w.emit("Identity", expr, [w.value(data)])
        return
    name = expr.outputs[0].name
    flat = w.add("Reshape", [w.value(data), w.constant([-1], f"{name}_all", np.int64)], f"{name}_flat")
    spread = w.value(value)
    if value.shape != places.shape:
        full = w.constant(list(places.shape), f"{name}_places_shape", np.int64)
        spread = w.add("Expand", [spread, full], f"{name}_spread")
    spread = w.add("Reshape", [spread, w.constant([-1], f"{name}_row", np.int64)], f"{name}_values")
    where = w.constant(places.reshape(-1, 1), f"{name}_places", np.int64)
    made = w.add("ScatterND", [flat, where, spread], f"{name}_set")
    w.emit("Reshape", expr, [made, w.constant(list(data.shape), f"{name}_shape", np.int64)])


def _in_float32(w: Writer, node: TensorNode) -> str:
    """The value as the only type that the operator takes."""
    import onnx

    name = w.value(node)
    same = node.spec.dtype == np.float32
    return name if same else w.add("Cast", [name], f"{node.name}_float", to=onnx.TensorProto.FLOAT)


@writer("nms")
def nms(w: Writer, expr: Apply) -> None:
    """NonMaxSuppression of one picture and class; the last column of its result, int32."""
    import onnx

    name, limit = expr.outputs[0].name, expr.attrs["limit"]
    first, second = (w.constant(axes, f"{name}_axes", np.int64) for axes in ([0], [0, 1]))
    boxes, scores = (
        w.add("Unsqueeze", [_in_float32(w, node), axes], f"{node.name}_batch")
        for node, axes in zip(expr.inputs, (first, second), strict=True)
    )
    most = w.constant([np.iinfo(np.int32).max if limit is None else limit], f"{name}_limit", np.int64)
    overlap = w.constant([expr.attrs["threshold"]], f"{name}_overlap", np.float32)
    kept = w.add("NonMaxSuppression", [boxes, scores, most, overlap], f"{name}_kept")
    column = w.add("Gather", [kept, w.constant(2, f"{name}_column", np.int64)], f"{name}_places", axis=1)
    w.emit("Cast", expr, [column], to=onnx.TensorProto.INT32)


@writer("batched_nms")
def batched_nms(w: Writer, expr: Apply) -> None:
    """NonMaxSuppression of the standard, whose limit comes before its two numbers."""
    boxes, scores, limit, overlap, least = expr.inputs
    places = (_in_float32(w, boxes), _in_float32(w, scores), w.value(limit))
    bounds = (_in_float32(w, overlap), _in_float32(w, least))
    w.emit("NonMaxSuppression", expr, [*places, *bounds], center_point_box=int(expr.attrs["center"]))
