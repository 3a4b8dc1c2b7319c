"""Cases of what a search over dtypes, lengths and values of all other cases found: each once differed from MegEngine."""

import numpy as np
from cases import case, f, i

_ZEROS = np.float32([[0.0, 0.5, 0.5], [0.25, 0.0, 0.75]])
_SMALL = np.int8([[[[-2, -1, 1], [1, 1, 2], [0, 1, -1]]]])

# ---------------------------------------------------------------- integers
for _bounds in ((0, None), (None, 2), (-0.5, None), (None, 0.5), (-1.5, 2), (1, 3)):
    for _dtype in ("int32", "int8", "uint8", "int16"):
        case(
            "clip/%s of %s" % (_bounds, _dtype),
            lambda F, x, b=_bounds: F.clip(x, *b),
            np.arange(0, 6).astype(_dtype) - (np.array(3, _dtype) if _dtype != "uint8" else np.uint8(0)),
            grad=False,
        )
for _reduction in ("none", "sum", "mean"):
    case(
        "l1_loss/int32 " + _reduction,
        lambda F, x, y, r=_reduction: F.loss.l1_loss(x, y, reduction=r),
        i(2, 3),
        i(2, 3, seed=1),
        grad=False,
    )
case(
    "conv_transpose2d/int8",
    lambda F, x, w: F.conv_transpose2d(x, w),
    np.full((1, 2, 3, 3), 100, np.int8),
    np.full((2, 2, 2, 2), 100, np.int8),
    grad=False,
)
for _mode in ("average", "average_count_exclude_padding"):
    case(
        "avg_pool2d/int8 " + _mode, lambda F, x, m=_mode: F.avg_pool2d(x, 2, 1, 1, mode=m), _SMALL, grad=False
    )  # fmt: skip
case("adaptive_avg_pool2d/int8", lambda F, x: F.adaptive_avg_pool2d(x, 2), _SMALL, grad=False)

# ---------------------------------------------------------------- values where something bends, or is not defined
case("logaddexp/ties", lambda F, x, y: F.logaddexp(x, y), np.float32([0, 5, -3]), np.float32([0, 5, 2]))
case("leaky_relu/kink", lambda F, x: F.leaky_relu(x, 0.3), np.float32([0.0, -1, 2]))
case(
    "cross_entropy/impossible classes",
    lambda F, x, y: F.nn.cross_entropy(x, y, with_logits=False),
    _ZEROS,
    np.int32([1, 2]),
)
for _reduction in ("none", "sum", "mean"):
    case(
        "cross_entropy/float16 smooth " + _reduction,
        lambda F, x, y, r=_reduction: F.nn.cross_entropy(x, y, label_smooth=0.1, reduction=r),
        f(3, 4).astype(np.float16),
        i(3, high=4),
        grad=False,
    )
case(
    "warp_perspective/pictures of float16",
    lambda F, x, m: F.vision.warp_perspective(x, m, (3, 4)),
    f(1, 2, 4, 4).astype(np.float16),
    np.float32([[[0.9, 0.2, 0.3], [-0.1, 1.1, -0.4], [0.01, 0.02, 1.0]]]),
    grad=False,
)

# ---------------------------------------------------------------- nothing along the axis
for _name in ("sort", "argsort"):
    case(_name + "/no columns", lambda F, x, n=_name: getattr(F, n)(x), np.zeros((3, 0), np.float32), grad=False)
case("topk/no columns", lambda F, x: F.topk(x, 2), np.zeros((3, 0), np.float32), grad=False)

# ---------------------------------------------------------------- options in capitals
_PICTURE = f(1, 2, 4, 4)
for _name, _call in {
    "avg_pool2d": lambda F, x: F.avg_pool2d(x, 2, mode="AVERAGE"),
    "interpolate": lambda F, x: F.vision.interpolate(x, scale_factor=2, mode="NEAREST"),
    "pad": lambda F, x: F.nn.pad(x, ((0, 0), (0, 0), (1, 1), (0, 1)), "EDGE"),
    "hinge_loss": lambda F, x: F.loss.hinge_loss(x, x, norm="l2"),
    "conv2d": lambda F, x: F.conv2d(x, F.ones((1, 2, 3, 3)), conv_mode="CROSS_CORRELATION", compute_mode="DEFAULT"),
}.items():
    case(_name + "/in capitals", _call, _PICTURE, grad=False)
