"""Op classes of shapes, reductions, matrices and order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.compat.opdef import LARGEST, OpDef, choice, integers, word_of
from megengine.core.errors import OptionError, ShapeError
from megengine.tensor import Tensor

STRATEGY = choice("Convolution.Strategy", "HEURISTIC PROFILE REPRODUCIBLE OPTIMIZED")  # how kernels are chosen


class AddAxis(OpDef):
    """New axes of length 1; each position counts those put in before it."""

    axis: Sequence[int] = ()

    def run(self, x: Tensor) -> Tensor:
        """The same elements."""
        for axis in self.axis:
            x = F.expand_dims(x, axis)
        return x


class RemoveAxis(OpDef):
    """Axes of length 1 go; each position counts without those taken before it."""

    axis: Sequence[int] = ()

    def run(self, x: Tensor) -> Tensor:
        """The same elements."""
        for axis in self.axis:
            x = F.squeeze(x, axis)
        return x


def _lengths(what: str, given: Sequence[int], shape: Tensor | None) -> list[int]:
    if shape is not None:
        return integers(what, shape)
    if not given:
        raise ShapeError(f"{what}: got no shape; expected a second tensor, or shape=[...]")
    return list(given)


class Reshape(OpDef):
    """The elements in another shape, which is a tensor or an option; the length at `axis` is what is left."""

    axis: int = 7
    shape: Sequence[int] = ()

    def run(self, x: Tensor, shape: Tensor | None = None) -> Tensor:
        """As many elements."""
        lengths = _lengths("Reshape", self.shape, shape)
        if self.axis < len(lengths):
            lengths[self.axis] = -1
        return F.reshape(x, lengths)


class Broadcast(OpDef):
    """The tensor repeated to a shape, which is a tensor or an option."""

    shape: Sequence[int] = ()

    def run(self, x: Tensor, shape: Tensor | None = None) -> Tensor:
        """Axes are added in front."""
        return F.broadcast_to(x, _lengths("Broadcast", self.shape, shape))


class Dimshuffle(OpDef):
    """Axes in another order; -1 makes a new one of length 1."""

    pattern: Sequence[int] = ()

    def run(self, x: Tensor) -> Tensor:
        """The same elements."""
        pattern: Any = ["x" if axis == -1 else axis for axis in self.pattern]
        return F.transpose(x, pattern)


class Concat(OpDef):
    """Tensors one after the other along an axis."""

    axis: int = 0
    comp_node: str = ""

    def run(self, *inputs: Tensor) -> Tensor:
        """Of one dtype."""
        return F.concat(inputs, self.axis)


class Stack(OpDef):
    """Tensors along a new axis."""

    axis: int = 0
    comp_node: str = ""

    def run(self, *inputs: Tensor) -> Tensor:
        """Of one shape."""
        return F.stack(inputs, self.axis)


class Split(OpDef):
    """Parts along an axis: `nsections` equal ones, or of the lengths that further tensors give."""

    axis: int = 0
    nsections: int = 0

    def run(self, x: Tensor, *lengths: Tensor) -> tuple[Tensor, ...]:
        """In their order."""
        if not lengths:
            return F.split(x, self.nsections, self.axis)
        ends = np.cumsum([integers("Split", n)[0] for n in lengths])
        if ends[-1] != x.shape[self.axis]:
            raise ShapeError(f"Split: lengths sum to {ends[-1]}; expected {x.shape[self.axis]}, the length of the axis")
        return F.split(x, [int(n) for n in ends[:-1]], self.axis)


class MeshGrid(OpDef):
    """Grids of coordinates."""

    indexing: str = ""

    def run(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """`indexing` is "xy" or "ij"."""
        return F.meshgrid(*inputs, indexing=self.indexing or "xy")


class Cumsum(OpDef):
    """Running sums along an axis; `exclusive` without the element itself, `reverse` from the end."""

    axis: int = LARGEST
    exclusive: bool = True
    reverse: bool = False

    def run(self, x: Tensor) -> Tensor:
        """Of the shape of `x`."""
        key = [slice(None)] * x.ndim
        key[self.axis] = slice(None, None, -1)
        turned = x[tuple(key)] if self.reverse else x
        sums = F.cumsum(turned, self.axis)
        sums = sums - turned if self.exclusive else sums
        return sums[tuple(key)] if self.reverse else sums


class Padding(OpDef):
    """Elements added in front of and behind each axis."""

    front_offset_dim0: int = 0
    front_offset_dim1: int = 0
    front_offset_dim2: int = 0
    front_offset_dim3: int = 0
    front_offset_dim4: int = 0
    front_offset_dim5: int = 0
    front_offset_dim6: int = 0
    back_offset_dim0: int = 0
    back_offset_dim1: int = 0
    back_offset_dim2: int = 0
    back_offset_dim3: int = 0
    back_offset_dim4: int = 0
    back_offset_dim5: int = 0
    back_offset_dim6: int = 0
    padding_val: float = 0.0
    PaddingMode = choice("Padding.PaddingMode", "REPLICATE REFLECT CONSTANT")
    padding_mode: str = PaddingMode.CONSTANT

    def run(self, x: Tensor) -> Tensor:
        """`REPLICATE` repeats the edge, `REFLECT` mirrors without it."""
        widths = [(getattr(self, f"front_offset_dim{k}"), getattr(self, f"back_offset_dim{k}")) for k in range(x.ndim)]
        return F.nn.pad(x, widths, word_of(self.padding_mode).lower(), self.padding_val)


class ParamPackConcat(OpDef):
    """Tensors flattened into one; `offsets` are first and last position of each. The last input is `offsets` again."""

    offsets: Sequence[int] = ()

    def run(self, *inputs: Tensor) -> Tensor:
        """Gaps, which alignment leaves, are zeros."""
        parts: list[Tensor] = []
        at = 0
        for x, start, stop in zip(inputs[:-1], self.offsets[::2], self.offsets[1::2], strict=True):
            parts += [F.zeros(start - at, dtype=x.dtype)] if start > at else []
            parts.append(x.flatten())
            at = stop
        return F.concat(parts)


class ParamPackSplit(OpDef):
    """What `ParamPackConcat` packed, with `shapes`."""

    offsets: Sequence[int] = ()
    shapes: Sequence[Sequence[int]] = ()

    def run(self, x: Tensor) -> tuple[Tensor, ...]:
        """One tensor for each shape."""
        starts = zip(self.offsets[::2], self.offsets[1::2], self.shapes, strict=True)
        return tuple(F.reshape(x[start:stop], tuple(shape)) for start, stop, shape in starts)


# ---------------------------------------------------------------- reductions


class Reduce(OpDef):
    """A reduction along an axis, of all elements without one, or to a shape that is a tensor."""

    Mode = choice("Reduce.Mode", "SUM SUM_SQR PRODUCT MIN MAX MEAN")
    DataType = choice("Reduce.DataType", "DEFAULT FLOAT_IO16xC32 FLOAT_O32xC32 FLOAT_O16xC32 QUINT_I8xO32 QINT_I8xO32")
    mode: str = Mode.SUM
    axis: int = LARGEST
    data_type: str = DataType.DEFAULT
    keepdim: bool = True

    def run(self, x: Tensor, shape: Tensor | None = None) -> Tensor:
        """Keeps the axis, as MegEngine does, unless `keepdim` is false."""
        if shape is None:
            axis = None if self.axis == LARGEST else self.axis
            return self._over(x, axis, keep=self.keepdim and axis is not None)
        if self.axis != LARGEST:
            raise OptionError("Reduce: got an axis and the shape of the result; expected one of them")
        lengths = tuple(integers("Reduce", shape))
        if lengths == (1,):
            return F.reshape(self._over(x, None, keep=False), (1,))
        axes = [k for k, (have, want) in enumerate(zip(x.shape, lengths, strict=False)) if have != want]
        if len(lengths) != x.ndim or any(lengths[k] != 1 for k in axes):
            raise ShapeError(f"Reduce: {tuple(x.shape)} cannot be reduced to {lengths}; lengths stay or become 1")
        for axis in axes:
            x = self._over(x, axis, keep=True)
        return x

    def _over(self, x: Tensor, axis: int | None, *, keep: bool) -> Tensor:
        mode = word_of(self.mode)
        name = {"SUM_SQR": "sum", "PRODUCT": "prod"}.get(mode, mode.lower())
        return getattr(F, name)(x * x if mode == "SUM_SQR" else x, axis=axis, keepdims=keep)


class Argmax(OpDef):
    """Positions of the largest elements along an axis, which stays with length 1."""

    axis: int = 0

    def run(self, x: Tensor) -> Tensor:
        """int32."""
        return F.argmax(x, self.axis, keepdims=True)


class Argmin(OpDef):
    """Positions of the smallest elements along an axis, which stays with length 1."""

    axis: int = 0

    def run(self, x: Tensor) -> Tensor:
        """int32."""
        return F.argmin(x, self.axis, keepdims=True)


class Argsort(OpDef):
    """Rows in order, and where each element came from."""

    Order = choice("Argsort.Order", "ASCENDING DESCENDING")
    order: str = Order.ASCENDING

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Along the last axis."""
        return F.sort(x, descending=self.order == "DESCENDING")


class TopK(OpDef):
    """The k smallest of each row, or the -k largest; `k` is a tensor."""

    Mode = choice("TopK.Mode", "KTH_ONLY VALUE_IDX_NOSORT VALUE_IDX_SORTED")
    mode: str = Mode.KTH_ONLY

    def run(self, x: Tensor, k: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Values and positions, or the kth value alone."""
        count = integers("TopK", k)[0]
        kth = self.mode == "KTH_ONLY"
        values = F.topk(x, abs(count), descending=count < 0, kth_only=kth, no_sort=self.mode == "VALUE_IDX_NOSORT")
        return values[0] if kth and isinstance(values, tuple) else values


class Softmax(OpDef):
    """Exponentials divided by their sum."""

    axis: int = -1

    def run(self, x: Tensor) -> Tensor:
        """Along `axis`."""
        return F.softmax(x, self.axis)


class CondTake(OpDef):
    """Elements where a mask is true, and their positions in the flat tensor."""

    def run(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Both flat."""
        return F.cond_take(mask, x)


# ---------------------------------------------------------------- matrices


class MatrixMul(OpDef):
    """Product of matrices, either of them transposed."""

    ComputeMode = choice("MatrixMul.ComputeMode", "DEFAULT FLOAT32")
    Format = choice("MatrixMul.Format", "DEFAULT MK4 MK8 MK4_DOT N32K4_DOT")
    Strategy = STRATEGY
    transposeA: bool = False  # noqa: N815
    transposeB: bool = False  # noqa: N815
    compute_mode: str = ComputeMode.DEFAULT
    format: str = Format.DEFAULT
    strategy: str = STRATEGY.HEURISTIC
    dimA: int = 0  # noqa: N815
    dimB: int = 0  # noqa: N815

    def run(self, a: Tensor, b: Tensor) -> Tensor:
        """Leading axes of `a` or `b` are kept."""
        return F.matmul(a, b, self.transposeA, self.transposeB)


class BatchedMatrixMul(MatrixMul):
    """Products of matrices, pair by pair."""


class Dot(OpDef):
    """Sum of products of two flat tensors."""

    def run(self, a: Tensor, b: Tensor) -> Tensor:
        """Without axes."""
        return F.dot(a, b)


class MatrixInverse(OpDef):
    """Inverses of square matrices."""

    def run(self, x: Tensor) -> Tensor:
        """Over the last two axes."""
        return F.matinv(x)


class SVD(OpDef):
    """Singular values, with both sets of vectors around them if `compute_uv`."""

    full_matrices: bool = False
    compute_uv: bool = True

    def run(self, x: Tensor) -> Any:
        """U, the values, and V transposed; or the values alone."""
        return F.svd(x, self.full_matrices, self.compute_uv)
