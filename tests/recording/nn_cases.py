"""Cases of layers, losses and vision."""

import numpy as np
from cases import case, distinct, f, i

# ---------------------------------------------------------------- convolution
for _name, _args, _x, _w in (
    ("plain", {}, (2, 3, 6, 5), (4, 3, 3, 3)),
    ("geometry", {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}, (1, 2, 7, 8), (3, 2, 3, 2)),
    ("groups", {"groups": 2, "padding": 1}, (1, 4, 5, 5), (2, 3, 2, 3, 3)),
    ("depthwise", {"groups": 4, "stride": 2}, (1, 4, 5, 5), (4, 1, 1, 3, 3)),
):
    _out = _w[0] if len(_w) == 4 else _w[0] * _w[1]
    case("conv2d/" + _name, lambda F, x, w, b, a=_args: F.conv2d(x, w, b, **a), f(*_x), f(*_w), f(1, _out, 1, 1))
for _name, _args, _x, _w in (
    ("plain", {}, (2, 3, 7), (4, 3, 3)),
    ("geometry", {"stride": 2, "padding": 2, "dilation": 2}, (2, 2, 9), (3, 2, 3)),
    ("groups", {"groups": 2}, (1, 4, 5), (2, 1, 2, 3)),
):
    _out = _w[0] if len(_w) == 3 else _w[0] * _w[1]
    case("conv1d/" + _name, lambda F, x, w, b, a=_args: F.conv1d(x, w, b, **a), f(*_x), f(*_w), f(1, _out, 1))
case("conv1d/no bias", lambda F, x, w: F.conv1d(x, w), f(2, 3, 7), f(4, 3, 3))
for _name, _args, _x, _w in (
    ("plain", {}, (1, 2, 4, 4, 5), (3, 2, 2, 3, 3)),
    ("geometry", {"stride": (2, 1, 2), "padding": (1, 0, 1), "dilation": (1, 2, 1)}, (1, 2, 5, 6, 5), (2, 2, 3, 2, 2)),
    ("groups", {"groups": 2, "padding": 1}, (1, 4, 3, 3, 3), (2, 1, 2, 2, 2, 2)),
):
    _out = _w[0] if len(_w) == 5 else _w[0] * _w[1]
    case("conv3d/" + _name, lambda F, x, w, b, a=_args: F.conv3d(x, w, b, **a), f(*_x), f(*_w), f(1, _out, 1, 1, 1))
for _name, _args, _x, _w, _out in (
    ("plain", {}, (2, 3, 4, 5), (3, 2, 3, 3), 2),
    ("geometry", {"stride": 2, "padding": 1, "output_padding": 1}, (1, 3, 4, 4), (3, 2, 3, 3), 2),
    ("dilation", {"stride": (1, 2), "dilation": (2, 1)}, (1, 2, 3, 4), (2, 2, 2, 3), 2),
    ("groups", {"groups": 2, "stride": 2}, (1, 4, 3, 3), (2, 2, 3, 2, 2), 6),
):
    case(
        "conv_transpose2d/" + _name,
        lambda F, x, w, b, a=_args: F.conv_transpose2d(x, w, b, **a),
        f(*_x), f(*_w), f(1, _out, 1, 1),
    )  # fmt: skip
for _name, _args, _x, _w, _out in (
    ("plain", {}, (1, 2, 3, 3, 2), (2, 3, 2, 3, 2), 3),
    ("geometry", {"stride": 2, "padding": 1}, (1, 2, 3, 4, 3), (2, 2, 3, 3, 3), 2),
    ("output padding", {"stride": 2, "padding": 1, "output_padding": 1}, (1, 2, 3, 4, 3), (2, 2, 3, 3, 3), 2),
):
    case(
        "conv_transpose3d/" + _name,
        lambda F, x, w, b, a=_args: F.conv_transpose3d(x, w, b, **a),
        f(*_x), f(*_w), f(1, _out, 1, 1, 1),
    )  # fmt: skip
case("local_conv2d", lambda F, x, w: F.local_conv2d(x, w), f(2, 3, 4, 5), f(1, 2, 3, 3, 3, 3, 4))
case(
    "local_conv2d/geometry",
    lambda F, x, w: F.local_conv2d(x, w, stride=2, padding=1),
    f(1, 2, 5, 5), f(1, 3, 3, 2, 3, 3, 2),
)  # fmt: skip
_RIN = np.repeat(np.repeat(np.int32([[[0, 1], [1, 2]]]), 2, 1), 2, 2)
case(
    "region_restricted_conv",
    lambda F, x, w, a, b: F.region_restricted_conv(x, w, a, b, padding=1, groups=2),
    f(1, 2, 4, 4), f(2, 1, 1, 3, 3), _RIN, _RIN,
)  # fmt: skip

# ---------------------------------------------------------------- pooling
for _name, _args in {
    "2": (2,),
    "3 2 1": (3, 2, 1),
    "pairs": ((3, 2), (1, 2), (1, 0)),
}.items():
    case("max_pool2d/" + _name, lambda F, x, a=_args: F.max_pool2d(x, *a), distinct(2, 2, 6, 7))
    for _mode in ("average", "average_count_exclude_padding"):
        case(
            "avg_pool2d/%s %s" % (_name, _mode),
            lambda F, x, a=_args, m=_mode: F.avg_pool2d(x, *a, mode=m),
            f(2, 2, 6, 7),
        )
case("avg_pool2d/default", lambda F, x: F.avg_pool2d(x, 3, 2, 1), f(2, 2, 6, 7))
for _shape in ((1, 1), (2, 3), (3, 3), (5, 7), 2):
    case("adaptive_avg_pool2d/%s" % (_shape,), lambda F, x, s=_shape: F.adaptive_avg_pool2d(x, s), f(2, 2, 5, 7))
    case("adaptive_max_pool2d/%s" % (_shape,), lambda F, x, s=_shape: F.adaptive_max_pool2d(x, s), distinct(2, 2, 5, 7))
case("sliding_window", lambda F, x: F.sliding_window(x, kernel_size=3, padding=1), f(1, 2, 4, 5))
case("sliding_window/geometry", lambda F, x: F.sliding_window(x, (2, 3), (1, 0), (2, 1), (1, 2)), f(1, 2, 5, 7))
case(
    "sliding_window_transpose",
    lambda F, x: F.sliding_window_transpose(x, (4, 5), 3, 1),
    f(1, 2, 4, 5, 3, 3),
)
case(
    "sliding_window_transpose/geometry",
    lambda F, x: F.sliding_window_transpose(x, (5, 7), (2, 3), (1, 0), (2, 1), (1, 2)),
    f(1, 2, 3, 3, 2, 3),
)

# ---------------------------------------------------------------- normalisation
case("layer_norm", lambda F, x, w, b: F.nn.layer_norm(x, (3, 4), True, w, b), f(2, 3, 4), f(3, 4), f(3, 4))
case("layer_norm/plain", lambda F, x: F.nn.layer_norm(x, (4,), False), f(2, 3, 4))
case("layer_norm/eps", lambda F, x: F.nn.layer_norm(x, (4,), False, eps=0.1), f(2, 3, 4))
case("group_norm", lambda F, x, w, b: F.nn.group_norm(x, 2, True, w, b), f(2, 4, 3, 3), f(4), f(4))
case("group_norm/plain", lambda F, x: F.nn.group_norm(x, 4, False), f(2, 4, 3, 3))
case("instance_norm", lambda F, x, w, b: F.nn.instance_norm(x, True, w, b), f(2, 3, 3, 3), f(3), f(3))
case("instance_norm/plain", lambda F, x: F.nn.instance_norm(x, False), f(2, 3, 3, 3))
case("general_norm", lambda F, x, w, b: F.nn.general_norm(x, (0, 2), True, w, b), f(2, 3, 4), f(2, 4), f(2, 4))
case("general_norm/plain", lambda F, x: F.nn.general_norm(x, (1,), False), f(2, 3, 4))


def _batch_norm(F, x, m, v, w, b, **options):
    y = F.batch_norm(x, m, v, w, b, **options)
    return list(y) if isinstance(y, (list, tuple)) else [y]


_BN = (f(3, 3, 2, 2), f(1, 3, 1, 1), f(1, 3, 1, 1, low=0.5), f(1, 3, 1, 1, seed=1), f(1, 3, 1, 1, seed=2))
case("batch_norm/evaluation", lambda F, *t: _batch_norm(F, *t), *_BN, grad=False)
case("batch_norm/training", lambda F, *t: _batch_norm(F, *t, training=True, momentum=0.8), *_BN)
case("batch_norm/running", lambda F, *t: (_batch_norm(F, *t, training=True), t[1], t[2])[1:], *_BN, grad=False)
case("batch_norm/no affine", lambda F, x: F.batch_norm(x, training=True), _BN[0])
case("batch_norm/not in place", lambda F, *t: _batch_norm(F, *t, training=True, inplace=False), *_BN, grad=False)
case("local_response_norm", lambda F, x: F.local_response_norm(x, 3, 1.0, 0.5, 0.75), f(2, 5, 2, 2))
case("local_response_norm/default", lambda F, x: F.local_response_norm(x), f(2, 5, 2, 2))
case("dropout/evaluation", lambda F, x: F.dropout(x, 0.5, training=False), f(3))
case("pixel_shuffle", lambda F, x: F.pixel_shuffle(x, 2), f(2, 8, 2, 3))
case("pixel_shuffle/3 axes", lambda F, x: F.pixel_shuffle(x, 3), f(9, 2, 3))

# ---------------------------------------------------------------- losses
_LABELS = i(3, high=4)
for _reduction in ("mean", "sum", "none"):
    case(
        "l1_loss/" + _reduction,
        lambda F, x, y, r=_reduction: F.loss.l1_loss(x, y, reduction=r),
        f(3, 4),
        f(3, 4, seed=1),
    )
    case(
        "square_loss/" + _reduction,
        lambda F, x, y, r=_reduction: F.loss.square_loss(x, y, reduction=r),
        f(3, 4),
        f(3, 4, seed=1),
    )
    for _logits in (True, False):
        case(
            "cross_entropy/%s %s" % (_reduction, _logits),
            lambda F, x, y, r=_reduction, g=_logits: F.loss.cross_entropy(x, y, with_logits=g, reduction=r),
            f(3, 4, low=0.1, high=0.9), _LABELS,
        )  # fmt: skip
        case(
            "cross_entropy/smooth %s %s" % (_reduction, _logits),
            lambda F, x, y, r=_reduction, g=_logits: F.loss.cross_entropy(x, y, 1, g, 0.2, reduction=r),
            f(3, 4, low=0.1, high=0.9), _LABELS,
        )  # fmt: skip
        case(
            "binary_cross_entropy/%s %s" % (_reduction, _logits),
            lambda F, x, y, r=_reduction, g=_logits: F.loss.binary_cross_entropy(x, y, g, reduction=r),
            f(3, 4, low=0.1, high=0.9), i(3, 4, high=2).astype(np.float32),
        )  # fmt: skip
    for _norm in ("L1", "L2"):
        case(
            "hinge_loss/%s %s" % (_reduction, _norm),
            lambda F, x, y, r=_reduction, n=_norm: F.loss.hinge_loss(x, y, n, reduction=r),
            f(3, 4), np.float32(i(3, 4, high=2) * 2 - 1),
        )  # fmt: skip
case("l1_loss/by position", lambda F, x, y: F.loss.l1_loss(x, y, "sum"), f(3, 4), f(3, 4, seed=1))
case("cross_entropy/axis", lambda F, x, y: F.loss.cross_entropy(x, y, axis=2), f(2, 3, 4), i(2, 3, high=4))
