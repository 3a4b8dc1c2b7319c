"""Record quantization.npz with the real MegEngine 1.13 (Python 3.8): run `python make_quantization.py` there.

Public API only. Values are next to ties on purpose where rounding is recorded.
"""

from functools import partial

import numpy as np

import megengine as mge
import megengine.module as M
import megengine.module.quantized as QM
import megengine.quantization as Q
from megengine.autodiff import GradManager
from megengine.core.tensor import dtype as D
from megengine.quantization import utils as U

f32 = np.float32
out = {}


def tensor(x, dtype=None):
    return mge.Tensor(x, dtype=dtype)


def stored(q, scale):
    dtype = D.qint8(float(scale))
    return tensor(D.convert_to_qint8((q * f32(scale)).astype(f32), dtype), dtype)


def near_ties(rng, shape, scale):
    x = ((rng.integers(-140, 140, shape) + f32(0.5)) * f32(scale)).astype(f32)
    return (x * (1 + rng.integers(-2, 3, shape) * f32(2**-23))).astype(f32)


def conversions():
    rng = np.random.default_rng(0)
    x = near_ties(rng, (2000,), 0.0531)
    out["convert.x"] = x
    out["convert.qint8"] = tensor(x).astype(D.qint8(0.0531)).numpy().astype(np.int8)
    out["convert.quint8"] = tensor(x).astype(D.quint8(0.0531, 31)).numpy().astype(np.uint8)
    bias = ((rng.integers(-300, 300, 500) + 0.5) * 3.7e-4).astype(f32)
    out["convert.bias"], out["convert.qint32"] = bias, tensor(bias).astype(D.qint32(3.7e-4)).numpy().astype(np.int32)


CONVS = {
    "dense": (8, 16, 3, 1, 1, 1, 1),
    "strided": (8, 16, 3, 2, 1, 1, 1),
    "grouped": (8, 16, 3, 1, 1, 1, 4),
    "depthwise": (16, 16, 3, 1, 1, 1, 16),
    "depthwise_s3": (16, 16, 3, 3, 1, 1, 16),
    "depthwise_k4": (16, 16, 4, 1, 1, 1, 16),
    "pointwise": (16, 16, 1, 1, 0, 1, 1),
    "dilated": (8, 16, 3, 1, 2, 2, 1),
}


def layer(key, make, weight_shape, x_shape, k):
    rng = np.random.default_rng(len(key))
    s_x, s_w = f32(rng.uniform(0.01, 0.06)), f32(rng.uniform(0.002, 0.009))
    n = 2 * int(rng.integers(8, 40))
    s_y = f32(f32(s_x * s_w) * f32(n))
    m = int(min(127, max(4, np.sqrt(64 * n / np.sqrt(k)))))
    x = rng.integers(-m, m + 1, x_shape).astype(np.int8)
    w = rng.integers(-m, m + 1, weight_shape).astype(np.int8)
    module = make(dtype=D.qint8(float(s_y)))
    module.eval()
    module.weight = mge.Parameter(D.convert_to_qint8((w * s_w).astype(f32), D.qint8(float(s_w))), D.qint8(float(s_w)))
    if getattr(module, "bias", None) is not None or not isinstance(module, QM.ConvTranspose2d):
        shape = (w.shape[0],) if w.ndim == 2 else (1, int(np.prod(w.shape[: w.ndim - 3])), 1, 1)
        bias = (rng.integers(-3000, 3000, shape) * float(s_x) * float(s_w) * 0.01).astype(f32)
        module.bias = mge.Parameter(bias)
        out[key + ".bias"] = bias
    out[key + ".x"], out[key + ".w"], out[key + ".scales"] = x, w, np.array([s_x, s_w, s_y])
    out[key + ".y"] = module(stored(x, s_x)).numpy().astype(np.int8)


def layers():
    for name, (c, o, k, stride, pad, dilation, g) in CONVS.items():
        shape = (o, c, k, k) if g == 1 else (g, o // g, c // g, k, k)
        for cls in (QM.Conv2d, QM.ConvRelu2d):
            layer(
                f"{cls.__name__}.{name}",
                partial(cls, c, o, k, stride, pad, dilation, g),
                shape,
                (1, c, 12, 12),
                c // g * k * k,
            )
    for cls in (QM.Linear, QM.LinearRelu):
        layer(cls.__name__, cls, (16, 64), (64, 64), 64)
    layer(
        "ConvTranspose2d",
        partial(QM.ConvTranspose2d, 8, 16, 3, 2, 1, bias=False),
        (8, 16, 3, 3),
        (1, 8, 9, 9),
        18,
    )


BINARY = ("ADD", "SUB", "MUL", "MAX", "MIN", "TRUE_DIV", "FUSE_ADD_RELU", "FUSE_ADD_H_SWISH")
ELEMWISE = ("RELU", "ABS", "H_SWISH", "SIGMOID", "TANH", *BINARY)


def elemwise():
    rng = np.random.default_rng(5)
    s_a, s_b = f32(0.0213), f32(0.0639)
    a, b = (rng.integers(-128, 128, (3000,)).astype(np.int8) for _ in range(2))
    b[b == 0] = 1
    out["elemwise.a"], out["elemwise.b"], out["elemwise.scales"] = a, b, np.array([s_a, s_b])
    for method in ELEMWISE:
        s_y = (
            f32(1 / 128) if method in ("SIGMOID", "TANH") else f32(s_a * s_b * 10) if method == "MUL" else f32(s_a * 2)
        )
        module = QM.Elemwise(method, dtype=D.qint8(float(s_y)))
        module.eval()
        inputs = [stored(a, s_a), stored(b, s_b)][: 2 if method in BINARY else 1]
        out[f"elemwise.{method}"] = module(*inputs).numpy().astype(np.int8)
        out[f"elemwise.{method}.scale"] = np.asarray(s_y)
    concat = QM.Concat(dtype=D.qint8(float(f32(s_a * 2))))
    concat.eval()
    out["concat.y"] = concat([stored(a, s_a), stored(b, s_b)], axis=0).numpy().astype(np.int8)


def observers():
    rng = np.random.default_rng(6)
    batches = rng.normal(0.3, 1.5, (4, 200)).astype(f32)
    out["observer.batches"] = batches
    for name in ("MinMaxObserver", "ExponentialMovingAverageObserver", "HistogramObserver"):
        for dtype in ("qint8", "qint8_narrow", "quint8"):
            mode = Q.QuantMode.ASYMMERTIC if dtype == "quint8" else Q.QuantMode.SYMMERTIC
            observer = getattr(Q, name)(mode=mode, dtype=dtype)
            for batch in batches:
                observer(tensor(batch))
            qparams = observer.get_qparams()
            zero = 0.0 if qparams.zero_point is None else qparams.zero_point.numpy()
            values = [qparams.scale.numpy(), zero, observer.min_val.numpy(), observer.max_val.numpy()]
            out[f"{name}.{dtype}"] = np.array([np.asarray(v).item() for v in values])


def learnt_scales():
    rng = np.random.default_rng(7)
    x, ct = rng.normal(0, 12, 64).astype(f32), rng.normal(0, 1, 64).astype(f32)
    out["learnt.x"], out["learnt.ct"] = x, ct
    cases = {
        "tqt": (lambda v, p: U.tqt_forward(-128, 127, v, p), -3.3),
        "lsq": (lambda v, p: U.lsq_forward(-128, 127, v, p), 0.11),
        "lsq_zero": (lambda v, p: U.lsq_forward(0, 255, v, p, tensor(f32(3.0)), tensor(f32(0.25))), 0.11),
    }
    for name, (function, start) in cases.items():
        v, p = tensor(x), tensor(np.array([start], f32))
        manager = GradManager().attach([v, p])
        with manager:
            y = function(v, p)
            manager.backward((y * tensor(ct)).sum())
        out[name + ".y"], out[name + ".dx"], out[name + ".dp"] = y.numpy(), v.grad.numpy(), p.grad.numpy()


class BnNet(M.Module):
    def __init__(self, kind):
        super().__init__()
        self.quant = M.QuantStub()
        self.layer = {
            "ConvBnRelu2d": lambda: M.ConvBnRelu2d(3, 4, 3, padding=1),
            "LinearBn1d": lambda: M.LinearBn1d(6, 4),
        }[kind]()
        self.dequant = M.DequantStub()

    def forward(self, x):
        return self.dequant(self.layer(self.quant(x)))


def batch_norm_training():
    for kind, shape in (("ConvBnRelu2d", (2, 3, 6, 6)), ("LinearBn1d", (8, 6))):
        rng = np.random.default_rng(8)
        net = BnNet(kind)
        state = {}
        for name, value in sorted(net.state_dict().items()):
            positive = name.endswith(("bn.weight", "running_var"))
            state[name] = (rng.uniform(0.5, 1.5, value.shape) if positive else rng.normal(0, 0.3, value.shape)).astype(
                f32
            )
            out[f"bn.{kind}.state.{name}"] = state[name]
        net.load_state_dict(state)
        net = Q.quantize_qat(net)
        net.train()
        xs = rng.normal(0, 1, (3, *shape)).astype(f32)
        cts = rng.normal(0, 1, (3, 2, 4, 6, 6) if kind == "ConvBnRelu2d" else (3, 8, 4)).astype(f32)
        out[f"bn.{kind}.x"], out[f"bn.{kind}.ct"] = xs, cts
        for step in range(3):
            named = dict(net.named_parameters())
            manager = GradManager().attach(list(named.values()))
            with manager:
                y = net(tensor(xs[step]))
                manager.backward((y * tensor(cts[step])).sum())
            out[f"bn.{kind}.y{step}"] = y.numpy()
            for name, p in named.items():
                if p.grad is not None:
                    out[f"bn.{kind}.grad{step}.{name}"] = p.grad.numpy()
                    p.grad = None
        for name, value in net.state_dict().items():
            out[f"bn.{kind}.after.{name}"] = value
        net.eval()
        out[f"bn.{kind}.eval"] = net(tensor(xs[0])).numpy()
        net = Q.quantize(net)
        net.eval()
        out[f"bn.{kind}.quantized"] = net(tensor(xs[0])).numpy()


for record in (conversions, layers, elemwise, observers, learnt_scales, batch_norm_training):
    record()
np.savez_compressed("quantization.npz", **out)
