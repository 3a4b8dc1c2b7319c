"""Networks and data of which no quantized network can be made."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import CalibrationError, QuantizationError
from megengine.core.text import counted
from megengine.dispatch import get_op
from megengine.quantization import TensorStatistics
from megengine.traced_module import InternalGraph, TracedModule
from megengine.traced_module.ir.expr import Apply, Constant


def check_weights(model: TracedModule, name: str = "") -> None:
    """Raises QuantizationError if a stored value is NaN or a weight infinite; `name` says which of several models."""
    for expr in model.graph.exprs():
        if not isinstance(expr, Constant) or storage_of(expr.outputs[0].spec.dtype).kind != "f":
            continue
        value = np.asarray(expr.value.numpy())
        layers = [use for use in expr.outputs[0].users if isinstance(use, Apply)]
        weight = value.ndim > 1 and any(get_op(use.op).weighted for use in layers)
        bad = int((~np.isfinite(value) if weight else np.isnan(value)).sum())
        if bad:
            reader = layers[0].outputs[0].name if layers else "nothing"
            what = f"{f'model {name!r}, ' if name else ''}constant {expr.outputs[0].name!r}"
            raise QuantizationError(
                f"{what}: {bad} of {counted(value.size, 'value')} are NaN or infinite, "
                f"read by {reader!r}; train or export the model again"
            )


def check_varies(graph: InternalGraph, batches: Iterable[Sequence[Any]], data: str) -> None:
    """Raises CalibrationError as `check_data` does, from the samples themselves; it reads until values differ."""
    equal: dict[str, tuple[int, float]] = {}  # how many values were seen, and the one
    left = {n.name for n in graph.inputs if storage_of(n.spec.dtype).kind == "f"}
    for batch in batches:
        for node, array in zip(graph.inputs, map(np.asarray, batch), strict=False):
            if node.name not in left or not array.size:
                continue
            count, value = equal.get(node.name, (0, array.flat[0]))
            if array.dtype.kind in "fiub" and (array == value).all():
                equal[node.name] = count + array.size, value
            else:
                left.discard(node.name)
        if not left:
            return
    for name, (count, value) in equal.items():
        if name in left and count > 1:
            _refuse_equal(data, name, count, value)


def _refuse_equal(data: str, name: str, count: int, value: float) -> None:
    raise CalibrationError(
        f"data {data!r}: all {counted(count, 'value')} of input {name!r} are {float(value) + 0.0:g}, "
        "so no range can be learnt from them; give samples of what the network will see"
    )


def check_data(graph: InternalGraph, stats: Mapping[str, TensorStatistics], data: str) -> None:
    """Raises CalibrationError if all values of an input are the same, as in an empty or broken file."""
    for node in graph.inputs:
        seen = stats.get(node.name)
        if seen is not None and seen.count > 1 and seen.minimum == seen.maximum:
            _refuse_equal(data, node.name, seen.count, seen.minimum)
