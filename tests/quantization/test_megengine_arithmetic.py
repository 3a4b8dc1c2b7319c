"""Every number here was recorded from MegEngine 1.13 (tests/data/megengine/make_quantization.py), ties on purpose."""

from pathlib import Path

import numpy as np
import pytest

import megengine.functional as F
import megengine.module.quantized as QM
from megengine.core.dtype import qint8, qint32, quint8
from megengine.core.errors import DTypeError, OptionError
from megengine.dispatch import apply
from megengine.quantization.modules.arithmetic import Product, constants, stored_result
from megengine.tensor import Parameter, Tensor

RECORDED = np.load(Path(__file__).parents[1] / "data" / "megengine" / "quantization.npz")


def stored(q, scale):
    return Tensor._wrap(np.ascontiguousarray(q), qint8(float(scale)))


def names(prefix, suffix):
    return sorted(k.removesuffix(suffix) for k in RECORDED.files if k.startswith(prefix) and k.endswith(suffix))


@pytest.mark.parametrize(
    ("x", "y", "dtype"),
    [
        ("convert.x", "convert.qint8", qint8(0.0531)),
        ("convert.x", "convert.quint8", quint8(0.0531, 31)),
        ("convert.bias", "convert.qint32", qint32(3.7e-4)),
    ],
)
def test_conversion(x, y, dtype):
    q = apply("quantize_away", Tensor(RECORDED[x]), dtype=dtype, factor=None)
    np.testing.assert_array_equal(q.numpy(), RECORDED[y])


def test_our_own_rounding_is_another():
    q = apply("quantize", Tensor(RECORDED["convert.x"]), dtype=qint8(0.0531))
    assert np.sum(q.numpy() != RECORDED["convert.qint8"]) > 100


def module_of(key):
    kind, _, name = key.partition(".")
    geometry = {
        "strided": {"stride": 2},
        "grouped": {"groups": 4},
        "depthwise": {"groups": 16},
        "depthwise_s3": {"groups": 16, "stride": 3},
        "depthwise_k4": {"groups": 16},
        "dilated": {"dilation": 2, "padding": 2},
    }.get(name, {})
    s_y = float(RECORDED[key + ".scales"][2])
    if kind.startswith("Linear"):
        return getattr(QM, kind)(dtype=qint8(s_y))
    w = RECORDED[key + ".w"]
    if kind == "ConvTranspose2d":
        return QM.ConvTranspose2d(8, 16, 3, 2, 1, bias=False, dtype=qint8(s_y))
    channels = RECORDED[key + ".x"].shape[1]
    geometry = {"padding": 0 if w.shape[-1] == 1 else 1, **geometry}
    return getattr(QM, kind)(channels, 16, w.shape[-1], dtype=qint8(s_y), **geometry)


LAYERS = [k for k in names("", ".y") if k + ".scales" in RECORDED]


@pytest.mark.parametrize("key", LAYERS)
@pytest.mark.parametrize("forced", ["reference", None])
def test_layer(key, forced, monkeypatch):
    if forced:
        monkeypatch.setenv("MEGENGINE_FORCE_KERNEL", forced)
    s_x, s_w, _ = (float(s) for s in RECORDED[key + ".scales"])
    module = module_of(key)
    module.weight = Parameter(RECORDED[key + ".w"], dtype=qint8(s_w))
    module.bias = Parameter(RECORDED[key + ".bias"]) if key + ".bias" in RECORDED else None
    y = module.eval()(stored(RECORDED[key + ".x"], s_x))
    np.testing.assert_array_equal(y.numpy(), RECORDED[key + ".y"])


def test_every_kind_was_recorded():
    assert len(LAYERS) == 19


ELEMWISE = names("elemwise.", ".scale")
SINGLE = ("qRELU", "qABS", "qH_SWISH", "qSIGMOID", "qTANH")


@pytest.mark.parametrize("key", ELEMWISE)
def test_elemwise(key):
    s_a, s_b = RECORDED["elemwise.scales"]
    try:
        module = QM.Elemwise(key.removeprefix("elemwise."), dtype=qint8(float(RECORDED[key + ".scale"]))).eval()
    except OptionError as exc:
        pytest.skip(str(exc))  # a function that the float layer does not have yet
    operands = [stored(RECORDED["elemwise.a"], s_a), stored(RECORDED["elemwise.b"], s_b)]
    y = module(*operands[: 1 if module.method in SINGLE else 2])
    np.testing.assert_array_equal(y.numpy(), RECORDED[key])


def test_concat():
    s_a, s_b = RECORDED["elemwise.scales"]
    module = QM.Concat(dtype=qint8(float(np.float32(s_a) * 2))).eval()
    y = module([stored(RECORDED["elemwise.a"], s_a), stored(RECORDED["elemwise.b"], s_b)], axis=0)
    np.testing.assert_array_equal(y.numpy(), RECORDED["concat.y"])


@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("padding", [(0, 0), (2, 1), (3, 0)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dilation", [(1, 1), (1, 2)])
def test_transposed_convolution_sums_exactly(stride, padding, groups, dilation):
    extra = (stride[0] - 1, 0)
    pairs = ((padding[0], padding[0]), (padding[1], 0))
    product = Product("conv_transpose2d", stride, pairs, dilation, groups, extra)
    rng = np.random.default_rng(3)
    x = Tensor._wrap(rng.integers(0, 256, (2, 4, 6, 5)).astype(np.uint8), quint8(0.5, 7))
    w = rng.integers(-127, 128, (4, 3, 3, 2)).astype(np.int8)
    weight = Tensor._wrap(w if groups == 1 else w.reshape(groups, 2, 3, 3, 2), qint8(0.25))
    scale = 2.0**8  # a power of two: no rounding before the conversion
    got = stored_result(product, x, constants(product, weight, None, x.dtype), qint8(scale), relu=False).numpy()
    real = apply("conv_transpose2d", apply("dequantize", x), Tensor(w * np.float32(0.25)), **product.attrs).numpy()
    t = real.astype(np.float64) / scale
    np.testing.assert_array_equal(got, np.clip(np.trunc(t + np.copysign(0.5, t)), -128, 127))


def test_wrong_calls():
    module = QM.Conv2d(3, 4, 3, dtype=qint8(0.1))
    x = Tensor(np.zeros((1, 3, 5, 5), np.float32))
    with pytest.raises(OptionError, match=r"Conv2d: quantized modules are for inference only; call \.eval\(\) first"):
        module(x)
    with pytest.raises(DTypeError, match="its input is float32; expected a quantized tensor; put a QuantStub"):
        module.eval()(x)
    with pytest.raises(
        DTypeError, match="Conv2d: its weight is float32; expected quantized values, as qint8; load the"
    ):
        module(Tensor._wrap(np.zeros((1, 3, 5, 5), np.uint8), quint8(0.5, 7)))
    with pytest.raises(OptionError, match="nonlinear_mode is 'tanh'; expected 'identity' or 'relu'"):
        module.calc_conv_quantized(x, "tanh")
    with pytest.raises(OptionError, match="it has no dtype of its result"):
        QM.QuantStub().eval()(x)


CONVS = [k for k in LAYERS if k.startswith("Conv") and "." in k]


@pytest.mark.parametrize("key", CONVS)
def test_functions(key):
    s_x, s_w, s_y = (float(s) for s in RECORDED[key + ".scales"])
    module = module_of(key)
    geometry = (module.stride, module.padding, module.dilation, module.groups)
    x, w = stored(RECORDED[key + ".x"], s_x), stored(RECORDED[key + ".w"], s_w)
    bias = Tensor(RECORDED[key + ".bias"]).astype(qint32(np.float32(s_x) * np.float32(s_w)))
    mode = "relu" if "Relu" in key else "identity"
    y = F.quantized.conv_bias_activation(x, w, bias, qint8(s_y), *geometry, nonlinear_mode=mode)
    np.testing.assert_array_equal(y.numpy(), RECORDED[key + ".y"])
    many = F.quantized.batch_conv_bias_activation(
        F.concat([x, x]), F.stack([w, w]), bias, qint8(s_y), *geometry, nonlinear_mode=mode
    )
    np.testing.assert_array_equal(many.numpy(), np.concatenate([y.numpy()] * 2))


def test_transposed_function():
    s_x, s_w, s_y = (float(s) for s in RECORDED["ConvTranspose2d.scales"])
    x, w = stored(RECORDED["ConvTranspose2d.x"], s_x), stored(RECORDED["ConvTranspose2d.w"], s_w)
    y = F.quantized.conv_transpose2d(x, w, None, qint8(s_y), 2, 1)
    np.testing.assert_array_equal(y.numpy(), RECORDED["ConvTranspose2d.y"])


def test_wrong_calls_of_functions():
    x, w = stored(np.zeros((1, 2, 3, 3), np.int8), 0.1), stored(np.zeros((2, 2, 1, 1), np.int8), 0.1)
    conv = F.quantized.conv_bias_activation
    with pytest.raises(DTypeError, match="conv_bias_activation: inp is float32; expected a quantized tensor"):
        conv(Tensor(np.zeros((1, 2, 3, 3))), w, None, qint8(0.1))
    with pytest.raises(DTypeError, match="dtype is None; expected the result's quantized dtype"):
        conv(x, w, None)
    with pytest.raises(OptionError, match="nonlinear_mode is 'tanh'; expected 'identity' or 'relu'"):
        conv(x, w, None, qint8(0.1), nonlinear_mode="tanh")
