"""Op classes of elementwise functions, of types, and of what makes or copies a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import dispatch
from megengine import functional as F
from megengine.compat.opdef import LARGEST, OpDef, choice, integers, word_of
from megengine.core.errors import OptionError
from megengine.core.text import counted
from megengine.functional.utils import _assert_equal
from megengine.module.elemwise import MODES
from megengine.tensor import Tensor


class Elemwise(OpDef):
    """An elementwise function of one to four tensors, by its mode."""

    Mode = choice(
        "Elemwise.Mode",
        "RELU ABS ACOS ASIN CEIL COS EXP EXPM1 FLOOR LOG LOG1P NEGATE SIGMOID SIN TANH ABS_GRAD ADD FLOOR_DIV MAX MIN "
        "MOD MUL POW SIGMOID_GRAD SUB SWITCH_GT0 TANH_GRAD TRUE_DIV LOG_SUM_EXP LT LEQ EQ SHL SHR COND_LEQ_MOV "
        "FUSE_MUL_ADD3 FUSE_MUL_ADD4 FUSE_ADD_RELU FUSE_ADD_SIGMOID FUSE_ADD_TANH FAST_TANH FAST_TANH_GRAD ROUND RMULH "
        "ATAN2 ERF ERFINV ERFC ERFCINV H_SWISH H_SWISH_GRAD FUSE_ADD_H_SWISH NOT AND OR XOR SILU SILU_GRAD GELU "
        "GELU_GRAD COND_LT_MOV NEQ ISNAN ISINF SINH COSH ASINH ACOSH ATANH TAN ASINH_GRAD ACOSH_GRAD ATANH_GRAD PRELU "
        "CLIP PRELU_GRAD SOFTPLUS SOFTPLUS_GRAD RELU6 RELU6_GRAD HSIGMOID HSIGMOID_GRAD LOGSIGMOID SQRT SQUARE SIGN",
    )
    modes = tuple(Mode.__members__)
    mode: str = Mode.RELU

    def run(self, *inputs: Tensor) -> Tensor:
        """Broadcasts, and computes in the dtype that the operators of tensors would."""
        return _called(self.mode, inputs)


def _called(mode: str, inputs: tuple[Tensor, ...]) -> Tensor:
    try:
        return MODES[mode](*inputs)
    except TypeError as exc:
        if exc.__traceback__ is not None and exc.__traceback__.tb_next is None:  # of this very call
            raise OptionError(f"{mode}: got {counted(len(inputs), 'tensor')}, which it does not take: {exc}") from None
        raise


class ElemwiseMultiType(OpDef):
    """An elementwise function whose result has another dtype than its tensors; with Q in front, of quantized ones."""

    Mode = choice(
        "ElemwiseMultiType.Mode",
        "FUSE_MUL_ADD3_INT16x32x32x32 FUSE_MUL_ADD3_IXxF32xF32xI8 ROUND_SHR_SATURATE_IXxI8xI8 "
        "FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT16x16x16x8 FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT32x32x32x8 "
        "ROUND_SHR_SATURATE_IXxI8xI16 QADD QFUSE_ADD_RELU QMUL QMIN QMAX QSUB QTRUE_DIV QFUSE_ADD_SIGMOID "
        "QFUSE_ADD_TANH QRELU QABS QSIGMOID QEXP QTANH QFUSE_MUL_ADD3 QFAST_TANH QNEGATE QACOS QASIN QCEIL QCOS QEXPM1 "
        "QFLOOR QLOG QLOG1P QSIN QROUND QERF QERFINV QERFC QERFCINV QABS_GRAD QFLOOR_DIV QMOD QSIGMOID_GRAD "
        "QSWITCH_GT0 QTANH_GRAD QLT QLEQ QEQ QPOW QLOG_SUM_EXP QFAST_TANH_GRAD QATAN2 QCOND_LEQ_MOV QH_SWISH "
        "QFUSE_ADD_H_SWISH QH_SWISH_GRAD FUSE_MUL_ADD3_INT16xF32xF32xF32 MUL_INT16xF32xF32 "
        "FUSE_MUL_ADD3_UINT8xF32xF32xF32 QCOND_LT_MOV EQ NEQ LT LEQ ISNAN ISINF",
    )
    modes = tuple(Mode.__members__)
    mode: str = Mode.FUSE_MUL_ADD3_INT16x32x32x32
    dtype: Any = None

    def run(self, *inputs: Tensor) -> Tensor:
        """Computes with real values, and rounds to `dtype` at the end."""
        mode = word_of(self.mode)
        if mode in MODES:
            out = _called(mode, inputs)
        elif mode.removeprefix("Q") in MODES:
            out = _called(mode.removeprefix("Q"), tuple(x.astype("float32") for x in inputs))
        elif mode.endswith("F32"):
            out = _called(mode.split("_INT16")[0].split("_UINT8")[0], tuple(x.astype("float32") for x in inputs))
        else:
            raise OptionError(f"ElemwiseMultiType: mode {mode} is of integer hardware; compute it with Elemwise modes")
        return out if self.dtype is None else out.astype(self.dtype)


class TypeCvt(OpDef):
    """The same values in another dtype."""

    dtype: Any = None

    def run(self, x: Tensor) -> Tensor:
        """Towards zero where integers are made of floats."""
        return x.astype(self.dtype)


class Identity(OpDef):
    """The tensor as it is."""

    def run(self, x: Tensor) -> Tensor:
        """A value of its own."""
        return F.copy(x)


class FastpathCopy(Identity):
    """The tensor as it is."""


class Copy(OpDef):
    """The tensor on a device; `comp_node` is its name."""

    comp_node: str = ""

    def run(self, x: Tensor) -> Tensor:
        """On the device of `x` without a name."""
        return F.copy(x, self.comp_node or None)


class Borrow(Copy):
    """The tensor on a device."""


class InplaceAdd(OpDef):
    """`dest * alpha + delta * beta`, which the caller writes over `dest`."""

    def run(self, dest: Tensor, delta: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        """Of the shape of `dest`."""
        return dest * alpha + delta * beta


class CheckNonFinite(OpDef):
    """Tensors times `scale`, and 1 if a value among them is not finite, else 0."""

    scale: float = 1.0

    def run(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The flag is the last result, an int32 without axes."""
        bad = [F.sum(F.logical_or(F.isnan(x), F.isinf(x)).astype("int32")) for x in inputs]
        flag = bad[0]
        for other in bad[1:]:
            flag = flag + other
        return (*(x * self.scale for x in inputs), F.minimum(flag, 1).reshape(()))


class AssertEqual(OpDef):
    """Checks that two tensors agree; the error is relative to the larger value, or absolute below 1."""

    maxerr: float = 1e-4
    verbose: bool = False

    def run(self, expected: Tensor, actual: Tensor) -> Tensor:
        """The actual tensor. Raises OptionError, which is an AssertionError."""
        return _assert_equal(expected, actual, maxerr=self.maxerr)


class MaskedFill(OpDef):
    """`value` where a mask is true."""

    value: float = 0.0

    def run(self, x: Tensor, mask: Tensor) -> Tensor:
        """`mask` is of bool, and broadcasts over the last axes of `x`."""
        tail = (1,) * (x.ndim - mask.ndim)
        mask = mask.reshape((*mask.shape, *tail)) if tail else mask
        return F.where(F.broadcast_to(mask, x.shape), F.full_like(x, self.value), x)


class Fill(OpDef):
    """A tensor of one value, whose shape is a tensor."""

    value: float = 0.0
    dtype: Any = None
    comp_node: str = ""

    def run(self, shape: Tensor) -> Tensor:
        """float32 without a dtype."""
        return F.full(tuple(integers("Fill", shape)), self.value, dtype=self.dtype or "float32")


class FillLike(OpDef):
    """A tensor of one value, of another's shape and dtype."""

    value: float = 0.0
    comp_node: str = ""

    def run(self, x: Tensor) -> Tensor:
        """No gradient reaches `x`."""
        return F.full_like(x, self.value)


class Eye(OpDef):
    """Ones on a diagonal; the shape is a tensor of one or two lengths."""

    k: int = 0
    dtype: Any = np.dtype(np.float32)
    comp_node: str = ""

    def run(self, shape: Tensor) -> Tensor:
        """Square with one length."""
        lengths = integers("Eye", shape)
        return Tensor(np.eye(lengths[0], lengths[-1], self.k, np.dtype(self.dtype)))


class Linspace(OpDef):
    """Numbers at equal distances; first, last and count are tensors."""

    endpoint: bool = True
    comp_node: str = ""

    def run(self, start: Tensor, stop: Tensor, num: Tensor) -> Tensor:
        """float32; without `endpoint` the last number is left out."""
        count = integers("Linspace", num)[0]
        first: Any = start
        last: Any = stop
        if self.endpoint or count == 0:
            return F.linspace(first, last, count)
        return F.linspace(first, last, count + 1)[:-1]


class Diag(OpDef):
    """The diagonal of a matrix, or the matrix of a diagonal."""

    k: int = 0

    def run(self, x: Tensor) -> Tensor:
        """`k` above the main diagonal."""
        return F.diag(x, self.k)


class GetVarShape(OpDef):
    """Lengths of the axes of the first tensor, or of one axis."""

    axis: int = 7  # as many as there can be: all of them

    def run(self, x: Tensor, *others: Tensor) -> Tensor:
        """int32."""
        shape = dispatch.apply("GetVarShape", x)
        return shape if self.axis in (7, LARGEST) else shape[self.axis : self.axis + 1 or None]
