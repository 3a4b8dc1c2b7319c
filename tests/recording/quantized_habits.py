"""Habits of functions that are called with quantized tensors (see habits.py)."""

import numpy as np

HABITS = {}


def habit(function):
    """Keep a function under its name."""
    HABITS[function.__name__] = function
    return function


def integers(mge, kind, *shape, scale=0.1, seed=0, most=170):
    """A quantized tensor of drawn integers; those above 120 or so are brought to the ends of the dtype."""
    dtypes = mge.core.tensor.dtype
    dtype = dtypes.quint8(scale, 120) if kind == "quint8" else getattr(dtypes, kind)(scale)
    x = np.random.RandomState(seed).randint(-most, most, shape).clip(-120, 127)
    return mge.tensor((x * scale).astype(np.float32)).astype(dtype)


def shown(mge, y):
    """The dtype of a tensor with its scale and zero point, and its numbers."""
    dtypes = mge.core.tensor.dtype
    if not dtypes.is_quantize(y.dtype):
        return [y]
    zero = dtypes.get_zero_point(y.dtype) if y.numpy().dtype == np.uint8 else 0
    return [round(float(dtypes.get_scale(y.dtype)), 8), zero, np.array(y.numpy())]


def both(mge, *calls, kinds=("qint8", "quint8")):
    """What calls give to tensors of these dtypes."""
    return [shown(mge, call(lambda *a, k=kind, **s: integers(mge, k, *a, **s))) for kind in kinds for call in calls]


@habit
def averages_of_quantized_windows(mge):
    F = mge.functional
    return both(
        mge,
        lambda q: F.avg_pool2d(q(1, 2, 6, 6), 2, 2),
        lambda q: F.avg_pool2d(q(1, 2, 6, 6), 3, 2, 1),
        lambda q: F.avg_pool2d(q(1, 2, 6, 6), 2, 2, 1, mode="average"),
        lambda q: F.adaptive_avg_pool2d(q(1, 2, 6, 6), (3, 4)),
        lambda q: F.adaptive_avg_pool2d(q(1, 2, 6, 6), 1),
    )


@habit
def quantized_pictures_in_other_sizes(mge):
    resize = mge.functional.vision.interpolate
    return both(
        mge,
        lambda q: resize(q(1, 2, 3, 3), size=(5, 5)),
        lambda q: resize(q(1, 2, 4, 4), scale_factor=2),
        lambda q: resize(q(1, 2, 4, 4), size=(6, 6), align_corners=True),
        lambda q: resize(q(1, 2, 4, 4), size=(7, 6), mode="nearest"),
        lambda q: resize(q(1, 2, 3, 3, most=60), size=(5, 5), mode="bicubic"),
        lambda q: resize(q(1, 2, 3), size=5, mode="linear"),
    )


@habit
def quantized_pictures_warped(mge):
    vision = mge.functional.vision
    near = np.array([[[1.1, 0.13, -0.31], [0.057, 0.91, 0.23], [0.0013, 0.0021, 1]]], np.float32)
    half = np.array([[[0.5, 0, 0.5], [0, 0.5, -0.5], [0, 0, 1]]], np.float32)
    far = near - np.array([[0, 0, 9], [0, 0, 9], [0, 0, 0]], np.float32)
    calls = [
        lambda q, m=m, given=given: vision.warp_perspective(q(1, 2, 5, 5), mge.tensor(m), (5, 5), **given)
        for m in (near, half)
        for given in ({}, {"border_mode": "reflect"}, {"border_mode": "constant"})
    ]
    calls += [
        lambda q, v=v: vision.warp_perspective(
            q(1, 2, 5, 5), mge.tensor(far), (4, 4), border_mode="constant", border_val=v
        )
        for v in (0.0, 1.2, 10.6, 11.4, 99.7)
    ]
    return both(
        mge,
        *calls,
        lambda q: vision.warp_affine(q(1, 5, 5, 3), mge.tensor(near[:, :2]), (4, 4)),
        lambda q: vision.warp_affine(q(1, 2, 5, 5), mge.tensor(half[:, :2]), (4, 4), format="NCHW"),
        lambda q: vision.warp_perspective(q(1, 5, 5, 3), mge.tensor(half), (4, 4), format="NHWC"),
        lambda q: vision.warp_affine(q(1, 5, 5, 3), mge.tensor(half[:, :2]), (4, 4), "constant", 12.0),
    )


@habit
def quantized_regions(mge):
    rois = mge.tensor(np.array([[0, 0.5, 0.5, 3.2, 4.1], [0, 1, 1, 4, 4]], np.float32))
    align = mge.functional.vision.roi_align
    return both(
        mge,
        lambda q: align(q(1, 2, 5, 5), rois, (2, 2)),
        lambda q: align(q(1, 2, 5, 5), rois, (2, 2), mode="max"),
    )


@habit
def reduced_quantized_tensors(mge):
    F, calls = mge.functional, []
    for name in ("mean", "sum", "max", "min"):
        for axis in (None, 1, (0, 1), (2, 1), (1, 2), (0, 1, 2)):
            calls.append(lambda q, name=name, axis=axis: getattr(F, name)(q(3, 5, 6), axis=axis))  # noqa: PERF401
        calls.append(lambda q, name=name: getattr(q(3, 5, 6), name)(axis=-1, keepdims=True))
    return both(mge, *calls)


@habit
def products_of_quantized_tensors(mge):
    F = mge.functional
    bias = mge.tensor(np.array([1e3, -0.011, 1.005, 0.03], np.float32))
    return both(
        mge,
        lambda q: F.linear(q(3, 5), q(4, 5, scale=0.2)),
        lambda q: F.linear(q(3, 5), q(4, 5, scale=0.2), bias),
        lambda q: F.linear(q(2, 3, 5), q(4, 5, scale=0.2)),
        lambda q: F.matmul(q(3, 5), q(5, 4, scale=0.2)),
        lambda q: F.matmul(q(5, 3), q(4, 5, scale=0.2), transpose_a=True, transpose_b=True),
        lambda q: F.matmul(q(2, 3, 5), q(2, 5, 4)),
        lambda q: F.matmul(q(2, 3, 5), q(5, 4)),
        lambda q: F.matmul(q(3, 5), q(5)),
        lambda q: q(1, 900, scale=0.07) @ q(900, 2, scale=0.07),
    )


@habit
def real_numbers_before_a_quantized_weight(mge):
    F, x, b = (
        mge.functional,
        mge.tensor(np.linspace(-3, 4, 15).reshape(3, 5).astype(np.float32)),
        mge.tensor([0.25] * 4),
    )
    return both(
        mge,
        lambda q: F.linear(x, q(4, 5)),
        lambda q: F.linear(x, q(4, 5), b),
        lambda q: F.linear(x.astype("int32"), q(4, 5)),
        lambda q: F.linear(x.astype("float16"), q(4, 5, scale=0.03), b),
        lambda q: F.matmul(x, q(5, 4)),
        lambda q: F.matmul(x, q(4, 5, scale=0.01), transpose_b=True),
    )


@habit
def elementwise_quantized_tensors(mge):
    F, other = mge.functional, mge.tensor(np.linspace(-3, 9, 5).astype(np.float32))
    calls = [lambda q: F.relu(q(3, 5)), lambda q: -q(3, 5), lambda q: -(q(3, 5) - 8)]
    for function in (F.maximum, F.minimum, F.add, F.sub):
        calls += [
            lambda q, f=function: f(q(3, 5), q(3, 5, seed=1)),
            lambda q, f=function: f(q(3, 5), q(5, seed=1)),
            lambda q, f=function: f(q(3, 5), 1.55),
            lambda q, f=function: f(-1.55, q(3, 5)),
            lambda q, f=function: f(q(3, 5), 3),
            lambda q, f=function: f(True, q(3, 5)),
            lambda q, f=function: f(q(3, 5), other),
            lambda q, f=function: f(other.astype("int32"), q(3, 5)),
        ]
    return both(
        mge,
        *calls,
        lambda q: q(3, 5) + 1.25,
        lambda q: 1.25 - q(3, 5),
        lambda q: q(3, 5).__iadd__(1.0),
        lambda q: F.relu(q(3, 5) + q(3, 5, seed=1)),
        kinds=("qint8", "qint32"),
    )


@habit
def layers_and_observers_of_ones_own_call_what_the_base_has(mge):
    Q, M = mge.quantization, mge.module

    class Percentile(Q.MinMaxObserver):
        def get_qparams(self):
            return self._calculate_qparams(self.min_val * 0.5, self.max_val * 0.5)

    class Scaled(M.qat.QATModule):
        def forward(self, x):
            return self._apply_fakequant_with_observer(x, self.act_fake_quant, self.act_observer) * 2

        @classmethod
        def from_float_module(cls, float_module):
            return cls()

    x, found = mge.tensor(np.linspace(-1, 2, 7, dtype=np.float32)), []
    for mode, kind in ((Q.QuantMode.SYMMERTIC, "qint8"), (Q.QuantMode.ASYMMERTIC, "quint8")):
        observer = Percentile(mode=mode, dtype=kind)
        observer(x)
        found.append(
            [observer.get_qparams().scale, repr(observer._calculate_qparams(mge.tensor(-1.0), mge.tensor(3.0)))]
        )
    layer = Scaled()
    layer.set_qconfig(Q.ema_fakequant_qconfig)
    return found, layer(x), layer._apply_fakequant_with_observer(x, None, None)
