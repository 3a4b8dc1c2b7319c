"""Op classes of elementwise functions, of types, and of what makes or copies a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import dispatch
from megengine import functional as F
from megengine.compat.opdef import LARGEST, choice, integers, op_class, op_like, word_of
from megengine.core.errors import OptionError
from megengine.core.text import counted
from megengine.functional.utils import _assert_equal
from megengine.module.elemwise import MODES
from megengine.tensor import Tensor

_MODE = choice(
    "Elemwise.Mode",
    "RELU ABS ACOS ASIN CEIL COS EXP EXPM1 FLOOR LOG LOG1P NEGATE SIGMOID SIN TANH ABS_GRAD ADD FLOOR_DIV MAX MIN "
    "MOD MUL POW SIGMOID_GRAD SUB SWITCH_GT0 TANH_GRAD TRUE_DIV LOG_SUM_EXP LT LEQ EQ SHL SHR COND_LEQ_MOV "
    "FUSE_MUL_ADD3 FUSE_MUL_ADD4 FUSE_ADD_RELU FUSE_ADD_SIGMOID FUSE_ADD_TANH FAST_TANH FAST_TANH_GRAD ROUND RMULH "
    "ATAN2 ERF ERFINV ERFC ERFCINV H_SWISH H_SWISH_GRAD FUSE_ADD_H_SWISH NOT AND OR XOR SILU SILU_GRAD GELU "
    "GELU_GRAD COND_LT_MOV NEQ ISNAN ISINF SINH COSH ASINH ACOSH ATANH TAN ASINH_GRAD ACOSH_GRAD ATANH_GRAD PRELU "
    "CLIP PRELU_GRAD SOFTPLUS SOFTPLUS_GRAD RELU6 RELU6_GRAD HSIGMOID HSIGMOID_GRAD LOGSIGMOID SQRT SQUARE SIGN",
)
_TYPED_MODE = choice(
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


def _called(mode: str, inputs: tuple[Tensor, ...]) -> Tensor:
    try:
        return MODES[mode](*inputs)
    except TypeError as exc:
        if exc.__traceback__ is not None and exc.__traceback__.tb_next is None:  # of this very call
            raise OptionError(f"{mode}: got {counted(len(inputs), 'tensor')}, which it does not take: {exc}") from None
        raise


@op_class(mode=_MODE)
def Elemwise(op: Any, *inputs: Tensor) -> Tensor:
    """An elementwise function of one to four tensors, by its mode, which broadcasts.

    The result has the dtype that the operators of tensors would give.
    """
    return _called(op.mode, inputs)


@op_class(mode=_TYPED_MODE, dtype=None)
def ElemwiseMultiType(op: Any, *inputs: Tensor) -> Tensor:
    """An elementwise function of real values, rounded to `dtype`; modes with Q in front are of quantized tensors."""
    mode = word_of(op.mode)
    if mode in MODES:
        out = _called(mode, inputs)
    elif mode.removeprefix("Q") in MODES:
        out = _called(mode.removeprefix("Q"), tuple(x.astype("float32") for x in inputs))
    elif mode.endswith("F32"):
        out = _called(mode.split("_INT16")[0].split("_UINT8")[0], tuple(x.astype("float32") for x in inputs))
    else:
        raise OptionError(f"ElemwiseMultiType: mode {mode} is of integer hardware; compute it with Elemwise modes")
    return out if op.dtype is None else out.astype(op.dtype)


Elemwise.modes, ElemwiseMultiType.modes = tuple(_MODE.__members__), tuple(_TYPED_MODE.__members__)


@op_class(dtype=None)
def TypeCvt(op: Any, x: Tensor) -> Tensor:
    """The same values in another dtype; floats become integers towards zero."""
    return x.astype(op.dtype)


@op_class()
def Identity(op: Any, x: Tensor) -> Tensor:
    """A copy of the tensor."""
    return F.copy(x)


FastpathCopy = op_like(Identity, "FastpathCopy", "A copy of the tensor.")


@op_class(comp_node="")
def Copy(op: Any, x: Tensor) -> Tensor:
    """A copy of the tensor on the device `comp_node`, by default on its own."""
    return F.copy(x, op.comp_node or None)


Borrow = op_like(Copy, "Borrow", "A copy of the tensor on a device.")


@op_class()
def InplaceAdd(op: Any, dest: Tensor, delta: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """`dest * alpha + delta * beta`, which the caller writes over `dest`."""
    return dest * alpha + delta * beta


@op_class(scale=1.0)
def CheckNonFinite(op: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Tensors times `scale`, and last an int32 without axes: 1 if a value among them is not finite, else 0."""
    bad = [F.sum(F.logical_or(F.isnan(x), F.isinf(x)).astype("int32")) for x in inputs]
    return (*(x * op.scale for x in inputs), F.minimum(sum(bad[1:], bad[0]), 1).reshape(()))


@op_class(maxerr=1e-4, verbose=False)
def AssertEqual(op: Any, expected: Tensor, actual: Tensor) -> Tensor:
    """The actual tensor. Raises OptionError, which is an AssertionError, unless both tensors agree.

    The error is relative to the larger value, or absolute below 1.
    """
    return _assert_equal(expected, actual, maxerr=op.maxerr)


@op_class(value=0.0)
def MaskedFill(op: Any, x: Tensor, mask: Tensor) -> Tensor:
    """`value` where a mask of bool is true, else `x`; the mask broadcasts over the last axes of `x`."""
    mask = mask.reshape((*mask.shape, *(1,) * (x.ndim - mask.ndim)))
    return F.where(F.broadcast_to(mask, x.shape), F.full_like(x, op.value), x)


@op_class(value=0.0, dtype=None, comp_node="")
def Fill(op: Any, shape: Tensor) -> Tensor:
    """A tensor of one value, by default float32, whose shape is a tensor."""
    return F.full(tuple(integers("Fill", shape)), op.value, dtype=op.dtype or "float32")


@op_class(value=0.0, comp_node="")
def FillLike(op: Any, x: Tensor) -> Tensor:
    """A tensor of one value, of the shape and dtype of `x`, which gets no gradient."""
    return F.full_like(x, op.value)


@op_class(k=0, dtype=np.dtype(np.float32), comp_node="")
def Eye(op: Any, shape: Tensor) -> Tensor:
    """Ones on a diagonal; the shape is a tensor of one length, for a square, or two."""
    lengths = integers("Eye", shape)
    return Tensor(np.eye(lengths[0], lengths[-1], op.k, np.dtype(op.dtype)))


@op_class(endpoint=True, comp_node="")
def Linspace(op: Any, start: Any, stop: Any, num: Tensor) -> Tensor:
    """`num` float32 numbers at equal distances; without `endpoint` the last one is left out."""
    count = integers("Linspace", num)[0]
    if op.endpoint or count == 0:
        return F.linspace(start, stop, count)
    return F.linspace(start, stop, count + 1)[:-1]


@op_class(k=0)
def Diag(op: Any, x: Tensor) -> Tensor:
    """The diagonal of a matrix, or the matrix of a diagonal, `k` above the main one."""
    return F.diag(x, op.k)


@op_class(axis=7)  # as many as there can be: all of them
def GetVarShape(op: Any, x: Tensor, *others: Tensor) -> Tensor:
    """Lengths (int32) of the axes of the first tensor, or of one axis."""
    shape = dispatch.apply("GetVarShape", x)
    return shape if op.axis in (7, LARGEST) else shape[op.axis : op.axis + 1 or None]
