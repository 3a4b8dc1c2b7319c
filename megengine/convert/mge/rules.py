"""What each operator of a .mge file computes: `rule(operator, *tensors)`, with public functions.

Most operators are those of an op class of `megengine.core.ops.builtin`, whose options the file holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.compat import builtin
from megengine.compat.opdef import CLASSES as DECLARED
from megengine.convert.mge.options import axes_of, items_of, options_of, table_of
from megengine.convert.mge.reading import Operator, dtype_of
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import brief
from megengine.core.text import counted
from megengine.quantization.modules import functional as quantized
from megengine.quantization.modules.arithmetic import Product, accumulate, constants, to_stored
from megengine.tensor import Tensor

assert builtin.__all__, "importing it declares the classes"
Rule = Callable[..., Any]
CLASSES: dict[str, Any] = {**DECLARED}
# operator -> op class, kind of parameters
CLASS_OF: dict[str, tuple[str, int]] = {
    "AdaptivePoolingV1": ("AdaptivePooling", 70),
    "Argsort": ("Argsort", 26),
    "BatchedMatrixMulV2": ("BatchedMatrixMul", 20),
    "Convolution": ("Convolution", 3),
    "Convolution3D": ("Convolution3D", 41),
    "Convolution3DBackwardData": ("Convolution3DBackwardData", 41),
    "CorrelationForward": ("Correlation", 75),
    "CumsumV1": ("Cumsum", 24),
    "CvtColor": ("CvtColor", 37),
    "DeformableConvForward": ("DeformableConv", 3),
    "Elemwise": ("Elemwise", 17),
    "GroupLocalV2": ("GroupLocal", 3),
    "Images2Neibs": ("Images2Neibs", 8),
    "LRN": ("LRN", 10),
    "LayerNorm": ("LayerNorm", 85),
    "MatrixMulV2": ("MatrixMul", 20),
    "Padding": ("Padding", 82),
    "PoolingV1": ("Pooling", 9),
    "RNNCellForward": ("RNNCell", 87),
    "ReduceV2": ("Reduce", 23),
    "RemapV1": ("Remap", 68),
    "Resize3D": ("Resize3D", 96),
    "ResizeV2": ("Resize", 40),
    "ROIAlignV1": ("ROIAlign", 48),
    "ROIPooling": ("ROIPooling", 12),
    "SlidingWindowTranspose": ("SlidingWindowTranspose", 81),
    "Softmax": ("Softmax", 90),
    "TopK": ("TopK", 44),
    "WarpAffineV2": ("WarpAffine", 38),
    "WarpPerspectiveV2": ("WarpPerspective", 13),
}
INDEXED = ("Subtensor", "SetSubtensor", "IncrSubtensor", "IndexingMultiAxisVec", "IndexingSetMultiAxisVec")
_PLAIN = {"Broadcast": "Broadcast", "Dot": "Dot", "MatrixInverse": "MatrixInverse", "LSTMCellForward": "LSTMCell"}
_AXIS = {"Argmax": "Argmax", "Argmin": "Argmin", "Concat": "Concat"}
_SIZED = ("ResizeV2", "Resize3D", "WarpPerspectiveV2", "WarpAffineV2")  # their last operand is a size
MAX_PIXELS = 1 << 24  # of a picture that is sampled: its places are constants
_LARGEST_AXIS = 7  # of an optional axis: there is none
RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Declare what operators of these types compute."""

    def declare(function: Rule) -> Rule:
        assert not RULES.keys() & set(kinds), kinds
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return declare


def _lengths(operator: Operator, x: Tensor) -> np.ndarray:
    """Lengths of a result, which are known while the file is read; MegEngine may compute them with floats."""
    lengths = np.asarray(x.numpy(), np.float64).reshape(-1)
    if not (np.all(lengths >= 0) and math.prod(lengths) <= MAX_PIXELS):
        raise operator.fail(
            f"its result has the lengths {brief(lengths.tolist())}; expected a product of at most {MAX_PIXELS}"
        )
    return lengths.astype(np.int32)


@rule(*CLASS_OF)
def of_class(operator: Operator, *inputs: Tensor) -> Any:
    """An op class with the options of the file."""
    name, number = CLASS_OF[operator.kind]
    op = CLASSES[name](**options_of(operator, number, CLASSES[name]))
    if operator.kind in _SIZED and inputs:
        inputs = (*inputs[:-1], Tensor(_lengths(operator, inputs[-1])))
    return op.run(*inputs)


@rule(*_PLAIN)
def plain(operator: Operator, *inputs: Tensor) -> Any:
    """An op class without options."""
    table_of(operator, 1)
    return CLASSES[_PLAIN[operator.kind]]().run(*inputs)


@rule(*_AXIS)
def along_axis(operator: Operator, *inputs: Tensor) -> Any:
    """An op class whose only option is an axis."""
    return CLASSES[_AXIS[operator.kind]](axis=table_of(operator, 2).integer(0, "i")).run(*inputs)


@rule("Split")
def split(operator: Operator, x: Tensor, *lengths: Tensor) -> Any:
    """Parts of given lengths along an axis."""
    return CLASSES["Split"](axis=table_of(operator, 2).integer(0, "i")).run(x, *lengths)


@rule("ReshapeV1")
def reshape(operator: Operator, x: Tensor, shape: Tensor) -> Tensor:
    """The elements in another shape; the length at an axis may follow from the others."""
    return CLASSES["Reshape"](axis=table_of(operator, 54).integer(0, "i", _LARGEST_AXIS)).run(x, shape)


@rule("GetVarShapeV1")
def shape_of(operator: Operator, *inputs: Tensor) -> Tensor:
    """The shape, or the length of one axis; that of several tensors which broadcast."""
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    axis = table_of(operator, 54).integer(0, "i", _LARGEST_AXIS)
    return Tensor(np.array(shape if axis == _LARGEST_AXIS else shape[axis : axis + 1], np.int32))


@rule("Dimshuffle")
def dimshuffle(operator: Operator, x: Tensor) -> Tensor:
    """Axes in another order."""
    return CLASSES["Dimshuffle"](pattern=table_of(operator, 64).numbers(0, "i")).run(x)


@rule("AxisAddRemove")
def axes_changed(operator: Operator, x: Tensor) -> Tensor:
    """Axes of length 1 that come and go, one after the other."""
    for removed, axis in axes_of(table_of(operator, 65)):
        x = F.squeeze(x, axis) if removed else F.expand_dims(x, axis)
    return x


@rule(*INDEXED)
def indexed(operator: Operator, *inputs: Tensor) -> Any:
    """Parts of a tensor, read or written. Positions come behind the tensor and what is written."""
    return CLASSES[operator.kind](items=items_of(table_of(operator, 66))).run(*inputs)


@rule("IndexingSetOneHot")
def one_hot_set(operator: Operator, x: Tensor, positions: Tensor, value: Tensor) -> Tensor:
    """The element at one position of each row along an axis, replaced."""
    axis = table_of(operator, 2).integer(0, "i")
    return F.scatter(x, axis, F.expand_dims(positions, axis), value)


@rule("IndexingOneHot")
def one_hot_read(operator: Operator, x: Tensor, positions: Tensor) -> Tensor:
    """The element at one position of each row along an axis, which stays with length 1."""
    axis = table_of(operator, 2).integer(0, "i")
    return F.gather(x, axis, F.expand_dims(positions, axis))


@rule("PowC")
def power(operator: Operator, x: Tensor) -> Tensor:
    """A constant power."""
    exponent = float(table_of(operator, 19).number(0, "f", 1.0))
    return {0.5: F.sqrt, 1.0: lambda y: y, 2.0: F.square}.get(exponent, lambda y: F.pow(y, exponent))(x)


@rule("Linspace")
def linspace(operator: Operator, start: Tensor, stop: Tensor, count: Tensor) -> Tensor:
    """Numbers at equal distances, which are known while the file is read."""
    first, last = (float(np.reshape(end.numpy(), -1)[0]) for end in (start, stop))
    whole = bool(table_of(operator, 29).integer(0, "B", 1))
    return Tensor(np.linspace(first, last, int(_lengths(operator, count)[0]), endpoint=whole, dtype=np.float32))


@rule("Diag")
def diagonal(operator: Operator, x: Tensor) -> Tensor:
    """A diagonal of a matrix, or a matrix with this one."""
    return F.diag(x, table_of(operator, 91).integer(0, "i"))


@rule("TypeCvtV2")
def converted(operator: Operator, x: Tensor) -> Tensor:
    """The same values in another dtype."""
    dtype = dtype_of(table_of(operator, 67))
    if not isinstance(dtype, QuantizedDType):
        return x.astype(dtype)
    return to_stored(x.astype("float32"), dtype)


@rule("ElemwiseMultiType")
def rounded(operator: Operator, *inputs: Tensor) -> Tensor:
    """An elementwise function of quantized tensors, rounded to another grid."""
    if not isinstance(operator.dtype, QuantizedDType):
        kind = CLASSES["ElemwiseMultiType"]
        return kind(**options_of(operator, 18, kind, 1), dtype=operator.dtype).run(*inputs)
    mode = options_of(operator, 18, CLASSES["ElemwiseMultiType"], 1)["mode"]
    kind, name = CLASSES["Elemwise"], mode.removeprefix("Q")
    if name == mode or name not in kind.modes:
        raise operator.fail(f"its mode is {mode}; expected Q and a mode of Elemwise")
    return to_stored(kind(mode=name).run(*(x.astype("float32") for x in inputs)), operator.dtype)


@rule("ConvBiasForward")
def conv_bias(operator: Operator, x: Tensor, weight: Tensor, *summands: Tensor) -> Tensor:
    """A convolution, a bias, another summand, and a function of the sum; of quantized tensors as MegEngine rounds."""
    kind = CLASSES["ConvBias"]
    op = kind(**options_of(operator, 6, kind))
    target = operator.dtype
    if not isinstance(x.dtype, QuantizedDType):
        return op.run(x, weight, *summands).astype(x.dtype)
    if not isinstance(target, QuantizedDType):
        raise operator.fail(f"of quantized tensors, with a result of {target}; expected a quantized dtype")
    odd = op.format != "NCHW" or op.mode != "CROSS_CORRELATION" or op.nonlineMode == "SIGMOID"
    if odd or len(summands) > 1:
        raise operator.fail(
            f"of quantized tensors, with {op.format.value}, {op.mode.value}, {op.nonlineMode.value} and "
            f"{counted(len(summands), 'summand')}; expected NCHW, CROSS_CORRELATION, no SIGMOID, and at most a bias"
        )
    bias = summands[0] if summands else F.zeros((1, _channels(weight), 1, 1))
    groups = weight.shape[0] if op.sparse == "GROUP" else 1
    stride, padding, dilation = (op.stride_h, op.stride_w), (op.pad_h, op.pad_w), (op.dilate_h, op.dilate_w)
    if op.nonlineMode != "H_SWISH":
        word = op.nonlineMode.value
        window = (stride, padding, dilation, groups)
        return quantized.conv_bias_activation(x, weight, bias, target, *window, nonlinear_mode=word)
    product = Product("conv2d", stride, ((op.pad_h, op.pad_h), (op.pad_w, op.pad_w)), dilation, groups)
    real = F.reshape(bias.astype("float32"), (-1,)).numpy()
    # the kernels of functions scale the sum before the function, as those of ReLU do
    prepared = constants(product, weight, real, x.dtype, relu=True, target=target)
    return to_stored(F.hswish(accumulate(product, x, prepared)), target)


def _channels(weight: Tensor) -> int:
    return weight.shape[0] if weight.ndim == 4 else weight.shape[0] * weight.shape[1]


@rule("ConvolutionBackwardData")
def transposed(operator: Operator, weight: Tensor, y: Tensor, *like: Tensor) -> Tensor:
    """A transposed convolution; of quantized tensors as MegEngine rounds."""
    kind = CLASSES["ConvolutionBackwardData"]
    op = kind(**options_of(operator, 3, kind))
    if not isinstance(y.dtype, QuantizedDType):
        return op.run(weight, y, *like)
    if like or op.format != "NCHW" or op.mode != "CROSS_CORRELATION":
        raise operator.fail(
            f"of quantized tensors, with {op.format.value}, {op.mode.value} and {counted(len(like), 'shape')}; "
            "expected NCHW, CROSS_CORRELATION and no shape"
        )
    return quantized.conv_transpose2d(
        *(y, weight, None, operator.dtype, (op.stride_h, op.stride_w), (op.pad_h, op.pad_w), 0),
        *((op.dilate_h, op.dilate_w), weight.shape[0] if op.sparse == "GROUP" else 1),
    )
