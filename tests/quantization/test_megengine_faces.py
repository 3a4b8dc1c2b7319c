"""Quantization as MegEngine's users script it: qparams of any tensor, integer types of their own, order of parts."""

import importlib
from functools import partial

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
import megengine.quantization as Q
from megengine.core.errors import OptionError
from megengine.core.tensor.dtype import QuantDtypeMeta, create_quantized_dtype
from megengine.tensor import tensor

OWN = QuantDtypeMeta("my_qint8", None, "int8", -126, 129)
X = np.linspace(-3, 3, 7, dtype=np.float32)


def test_qparams_of_any_tensor_can_be_updated():
    x, other = tensor(X), tensor(X)
    assert x.qparams == Q.create_qparams() and x.qparams.scale is None
    x.qparams.update(Q.create_qparams(Q.QuantMode.SYMMERTIC, "qint8", tensor(0.5)))
    assert x.qparams.dtype_meta.name == "qint8" and x.qparams.scale.item() == 0.5
    assert other.qparams.scale is None  # each tensor has its own


def test_a_moved_tensor_has_qparams_of_its_own():
    x = tensor(X)
    y = x.reshape(1, -1)
    y.qparams.update(Q.create_qparams(Q.QuantMode.SYMMERTIC, "qint8", tensor(0.5)))
    assert x.qparams.scale is None


@pytest.mark.parametrize(
    ("mode", "zero_point", "want"),
    [
        (Q.QuantMode.SYMMERTIC, None, [-2.52, -2, -1, 0, 1, 2, 2.58]),
        (Q.QuantMode.ASYMMERTIC, 3.0, [-2.58, -2, -1, 0, 1, 2, 2.52]),
    ],
)
def test_own_integer_types_are_faked_as_in_megengine(mode, zero_point, want):
    qparams = Q.create_qparams(mode, OWN, tensor(0.02), None if zero_point is None else tensor(zero_point))
    np.testing.assert_allclose(Q.fake_quant_tensor(tensor(X), qparams).numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(Q.FakeQuantize(OWN)(tensor(X), qparams).numpy(), want, rtol=1e-6)


def test_own_integer_types_say_what_they_are():
    assert OWN.is_own and OWN.is_unsigned is False and not Q.create_qparams(dtype_meta="qint8").dtype_meta.is_own
    assert QuantDtypeMeta("a", "b", "uint8", 0, 200).is_unsigned
    dtype = create_quantized_dtype(OWN, 0.02, None)
    assert (dtype.name, dtype.qmin, dtype.qmax) == ("my_qint8", -126, 129)
    with pytest.raises(OptionError, match="zp is None; expected an integer"):
        create_quantized_dtype(QuantDtypeMeta("mine", None, "uint8", 0, 200), 0.1, None)


def net():
    own = {"dtype": OWN}
    observer, rounding = partial(Q.observer.MinMaxObserver, **own), partial(Q.FakeQuantize, **own)
    config = Q.QConfig(observer, observer, rounding, rounding)
    return Q.quantize_qat(M.Sequential(M.Conv2d(1, 1, 1), M.Linear(2, 2)), qconfig=config)


def test_layers_learn_with_own_integer_types():
    made = net()
    assert made(tensor(np.ones((1, 1, 2, 2), np.float32))).shape == (1, 1, 2, 2)
    assert made[0].get_weight_qparams().dtype_meta == OWN


PRINTED = """\
QAT.Conv2d(
  1, 1, kernel_size=(1, 1)
  (act_observer): MinMaxObserver()
  (act_fake_quant): FakeQuantize()
  (weight_observer): MinMaxObserver()
  (weight_fake_quant): FakeQuantize()
)"""


def test_parts_of_layers_stand_in_megengines_order():
    layer = net()[0]
    assert repr(layer) == PRINTED
    parts = [name for name in vars(layer) if name.endswith(("_observer", "_fake_quant"))]
    assert parts == ["act_observer", "act_fake_quant", "weight_observer", "weight_fake_quant"]


def test_traced_code_may_update_qparams():
    class Net(M.Module):
        def forward(self, x):
            x.qparams.update(Q.create_qparams(Q.QuantMode.SYMMERTIC, "qint8", mge.tensor(0.5)))
            return x * 2

    assert mge.traced_module.trace_module(Net(), tensor(X))(tensor(X)).shape == (7,)


@pytest.mark.parametrize(
    ("path", "names"),
    {
        "observer": "MinMaxObserver HistogramObserver PassiveObserver QuantMode QParams create_qparams",
        "fake_quant": "FakeQuantize LSQ TQT LSQParams QParamsModuleMixin fake_quant_tensor tqt_forward lsq_forward",
        "qconfig": "QConfig ema_fakequant_qconfig tqt_qconfig MinMaxObserver FakeQuantize",
        "quantize": "quantize quantize_qat apply_easy_quant reset_qconfig QATModule QuantizedModule QConfig",
        "utils": "QParams QuantMode QuantDtypeMeta create_qparams fake_quant_bias Round register_method_to_class",
    }.items(),
)
def test_names_are_found_at_megengines_paths(path, names):
    module = importlib.import_module(f"megengine.quantization.{path}")
    assert [name for name in names.split() if not hasattr(module, name)] == []


@pytest.mark.parametrize(
    ("cls", "path"),
    [
        (Q.MinMaxObserver, "megengine.quantization.observer"),
        (Q.LSQ, "megengine.quantization.fake_quant"),
        (Q.QConfig, "megengine.quantization.qconfig"),
        (Q.LSQParams, "megengine.quantization.utils"),
        (Q.QuantMode, "megengine.quantization.utils"),
    ],
)
def test_files_know_classes_by_megengines_paths(cls, path):
    assert cls.__module__ == path and getattr(importlib.import_module(path), cls.__name__) is cls


def test_equal_configs_have_equal_hashes():
    config, other = (Q.QConfig(partial(Q.MinMaxObserver, dtype="qint8"), None, None, None) for _ in range(2))
    assert config == other and hash(config) == hash(other)
