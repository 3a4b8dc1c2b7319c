"""Cases of attention, sampling and vision."""

import numpy as np

from cases import case, distinct, f, i

case(
    "deformable_conv2d",
    lambda F, x, w, o, m: F.deformable_conv2d(x, w, o, m),
    f(1, 2, 5, 5), f(3, 2, 3, 3), f(1, 18, 3, 3), f(1, 9, 3, 3, low=0.1, high=1),
)  # fmt: skip
case(
    "deformable_conv2d/geometry",
    lambda F, x, w, o, m, b: F.deformable_conv2d(x, w, o, m, b, stride=2, padding=1),
    f(2, 2, 5, 6), f(3, 2, 3, 3), f(2, 18, 3, 3), f(2, 9, 3, 3, low=0.1, high=1), f(1, 3, 1, 1),
)  # fmt: skip

for _reduction in ("mean", "sum", "none"):
    case(
        "ctc_loss/" + _reduction,
        lambda F, x, n, y, m, r=_reduction: F.loss.ctc_loss(x, n, y, m, 0, reduction=r),
        np.exp(f(6, 2, 4)) / np.exp(f(6, 2, 4)).sum(-1, keepdims=True),
        np.int32([6, 5]), np.int32([[1, 2, 2], [3, 1, 0]]), np.int32([3, 2]), grad=False,
    )  # fmt: skip
case(
    "ctc_loss/flat labels",
    lambda F, x, n, y, m: F.loss.ctc_loss(x, n, y, m, 3, reduction="none"),
    np.exp(f(6, 2, 4)) / np.exp(f(6, 2, 4)).sum(-1, keepdims=True),
    np.int32([6, 5]), np.int32([1, 2, 2, 0, 1]), np.int32([3, 2]), grad=False,
)  # fmt: skip

# ---------------------------------------------------------------- attention
_PROJECTION = 4 * 6 * 6
for _name, _options in {
    "plain": {},
    "weights": {"need_weights": True},
    "average": {"need_weights": True, "average_attn_weights": True},
    "causal": {"is_causal": True, "maybe_cudnn_style_mask": False},
    "residual": {"reslink": True},
}.items():
    case(
        "multi_head_attention/" + _name,
        lambda F, q, k, v, w, o=_options: F.multi_head_attention(
            q, k, v, 6, 2, 0.0, 0.0, w, qproj_size=6, kproj_size=6, vproj_size=6, oproj_size=6, training=False, **o
        ),
        f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1), f(_PROJECTION),
    )  # fmt: skip
case(
    "multi_head_attention/bias",
    lambda F, q, k, v, w: F.multi_head_attention(
        q, k, v, 6, 2, 0.0, 0.0, w, qproj_size=6, kproj_size=6, vproj_size=6, oproj_size=6,
        qbias=True, kbias=True, vbias=True, obias=True, training=False,
    ),
    f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1), f(_PROJECTION + 24),
)  # fmt: skip
case(
    "multi_head_attention/mask",
    lambda F, q, k, v, w, m: F.multi_head_attention(
        q, k, v, 6, 2, 0.0, 0.0, w, qproj_size=6, kproj_size=6, vproj_size=6, oproj_size=6, attn_mask=m, training=False
    ),
    f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1), f(_PROJECTION), f(3, 4),
)  # fmt: skip
case(
    "multi_head_attention/no projection",
    lambda F, q, k, v: F.multi_head_attention(q, k, v, 6, 2, 0.0, 0.0, None, training=False),
    f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1),
)  # fmt: skip

# ---------------------------------------------------------------- vision
_PICTURE = f(1, 2, 5, 6)
for _mode in ("bilinear", "nearest", "bicubic"):
    for _corners in (None, False, True):
        if _mode != "bilinear" and _corners is not None and _mode == "nearest":
            continue
        for _size in ((8, 9), (3, 4), (5, 6), (1, 1)):
            case(
                "interpolate/%s %s %s" % (_mode, _corners, _size),
                lambda F, x, m=_mode, c=_corners, s=_size: F.vision.interpolate(x, s, mode=m, align_corners=c),
                _PICTURE,
            )
case("interpolate/scale", lambda F, x: F.vision.interpolate(x, scale_factor=1.7), _PICTURE)
case("interpolate/scales", lambda F, x: F.vision.interpolate(x, scale_factor=(2, 0.5)), _PICTURE)
case("interpolate/scale corners", lambda F, x: F.vision.interpolate(x, scale_factor=2, align_corners=True), _PICTURE)
case("interpolate/scale nearest", lambda F, x: F.vision.interpolate(x, scale_factor=1.5, mode="nearest"), _PICTURE)
case("interpolate/linear", lambda F, x: F.vision.interpolate(x, 7, mode="linear"), f(1, 2, 5))
case(
    "interpolate/linear corners", lambda F, x: F.vision.interpolate(x, 7, mode="linear", align_corners=True), f(1, 2, 5)
)
case("interpolate/trilinear", lambda F, x: F.vision.interpolate(x, (3, 4, 5), mode="trilinear"), f(1, 2, 2, 3, 4))
_MAP = f(1, 4, 3, 2, low=-1.5, high=6.5)
for _border in ("replicate", "reflect", "reflect_101", "wrap", "constant"):
    for _interp in ("linear", "nearest"):
        case(
            "remap/%s %s" % (_border, _interp),
            lambda F, x, m, b=_border, n=_interp: F.vision.remap(x, m, b, 0.5, n),
            _PICTURE, _MAP, grad=_interp == "linear" and _border in ("replicate", "constant"),
        )  # fmt: skip
_AFFINE = np.float32([[[0.9, 0.2, 0.3], [-0.1, 1.1, -0.4]]])
_HOMOGRAPHY = np.float32([[[0.9, 0.2, 0.3], [-0.1, 1.1, -0.4], [0.01, 0.02, 1.0]]])
for _border in ("replicate", "reflect", "reflect_101", "wrap", "constant"):
    for _interp in ("linear", "nearest"):
        case(
            "warp_perspective/%s %s" % (_border, _interp),
            lambda F, x, m, b=_border, n=_interp: F.vision.warp_perspective(x, m, (4, 7), None, b, 0.5, "NCHW", n),
            _PICTURE, _HOMOGRAPHY, grad=_interp == "linear" and _border in ("replicate", "constant"),
        )  # fmt: skip
for _border in ("replicate", "reflect", "reflect_101", "wrap", "constant"):
    for _format in ("NHWC", "NCHW"):
        case(
            "warp_affine/%s %s" % (_border, _format),
            lambda F, x, m, b=_border, o=_format: F.vision.warp_affine(x, m, (4, 7), b, 0.5, o),
            f(1, 5, 6, 3), _AFFINE, grad=False,
        )  # fmt: skip
case(
    "warp_affine/uint8",
    lambda F, x, m: F.vision.warp_affine(x, m, (4, 7)),
    i(1, 5, 6, 3, high=255).astype(np.uint8),
    _AFFINE,
    grad=False,
)
for _interp in ("nearest", "cubic", "area"):
    case(
        "warp_affine/" + _interp,
        lambda F, x, m, n=_interp: F.vision.warp_affine(x, m, (4, 7), interp_mode=n),
        f(1, 5, 6, 3),
        _AFFINE,
        grad=False,
    )
case(
    "warp_perspective/NHWC",
    lambda F, x, m: F.vision.warp_perspective(x, m, (4, 7), format="NHWC"),
    f(1, 5, 6, 3),
    _HOMOGRAPHY,
    grad=False,
)
case(
    "warp_perspective/mat_idx",
    lambda F, x, m: F.vision.warp_perspective(x, m, (4, 7), [1, 0, 1]),
    f(2, 2, 5, 6), np.concatenate([_HOMOGRAPHY] * 3), grad=False,
)  # fmt: skip
case(
    "warp_perspective/several",
    lambda F, x, m: F.vision.warp_perspective(x, m, (3, 3)),
    f(2, 2, 5, 6),
    np.concatenate([_HOMOGRAPHY] * 2),
)
_ROIS = np.float32([[0, 0.5, 0.6, 4.2, 4.4], [1, 1, 1, 9, 9], [0, 3, 2, 1, 5]])
for _mode in ("average", "max"):
    case(
        "roi_pooling/" + _mode,
        lambda F, x, r, m=_mode: F.vision.roi_pooling(x, r, (2, 3), m, 0.7),
        distinct(2, 2, 6, 7),
        _ROIS,
        grad=False,
    )
    for _aligned in (True, False):
        case(
            "roi_align/%s %s" % (_mode, _aligned),
            lambda F, x, r, m=_mode, a=_aligned: F.vision.roi_align(x, r, (2, 3), m, 0.7, 2, a),
            distinct(2, 2, 6, 7), _ROIS, grad=False,
        )  # fmt: skip
case(
    "roi_align/samples",
    lambda F, x, r: F.vision.roi_align(x, r, 2, sample_points=(3, 1)),
    f(2, 2, 6, 7),
    _ROIS,
    grad=False,
)
case("roi_align/gradient", lambda F, x: F.vision.roi_align(x, F.full((1, 5), 1.0) * 1, (2, 2)), f(2, 2, 6, 7))
case(
    "deformable_psroi_pooling",
    lambda F, x, r, t: F.deformable_psroi_pooling(x, r, t, False, 2, 2, 2, 2, 0.7, 0.1),
    f(2, 8, 6, 7), _ROIS, f(3, 2, 2, 2), grad=False,
)  # fmt: skip
case(
    "deformable_psroi_pooling/no trans",
    lambda F, x, r, t: F.deformable_psroi_pooling(x, r, t, True, 2, 2, 2, 2, 0.7, 0.1),
    f(2, 8, 6, 7), _ROIS, f(3, 2, 2, 2), grad=False,
)  # fmt: skip
_BOXES = np.float32([[0, 0, 4, 4], [0.5, 0, 4.5, 4], [3, 3, 8, 8], [0, 0, 4, 3], [7, 7, 9, 9], [3, 3, 8, 7]])
_SCORES = np.float32([0.5, 0.9, 0.6, 0.4, 0.7, 0.95])
for _threshold in (0.2, 0.5, 0.8):
    case("nms/%s" % _threshold, lambda F, b, s, t=_threshold: F.vision.nms(b, s, t), _BOXES, _SCORES, grad=False)
case("nms/max_output", lambda F, b, s: F.vision.nms(b, s, 0.5, 2), _BOXES, _SCORES, grad=False)
for _options in ((1, 1, 1, 1, 1, True), (3, 2, 1, 1, 2, True), (1, 2, 2, 2, 2, False)):
    case(
        "correlation/%s" % (_options,),
        lambda F, x, y, o=_options: F.vision.correlation(x, y, *o),
        f(1, 2, 5, 6),
        f(1, 2, 5, 6, seed=1),
        grad=False,
    )
for _mode in ("RGB2GRAY", "RGB2YUV", "YUV2RGB", "GRAY2RGB", "RGB2BGR", "BGR2GRAY", "RGBA2RGB", "RGBA2BGR", "RGBA2GRAY", "BGR2RGB", "YCrCb2RGB", "YCrCb2BGR", "YUV2RGB_NV21", "YUV2BGR_NV12"):  # fmt: skip
    _channels = 4 if _mode.startswith("RGBA") else 1 if _mode.startswith(("GRAY", "YCr")) or "NV" in _mode else 3
    case(
        "cvt_color/" + _mode,
        lambda F, x, m=_mode: F.vision.cvt_color(x, m),
        i(1, 6, 4, _channels, high=255).astype(np.uint8),
        grad=False,
    )
    if "NV" not in _mode:
        case(
            "cvt_color/float " + _mode,
            lambda F, x, m=_mode: F.vision.cvt_color(x, m),
            f(1, 2, 3, _channels, low=0, high=255),
            grad=False,
        )
