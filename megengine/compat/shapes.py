"""Op classes of shapes, reductions, matrices and order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.compat.opdef import LARGEST, choice, integers, op_class, op_like, word_of
from megengine.core.errors import OptionError, ShapeError
from megengine.distributed.helper import param_pack_concat, param_pack_split
from megengine.tensor import Tensor

STRATEGY = choice("Convolution.Strategy", "HEURISTIC PROFILE REPRODUCIBLE OPTIMIZED")  # how kernels are chosen


@op_class(axis=())
def AddAxis(op: Any, x: Tensor) -> Tensor:
    """New axes of length 1; each position counts those put in before it."""
    for axis in op.axis:
        x = F.expand_dims(x, axis)
    return x


@op_class(axis=())
def RemoveAxis(op: Any, x: Tensor) -> Tensor:
    """Axes of length 1 go; each position counts without those taken before it."""
    for axis in op.axis:
        x = F.squeeze(x, axis)
    return x


def _lengths(what: str, option: Sequence[int], shape: Tensor | None) -> list[int]:
    if shape is not None:
        return integers(what, shape)
    if not option:
        raise ShapeError(f"{what}: got no shape; expected a second tensor, or shape=[...]")
    return list(option)


@op_class(axis=7, shape=())
def Reshape(op: Any, x: Tensor, shape: Tensor | None = None) -> Tensor:
    """The elements in another shape, which is a tensor or an option; the length at `axis` follows from the others."""
    lengths = _lengths("Reshape", op.shape, shape)
    if op.axis < len(lengths):
        lengths[op.axis] = -1
    return F.reshape(x, lengths)


@op_class(shape=())
def Broadcast(op: Any, x: Tensor, shape: Tensor | None = None) -> Tensor:
    """The tensor repeated to a shape, which is a tensor or an option; axes are added in front."""
    return F.broadcast_to(x, _lengths("Broadcast", op.shape, shape))


@op_class(pattern=())
def Dimshuffle(op: Any, x: Tensor) -> Tensor:
    """Axes in another order; -1 makes a new one of length 1."""
    pattern: Any = ["x" if axis == -1 else axis for axis in op.pattern]
    return F.transpose(x, pattern)


@op_class(axis=0, comp_node="")
def Concat(op: Any, *inputs: Tensor) -> Tensor:
    """Tensors of one dtype, one after the other along an axis."""
    return F.concat(inputs, op.axis)


@op_class(axis=0, comp_node="")
def Stack(op: Any, *inputs: Tensor) -> Tensor:
    """Tensors of one shape along a new axis."""
    return F.stack(inputs, op.axis)


@op_class(axis=0, nsections=0)
def Split(op: Any, x: Tensor, *lengths: Tensor) -> tuple[Tensor, ...]:
    """Parts along an axis: `nsections` equal ones, or of the lengths that further tensors give."""
    if not lengths:
        return F.split(x, op.nsections, op.axis)
    ends = np.cumsum([integers("Split", n)[0] for n in lengths])
    if ends[-1] != x.shape[op.axis]:
        raise ShapeError(f"Split: lengths sum to {ends[-1]}; expected {x.shape[op.axis]}, the length of the axis")
    return F.split(x, [int(n) for n in ends[:-1]], op.axis)


@op_class(indexing="")
def MeshGrid(op: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Grids of coordinates; `indexing` is "xy" (the default) or "ij"."""
    return F.meshgrid(*inputs, indexing=op.indexing or "xy")


@op_class(axis=LARGEST, exclusive=True, reverse=False)
def Cumsum(op: Any, x: Tensor) -> Tensor:
    """Running sums along an axis; `exclusive` without the element itself, `reverse` from the end."""
    key = [slice(None)] * x.ndim
    key[op.axis] = slice(None, None, -1)
    turned = x[tuple(key)] if op.reverse else x
    sums = F.cumsum(turned, op.axis)
    sums = sums - turned if op.exclusive else sums
    return sums[tuple(key)] if op.reverse else sums


_OFFSETS = {f"{side}_offset_dim{k}": 0 for side in ("front", "back") for k in range(7)}
_PADDING_MODE = choice("Padding.PaddingMode", "REPLICATE REFLECT CONSTANT")


@op_class(**_OFFSETS, padding_val=0.0, padding_mode=_PADDING_MODE.CONSTANT)
def Padding(op: Any, x: Tensor) -> Tensor:
    """Elements added in front of and behind each axis; `REPLICATE` repeats the edge, `REFLECT` mirrors without it."""
    widths = [(getattr(op, f"front_offset_dim{k}"), getattr(op, f"back_offset_dim{k}")) for k in range(x.ndim)]
    return F.nn.pad(x, widths, word_of(op.padding_mode).lower(), op.padding_val)


@op_class(offsets=())
def ParamPackConcat(op: Any, *inputs: Tensor) -> Tensor:
    """Tensors flattened into one; `offsets`, also the last input, are the first and last position of each."""
    return param_pack_concat(inputs[:-1], inputs[-1], op.offsets)


@op_class(offsets=(), shapes=())
def ParamPackSplit(op: Any, x: Tensor) -> tuple[Tensor, ...]:
    """The inverse of `ParamPackConcat`: one tensor for each of `shapes`."""
    return param_pack_split(x, op.offsets, op.shapes)


@op_class(
    mode=choice("Reduce.Mode", "SUM SUM_SQR PRODUCT MIN MAX MEAN"),
    axis=LARGEST,
    data_type=choice("Reduce.DataType", "DEFAULT FLOAT_IO16xC32 FLOAT_O32xC32 FLOAT_O16xC32 QUINT_I8xO32 QINT_I8xO32"),
    keepdim=True,
)
def Reduce(op: Any, x: Tensor, shape: Tensor | None = None) -> Tensor:
    """A reduction along an axis, of all elements without one, or to a shape that is a tensor.

    It keeps the axis, as MegEngine does, unless `keepdim` is false.
    """
    if shape is None:
        axis = None if op.axis == LARGEST else op.axis
        return _reduced(op, x, axis, keep=op.keepdim and axis is not None)
    if op.axis != LARGEST:
        raise OptionError("Reduce: got an axis and the shape of the result; expected one of them")
    lengths = tuple(integers("Reduce", shape))
    if lengths == (1,):
        return F.reshape(_reduced(op, x, None, keep=False), (1,))
    axes = [k for k, (have, want) in enumerate(zip(x.shape, lengths, strict=False)) if have != want]
    if len(lengths) != x.ndim or any(lengths[k] != 1 for k in axes):
        raise ShapeError(f"Reduce: {tuple(x.shape)} cannot be reduced to {lengths}; lengths stay or become 1")
    for axis in axes:
        x = _reduced(op, x, axis, keep=True)
    return x


def _reduced(op: Any, x: Tensor, axis: int | None, *, keep: bool) -> Tensor:
    mode = word_of(op.mode)
    name = {"SUM_SQR": "sum", "PRODUCT": "prod"}.get(mode, mode.lower())
    return getattr(F, name)(x * x if mode == "SUM_SQR" else x, axis=axis, keepdims=keep)


@op_class(axis=0)
def Argmax(op: Any, x: Tensor) -> Tensor:
    """Positions (int32) of the largest elements along an axis, which stays with length 1."""
    return F.argmax(x, op.axis, keepdims=True)


@op_class(axis=0)
def Argmin(op: Any, x: Tensor) -> Tensor:
    """Positions (int32) of the smallest elements along an axis, which stays with length 1."""
    return F.argmin(x, op.axis, keepdims=True)


@op_class(order=choice("Argsort.Order", "ASCENDING DESCENDING"))
def Argsort(op: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Elements in order along the last axis, and where each came from."""
    return F.sort(x, descending=op.order == "DESCENDING")


@op_class(mode=choice("TopK.Mode", "KTH_ONLY VALUE_IDX_NOSORT VALUE_IDX_SORTED"))
def TopK(op: Any, x: Tensor, k: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    """The k smallest of each row, or the -k largest: values and positions, or the kth value alone."""
    count = integers("TopK", k)[0]
    kth = op.mode == "KTH_ONLY"
    values = F.topk(x, abs(count), descending=count < 0, kth_only=kth, no_sort=op.mode == "VALUE_IDX_NOSORT")
    return values[0] if kth and isinstance(values, tuple) else values


@op_class(axis=-1)
def Softmax(op: Any, x: Tensor) -> Tensor:
    """Exponentials divided by their sum along an axis."""
    return F.softmax(x, op.axis)


@op_class()
def CondTake(op: Any, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Elements where a mask is true, and their positions in the flat tensor; both flat."""
    return F.cond_take(mask, x)


@op_class(
    **{"transposeA": False, "transposeB": False},
    compute_mode=choice("MatrixMul.ComputeMode", "DEFAULT FLOAT32"),
    format=choice("MatrixMul.Format", "DEFAULT MK4 MK8 MK4_DOT N32K4_DOT"),
    strategy=STRATEGY,
    **{"dimA": 0, "dimB": 0},
)
def MatrixMul(op: Any, a: Tensor, b: Tensor) -> Tensor:
    """Product of matrices, either of them transposed; leading axes of `a` or `b` are kept."""
    return F.matmul(a, b, op.transposeA, op.transposeB)


BatchedMatrixMul = op_like(MatrixMul, "BatchedMatrixMul", "Products of matrices, pair by pair.")


@op_class()
def Dot(op: Any, a: Tensor, b: Tensor) -> Tensor:
    """Sum of products of two flat tensors, without axes."""
    return F.dot(a, b)


@op_class()
def MatrixInverse(op: Any, x: Tensor) -> Tensor:
    """Inverses of square matrices, which are the last two axes."""
    return F.matinv(x)


@op_class(full_matrices=False, compute_uv=True)
def SVD(op: Any, x: Tensor) -> Any:
    """U, the singular values, and V transposed; without `compute_uv` the values alone."""
    return F.svd(x, op.full_matrices, op.compute_uv)
