"""Op classes of pictures: sampling, regions, colours."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.compat.convolutions import FORMAT, refuse_other_formats
from megengine.compat.opdef import OpDef, choice, integers, word_of
from megengine.core.errors import OptionError
from megengine.tensor import Tensor

INTERPOLATION = choice("Remap.InterpolationMode", "NEAREST LINEAR AREA CUBIC LANCZOS4")
BORDER = choice("Remap.BorderMode", "REPLICATE REFLECT REFLECT_101 WRAP CONSTANT TRANSPARENT ISOLATED")
FORMAT_3D = choice("Resize3D.Format", "NCDHW NDHWC")


def _word(value: Any) -> str:
    return str(value.value).lower()


def _size(name: str, given: Tensor) -> tuple[int, ...]:
    return tuple(integers(name, given))


class Resize(OpDef):
    """A picture of another size, which is a tensor of height and width; corners are not aligned."""

    InterpolationMode, Format = INTERPOLATION, FORMAT
    imode: str = INTERPOLATION.LINEAR
    format: str = FORMAT.NHWC

    def run(self, x: Tensor, size: Tensor) -> Tensor:
        """Of [N,C,H,W], or [N,H,W,C]."""
        modes = {"LINEAR": "bilinear", "NEAREST": "nearest", "CUBIC": "bicubic"}
        if self.imode not in modes:
            raise OptionError(f"Resize: imode is {_word(self.imode).upper()}; expected one of {', '.join(modes)}")
        mode = modes[word_of(self.imode)]
        last = refuse_other_formats(self, "NCHW", "NHWC") == "NHWC"
        x = F.transpose(x, (0, 3, 1, 2)) if last else x
        corners = None if mode == "nearest" else False
        y = F.nn.interpolate(x, size=_size("Resize", size), mode=mode, align_corners=corners)
        return F.transpose(y, (0, 2, 3, 1)) if last else y


class Resize3D(OpDef):
    """A volume of another size, which is a tensor of depth, height and width."""

    InterpolationMode, Format = INTERPOLATION, FORMAT_3D
    imode: str = INTERPOLATION.LINEAR
    format: str = FORMAT_3D.NDHWC
    align_corners: bool = False

    def run(self, x: Tensor, size: Tensor) -> Tensor:
        """Of [N,C,D,H,W], linearly."""
        refuse_other_formats(self, "NCDHW")
        if self.imode != "LINEAR":
            raise OptionError(f"Resize3D: imode is {_word(self.imode).upper()}; expected LINEAR")
        lengths = _size("Resize3D", size)
        return F.nn.interpolate(x, size=lengths, mode="trilinear", align_corners=self.align_corners)


class Remap(OpDef):
    """Pixels read at given places: [N,H,W,2], x before y."""

    InterpolationMode, BorderMode, Format = INTERPOLATION, BORDER, FORMAT
    imode: str = INTERPOLATION.LINEAR
    border_type: str = BORDER.REPLICATE
    format: str = FORMAT.NHWC
    scalar: float = 0.0

    def run(self, x: Tensor, map_xy: Tensor) -> Tensor:
        """Of [N,C,H,W]."""
        refuse_other_formats(self, "NCHW")
        return F.vision.remap(x, map_xy, _word(self.border_type), self.scalar, _word(self.imode))


class WarpPerspective(OpDef):
    """A picture under a projection; size, and which picture each matrix is of, are tensors."""

    InterpolationMode, BorderMode, Format = INTERPOLATION, BORDER, FORMAT
    imode: str = INTERPOLATION.LINEAR
    bmode: str = BORDER.REPLICATE
    format: str = FORMAT.NCHW
    border_val: float = 0.0

    def run(self, x: Tensor, matrix: Tensor, index_or_size: Tensor, size: Tensor | None = None) -> Tensor:
        """Of [N,C,H,W], or [N,H,W,C]."""
        index = None if size is None else index_or_size
        last = refuse_other_formats(self, "NCHW", "NHWC")
        return F.vision.warp_perspective(
            x,
            matrix,
            _size("WarpPerspective", index_or_size if size is None else size),
            mat_idx=index,
            border_mode=_word(self.bmode),
            border_val=self.border_val,
            format=last,
            interp_mode=_word(self.imode),
        )


class _WarpGradient(WarpPerspective):
    def run(self, *inputs: Tensor) -> Any:
        """Refused: it is computed where a gradient is asked for."""
        raise OptionError(f"{self!r}: gradients of warp_perspective come from GradManager.backward")


class WarpPerspectiveBackwardData(_WarpGradient):
    """The gradient of a projection to the picture."""


class WarpPerspectiveBackwardMat(_WarpGradient):
    """The gradient of a projection to the matrix."""


class WarpAffine(OpDef):
    """A picture under an affine map; the size is a tensor."""

    InterpolationMode, BorderMode, Format = INTERPOLATION, BORDER, FORMAT
    imode: str = INTERPOLATION.LINEAR
    border_mode: str = BORDER.REPLICATE
    border_val: float = 0.0
    format: str = FORMAT.NHWC

    def run(self, x: Tensor, matrix: Tensor, size: Tensor) -> Tensor:
        """Of [N,H,W,C], or [N,C,H,W]."""
        order = refuse_other_formats(self, "NHWC", "NCHW")
        border, how = _word(self.border_mode), _word(self.imode)
        return F.vision.warp_affine(x, matrix, _size("WarpAffine", size), border, self.border_val, order, how)


class ROIAlign(OpDef):
    """Regions of a picture, read at places between pixels, in windows of one size."""

    Mode, Format = choice("ROIAlign.Mode", "MAX AVERAGE"), FORMAT
    mode: str = Mode.MAX
    format: str = FORMAT.NCHW
    spatial_scale: float = 1.0
    offset: float = 0.0
    pooled_height: int = 1
    pooled_width: int = 1
    sample_height: int = 2
    sample_width: int = 2

    def run(self, x: Tensor, rois: Tensor) -> Tensor:
        """`offset` is half a pixel, or none."""
        refuse_other_formats(self, "NCHW")
        if self.offset not in (0.0, 0.5):
            raise OptionError(f"ROIAlign: offset is {self.offset}; expected 0 or 0.5")
        return F.vision.roi_align(
            x,
            rois,
            (self.pooled_height, self.pooled_width),
            mode=_word(self.mode),
            spatial_scale=self.spatial_scale,
            sample_points=(self.sample_height, self.sample_width),
            aligned=self.offset == 0.5,
        )


class ROIPooling(OpDef):
    """Largest or mean values of regions in windows; their number of rows and columns is a tensor."""

    Mode = choice("ROIPooling.Mode", "MAX AVERAGE")
    mode: str = Mode.MAX
    scale: float = 1.0

    def run(self, x: Tensor, rois: Tensor, size: Tensor) -> Tensor:
        """MegEngine's second result, where each largest value came from, is not given."""
        return F.vision.roi_pooling(x, rois, _size("ROIPooling", size), _word(self.mode), self.scale)


class DeformablePSROIPooling(OpDef):
    """Position sensitive pooling of regions whose parts are moved."""

    no_trans: bool = True
    spatial_scale: float = 1.0
    trans_std: float = 1.0
    pooled_h: int = 1
    pooled_w: int = 1
    part_size: int = 1
    sample_per_part: int = 1

    def run(self, x: Tensor, rois: Tensor, trans: Tensor) -> Tensor:
        """MegEngine's second result, how many samples there were, is not given."""
        return F.nn.deformable_psroi_pooling(
            x,
            rois,
            trans,
            self.no_trans,
            self.part_size,
            self.pooled_h,
            self.pooled_w,
            self.sample_per_part,
            self.spatial_scale,
            self.trans_std,
        )


class Correlation(OpDef):
    """How alike patches of two pictures are, for each displacement."""

    Format = choice("Correlation.Format", "NCHW NHWC")
    format: str = Format.NCHW
    kernel_size: int = 1
    max_displacement: int = 1
    stride1: int = 1
    stride2: int = 1
    pad_size: int = 0
    is_multiply: bool = True

    def run(self, a: Tensor, b: Tensor) -> Tensor:
        """Of [N,C,H,W]."""
        refuse_other_formats(self, "NCHW")
        return F.vision.correlation(
            a, b, self.kernel_size, self.max_displacement, self.stride1, self.stride2, self.pad_size, self.is_multiply
        )


class CvtColor(OpDef):
    """Colours in another system: [N,H,W,C]."""

    Mode = choice(
        "CvtColor.Mode",
        "RGB2GRAY RGB2YUV YUV2RGB GRAY2RGB RGBA2RGB RGBA2BGR RGBA2GRAY RGB2BGR BGR2GRAY BGR2RGB YUV2GRAY_NV21 "
        "YUV2RGB_NV21 YUV2BGR_NV21 YUV2GRAY_NV12 YUV2RGB_NV12 YUV2BGR_NV12 YUV2GRAY_YV12 YUV2RGB_YV12 YUV2BGR_YV12 "
        "YUV2GRAY_YU12 YUV2RGB_YU12 YUV2BGR_YU12 YCrCb2RGB YCrCb2BGR BT601_YUV2RGB_NV21 BT601_YUV2BGR_NV21 "
        "BT601_YUV2RGB_NV12 BT601_YUV2BGR_NV12 BT601_YUV2RGB_YV12 BT601_YUV2BGR_YV12 BT601_YUV2RGB_YU12 "
        "BT601_YUV2BGR_YU12",
    )
    mode: str = Mode.RGB2GRAY

    def run(self, x: Tensor) -> Tensor:
        """`mode` names both systems."""
        return F.vision.cvt_color(x, word_of(self.mode))


class NMSKeep(OpDef):
    """Boxes that no better one overlaps, of boxes [B,N,4] in falling order of their scores."""

    iou_thresh: float = 0.0
    max_output: int = 0

    def run(self, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Positions [B,max_output], of which the last repeats, and how many count."""
        kept, counts = [], []
        for k in range(boxes.shape[0]):
            scores = F.arange(boxes.shape[1], 0, -1)
            found = F.vision.nms(boxes[k], scores, self.iou_thresh, self.max_output)
            counts.append(found.shape[0])
            rest = [found[-1:]] * (self.max_output - found.shape[0])
            kept.append(F.concat([found, *rest]))
        return F.stack(kept), Tensor(counts, dtype="int32")


class NvOf(OpDef):
    """Optical flow of NVIDIA's hardware."""

    precision: int = 1

    def run(self, x: Tensor) -> Tensor:
        """Refused as the function is."""
        return F.vision.nvof(x, self.precision)
