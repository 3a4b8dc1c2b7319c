"""Import rules of reductions and of losses' parts."""

import numpy as np

from megengine import functional as F
from megengine.convert.onnx.context import OnnxNode, composition
from megengine.core.dtype import is_float, storage_of
from megengine.dispatch import apply
from megengine.tensor import Tensor

# what is done before and after the reduction `op`
COMPOSED = {
    "ReduceL1": (F.abs, "sum", None),
    "ReduceL2": (F.square, "sum", F.sqrt),
    "ReduceLogSum": (None, "sum", F.log),
    "ReduceSumSquare": (F.square, "sum", None),
}
EMPTY = {"ReduceMax": -np.inf, "ReduceMin": np.inf}


@composition(*COMPOSED, "ReduceLogSumExp", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
def reduce(node: OnnxNode, x: Tensor) -> Tensor:
    """Axes are an attribute in old opsets and an input in new ones; none means all, or the elements as they are."""
    stated = node.ints("axes") if "axes" in node.attrs else node.const_ints(1, "axes")
    before, op, after = COMPOSED.get(node.op_type, (None, node.op_type.removeprefix("Reduce").lower(), None))
    if not stated and node.attr("noop_with_empty_axes", 0):
        axes: tuple[int, ...] = ()
        op = "sum" if node.op_type == "ReduceMean" else op
    else:
        axes = tuple(sorted({node.axis(axis, x.ndim) for axis in stated or range(x.ndim)}))
    keep = node.attr("keepdims", 1) == 1
    if op == "logsumexp":
        values = x if is_float(x.dtype) else x.astype("float32")
        if not axes:
            return x
        if not all(x.shape[axis] for axis in axes):
            total = F.log(apply("sum", F.exp(values), axis=axes, keepdims=keep))
        else:
            total = F.logsumexp(values, axes, keepdims=keep)
        return total if total.dtype == x.dtype else total.astype(x.dtype)
    made = x if before is None else before(x)
    # the mean of integers and the root of a sum are computed as floats, and given as what the input is
    made = made.astype("float32") if node.op_type == "ReduceMean" and not is_float(made.dtype) else made
    made = _reduced(node, op, made, axes, keep) if axes else made
    made = made if after is None else after(made)
    return made if made.dtype == x.dtype else made.astype(x.dtype)


def _reduced(node: OnnxNode, op: str, x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if node.op_type not in EMPTY or all(x.shape[axis] for axis in axes):
        return apply(op, x, axis=axes, keepdims=keep)
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes)
    dtype = storage_of(x.dtype)
    if dtype.kind not in "iub":
        return Tensor._wrap(np.full(shape, EMPTY[node.op_type], dtype))
    low, high = (False, True) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return Tensor._wrap(np.full(shape, low if EMPTY[node.op_type] < 0 else high, dtype))
