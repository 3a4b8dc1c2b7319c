"""Writers of windows: pooling, and windows whose widths of padding follow from open sizes."""

from typing import Any

import numpy as np

from megengine.convert.onnx.writing import Writer, attribute, writer
from megengine.core.dtype import storage_of
from megengine.core.sizes import is_open
from megengine.ops.pool_nd import pool_counts
from megengine.traced_module.ir.expr import Apply

_WINDOW = {"kernel": "kernel_shape", "stride": "strides", "padding": "pads", "dilation": "dilations"}


def emit_window(w: Writer, op_type: str, expr: Apply, names: list[str], attrs: dict[str, Any]) -> None:
    """Append the node of an op whose window slides over its first input; open widths of padding are a Pad before it.

    Args:
        names: the inputs of the node.
        attrs: its attributes, tuples as the op has them.
    """
    if not is_open(attrs["pads"]):
        w.emit(op_type, expr, names, **{name: attribute(value) for name, value in attrs.items()})
        return
    dtype, name, widths = storage_of(expr.inputs[0].dtype), expr.outputs[0].name, attrs["pads"]
    rest = {theirs: attribute(value) for theirs, value in attrs.items() if theirs != "pads"}
    fill = _lowest(dtype) if op_type == "MaxPool" else np.zeros((), dtype)
    around = padded(w, names[0], widths, fill, name)
    if op_type != "AveragePool" or rest.pop("count_include_pad"):
        counts = {"count_include_pad": 1} if op_type == "AveragePool" else {}
        w.emit(op_type, expr, [around, *names[1:]], **rest, **counts)
        return
    sizes = w.constant([1, 1, *expr.inputs[0].shape[2:]], f"{name}_sizes", np.int64)
    one = w.constant(np.ones((1, 1, *(1 for _ in widths))), f"{name}_one", dtype)
    inside = padded(w, w.add("Expand", [one, sizes], f"{name}_ones"), widths, fill, name)
    parts = [w.add(op_type, [value], f"{name}_mean", **rest) for value in (around, inside)]
    w.emit("Div", expr, parts)


def padded(w: Writer, value: str, widths: tuple[tuple[int, int], ...], fill: np.ndarray, name: str) -> str:
    """A value [N, C, ...] with widths around it that may follow from open sizes."""
    pads = attribute(((0, 0), (0, 0), *widths))
    return w.add("Pad", [value, w.constant(pads, f"{name}_pads", np.int64), w.constant(fill, f"{name}_fill")], name)


def _lowest(dtype: np.dtype) -> np.ndarray:
    return np.array(np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf, dtype)


def _window(expr: Apply) -> dict[str, Any]:
    return {theirs: expr.attrs[ours] for ours, theirs in _WINDOW.items()}


@writer("pool")
def pool(w: Writer, expr: Apply) -> None:
    """MaxPool or AveragePool; before opset 19 a mean with gaps is a sum by Conv, divided."""
    a, window, x, name = expr.attrs, _window(expr), expr.inputs[0], expr.outputs[0].name
    if a["largest"]:
        emit_window(w, "MaxPool", expr, [w.value(x)], window)
    elif set(a["dilation"]) == {1} or w.opset >= 19:
        if w.opset < 19:
            del window["dilations"]
        emit_window(w, "AveragePool", expr, [w.value(x)], {**window, "count_include_pad": int(a["count_include_pad"])})
    else:
        if is_open(x.spec.shape):
            raise w.newer(expr, f"a dilated mean of the open shape {x.spec.shape}", 19)
        ones = w.constant(np.ones((x.shape[1], 1, *a["kernel"])), f"{name}_ones", storage_of(x.dtype))
        attrs = {theirs: attribute(value) for theirs, value in window.items()}
        total = w.add("Conv", [w.value(x), ones], f"{name}_sum", group=x.shape[1], **attrs)
        counts = w.constant(pool_counts(x.shape[2:], **a), f"{name}_counts", storage_of(x.dtype))
        w.emit("Div", expr, [total, counts])


@writer("max_pool_indices")
def max_pool_indices(w: Writer, expr: Apply) -> None:
    """The second result of MaxPool."""
    name, columns_first = expr.outputs[0].name, int(expr.attrs["columns_first"])
    inputs, outputs = [w.value(expr.inputs[0])], [w.free(f"{name}_largest"), name]
    attrs = {theirs: attribute(value) for theirs, value in _window(expr).items()}
    w.add("MaxPool", inputs, outputs, storage_order=columns_first, **attrs)
