from pathlib import Path

import numpy as np
import pytest

import megengine.quantization as Q
from megengine.autodiff import GradManager
from megengine.core.errors import CalibrationError, DTypeError, OptionError
from megengine.core.tensor import dtype as D
from megengine.quantization import utils as U
from megengine.tensor import Tensor

RECORDED = np.load(Path(__file__).parents[1] / "data" / "megengine" / "quantization.npz")
MODES = {"qint8": Q.QuantMode.SYMMERTIC, "qint8_narrow": Q.QuantMode.SYMMERTIC, "quint8": Q.QuantMode.ASYMMERTIC}
OBSERVERS = [Q.MinMaxObserver, Q.ExponentialMovingAverageObserver, Q.HistogramObserver]


def observed(observer, batches=RECORDED["observer.batches"]):
    for batch in batches:
        assert observer(t := Tensor(batch)) is t
    return observer


@pytest.mark.parametrize("dtype", MODES)
@pytest.mark.parametrize("kind", OBSERVERS[:2])
def test_as_megengine(kind, dtype):
    qparams = observed(kind(mode=MODES[dtype], dtype=dtype)).get_qparams()
    scale, zero, _, _ = RECORDED[f"{kind.__name__}.{dtype}"]
    assert np.float32(scale) == qparams.scale.item()
    assert zero == (0 if qparams.zero_point is None else qparams.zero_point.item())


@pytest.mark.parametrize("kind", [Q.SyncMinMaxObserver, Q.SyncExponentialMovingAverageObserver])
def test_synchronised_ones_can_be_disabled(kind):
    observer = observed(kind())
    before = observer.get_qparams()
    observer.disable()
    observer(Tensor([1e6]))
    assert observer.get_qparams() == before


@pytest.mark.parametrize("dtype", MODES)
def test_histogram_has_no_larger_error_than_megengine(dtype):
    def error(scale, zero):
        how = D.create_quantized_dtype(D.meta_of(dtype), scale, int(zero or 0) if dtype == "quint8" else None)
        x = Tensor(RECORDED["observer.batches"])
        return np.mean((x.astype(how).astype("float32").numpy() - x.numpy()) ** 2)

    qparams = observed(Q.HistogramObserver(mode=MODES[dtype], dtype=dtype)).get_qparams()
    zero = None if qparams.zero_point is None else qparams.zero_point.item()
    assert error(qparams.scale.item(), zero) <= error(*RECORDED[f"HistogramObserver.{dtype}"][:2]) * 1.05


# ends after two batches, by the real MegEngine 1.13: the second range is a whole number of sixteenths of the first
WIDENED = {
    (-0.7917250394821167, 0.5288949012756348, 2.5625): (-2.0287954807281494, 1.3552931547164917),
    (-0.5820198059082031, 0.5373732447624207, 3.0625): (-1.7824357748031616, 1.6457056999206543),
    (-0.43703195452690125, 0.6976311802864075, 3.625): (-1.6196988821029663, 2.564371109008789),
    (-0.5818503499031067, 0.414368599653244, 2.3125): (-1.3455289602279663, 0.9582273960113525),
    (-0.38346222043037415, 0.7491698265075684, 3.5625): (-1.401478886604309, 2.7043120861053467),
}


@pytest.mark.parametrize(("low", "high", "factor"), WIDENED)
def test_histogram_is_widened_by_as_many_parts_as_by_megengine(low, high, factor):
    ends = np.array([low, high], np.float32)
    observer = observed(Q.HistogramObserver(bins=64, upsample_rate=16), [ends, ends * np.float32(factor)])
    assert (observer.min_val.item(), observer.max_val.item()) == pytest.approx(WIDENED[low, high, factor], rel=1e-6)


def test_histogram_survives_its_state_dict():
    values = np.random.default_rng(0).standard_normal((4, 4000)).astype(np.float32)
    values[0, 0] = 30.0
    observer = observed(Q.HistogramObserver(), values)
    assert observer.get_qparams().scale.item() < 30 / 127.5
    loaded = Q.HistogramObserver()
    loaded.load_state_dict(observer.state_dict())
    assert loaded.get_qparams().scale.item() == pytest.approx(observer.get_qparams().scale.item(), rel=0.05)
    assert observer.histogram.numpy().sum() == values.size


@pytest.mark.parametrize("kind", OBSERVERS)
def test_an_observer_that_saw_nothing(kind):
    with pytest.raises(CalibrationError, match=f"{kind.__name__}: no value was observed"):
        kind().get_qparams()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite(bad):
    with pytest.raises(CalibrationError, match="1 of 2 values"):
        Q.MinMaxObserver()(Tensor([1.0, bad]))


def test_evaluation_moves_nothing_and_enable_does():
    observer = observed(Q.MinMaxObserver())
    before = observer.get_qparams()
    observer.eval()
    observer(Tensor([100.0]))
    assert observer.get_qparams() == before
    observer.enable()
    observer(Tensor([100.0]))
    assert observer.max_val.item() == 100


@pytest.mark.parametrize("kind", [Q.MinMaxObserver, Q.ExponentialMovingAverageObserver, Q.HistogramObserver])
def test_train_enables_and_eval_disables(kind):
    """What MegEngine 1.13's MinMaxObserver has seen and whether it is enabled, call by call."""
    observer, found = kind(), []
    steps = ["disable", "train", "eval", "enable", "train", "disable", "eval", "train", "eval", "enable", "eval"]
    for step in steps:
        getattr(observer, step)()
        found.append(observer.enabled)
    assert found == [False, True, False, True, True, False, False, True, False, True, False]
    observer.train()(Tensor([3.0]))
    assert observer.max_val.item() == 3


def test_scales_per_channel():
    observer = Q.MinMaxObserver(dtype="qint8_narrow", channel_axis=0)
    observer(Tensor([[1.0, -2.0], [0.0, 0.5]]))
    observer(Tensor([[1.0, -1.0], [0.0, 1.0]]))
    dtype = observer.get_quantized_dtype()
    np.testing.assert_allclose(dtype.scale, [2 / 127, 1 / 127], rtol=1e-7)
    assert dtype.axis == 0
    with pytest.raises(OptionError, match="channel_axis needs QuantMode.SYMMERTIC"):
        Q.MinMaxObserver(mode=Q.QuantMode.ASYMMERTIC, channel_axis=0)
    with pytest.raises(OptionError, match="HistogramObserver: it has one scale; leave channel_axis out"):
        Q.HistogramObserver(channel_axis=0)


def test_momentum():
    observer = Q.ExponentialMovingAverageObserver(momentum=0.5)
    observer(Tensor([0.0, 4.0]))
    observer(Tensor([0.0, 2.0]))
    assert observer.max_val.item() == 3
    observer.set_momentum(0.0)
    observer(Tensor([0.0, 8.0]))
    observer(Tensor([0.0, 1.0]))
    assert observer.max_val.item() == 1


def test_passive():
    observer = Q.PassiveObserver("qint8")
    with pytest.raises(CalibrationError, match="it has no parameters yet"):
        observer.get_qparams()
    observer.set_qparams(U.create_qparams(dtype_meta="qint8", scale=Tensor(0.5)))
    observer.scale = 0.25
    assert observer.get_quantized_dtype() == D.qint8(0.25)
    assert observer.orig_scale.item() == 0.5
    for scale in (0.0, float("inf"), float("nan")):
        with pytest.raises(OptionError, match="expected a positive number"):
            observer.scale = scale
    with pytest.raises(OptionError, match="expected qint8 with a scale"):
        observer.set_qparams(U.create_qparams(dtype_meta="qint8_narrow", scale=Tensor(0.5)))


# ---------------------------------------------------------------- learnt scales and fake quantization

CASES = {
    "tqt": (lambda v, p: U.tqt_forward(-128, 127, v, p), -3.3),
    "lsq": (lambda v, p: U.lsq_forward(-128, 127, v, p), 0.11),
    "lsq_zero": (lambda v, p: U.lsq_forward(0, 255, v, p, Tensor(3.0), Tensor(0.25)), 0.11),
}


@pytest.mark.parametrize("name", CASES)
def test_learnt_scales_as_megengine(name):
    function, start = CASES[name]
    x, p = Tensor(RECORDED["learnt.x"]), Tensor([start])
    with GradManager().attach([x, p]) as manager:
        y = function(x, p)
        manager.backward((y * Tensor(RECORDED["learnt.ct"])).sum())
    np.testing.assert_array_equal(y.numpy(), RECORDED[name + ".y"])
    np.testing.assert_array_equal(x.grad.numpy(), RECORDED[name + ".dx"])
    np.testing.assert_allclose(p.grad.numpy(), RECORDED[name + ".dp"], rtol=1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_state_and_gradient_of_lsq_are_those_of_megengine(sign):
    """Checkpoints go both ways: numbers without axes, and a step that is eps below the scale (seen in 1.13)."""
    fake_quant, scale = Q.LSQ("qint8"), Tensor([0.11])
    params = {"zero_point": Tensor([0.0]), "grad_scale": Tensor([0.25])}
    fake_quant.set_qparams(U.LSQParams(Q.QuantMode.SYMMERTIC, D.meta_of("qint8"), scale, **params))
    state = fake_quant.state_dict()
    assert {k: v.shape for k, v in state.items()} == {"eps": (), "step_size": (), "zero_point": (), "grad_scale": (1,)}
    np.testing.assert_allclose(state["step_size"] + state["eps"], 0.11, rtol=1e-6)
    fake_quant.step_size._reset(fake_quant.step_size * sign)
    x, step = Tensor(RECORDED["learnt.x"]), fake_quant.get_qparams().scale
    np.testing.assert_allclose(step.numpy(), 0.11, rtol=1e-6)
    with GradManager().attach([fake_quant.step_size, step]) as manager:
        y, plain = fake_quant(x, None), U.lsq_forward(-128, 127, x, step, None, Tensor(0.25))
        manager.backward(((y + plain) * Tensor(RECORDED["learnt.ct"])).sum())
    np.testing.assert_array_equal(y.numpy(), plain.numpy())
    np.testing.assert_allclose(fake_quant.step_size.grad.numpy(), sign * step.grad.numpy(), rtol=1e-6)


def qparams(scale=0.5, dtype="qint8", zero=None):
    mode = Q.QuantMode.SYMMERTIC if zero is None else Q.QuantMode.ASYMMERTIC
    return U.create_qparams(mode, dtype, Tensor(scale), None if zero is None else Tensor(zero))


def test_fake_quantization_and_its_gradient():
    steps = np.array([-200, -128.6, -128.4, -128, -1.5, 0, 126.5, 127.4, 127.6], np.float32)
    x = Tensor(steps * 0.5)
    with GradManager().attach([x]) as manager:
        y = Q.FakeQuantize("qint8")(x, qparams())
        manager.backward(y.sum())
    np.testing.assert_array_equal(y.numpy() * 2, [-128, -128, -128, -128, -2, 0, 127, 127, 127])
    np.testing.assert_array_equal(x.grad.numpy(), [0, 0, 1, 1, 1, 1, 1, 1, 0])
    assert y.qparams == qparams()


def test_fake_quantization_is_quantization():
    x = Tensor(RECORDED["convert.x"])
    q = RECORDED["convert.qint8"].astype(np.float32) * np.float32(0.0531)
    np.testing.assert_array_equal(U.fake_quant_tensor(x, qparams(0.0531)).numpy(), q)
    u = (RECORDED["convert.quint8"].astype(np.float32) - 31) * np.float32(0.0531)
    np.testing.assert_array_equal(U.fake_quant_tensor(x, qparams(0.0531, "quint8", 31.0)).numpy(), u)


def test_fake_quantization_can_be_disabled():
    fake = Q.FakeQuantize("qint8", enable=False)
    x = Tensor([0.3])
    assert fake(x, None) is x
    fake.enable()
    with pytest.raises(OptionError, match="got qparams of None; expected qparams of qint8"):
        fake(x, None)
    with pytest.raises(OptionError, match="got qparams of qint8_narrow; expected qparams of qint8"):
        fake(x, qparams(dtype="qint8_narrow"))
    with pytest.raises(OptionError, match="FakeQuantize: got a Tensor; expected qparams of qint8"):
        fake(x, x)  # as a damaged file asks for
    with pytest.raises(OptionError, match="fake_quant_tensor: got a Tensor as qparams"):
        U.fake_quant_tensor(x, x)


def test_bias():
    inp, w, bias = Tensor([1.0]), Tensor([1.0]), Tensor([0.0123, 0.0177, 0.5])
    assert U.fake_quant_bias(bias, inp, w) is bias is U.fake_quant_bias(bias, None, w)
    inp.qparams, w.qparams = qparams(0.1), qparams(0.01)
    out = U.fake_quant_bias(bias, inp, w)
    np.testing.assert_allclose(out.numpy(), [0.012, 0.018, 0.5], rtol=1e-6)
    assert out.qparams.dtype_meta.name == "qint32"


@pytest.mark.parametrize("kind", [Q.TQT, Q.LSQ])
def test_learnt_modules_start_from_qparams(kind):
    fake = kind("qint8")
    fake.set_qparams(qparams(0.25))
    assert fake.get_qparams().scale.item() == pytest.approx(0.25)
    y = fake(Tensor([0.3]))
    assert y.item() == pytest.approx(0.25)
    assert y.qparams.dtype_meta.name == "qint8"
    with pytest.raises(OptionError, match=f"{kind.__name__}: got qparams of qint8_narrow"):
        fake.set_qparams(qparams(dtype="qint8_narrow"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: qparams(zero=3.0).dtype, OptionError, "qint8: zp is 3; expected None"),
        (lambda: U.create_qparams(Q.QuantMode.ASYMMERTIC, "quint8", 0.5).dtype, OptionError, "quint8: zp is None"),
        (lambda: U.create_qparams(dtype_meta="qint9"), OptionError, "unknown 'qint9'.*did you mean"),
        (lambda: U.create_qparams().dtype, OptionError, "they have no scale yet"),
        (lambda: D.create_quantized_dtype(D.meta_of("quint8"), 0.1, None), OptionError, "zp is None; expected"),
        (lambda: D.create_quantized_dtype(D.meta_of("qint8"), 0.1, 3), OptionError, "zp is 3; expected None"),
        (lambda: D.get_scale(np.dtype("int8")), DTypeError, "get_scale: .* is not a quantized dtype"),
        (lambda: D.get_zero_point(np.dtype("int8")), DTypeError, "get_zero_point: .* is not a quantized dtype"),
        (lambda: D.get_dtype_bit("int8"), OptionError, "get_dtype_bit: unknown 'int8'"),
    ],
)
def test_wrong_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_dtypes():
    assert D.is_quantize(D.qint8(0.1))
    assert D.is_quantize(np.dtype("int8", metadata={"mgb_dtype": {"name": "QuantizedS8", "scale": 0.1}}))
    assert not D.is_quantize(np.dtype("int8"))
    assert D.get_scale(D.quint8(0.5, 3)) == 0.5
    assert D.get_zero_point(D.quint4(0.5, 3)) == 3
    assert [D.get_dtype_bit(n) for n in ("qint1", "quint4", "qint8_narrow", "qint32")] == [1, 4, 8, 32]
    assert D.is_lowbit(D.qint4(1.0))
    assert D.is_lowbit(D.qint1(1.0))
    assert not D.is_lowbit(D.qint32(1.0))
