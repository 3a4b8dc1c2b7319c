"""Cases of options that few programs give, of dtypes, and of tensors with no or one element."""

import numpy as np
from cases import BINARY, COMPARE, UNARY, case, distinct, f, i

# ---------------------------------------------------------------- options
case("normalize/eps", lambda F, x: F.normalize(x, axis=1, eps=0.5), f(3, 4))
case("topk/no_sort", lambda F, x: F.sort(F.topk(x, 3, no_sort=True)[0])[0], distinct(2, 6))
case("topk/no_sort ascending", lambda F, x: F.sort(F.topk(x, 3, False, no_sort=True)[0])[0], distinct(2, 6))
case("svd/full_matrices", lambda F, x: [p.shape[-1] for p in F.svd(x, full_matrices=True)], f(4, 3), grad=False)
case("svd/full product", lambda F, x: (lambda u, s, v: F.matmul(u[:, :3] * s, v))(*F.svd(x, True)), f(4, 3), grad=False)
for _dtype in ("float16", "float32"):
    for _mode in ("default", "float32"):
        _name = "%s %s" % (_dtype, _mode)
        _grad = _dtype == "float32"
        case(
            "matmul/compute " + _name, lambda F, x, y, m=_mode: F.matmul(x, y, compute_mode=m),
            f(2, 3).astype(_dtype), f(3, 2).astype(_dtype), grad=_grad,
        )  # fmt: skip
        case(
            "linear/compute " + _name, lambda F, x, w, m=_mode: F.linear(x, w, compute_mode=m),
            f(2, 3).astype(_dtype), f(4, 3).astype(_dtype), grad=_grad,
        )  # fmt: skip
        case(
            "conv1d/compute " + _name, lambda F, x, w, m=_mode: F.conv1d(x, w, compute_mode=m),
            f(1, 2, 5).astype(_dtype), f(2, 2, 3).astype(_dtype), grad=_grad,
        )  # fmt: skip
        for _function in ("conv2d", "conv_transpose2d"):
            case(
                "%s/compute %s" % (_function, _name),
                lambda F, x, w, m=_mode, n=_function: getattr(F, n)(x, w, compute_mode=m),
                f(1, 2, 5, 4).astype(_dtype), f(2, 2, 3, 3).astype(_dtype), grad=_grad,
            )  # fmt: skip
        case(
            "deformable_conv2d/compute " + _name,
            lambda F, x, w, o, k, m=_mode: F.deformable_conv2d(x, w, o, k, compute_mode=m),
            f(1, 2, 5, 4).astype(_dtype), f(2, 2, 3, 3).astype(_dtype), f(1, 18, 3, 2).astype(_dtype),
            f(1, 9, 3, 2).astype(_dtype), grad=_grad,
        )  # fmt: skip
for _function, _x, _w in (
    ("conv1d", (1, 2, 5), (3, 2, 2)),
    ("conv2d", (1, 2, 5, 4), (3, 2, 2, 3)),
    ("conv3d", (1, 2, 3, 4, 3), (2, 2, 2, 2, 2)),
    ("conv_transpose2d", (1, 2, 3, 4), (2, 3, 2, 3)),
    ("conv_transpose3d", (1, 2, 2, 3, 2), (2, 2, 2, 2, 2)),
):
    case(_function + "/plain, no bias", lambda F, x, w, n=_function: getattr(F, n)(x, w), f(*_x), f(*_w))
    for _mode in ("cross_correlation", "convolution", "CONVOLUTION"):
        if _function != "conv_transpose3d":
            case(
                "%s/%s" % (_function, _mode),
                lambda F, x, w, n=_function, m=_mode: getattr(F, n)(x, w, conv_mode=m), f(*_x), f(*_w),
            )  # fmt: skip
case(
    "conv_transpose3d/dilation", lambda F, x, w: F.conv_transpose3d(x, w, dilation=(1, 2, 1), stride=(2, 1, 1)),
    f(1, 2, 2, 3, 2), f(2, 3, 2, 2, 3),
)  # fmt: skip
case(
    "conv_transpose3d/groups", lambda F, x, w: F.conv_transpose3d(x, w, groups=2),
    f(1, 4, 2, 3, 2), f(2, 2, 3, 2, 2, 2),
)  # fmt: skip
case(
    "conv_transpose2d/output padding", lambda F, x, w: F.conv_transpose2d(x, w, None, (2, 2), (1, 1), (1, 0)),
    f(1, 3, 4, 4), f(3, 2, 3, 3),
)  # fmt: skip
case(
    "conv_transpose3d/output padding of each axis",
    lambda F, x, w: F.conv_transpose3d(x, w, None, (2, 2, 2), (1, 1, 1), (1, 0, 1)),
    f(1, 2, 3, 2, 3), f(2, 2, 3, 3, 3),
)  # fmt: skip
case(
    "deformable_conv2d/dilation", lambda F, x, w, o, k: F.deformable_conv2d(x, w, o, k, dilation=(2, 1), padding=1),
    f(1, 2, 6, 5), f(3, 2, 3, 3), f(1, 18, 4, 5), f(1, 9, 4, 5),
)  # fmt: skip
case(
    "deformable_conv2d/groups", lambda F, x, w, o, k: F.deformable_conv2d(x, w, o, k, groups=2, stride=2),
    f(1, 4, 6, 5), f(2, 3, 2, 3, 3), f(1, 18, 2, 2), f(1, 9, 2, 2),
)  # fmt: skip
case(
    "deformable_conv2d/offset groups", lambda F, x, w, o, k: F.deformable_conv2d(x, w, o, k),
    f(1, 4, 4, 5), f(2, 4, 3, 3), f(1, 36, 2, 3), f(1, 18, 2, 3),
)  # fmt: skip
case(
    "deformable_psroi_pooling/trans_std", lambda F, x, r, t: F.deformable_psroi_pooling(x, r, t, False, 2, 2, 2, 2, 0.7, 0.4),
    f(2, 8, 6, 7), np.float32([[0, 0.5, 0.6, 4.2, 4.4], [1, 1, 1, 9, 9], [0, 3, 2, 1, 5]]), f(3, 2, 2, 2), grad=False,
)  # fmt: skip
case(
    "local_conv2d/bias",
    lambda F, x, w, b: F.local_conv2d(x, w, b),
    f(2, 3, 4, 5),
    f(1, 2, 3, 3, 3, 3, 4),
    f(1, 4, 2, 3),
)
case(
    "local_conv2d/dilation",
    lambda F, x, w: F.local_conv2d(x, w, dilation=(2, 1)),
    f(1, 2, 5, 4),
    f(1, 1, 3, 2, 3, 2, 2),
)
case(
    "local_conv2d/convolution",
    lambda F, x, w: F.local_conv2d(x, w, conv_mode="convolution"),
    f(1, 2, 3, 4),
    f(1, 2, 3, 2, 2, 2, 2),
)
_RIN = np.repeat(np.repeat(np.int32([[[0, 1], [1, 2]]]), 2, 1), 2, 2)
for _name, _args, _part in (
    ("stride", {"stride": 2, "padding": 1, "groups": 2}, 2),
    ("dilation", {"dilation": 2, "padding": 2, "groups": 2}, 1),
    ("compute float32", {"padding": 1, "groups": 2, "compute_mode": "float32"}, 1),
    ("convolution", {"padding": 1, "groups": 2, "conv_mode": "convolution"}, 1),
):
    case(
        "region_restricted_conv/" + _name,
        lambda F, x, w, a, b, o=_args: F.region_restricted_conv(x, w, a, b, **o),
        f(1, 2, 4, 4), f(2, 1, 1, 3, 3), _RIN, _RIN[:, ::_part, ::_part],
    )  # fmt: skip
case(
    "region_restricted_conv/bias", lambda F, x, w, a, b, c: F.region_restricted_conv(x, w, a, b, c, padding=1, groups=2),
    f(1, 2, 4, 4), f(2, 1, 1, 3, 3), _RIN, _RIN, f(1, 2, 1, 1),
)  # fmt: skip
case(
    "region_restricted_conv/one group", lambda F, x, w, a, b: F.region_restricted_conv(x, w, a, b, padding=1, groups=1),
    f(1, 1, 4, 4), f(1, 1, 1, 3, 3), _RIN, _RIN,
)  # fmt: skip
case(
    "region_restricted_conv/no padding",
    lambda F, x, w, a, b: F.region_restricted_conv(x, w, a, b, groups=2),
    f(1, 2, 4, 4), f(2, 1, 1, 3, 3), _RIN, _RIN[:, 1:3, 1:3],
)  # fmt: skip
_BN = (f(3, 3, 2, 2), f(1, 3, 1, 1), f(1, 3, 1, 1, low=0.5), f(1, 3, 1, 1, seed=1), f(1, 3, 1, 1, seed=2))
case("batch_norm/eps", lambda F, *t: F.batch_norm(*t, training=True, eps=0.5), *_BN)
case("batch_norm/evaluation with eps", lambda F, *t: F.batch_norm(*t, eps=0.5, inplace=False), *_BN, grad=False)
case("batch_norm/weight only", lambda F, x, m, v, w: F.batch_norm(x, m, v, w, training=True), *_BN[:4])
case("batch_norm/evaluation's gradient", lambda F, *t: F.batch_norm(*t), *_BN)
for _name in ("layer_norm", "group_norm", "instance_norm", "general_norm"):
    _first = {"layer_norm": ((3, 4),), "group_norm": (1,), "instance_norm": (), "general_norm": ((1, 2, 3),)}[_name]
    case(_name + "/other eps", lambda F, x, n=_name, a=_first: getattr(F.nn, n)(x, *a, False, eps=0.3), f(2, 2, 3, 4))
    case(
        _name + "/weight only", lambda F, x, w, n=_name, a=_first: getattr(F.nn, n)(x, *a, True, w, None),
        f(2, 2, 3, 4), f(*{"layer_norm": (3, 4), "general_norm": (2, 3, 4)}.get(_name, (2,))),
    )  # fmt: skip
case("local_response_norm/beta", lambda F, x: F.local_response_norm(x, 3, beta=1.5, alpha=0.2), f(2, 5, 2, 2))
case("local_response_norm/even", lambda F, x: F.local_response_norm(x, 4, alpha=0.2), f(2, 5, 2, 2))
case("flatten/axes", lambda F, x: F.flatten(x, 1, 2), f(2, 3, 2, 2))
case("flatten/end_axis", lambda F, x: F.flatten(x, end_axis=-2), f(2, 3, 2))
case("sliding_window/no padding", lambda F, x: F.sliding_window(x, (2, 3)), f(1, 2, 4, 5))
case("sliding_window_transpose/no padding", lambda F, x: F.sliding_window_transpose(x, (4, 5), 2), f(1, 2, 3, 4, 2, 2))
case("zeros/int32", lambda F: F.zeros((2, 1), dtype="int32"), grad=False)
case("ones/float32", lambda F: F.ones((2, 0, 1)), grad=False)
case(
    "remap/no scalar",
    lambda F, x, m: F.vision.remap(x, m, "constant"),
    f(1, 2, 5, 6),
    f(1, 4, 3, 2, low=-1.5, high=6.5),
)
case(
    "roi_pooling/scale 1", lambda F, x, r: F.vision.roi_pooling(x, r, 2), distinct(2, 2, 6, 7),
    np.float32([[0, 0, 1, 4, 4], [1, 1, 1, 6, 5], [0, 3, 2, 3, 2]]), grad=False,
)  # fmt: skip
for _mode in ("average", "max"):
    _rois = np.float32([[0, 0.5, 0.6, 4.2, 4.4], [1, 1, 1, 5, 4]])
    case(
        "roi_pooling/gradient " + _mode,
        lambda F, x, m=_mode, r=_rois: F.vision.roi_pooling(x, F.full((2, 5), 1.0) * _tensor(r), (2, 2), m),
        distinct(2, 2, 6, 7),
    )
    case(
        "roi_align/gradient " + _mode,
        lambda F, x, m=_mode, r=_rois: F.vision.roi_align(x, F.full((2, 5), 1.0) * _tensor(r), (2, 2), m),
        distinct(2, 2, 6, 7),
    )
case("correlation/no padding", lambda F, x, y: F.vision.correlation(x, y), f(1, 2, 5, 6), f(1, 2, 5, 6, seed=1))
for _options in ((1, 1, 1, 1, 1, True), (3, 2, 1, 1, 2, True), (1, 2, 2, 2, 2, False)):
    case(
        "correlation/gradient %s" % (_options,), lambda F, x, y, o=_options: F.vision.correlation(x, y, *o),
        f(1, 2, 5, 6), f(1, 2, 5, 6, seed=1),
    )  # fmt: skip
for _mode in ("GRAY2BGR", "YUV2BGR", "YUV2GRAY_NV21", "YUV2RGB_NV12", "YUV2BGR_NV21", "YUV2RGB_YV12", "YUV2BGR_YV12", "YUV2GRAY_YV12",
              "YUV2RGB_YU12", "YUV2BGR_YU12", "YUV2GRAY_YU12", "YUV2GRAY_NV12", "YUV2RGB_NV21", "BT601_YUV2RGB_NV21", "BT601_YUV2BGR_NV12",
              "BT601_YUV2RGB_NV12", "BT601_YUV2BGR_NV21", "BT601_YUV2RGB_YV12", "BT601_YUV2BGR_YV12", "BT601_YUV2RGB_YU12",
              "BT601_YUV2BGR_YU12"):  # fmt: skip
    _channels = 3 if _mode == "YUV2BGR" else 1
    case(
        "cvt_color/more " + _mode, lambda F, x, m=_mode: F.vision.cvt_color(x, m),
        i(1, 6, 4, _channels, high=255, seed=3).astype(np.uint8), grad=False,
    )  # fmt: skip
for _mode in ("RGB2GRAY", "RGB2YUV", "YUV2RGB", "GRAY2RGB", "BGR2GRAY", "GRAY2BGR"):
    case(
        "cvt_color/gradient " + _mode, lambda F, x, m=_mode: F.vision.cvt_color(x, m),
        f(1, 2, 3, 1 if _mode.startswith("GRAY") else 3, low=0, high=255),
    )  # fmt: skip
case("sync_batch_norm/evaluation", lambda F, *t: F.nn.sync_batch_norm(*t), *_BN, grad=False)
case(
    "sync_batch_norm/training",
    lambda F, *t: F.nn.sync_batch_norm(*t, training=True, momentum=0.5, eps=0.1),
    *_BN,
    grad=False,
)
case("ctc_loss/blank", lambda F, x, n, y, m: F.loss.ctc_loss(x, n, y, m, 2),
     np.exp(f(6, 2, 4)) / np.exp(f(6, 2, 4)).sum(-1, keepdims=True),
     np.int32([6, 5]), np.int32([[1, 3, 3], [3, 1, 0]]), np.int32([3, 2]), grad=False)  # fmt: skip
case("ctc_loss/gradient", lambda F, x: F.loss.ctc_loss(x, _tensor(np.int32([6, 5])), _tensor(np.int32([[1, 2, 2], [3, 1, 0]])), _tensor(np.int32([3, 2]))),
     np.exp(f(6, 2, 4)) / np.exp(f(6, 2, 4)).sum(-1, keepdims=True))  # fmt: skip
case("embedding/padding_idx", lambda F, x, w: F.embedding(x, w, padding_idx=2), i(2, 3), f(5, 4))
case("embedding/repeated", lambda F, x, w: F.embedding(x, w), np.int32([1, 1, 3, 1]), f(5, 4))
case("embedding/max_norm", lambda F, x, w: F.embedding(x, w, max_norm=1.0), i(2, 3), f(5, 4))
case("embedding/norm_type", lambda F, x, w: F.embedding(x, w, max_norm=1.0, norm_type=1.0), i(2, 3), f(5, 4))
case("dropout/all stay", lambda F, x: F.dropout(x, 0.0), f(3))
case("dropout/none stay, evaluation", lambda F, x: F.dropout(x, 1.0, False), f(3))
for _name in ("arange", "linspace", "eye", "full", "ones", "zeros"):
    _args = {"arange": (3,), "linspace": (0, 1, 3), "eye": (2,), "full": (2, 1.5)}.get(_name, (2,))
    for _dtype in ("float16", "int8", "uint8", "int16", "bool"):
        case(
            "%s/dtype %s" % (_name, _dtype),
            lambda F, n=_name, a=_args, t=_dtype: getattr(F, n)(*a, dtype=t),
            grad=False,
        )
    case(_name + "/device", lambda F, n=_name, a=_args: getattr(F, n)(*a, device="cpu0"), grad=False)
for _name in ("concat", "stack"):
    case(_name + "/device", lambda F, x, n=_name: getattr(F, n)([x, x * 2], 0, "cpu0"), f(2, 3))
case("copy/device", lambda F, x: F.copy(x, "cpu1"), f(3), grad=False)
_PROJECTION = 4 * 6 * 6
for _name, _options in {
    "add_zero_attn": {"add_zero_attn": True},
    "cudnn style": {"maybe_cudnn_style_mask": True},
    "training": {"training": True},
}.items():
    case(
        "multi_head_attention/" + _name,
        lambda F, q, k, v, w, o=_options: F.multi_head_attention(
            q, k, v, 6, 2, 0.0, 0.0, w, **dict(dict(qproj_size=6, kproj_size=6, vproj_size=6, oproj_size=6, training=False), **o)
        ),
        f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1), f(_PROJECTION),
    )  # fmt: skip
for _name in ("key_padding_mask", "bias_k and bias_v"):
    case(
        "multi_head_attention/" + _name,
        lambda F, q, k, v, w, m, n=_name: F.multi_head_attention(
            q, k, v, 6, 2, 0.0, 0.0, w, qproj_size=6, kproj_size=6, vproj_size=6, oproj_size=6, training=False,
            **({n: m} if "mask" in n else {"bias_k": m, "bias_v": m})
        ),
        f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1), f(_PROJECTION), f(2, 4) if "mask" in _name else f(1, 1, 6),
    )  # fmt: skip


def _tensor(array):
    import megengine

    return megengine.tensor(array)


# ---------------------------------------------------------------- dtypes
DTYPES = ("float16", "int8", "uint8", "int16", "int32", "bool")
for _name, (_low, _high) in UNARY.items():
    for _dtype in DTYPES:
        _x = f(4, low=_low, high=_high, seed=5)
        _x = _x.astype(_dtype) if _dtype != "bool" else _x > _x.mean()
        case("%s/of %s" % (_name, _dtype), lambda F, x, n=_name: getattr(F, n)(x), _x, grad=False)
for _name in BINARY + COMPARE:
    for _dtype in DTYPES:
        _x, _y = i(4, low=1, high=7), i(4, low=1, high=4, seed=1)
        _x, _y = (t.astype(_dtype) if _dtype != "bool" else t > 2 for t in (_x, _y))
        case("%s/of %s" % (_name, _dtype), lambda F, x, y, n=_name: getattr(F, n)(x, y), _x, _y, grad=False)
for _name in ("sum", "mean", "prod", "max", "min", "var", "std", "argmax", "argmin", "sort", "argsort", "cumsum"):
    for _dtype in DTYPES:
        _x = (
            i(2, 4, low=0, high=5, seed=4)
            if _name not in ("sort", "argsort")
            else np.int32([[3, 1, 2, 0], [5, 9, 7, 8]])
        )
        _x = _x.astype(_dtype) if _dtype != "bool" else _x > 2
        if _name in ("sort", "argsort") and _dtype == "bool":
            continue
        _args = () if _name in ("sort", "argsort") else (1,)
        case("%s/of %s" % (_name, _dtype), lambda F, x, n=_name, a=_args: getattr(F, n)(x, *a), _x, grad=False)
for _name in ("logical_and", "logical_or", "logical_xor", "left_shift", "right_shift"):
    for _dtype in DTYPES:
        _x, _y = i(4, low=0, high=7), i(4, low=0, high=3, seed=1)
        _x, _y = (t.astype(_dtype) if _dtype != "bool" else t > 2 for t in (_x, _y))
        case("%s/of %s" % (_name, _dtype), lambda F, x, y, n=_name: getattr(F, n)(x, y), _x, _y, grad=False)
_SHAPED = {
    "reshape": lambda F, x: F.reshape(x, (3, 2)), "transpose": lambda F, x: F.transpose(x, (1, 0)), "flatten": lambda F, x: F.flatten(x),
    "concat": lambda F, x: F.concat([x, x], 1), "stack": lambda F, x: F.stack([x, x]), "split": lambda F, x: F.split(x, 3, 1),
    "tile": lambda F, x: F.tile(x, (2, 1)), "repeat": lambda F, x: F.repeat(x, 2, 0), "roll": lambda F, x: F.roll(x, 1, 1),
    "broadcast_to": lambda F, x: F.broadcast_to(x, (2, 2, 3)), "getitem": lambda F, x: x[:, 1], "where": lambda F, x: F.where(x > x.min(), x, x),
    "zeros_like": lambda F, x: F.zeros_like(x), "full_like": lambda F, x: F.full_like(x, 1), "ones_like": lambda F, x: F.ones_like(x), "cond_take": lambda F, x: F.cond_take(x == x, x),
    "pad": lambda F, x: F.nn.pad(x, ((1, 0), (0, 1))), "diag": lambda F, x: F.diag(x), "gather": lambda F, x: F.gather(x, 1, _tensor(np.int32([[0], [2]]))),
    "topk": lambda F, x: F.topk(x, 2), "one_hot": lambda F, x: F.one_hot(x, 10), "clip": lambda F, x: F.clip(x, 1, 3), "matmul": lambda F, x: F.matmul(x, F.transpose(x, (1, 0))),
    "swapaxes": lambda F, x: F.swapaxes(x, 0, 1), "expand_dims": lambda F, x: F.expand_dims(x, 1), "squeeze": lambda F, x: F.squeeze(x[:1], 0),
    "scatter": lambda F, x: F.scatter(x, 0, _tensor(np.int32([[0, 1, 1]])), x[1:]), "copy": lambda F, x: F.copy(x), "softmax": lambda F, x: F.softmax(x, 1),
    "norm": lambda F, x: F.norm(x, axis=1), "linear": lambda F, x: F.linear(x, x), "dot": lambda F, x: F.dot(x[0], x[1]),
}  # fmt: skip
for _name, _call in _SHAPED.items():
    for _dtype in DTYPES:
        _x = np.int32([[3, 1, 2], [5, 9, 7]])
        _x = _x.astype(_dtype) if _dtype != "bool" else _x > 4
        if not (_dtype == "bool" and _name == "topk"):
            case("%s/shapes of %s" % (_name, _dtype), _call, _x, grad=False)
for _function, _x, _w in (
    ("conv2d", (1, 2, 4, 4), (2, 2, 3, 3)),
    ("conv1d", (1, 2, 4), (2, 2, 3)),
    ("conv_transpose2d", (1, 2, 3, 3), (2, 2, 2, 2)),
):
    case(
        _function + "/float16",
        lambda F, x, w, n=_function: getattr(F, n)(x, w),
        f(*_x).astype(np.float16),
        f(*_w).astype(np.float16),
        grad=False,
    )
for _name, _call in {
    "avg_pool2d": lambda F, x: F.avg_pool2d(x, 2), "max_pool2d": lambda F, x: F.max_pool2d(x, 2), "batch_norm": lambda F, x: F.batch_norm(x, training=True),
    "layer_norm": lambda F, x: F.nn.layer_norm(x, (4,), False), "adaptive_avg_pool2d": lambda F, x: F.adaptive_avg_pool2d(x, 3),
    "interpolate": lambda F, x: F.vision.interpolate(x, (3, 5)), "interpolate/nearest": lambda F, x: F.vision.interpolate(x, (3, 5), mode="nearest"), "interpolate/bicubic": lambda F, x: F.vision.interpolate(x, (3, 5), mode="bicubic"), "logsumexp": lambda F, x: F.logsumexp(x, 1), "pixel_shuffle": lambda F, x: F.pixel_shuffle(x, 2),
    "local_response_norm": lambda F, x: F.local_response_norm(x, 3), "group_norm": lambda F, x: F.nn.group_norm(x, 2, False), "logsoftmax": lambda F, x: F.logsoftmax(x, 1),
}.items():  # fmt: skip
    case(_name + "/float16", _call, f(2, 4, 4, 4, seed=8).astype(np.float16), grad=False)

# ---------------------------------------------------------------- no element, one element
_EMPTY = {
    "relu": lambda F, x: F.relu(x), "add": lambda F, x: x + 1, "concat": lambda F, x: F.concat([x, x], 0), "reshape": lambda F, x: F.reshape(x, (3, 0)),
    "transpose": lambda F, x: F.transpose(x, (1, 0)), "sum/0": lambda F, x: F.sum(x, 0), "sum/1": lambda F, x: F.sum(x, 1), "sum/all": lambda F, x: F.sum(x),
    "prod": lambda F, x: F.prod(x, 0), "mean": lambda F, x: F.mean(x, 0), "max": lambda F, x: F.max(x, 0), "min": lambda F, x: F.min(x, 0), "matmul": lambda F, x: F.matmul(x, F.transpose(x, (1, 0))),
    "matmul/inner": lambda F, x: F.matmul(F.transpose(x, (1, 0)), x), "linear": lambda F, x: F.linear(x, F.ones((4, 3))), "softmax": lambda F, x: F.softmax(x, 1),
    "broadcast_to": lambda F, x: F.broadcast_to(x, (2, 0, 3)), "stack": lambda F, x: F.stack([x, x]), "split": lambda F, x: F.split(x, 3, 1), "expand_dims": lambda F, x: F.expand_dims(x, 0),
    "getitem": lambda F, x: x[:, 1], "flatten": lambda F, x: F.flatten(x), "cumsum": lambda F, x: F.cumsum(x, 1), "argmax": lambda F, x: F.argmax(x, 1), "sort": lambda F, x: F.sort(x),
    "topk": lambda F, x: F.topk(x, 1), "where": lambda F, x: F.where(x > 0, x, x), "cond_take": lambda F, x: F.cond_take(x > 0, x), "tile": lambda F, x: F.tile(x, (2, 1)), "repeat": lambda F, x: F.repeat(x, 2, 1),
    "roll": lambda F, x: F.roll(x, 1, 1), "pad": lambda F, x: F.nn.pad(x, ((1, 0), (0, 1))), "swapaxes": lambda F, x: F.swapaxes(x, 0, 1), "zeros_like": lambda F, x: F.zeros_like(x), "clip": lambda F, x: F.clip(x, 0, 1),
    "layer_norm": lambda F, x: F.nn.layer_norm(x, (3,), False), "norm": lambda F, x: F.norm(x, axis=1), "square_loss": lambda F, x: F.loss.square_loss(x, x), "one_hot": lambda F, x: F.one_hot(x.astype("int32"), 4),
    "cross_entropy": lambda F, x: F.loss.cross_entropy(x, F.zeros((0,), dtype="int32")), "dropout": lambda F, x: F.dropout(x, 0.5), "maximum": lambda F, x: F.maximum(x, 0), "astype": lambda F, x: x.astype("int32"),
}  # fmt: skip
for _name, _call in _EMPTY.items():
    _function, _, _rest = _name.partition("/")
    case("%s/no rows%s" % (_function, " " + _rest if _rest else ""), _call, np.zeros((0, 3), np.float32), grad=False)
for _name, _call in {
    "conv2d": lambda F, x: F.conv2d(x, F.ones((2, 2, 3, 3))), "max_pool2d": lambda F, x: F.max_pool2d(x, 2), "avg_pool2d": lambda F, x: F.avg_pool2d(x, 2),
    "batch_norm": lambda F, x: F.batch_norm(x, F.zeros((1, 2, 1, 1)), F.ones((1, 2, 1, 1))), "interpolate": lambda F, x: F.vision.interpolate(x, (3, 3)),
    "adaptive_avg_pool2d": lambda F, x: F.adaptive_avg_pool2d(x, 2), "pixel_shuffle": lambda F, x: F.pixel_shuffle(F.concat([x, x], 1), 2), "conv_transpose2d": lambda F, x: F.conv_transpose2d(x, F.ones((2, 2, 3, 3))),
}.items():  # fmt: skip
    case(_name + "/no pictures", _call, np.zeros((0, 2, 5, 5), np.float32), grad=False)
_ONE = {
    "sum": lambda F, x: F.sum(x), "mean": lambda F, x: F.mean(x, 0), "max": lambda F, x: F.max(x, 1), "var": lambda F, x: F.var(x, 1), "std": lambda F, x: F.std(x, 1), "prod": lambda F, x: F.prod(x), "argmax": lambda F, x: F.argmax(x, 1),
    "sort": lambda F, x: F.sort(x), "topk": lambda F, x: F.topk(x, 1), "cumsum": lambda F, x: F.cumsum(x, 1), "softmax": lambda F, x: F.softmax(x, 1), "logsumexp": lambda F, x: F.logsumexp(x, 0), "matmul": lambda F, x: F.matmul(x, x),
    "layer_norm": lambda F, x: F.nn.layer_norm(x, (1,), False), "norm": lambda F, x: F.norm(x, axis=1), "squeeze": lambda F, x: F.squeeze(x, 1), "matinv": lambda F, x: F.matinv(x), "split": lambda F, x: F.split(x, 1), "diag": lambda F, x: F.diag(x),
    "cross_entropy": lambda F, x: F.loss.cross_entropy(x, F.zeros((1,), dtype="int32")), "normalize": lambda F, x: F.normalize(x, axis=1), "gather": lambda F, x: F.gather(x, 1, F.zeros((1, 1), dtype="int32")),
    "repeat": lambda F, x: F.repeat(x, 3, 1), "roll": lambda F, x: F.roll(x, 5, 1), "pad": lambda F, x: F.nn.pad(x, ((1, 1), (2, 0))), "meshgrid": lambda F, x: F.meshgrid(x[0], x[0]), "cond_take": lambda F, x: F.cond_take(x == x, x),
    "flatten": lambda F, x: F.flatten(x), "stack": lambda F, x: F.stack([x]), "concat": lambda F, x: F.concat([x]), "hinge_loss": lambda F, x: F.loss.hinge_loss(x, F.ones((1, 1))), "svd": lambda F, x: F.svd(x)[1], "where": lambda F, x: F.where(x > 0, x, -x),
}  # fmt: skip
for _name, _call in _ONE.items():
    case(_name + "/one element", _call, np.float32([[1.25]]), grad=_name not in ("argmax", "svd", "squeeze", "sum"))
for _name, _call in {
    "conv2d": lambda F, x: F.conv2d(x, F.full((1, 1, 1, 1), 2.0)), "max_pool2d": lambda F, x: F.max_pool2d(x, 1), "avg_pool2d": lambda F, x: F.avg_pool2d(x, 3, 1, 1), "batch_norm": lambda F, x: F.batch_norm(x, training=True, eps=0.1),
    "interpolate": lambda F, x: F.vision.interpolate(x, (3, 2)), "adaptive_avg_pool2d": lambda F, x: F.adaptive_avg_pool2d(x, 2), "local_response_norm": lambda F, x: F.local_response_norm(x, 1), "pixel_shuffle": lambda F, x: F.pixel_shuffle(x, 1),
    "group_norm": lambda F, x: F.nn.group_norm(x, 1, False), "instance_norm": lambda F, x: F.nn.instance_norm(x, False), "sliding_window": lambda F, x: F.sliding_window(x, 1),
}.items():  # fmt: skip
    case(_name + "/one pixel", _call, np.float32([[[[1.25]]]]))

# ---------------------------------------------------------------- more modes
case(
    "conv_transpose2d/padding",
    lambda F, x, w: F.conv_transpose2d(x, w, stride=2, padding=(1, 0)),
    f(1, 3, 4, 4),
    f(3, 2, 3, 3),
)
for _size in (2, 3):
    case(
        "conv_transpose%dd/output_padding and all else" % _size,
        lambda F, x, w, n=_size: getattr(F, "conv_transpose%dd" % n)(x, w, None, (2,) * n, (1,) * n, (1, 0, 1)[:n], (1,) * n),
        f(*((1, 2, 3, 2, 3)[: 2 + _size])),
        f(*((2, 2) + (3,) * _size)),
    )  # fmt: skip
case("conv1d/groups of three axes", lambda F, x, w: F.conv1d(x, w, groups=2), f(1, 4, 5), f(2, 2, 3))
case("conv1d/groups of four axes", lambda F, x, w: F.conv1d(x, w, groups=2), f(1, 4, 5), f(2, 1, 2, 3))
for _name, _count in (("plain", 3), ("weight", 4)):
    case("sync_batch_norm/" + _name, lambda F, *t: F.nn.sync_batch_norm(*t, training=True), *_BN[:_count], grad=False)
case(
    "sync_batch_norm/eps_mode",
    lambda F, *t: F.nn.sync_batch_norm(*t, training=True, eps=0.5, eps_mode="max"),
    *_BN,
    grad=False,
)
case("sync_batch_norm/gradient", lambda F, *t: F.nn.sync_batch_norm(*t, training=True), *_BN)
case("pad/edge", lambda F, x: F.nn.pad(x, ((1, 1),), "edge"), f(3))
for _mode in ("reflect", "replicate", "constant", "REFLECT", "CONSTANT"):
    case("pad/one axis " + _mode, lambda F, x, m=_mode: F.nn.pad(x, ((2, 1),), m), f(3))
for _interp in ("nearest", "cubic", "area"):
    case(
        "warp_perspective/%s without gradient" % _interp,
        lambda F, x, m, n=_interp: F.vision.warp_perspective(x, m, (4, 7), interp_mode=n),
        f(1, 2, 5, 6), np.float32([[[0.9, 0.2, 0.3], [-0.1, 1.1, -0.4], [0.01, 0.02, 1.0]]]), grad=False,
    )  # fmt: skip
case(
    "multi_head_attention/both masks",
    lambda F, q, k, v, w, m, n: F.multi_head_attention(
        q, k, v, 6, 2, 0.0, 0.0, w, qproj_size=6, kproj_size=6, vproj_size=6, oproj_size=6, training=False,
        attn_mask=m, key_padding_mask=n, maybe_cudnn_style_mask=True,
    ),
    f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1), f(_PROJECTION), f(3, 4), f(2, 4), grad=False,
)  # fmt: skip
case(
    "multi_head_attention/causal without gradient",
    lambda F, q, k, v, w: F.multi_head_attention(
        q, k, v, 6, 2, 0.0, 0.0, w, qproj_size=6, kproj_size=6, vproj_size=6, oproj_size=6, training=False, is_causal=True
    ),
    f(2, 3, 6), f(2, 3, 6), f(2, 3, 6, seed=1), f(_PROJECTION), grad=False,
)  # fmt: skip
case(
    "multi_head_attention/no projections",
    lambda F, q, k, v, w: F.multi_head_attention(q, k, v, 6, 2, 0.0, 0.0, w, training=False),
    f(2, 3, 6), f(2, 4, 6), f(2, 4, 6, seed=1), f(1, low=0, high=0.0), grad=False,
)  # fmt: skip
for _name in ("arange", "linspace", "eye", "full", "ones", "zeros"):
    _args = {"arange": (3,), "linspace": (0, 1, 3), "eye": (2,), "full": (2, 1.5)}.get(_name, (2,))
    for _dtype in ("uint16", "int64", "float64", "bfloat16", "uint32", "uint64"):
        case(
            "%s/dtype %s" % (_name, _dtype),
            lambda F, n=_name, a=_args, t=_dtype: getattr(F, n)(*a, dtype=t),
            grad=False,
        )

# ---------------------------------------------------------------- gradients that few programs need
case("mod/gradient", lambda F, x, y: F.mod(x, y), f(5, low=0.5, high=9), f(5, low=1, high=3))
case("astype/gradient", lambda F, x: (x.astype("float16") * 2).astype("float32"), f(5))
case("complex/gradient", lambda F, a, b: [F.real(F.complex(a, b)), F.imag(F.complex(a, b))], f(3), f(3, seed=1))
case("polar/gradient", lambda F, a, b: [F.real(F.polar(a, b)), F.imag(F.polar(a, b))], f(3), f(3, seed=1))
case("svd/gradient", lambda F, x: F.svd(x)[1], f(4, 3))
case(
    "warp_affine/gradient", lambda F, x, m: F.vision.warp_affine(x, m, (4, 7), format="NCHW"),
    f(1, 2, 5, 6), np.float32([[[0.9, 0.2, 0.3], [-0.1, 1.1, -0.4]]]),
)  # fmt: skip
case(
    "deformable_psroi_pooling/gradient",
    lambda F, x, t: F.deformable_psroi_pooling(
        x, _tensor(np.float32([[0, 0.5, 0.6, 4.2, 4.4], [1, 1, 1, 9, 9], [0, 3, 2, 1, 5]])), t, False, 2, 2, 2, 2, 0.7, 0.1
    ),
    f(2, 8, 6, 7), f(3, 2, 2, 2),
)  # fmt: skip
