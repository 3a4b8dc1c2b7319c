"""Op classes of pictures: sampling, regions, colours."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.compat.convolutions import FORMAT, refuse_other_formats
from megengine.compat.opdef import choice, integers, op_class, refused_op, word_of
from megengine.core.errors import OptionError
from megengine.tensor import Tensor

_INTERPOLATION = choice("Remap.InterpolationMode", "NEAREST LINEAR AREA CUBIC LANCZOS4")
_BORDER = choice("Remap.BorderMode", "REPLICATE REFLECT REFLECT_101 WRAP CONSTANT TRANSPARENT ISOLATED")
_FORMAT_3D = choice("Resize3D.Format", "NCDHW NDHWC")


def _word(value: Any) -> str:
    return str(value.value).lower()


def _size(name: str, tensor: Tensor) -> tuple[int, ...]:
    return tuple(integers(name, tensor))


@op_class(imode=_INTERPOLATION.LINEAR, format=FORMAT.NHWC)
def Resize(op: Any, x: Tensor, size: Tensor) -> Tensor:
    """[N,C,H,W] or [N,H,W,C] in another size, a tensor of height and width; corners are not aligned."""
    modes = {"LINEAR": "bilinear", "NEAREST": "nearest", "CUBIC": "bicubic"}
    if op.imode not in modes:
        raise OptionError(f"Resize: imode is {word_of(op.imode)}; expected one of {', '.join(modes)}")
    mode = modes[word_of(op.imode)]
    last = refuse_other_formats(op, "NCHW", "NHWC") == "NHWC"
    x = F.transpose(x, (0, 3, 1, 2)) if last else x
    corners = False if mode == "bilinear" else None
    y = F.nn.interpolate(x, size=_size("Resize", size), mode=mode, align_corners=corners)
    return F.transpose(y, (0, 2, 3, 1)) if last else y


@op_class(imode=_INTERPOLATION.LINEAR, format=_FORMAT_3D.NDHWC, align_corners=False)
def Resize3D(op: Any, x: Tensor, size: Tensor) -> Tensor:
    """[N,C,D,H,W] in another size, a tensor of depth, height and width; linear interpolation."""
    refuse_other_formats(op, "NCDHW")
    if op.imode != "LINEAR":
        raise OptionError(f"Resize3D: imode is {word_of(op.imode)}; expected LINEAR")
    return F.nn.interpolate(x, size=_size("Resize3D", size), mode="trilinear", align_corners=op.align_corners)


@op_class(imode=_INTERPOLATION.LINEAR, border_type=_BORDER, format=FORMAT.NHWC, scalar=0.0)
def Remap(op: Any, x: Tensor, map_xy: Tensor) -> Tensor:
    """Pixels of [N,C,H,W] read at the places [N,H,W,2], x before y."""
    refuse_other_formats(op, "NCHW")
    return F.vision.remap(x, map_xy, _word(op.border_type), op.scalar, _word(op.imode))


@op_class(imode=_INTERPOLATION.LINEAR, bmode=_BORDER, format=FORMAT, border_val=0.0)
def WarpPerspective(op: Any, x: Tensor, matrix: Tensor, index_or_size: Tensor, size: Tensor | None = None) -> Tensor:
    """[N,C,H,W] or [N,H,W,C] under a projection; size, and which picture each matrix is of, are tensors."""
    order = refuse_other_formats(op, "NCHW", "NHWC")
    index, size = (None, index_or_size) if size is None else (index_or_size, size)
    options = (index, _word(op.bmode), op.border_val, order, _word(op.imode))
    return F.vision.warp_perspective(x, matrix, _size("WarpPerspective", size), *options)


for _name, _what in (("Data", "picture"), ("Mat", "matrix")):
    refused_op(
        f"WarpPerspectiveBackward{_name}",
        f"The gradient of a projection to the {_what}.",
        "gradients of warp_perspective come from GradManager.backward",
        **WarpPerspective._defaults,
    )


@op_class(imode=_INTERPOLATION.LINEAR, border_mode=_BORDER, border_val=0.0, format=FORMAT.NHWC)
def WarpAffine(op: Any, x: Tensor, matrix: Tensor, size: Tensor) -> Tensor:
    """[N,H,W,C] or [N,C,H,W] under an affine map; the size is a tensor."""
    order = refuse_other_formats(op, "NHWC", "NCHW")
    border, how = _word(op.border_mode), _word(op.imode)
    return F.vision.warp_affine(x, matrix, _size("WarpAffine", size), border, op.border_val, order, how)


@op_class(
    **{"mode": choice("ROIAlign.Mode", "MAX AVERAGE"), "format": FORMAT, "spatial_scale": 1.0, "offset": 0.0},
    **{"pooled_height": 1, "pooled_width": 1, "sample_height": 2, "sample_width": 2},
)
def ROIAlign(op: Any, x: Tensor, rois: Tensor) -> Tensor:
    """Regions of a picture, read at places between pixels, in windows of one size; `offset` is 0 or half a pixel."""
    refuse_other_formats(op, "NCHW")
    if op.offset not in (0.0, 0.5):
        raise OptionError(f"ROIAlign: offset is {op.offset}; expected 0 or 0.5")
    cells, samples = (op.pooled_height, op.pooled_width), (op.sample_height, op.sample_width)
    return F.vision.roi_align(x, rois, cells, _word(op.mode), op.spatial_scale, samples, op.offset == 0.5)


@op_class(mode=choice("ROIPooling.Mode", "MAX AVERAGE"), scale=1.0)
def ROIPooling(op: Any, x: Tensor, rois: Tensor, size: Tensor) -> Tensor:
    """Largest or mean values of regions in windows; their number of rows and columns is a tensor.

    MegEngine's second result, where each largest value came from, is not given.
    """
    return F.vision.roi_pooling(x, rois, _size("ROIPooling", size), _word(op.mode), op.scale)


@op_class(
    **{"no_trans": True, "spatial_scale": 1.0, "trans_std": 1.0, "pooled_h": 1, "pooled_w": 1, "part_size": 1},
    sample_per_part=1,
)
def DeformablePSROIPooling(op: Any, x: Tensor, rois: Tensor, trans: Tensor) -> Tensor:
    """Position sensitive pooling of regions whose parts are moved.

    MegEngine's second result, how many samples there were, is not given.
    """
    sizes = (op.part_size, op.pooled_h, op.pooled_w, op.sample_per_part)
    return F.nn.deformable_psroi_pooling(x, rois, trans, op.no_trans, *sizes, op.spatial_scale, op.trans_std)


@op_class(
    **{"format": choice("Correlation.Format", "NCHW NHWC"), "kernel_size": 1, "max_displacement": 1},
    **{"stride1": 1, "stride2": 1, "pad_size": 0, "is_multiply": True},
)
def Correlation(op: Any, a: Tensor, b: Tensor) -> Tensor:
    """The similarity of patches of two pictures [N,C,H,W], for each displacement."""
    refuse_other_formats(op, "NCHW")
    sizes = (op.kernel_size, op.max_displacement, op.stride1, op.stride2, op.pad_size)
    return F.vision.correlation(a, b, *sizes, op.is_multiply)


_COLOURS = choice(
    "CvtColor.Mode",
    "RGB2GRAY RGB2YUV YUV2RGB GRAY2RGB RGBA2RGB RGBA2BGR RGBA2GRAY RGB2BGR BGR2GRAY BGR2RGB YUV2GRAY_NV21 "
    "YUV2RGB_NV21 YUV2BGR_NV21 YUV2GRAY_NV12 YUV2RGB_NV12 YUV2BGR_NV12 YUV2GRAY_YV12 YUV2RGB_YV12 YUV2BGR_YV12 "
    "YUV2GRAY_YU12 YUV2RGB_YU12 YUV2BGR_YU12 YCrCb2RGB YCrCb2BGR BT601_YUV2RGB_NV21 BT601_YUV2BGR_NV21 "
    "BT601_YUV2RGB_NV12 BT601_YUV2BGR_NV12 BT601_YUV2RGB_YV12 BT601_YUV2BGR_YV12 BT601_YUV2RGB_YU12 BT601_YUV2BGR_YU12",
)


@op_class(mode=_COLOURS)
def CvtColor(op: Any, x: Tensor) -> Tensor:
    """Colours [N,H,W,C] in another system; `mode` names both."""
    return F.vision.cvt_color(x, word_of(op.mode))


@op_class(iou_thresh=0.0, max_output=0)
def NMSKeep(op: Any, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes that no better one overlaps, of boxes [B,N,4] in falling order of their scores.

    Positions [B,max_output], of which the last repeats, and how many count.
    """
    positions, counts = [], []
    for k in range(boxes.shape[0]):
        scores = F.arange(boxes.shape[1], 0, -1)
        chosen = F.vision.nms(boxes[k], scores, op.iou_thresh, op.max_output)
        counts.append(chosen.shape[0])
        positions.append(F.concat([chosen, *[chosen[-1:]] * (op.max_output - chosen.shape[0])]))
    return F.stack(positions), Tensor(counts, dtype="int32")


@op_class(precision=1)
def NvOf(op: Any, x: Tensor) -> Tensor:
    """Optical flow of NVIDIA's hardware: refused as the function is."""
    return F.vision.nvof(x, op.precision)
