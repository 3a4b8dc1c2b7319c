"""Record what the real MegEngine gives inside: `python inside_cases.py OUT.npz`, with megengine 1.13.0 installed.

`apply` with the op classes of `megengine.core.ops.builtin`, graphs of operators by `subgraph_fn`, and the helpers of
`megengine.core.tensor`. A case is as in cases.py; its answers and gradients are recorded by record.py.
"""

import sys

import numpy as np
from cases import Case, distinct, f, i

INSIDE = {}


def case(name, call, *inputs, grad=True):
    """Enter a case; `grad=False` where the result is not differentiated."""
    assert name not in INSIDE, name
    INSIDE[name] = Case(name, call, inputs, grad)


def op(name, *inputs, **attrs):
    """The results of an op class that is applied to tensors."""
    from megengine.core._imperative_rt.core2 import apply
    from megengine.core.ops import builtin

    return apply(getattr(builtin, name)(**attrs), *inputs)


def applied(label, name, *inputs, grad=True, **attrs):
    """Enter a case of one op class."""
    case(label, lambda F, *tensors: op(name, *tensors, **attrs), *inputs, grad=grad)


def n(*values):
    """Integers as ops take lengths and positions."""
    return np.array(values, np.int32)


# ---------------------------------------------------------------- elementwise
_RANGES = {
    "ACOS": (-0.9, 0.9), "ASIN": (-0.9, 0.9), "LOG": (0.1, 3), "LOG1P": (-0.5, 3), "SQRT": (0.1, 3), "ACOSH": (1.1, 3),
    "ATANH": (-0.9, 0.9), "TAN": (-1, 1), "ERFINV": (-0.9, 0.9), "ERFCINV": (0.1, 1.9),
}  # fmt: skip
_FLAT = ("CEIL", "FLOOR", "ROUND", "SIGN", "ISNAN", "ISINF", "NOT", "LT", "LEQ", "EQ", "NEQ", "FLOOR_DIV", "MOD")
_UNARY = [
    "RELU", "ABS", "ACOS", "ASIN", "CEIL", "COS", "EXP", "EXPM1", "FLOOR", "LOG", "LOG1P", "NEGATE", "SIGMOID",
    "SIN", "TANH", "FAST_TANH", "ROUND", "ERF", "ERFINV", "ERFC", "ERFCINV", "H_SWISH", "SILU", "GELU", "ISNAN",
    "ISINF", "SINH", "COSH", "ASINH", "ACOSH", "ATANH", "TAN", "SOFTPLUS", "RELU6", "HSIGMOID", "LOGSIGMOID", "SQRT",
    "SQUARE", "SIGN",
]  # fmt: skip
_BINARY = [
    "ADD", "FLOOR_DIV", "MAX", "MIN", "MOD", "MUL", "POW", "SUB", "SWITCH_GT0", "TRUE_DIV", "LOG_SUM_EXP", "LT",
    "LEQ", "EQ", "NEQ", "FUSE_ADD_RELU", "FUSE_ADD_SIGMOID", "FUSE_ADD_TANH", "FUSE_ADD_H_SWISH", "ATAN2", "PRELU",
]  # fmt: skip
# of functions, times a cotangent: the second input
_SLOPES = [
    "ABS_GRAD", "SIGMOID_GRAD", "TANH_GRAD", "FAST_TANH_GRAD", "H_SWISH_GRAD", "SILU_GRAD", "GELU_GRAD",
    "ASINH_GRAD", "ACOSH_GRAD", "ATANH_GRAD", "SOFTPLUS_GRAD", "RELU6_GRAD", "HSIGMOID_GRAD",
]  # fmt: skip
for _mode in _UNARY:
    _low, _high = _RANGES.get(_mode, (-2, 2))
    applied("Elemwise/" + _mode, "Elemwise", f(5, low=_low, high=_high), mode=_mode, grad=_mode not in _FLAT)
for _mode in _BINARY:
    _pair = f(2, 5, low=0.5, high=3), f(2, 5, low=0.5, high=3, seed=1)
    applied("Elemwise/" + _mode, "Elemwise", *_pair, mode=_mode, grad=_mode not in _FLAT)
for _mode in _SLOPES:
    _low, _high = (1.1, 2) if _mode == "ACOSH_GRAD" else (-0.9, 0.9)
    applied("Elemwise/" + _mode, "Elemwise", f(5, low=_low, high=_high), f(5, seed=1), mode=_mode, grad=False)
for _mode in ("COND_LEQ_MOV", "COND_LT_MOV", "FUSE_MUL_ADD3", "PRELU_GRAD"):
    _three = f(2, 5), f(2, 5, seed=1), f(2, 5, seed=2)
    applied("Elemwise/" + _mode, "Elemwise", *_three, mode=_mode, grad=_mode.startswith("FUSE"))
applied("Elemwise/FUSE_MUL_ADD4", "Elemwise", f(3), f(3, seed=1), f(3, seed=2), f(3, seed=3), mode="FUSE_MUL_ADD4")
applied("Elemwise/CLIP", "Elemwise", f(5), np.float32(-0.5), np.float32(1), mode="CLIP", grad=False)
for _mode in ("SHL", "SHR", "RMULH", "ADD", "FLOOR_DIV", "LT", "MAX"):
    applied("Elemwise/%s, int32" % _mode, "Elemwise", i(4, low=1, high=9), i(4, low=1, high=4, seed=1), mode=_mode)
for _mode in ("AND", "OR", "XOR"):
    applied("Elemwise/" + _mode, "Elemwise", i(6, high=2) > 0, i(6, high=2, seed=1) > 0, mode=_mode, grad=False)
applied("Elemwise/NOT", "Elemwise", i(6, high=2) > 0, mode="NOT", grad=False)
applied("Elemwise/lower case", "Elemwise", f(3), f(3), mode="add")
case("Elemwise/with a number", lambda F, x: op("Elemwise", x, 2, mode="MUL"), f(3))
case("Elemwise/int32 with a number", lambda F, x: op("Elemwise", x, 2.5, mode="MUL"), i(3), grad=False)
case("Elemwise/rows and columns", lambda F, x, y: op("Elemwise", x, y, mode="SUB"), f(3, 1), f(1, 4))
for _mode in ("EQ", "NEQ", "LT", "LEQ"):
    applied("ElemwiseMultiType/" + _mode, "ElemwiseMultiType", n(1, 2, 3), n(1, 3, 2), mode=_mode, dtype="bool")
for _mode in ("ISNAN", "ISINF"):
    applied(
        "ElemwiseMultiType/" + _mode,
        "ElemwiseMultiType",
        np.float32([1, np.nan, np.inf]),
        mode=_mode,
        dtype="bool",
        grad=False,
    )
applied("TypeCvt", "TypeCvt", np.float32([-2.7, -0.5, 0.5, 2.7]), dtype=np.int32, grad=False)
applied("TypeCvt/float16", "TypeCvt", f(3), dtype=np.float16, grad=False)
for _name in ("Identity", "FastpathCopy"):
    applied(_name, _name, f(2, 3))
for _name in ("Copy", "Borrow"):
    applied(_name, _name, f(2, 3), comp_node="xpux")
applied("CheckNonFinite", "CheckNonFinite", f(3), np.float32([1, np.inf]), scale=2.0, grad=False)
applied("CheckNonFinite/finite", "CheckNonFinite", f(3), f(2), scale=0.5, grad=False)
applied("MaskedFill", "MaskedFill", f(2, 3), i(2, 3, high=2) > 0, value=7.0, grad=False)
applied("FillLike", "FillLike", f(2, 3), value=2.5, grad=False)
applied("Fill", "Fill", n(2, 3), value=2.5, dtype=np.float32, comp_node="xpux", grad=False)
applied("Eye", "Eye", n(2, 3), k=1, dtype=np.int32, comp_node="xpux", grad=False)
applied("Linspace", "Linspace", np.float32(0), np.float32(1), n(5)[0], comp_node="xpux", grad=False)
applied(
    "Linspace/without its end",
    "Linspace",
    np.float32(0),
    np.float32(1),
    n(5)[0],
    endpoint=False,
    comp_node="xpux",
    grad=False,
)
applied("Diag", "Diag", f(3), k=1, grad=False)
applied("Diag/of a matrix", "Diag", f(3, 4), k=-1, grad=False)
applied("GetVarShape", "GetVarShape", f(2, 3, 4), grad=False)
applied("GetVarShape/axis", "GetVarShape", f(2, 3, 4), axis=1, grad=False)
applied("GetVarShape/several", "GetVarShape", f(2, 1, 4), f(3, 1), grad=False)
applied("InplaceAdd", "InplaceAdd", f(3), f(3, seed=1), np.float32(0.5), np.float32(2), grad=False)

# ---------------------------------------------------------------- shapes
applied("AddAxis", "AddAxis", f(2, 3), axis=[0, 2])
applied("AddAxis/behind", "AddAxis", f(2, 3), axis=[2, 3])
applied("RemoveAxis", "RemoveAxis", f(1, 2, 1, 3), axis=[0, 1])
applied("Reshape", "Reshape", f(2, 6), n(3, 4))
applied("Reshape/axis", "Reshape", f(2, 6), n(3, 7), axis=1, grad=False)
applied("Reshape/shape", "Reshape", f(2, 6), shape=[4, 3])
applied("Broadcast", "Broadcast", f(1, 3), n(2, 3))
applied("Broadcast/more axes", "Broadcast", f(3), n(2, 3))
applied("Broadcast/shape", "Broadcast", f(1, 3), shape=[2, 3])
applied("Dimshuffle", "Dimshuffle", f(2, 3, 4), pattern=[2, 0, 1])
applied("Dimshuffle/new axis", "Dimshuffle", f(2, 3), pattern=[1, -1, 0], grad=False)
applied("Concat", "Concat", f(2, 3), f(1, 3, seed=1), axis=0, comp_node="xpux")
applied("Concat/last", "Concat", f(2, 3), f(2, 1, seed=1), axis=-1, comp_node="xpux")
applied("Stack", "Stack", f(2, 3), f(2, 3, seed=1), axis=1, comp_node="xpux")
applied("Split", "Split", f(2, 6), axis=1, nsections=3)
applied("Split/lengths", "Split", f(2, 6), n(2)[0], n(4)[0], axis=1)
applied("MeshGrid", "MeshGrid", f(2), f(3), indexing="xy", grad=False)
applied("MeshGrid/ij", "MeshGrid", f(2), f(3), indexing="ij", grad=False)
applied("Cumsum", "Cumsum", f(2, 3), axis=1, exclusive=False)
for _exclusive, _reverse in ((True, False), (True, True), (False, True)):
    applied("Cumsum/%s%s" % (_exclusive, _reverse), "Cumsum", f(2, 3), axis=1, exclusive=_exclusive, reverse=_reverse)
applied(
    "Padding", "Padding", f(2, 3), front_offset_dim0=1, back_offset_dim1=2, padding_val=0.5, padding_mode="CONSTANT"
)
for _mode in ("REPLICATE", "REFLECT"):
    applied("Padding/" + _mode, "Padding", f(2, 3), front_offset_dim1=2, back_offset_dim1=1, padding_mode=_mode)
applied("ParamPackConcat", "ParamPackConcat", f(2, 2), f(3, seed=1), n(0, 4, 4, 7), offsets=[0, 4, 4, 7], grad=False)
applied("ParamPackSplit", "ParamPackSplit", f(7), offsets=[0, 4, 4, 7], shapes=[[2, 2], [3]], grad=False)

# ---------------------------------------------------------------- reductions and matrices
for _mode in ("SUM", "SUM_SQR", "PRODUCT", "MIN", "MAX", "MEAN"):
    applied("Reduce/" + _mode, "Reduce", distinct(2, 3) + np.float32(0.1), mode=_mode, axis=1)
    applied(
        "Reduce/%s, an axis less" % _mode,
        "Reduce",
        distinct(2, 3) + np.float32(0.1),
        mode=_mode,
        axis=-2,
        keepdim=False,
    )
applied("Reduce/all", "Reduce", f(2, 3), mode="SUM")
applied("Reduce/to a shape", "Reduce", f(2, 3), n(1, 3), mode="SUM", grad=False)
applied("Reduce/to a number", "Reduce", f(2, 3), n(1), mode="SUM", grad=False)
applied("Reduce/int32", "Reduce", i(2, 3), mode="MEAN", axis=0, grad=False)
applied("Argmax", "Argmax", distinct(3, 4), axis=1, grad=False)
applied("Argmin", "Argmin", distinct(3, 4), axis=0, grad=False)
applied("Argsort", "Argsort", distinct(3, 4), order="ASCENDING", grad=False)
applied("Argsort/DESCENDING", "Argsort", distinct(3, 4), order="DESCENDING", grad=False)
for _mode in ("KTH_ONLY", "VALUE_IDX_SORTED"):
    applied("TopK/" + _mode, "TopK", distinct(3, 5), n(2)[0], mode=_mode, grad=False)
    applied("TopK/%s, largest" % _mode, "TopK", distinct(3, 5), n(-2)[0], mode=_mode, grad=False)
applied("Softmax", "Softmax", f(2, 3), axis=1)
applied("Dot", "Dot", f(4), f(4, seed=1))
for _a in (False, True):
    for _b in (False, True):
        _x, _y = (3, 2) if _a else (2, 3), (4, 3) if _b else (3, 4)
        _plain = {"transposeA": _a, "transposeB": _b}
        applied("MatrixMul/%s%s" % (_a, _b), "MatrixMul", f(*_x), f(*_y), dimA=2, dimB=2, **_plain)
        applied("BatchedMatrixMul/%s%s" % (_a, _b), "BatchedMatrixMul", f(2, *_x), f(2, *_y), dimA=3, dimB=3, **_plain)
applied("MatrixInverse", "MatrixInverse", f(3, 3) + 3 * np.eye(3, dtype=np.float32))
applied("SVD/values", "SVD", f(3, 2), compute_uv=False, grad=False)
applied("CondTake", "CondTake", f(2, 3), np.array([[1, 0, 1], [0, 0, 1]]) > 0, grad=False)

# ---------------------------------------------------------------- indexing
_SLICE = [(1, True, True, False, False)]
_AT = [(0, False, False, False, True)]
_BOTH = [(0, False, False, False, True), (1, True, True, True, False)]
_TWO = [(0, False, False, False, True), (1, False, False, False, True)]
_OUTER = [(0, False, False, False, True), (2, False, False, False, True)]
applied("Subtensor/slice", "Subtensor", f(3, 4), n(1)[0], n(3)[0], items=_SLICE)
applied("Subtensor/index", "Subtensor", f(3, 4), n(-1)[0], items=_AT)
applied("Subtensor/both", "Subtensor", f(3, 4), n(1)[0], n(0)[0], n(4)[0], n(2)[0], items=_BOTH)
applied("Subtensor/backwards", "Subtensor", f(3, 4), n(-1)[0], items=[(1, False, False, True, False)])
applied("Subtensor/step", "Subtensor", f(3, 4), n(2)[0], items=[(1, False, False, True, False)])
_NONE = 2**31 - 1
applied("Subtensor/numbers", "Subtensor", f(3, 4), items=_SLICE, slice_items=[(1, 3, _NONE, _NONE)], grad=False)
applied("SetSubtensor", "SetSubtensor", f(3, 4), f(3, 2), n(1)[0], n(3)[0], items=_SLICE, grad=False)
applied("IncrSubtensor", "IncrSubtensor", f(3, 4), f(3, 2), n(1)[0], n(3)[0], items=_SLICE, grad=False)
applied("IndexingMultiAxisVec/one", "IndexingMultiAxisVec", f(3, 4), n(2, 0, 2), items=_AT)
applied("IndexingMultiAxisVec/two", "IndexingMultiAxisVec", f(3, 4), n(2, 0), n(1, 3), items=_TWO)
applied("IndexingMultiAxisVec/outer", "IndexingMultiAxisVec", f(3, 4, 2), n(2, 0, 1), n(1, 0, 1), items=_OUTER)
applied("IndexingMultiAxisVec/last", "IndexingMultiAxisVec", f(3, 4), n(2, 0), items=[(1, False, False, False, True)])
applied("IndexingMultiAxisVec/slice", "IndexingMultiAxisVec", f(3, 4), n(2, 0), n(0)[0], n(4)[0], n(2)[0], items=_BOTH)
applied("IndexingMultiAxisVec/matrix", "IndexingMultiAxisVec", f(3, 4), n(2, 0, 1, 1).reshape(2, 2), items=_AT)
applied("IndexingSetMultiAxisVec", "IndexingSetMultiAxisVec", f(3, 4), f(2, 4, seed=1), n(2, 0), items=_AT, grad=False)
applied(
    "IndexingIncrMultiAxisVec", "IndexingIncrMultiAxisVec", f(3, 4), f(2, 4, seed=1), n(2, 2), items=_AT, grad=False
)
applied("MeshIndexing", "MeshIndexing", f(3, 4), n(2, 0), n(1, 3, 0), items=_TWO)
applied("SetMeshIndexing", "SetMeshIndexing", f(3, 4), f(2, 3, seed=1), n(2, 0), n(1, 3, 0), items=_TWO, grad=False)
applied("IncrMeshIndexing", "IncrMeshIndexing", f(3, 4), f(2, 3, seed=1), n(2, 0), n(1, 3, 0), items=_TWO, grad=False)
_BATCHED = [(1, False, False, False, True)]
applied("BatchedMeshIndexing", "BatchedMeshIndexing", f(2, 4), n(1, 3, 0, 2).reshape(2, 2), items=_BATCHED, grad=False)
applied(
    "BatchedSetMeshIndexing",
    "BatchedSetMeshIndexing",
    f(2, 4),
    f(2, 2, seed=1),
    n(1, 3, 0, 2).reshape(2, 2),
    items=_BATCHED,
    grad=False,
)
applied(
    "BatchedIncrMeshIndexing",
    "BatchedIncrMeshIndexing",
    f(2, 4),
    f(2, 2, seed=1),
    n(1, 3, 0, 2).reshape(2, 2),
    items=_BATCHED,
    grad=False,
)
applied("IndexingOneHot", "IndexingOneHot", f(3, 4), n(1, 3, 0), axis=1, ndim=2)
applied("IndexingSetOneHot", "IndexingSetOneHot", f(3, 4), n(1, 3, 0), f(3, 1), axis=1, ndim=2, grad=False)

# ---------------------------------------------------------------- pictures, convolutions, pooling
_WINDOW = {"pad_h": 1, "pad_w": 0, "stride_h": 2, "stride_w": 1}
applied("Convolution", "Convolution", f(1, 2, 5, 5), f(3, 2, 3, 3), **_WINDOW)
applied("Convolution/groups", "Convolution", f(1, 4, 5, 5), f(2, 3, 2, 3, 3), sparse="GROUP", dilate_h=2, pad_h=2)
applied(
    "ConvBias",
    "ConvBias",
    f(1, 2, 5, 5),
    f(3, 2, 3, 3),
    f(1, 3, 1, 1),
    nonlineMode="RELU",
    dtype=np.float32,
    grad=False,
    **_WINDOW,
)
applied(
    "ConvolutionBackwardData",
    "ConvolutionBackwardData",
    f(2, 3, 3, 3),
    f(1, 2, 4, 4),
    stride_h=2,
    stride_w=2,
    pad_h=1,
    pad_w=1,
)
applied("Convolution3D", "Convolution3D", f(1, 2, 3, 4, 4), f(2, 2, 2, 2, 2), pad_d=1, stride_w=2)
applied("Convolution3DBackwardData", "Convolution3DBackwardData", f(2, 2, 2, 2, 2), f(1, 2, 2, 3, 3), stride_d=2)
applied("GroupLocal", "GroupLocal", f(1, 2, 4, 4), f(1, 2, 2, 2, 3, 3, 2), sparse="DENSE")
applied(
    "DeformableConv",
    "DeformableConv",
    f(1, 2, 4, 4),
    f(2, 2, 3, 3),
    f(1, 18, 2, 2, seed=1),
    f(1, 9, 2, 2, seed=2),
    grad=False,
)
for _mode in ("MAX", "AVERAGE", "AVERAGE_COUNT_EXCLUDE_PADDING"):
    applied(
        "Pooling/" + _mode,
        "Pooling",
        distinct(1, 2, 4, 4),
        mode=_mode,
        window_h=3,
        window_w=2,
        stride_h=2,
        stride_w=1,
        pad_h=1,
    )
    if "PADDING" not in _mode:
        applied(
            "AdaptivePooling/" + _mode,
            "AdaptivePooling",
            distinct(1, 2, 5, 4),
            n(2, 3),
            mode=_mode,
            format="NCHW",
            shape=[],
        )
applied("Pooling/as it is", "Pooling", distinct(1, 2, 4, 4))
applied("PixelShuffle", "PixelShuffle", f(1, 8, 2, 3), factor=2)
applied("PixelShuffleBackward", "PixelShuffleBackward", f(1, 2, 4, 6), factor=2)
applied("Images2Neibs", "Images2Neibs", f(1, 2, 4, 5), pad_h=1, pad_w=0, stride_h=1, stride_w=2, window_h=3, window_w=2)
applied(
    "SlidingWindowTranspose", "SlidingWindowTranspose", f(1, 2, 3, 3, 2, 2), out_h=4, out_w=4, window_h=2, window_w=2
)
applied("Resize", "Resize", f(1, 2, 3, 4), n(6, 6), imode="LINEAR", format="NCHW", grad=False)
applied("Resize/NEAREST", "Resize", f(1, 2, 3, 4), n(6, 6), imode="NEAREST", format="NCHW", grad=False)
applied(
    "Remap",
    "Remap",
    f(1, 2, 3, 4),
    f(1, 2, 2, 2, low=0, high=2),
    imode="LINEAR",
    border_type="REPLICATE",
    format="NCHW",
    grad=False,
)
_MATRIX = np.float32([[[1.1, 0.1, 0.2], [0, 0.9, 0.3], [0.01, 0, 1]]])
applied(
    "WarpPerspective",
    "WarpPerspective",
    f(1, 2, 4, 4),
    _MATRIX,
    n(3, 3),
    imode="LINEAR",
    bmode="REPLICATE",
    format="NCHW",
    grad=False,
)
applied(
    "WarpPerspective/index",
    "WarpPerspective",
    f(2, 1, 4, 4),
    _MATRIX,
    n(1),
    n(3, 3),
    imode="LINEAR",
    bmode="CONSTANT",
    border_val=0.5,
    grad=False,
)
applied(
    "WarpAffine",
    "WarpAffine",
    f(1, 4, 4, 1),
    _MATRIX[:, :2],
    n(3, 3),
    imode="LINEAR",
    border_mode="CONSTANT",
    format="NHWC",
    grad=False,
)
_ROIS = np.float32([[0, 0.5, 0.5, 3, 3], [0, 1, 0, 3.5, 2]])
applied(
    "ROIAlign",
    "ROIAlign",
    distinct(1, 2, 5, 5),
    _ROIS,
    mode="AVERAGE",
    spatial_scale=1.0,
    offset=0.5,
    pooled_height=2,
    pooled_width=2,
    grad=False,
)
applied("ROIPooling", "ROIPooling", distinct(1, 2, 5, 5), _ROIS, n(2, 2), mode="MAX", scale=1.0, grad=False)
applied(
    "DeformablePSROIPooling",
    "DeformablePSROIPooling",
    f(1, 4, 5, 5),
    _ROIS,
    f(2, 2, 2, 2),
    no_trans=False,
    trans_std=0.1,
    pooled_h=2,
    pooled_w=2,
    part_size=2,
    sample_per_part=2,
    grad=False,
)
applied("Correlation", "Correlation", f(1, 2, 4, 4), f(1, 2, 4, 4, seed=1), max_displacement=1, pad_size=1, grad=False)
applied("CvtColor", "CvtColor", f(1, 2, 2, 3, low=0, high=1), mode="RGB2GRAY", grad=False)
_BOXES = np.float32([[[0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]]])
applied("NMSKeep", "NMSKeep", _BOXES, iou_thresh=0.5, max_output=3, grad=False)

# ---------------------------------------------------------------- norms, recurrent parts, quantization
_SCALES = f(1, 2, 1, 1, low=0.5, high=1.5), f(1, 2, 1, 1, seed=1)
case(
    "BatchNorm/INFERENCE",
    lambda F, *xs: op("BatchNorm", *xs, param_dim="DIM_1C11", fwd_mode="INFERENCE", epsilon=1e-5)[-1],
    f(2, 2, 3, 3),
    *_SCALES,
    f(1, 2, 1, 1, seed=2),
    f(1, 2, 1, 1, low=0.5, seed=3),
    grad=False,
)
case(
    "BatchNorm/TRAINING",
    lambda F, *xs: [
        op("BatchNorm", *xs, param_dim="DIM_1C11", fwd_mode="TRAINING", epsilon=1e-5, avg_factor=0.1)[k]
        for k in (0, 1, 2, 3, 5)
    ],
    f(2, 2, 3, 3),
    *_SCALES,
    f(1, 2, 1, 1, seed=2),
    f(1, 2, 1, 1, low=0.5, seed=3),
    grad=False,
)
case(
    "BatchNorm/no statistics",
    lambda F, *xs: op("BatchNorm", *xs, param_dim="DIM_1C11", fwd_mode="TRAINING", epsilon=1e-5)[-1],
    f(2, 2, 3, 3),
    *_SCALES,
)
applied(
    "LayerNorm",
    "LayerNorm",
    f(2, 3, 4),
    f(4),
    f(4, seed=1),
    affine=True,
    eps=1e-5,
    normalized_dim=1,
    normalized_size=4,
    grad=False,
)
applied("LayerNorm/plain", "LayerNorm", f(2, 3, 4), affine=False, normalized_dim=2, normalized_size=12, grad=False)
applied("GroupNorm", "GroupNorm", f(2, 4, 3, 3), f(4), f(4, seed=1), affine=True, group=2, grad=False)
applied("InstanceNorm", "InstanceNorm", f(2, 4, 3, 3), f(4), f(4, seed=1), affine=True, group=4, grad=False)
applied("GeneralNorm", "GeneralNorm", f(2, 3, 4), f(3), f(3, seed=1), affine=True, axis_start=1, axis_end=2, grad=False)
applied("LRN", "LRN", f(1, 4, 3, 3), n=3, k=2.0, alpha=1e-2, beta=0.75)
applied(
    "RNNCell", "RNNCell", f(2, 3), f(4, 3), f(4), f(2, 4), f(4, 4, seed=1), f(4, seed=1), nonlineMode="TANH", grad=False
)
applied(
    "LSTMCell", "LSTMCell", f(2, 3), f(8, 3), f(8), f(2, 2), f(8, 2, seed=1), f(8, seed=1), f(2, 2, seed=2), grad=False
)
applied(
    "FakeQuant", "FakeQuant", f(8, low=-3, high=3), np.float32(0.02), np.float32(0), qmin=-128, qmax=127, grad=False
)
applied(
    "FakeQuant/zero point",
    "FakeQuant",
    f(8, low=-3, high=3),
    np.float32(0.02),
    np.float32(100),
    qmin=0,
    qmax=255,
    grad=False,
)
applied(
    "LSQ",
    "LSQ",
    f(8, low=-3, high=3),
    np.float32(0.02),
    np.float32(0),
    np.float32(0.1),
    qmin=-128,
    qmax=127,
    grad=False,
)
applied("TQT", "TQT", f(8, low=-3, high=3), np.float32(1.5), qmin=-128, qmax=127, grad=False)
applied(
    "LAMBUpdate",
    "LAMBUpdate",
    f(3),
    f(3, low=0.1, seed=1),
    f(3, seed=2),
    f(3, seed=3),
    beta_1=0.9,
    beta_2=0.99,
    step=2,
    lr=0.1,
    weight_decay=0.0,
    eps=1e-6,
    bias_correction=True,
    always_adapt=False,
    grad=False,
)
for _name, _given in (
    ("UniformRNG", {"dtype": np.float32}),
    ("GaussianRNG", {"mean": 1.0, "std": 0.0, "dtype": np.float32}),
):
    case(_name, lambda F, x, a=(_name, _given): _drawn(*a, x), n(2, 3), grad=False)


def _drawn(name, attrs, shape):
    from megengine.core._imperative_rt.ops import new_rng_handle

    y = op(name, shape, seed=5, handle=new_rng_handle("xpux", 5), **attrs)[0]
    return y * 0


def main():
    import packed
    import record

    record.CASES = INSIDE
    found = record.without_gradients(record.record_apart(list(INSIDE)))
    packed.save(sys.argv[1], found)
    print("%d cases, %d fail there" % (len(INSIDE), sum(k.endswith(" -> error") for k in found)))
    for key, value in sorted(found.items()):
        if key.endswith((" -> error", " -> no gradient")):
            print(key, str(value)[:170].replace("\n", " "))


if __name__ == "__main__":
    main()
