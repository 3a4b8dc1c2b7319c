"""Quantized ops: wrong calls name the argument; fake_quant is quantize then dequantize, straight-through backwards."""

from types import SimpleNamespace

import numpy as np
import pytest

from megengine.core.dtype import qint8, quint8
from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.dispatch import apply, infer, registry
from megengine.tensor import Tensor

U8 = quint8(0.05, 10)
CLAMP = {"lo": -10, "hi": 245, "ratio": 0.0, "dtype": U8}
PLACE = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}


def q(*shape, dtype=U8):
    return Tensor._wrap(np.ones(shape, dtype.storage), dtype)


def conv(*extra, b=None, w=None, **changes):
    w = np.ones((4, 2, 1, 1), np.int8) if w is None else w
    inputs = (q(1, 2, 3, 3), w, np.zeros(4, np.int32) if b is None else b)
    inputs = [t if isinstance(t, Tensor) else Tensor._wrap(t) for t in (*inputs, *[np.ones(4, np.float32)] * 2, *extra)]
    return apply("qconv2d", *inputs, **{**PLACE, **CLAMP, **changes})


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: conv(lo=-11), OptionError, r"clamp \[-11, 245\] is not inside \[-10, 245\]"),
        (lambda: conv(b=np.zeros(3, np.int32)), ShapeError, r"b is int32 of shape \(3,\); expected int32"),
        (lambda: conv(w=q(4, 2, 1, 1)), DTypeError, "w is quint8.*expected int8 storage"),
        (lambda: conv(q(1, 4, 3, 2)), ShapeError, "the residual has shape"),
        (lambda: conv(q(1, 4, 3, 3), ratio=0.1), OptionError, "more than 16 significant bits"),
        (lambda: conv(q(1, 4, 3, 3), dtype="float32"), OptionError, "takes no residual"),
        (lambda: conv(dtype=qint8((0.1, 0.2), axis=0)), DTypeError, "qconv2d: dtype is"),
        (lambda: apply("qadd", q(2), q(2), ra=0.1, rb=0.5, lo=0, hi=9, dtype=U8), OptionError, "qadd: ra 0.1 has"),
        (lambda: apply("requantize", q(2), ratio=0.1, lo=0, hi=9, dtype=U8), OptionError, "requantize: ratio 0.1"),
        (lambda: apply("qtable", q(2), Tensor(np.zeros(9, np.uint8)), dtype=U8), ShapeError, "qtable: table is uint8"),
        (lambda: apply("qmean", q(0, 2), axis=(0,), keepdims=False, dtype=U8), ShapeError, "mean of no elements"),
        (lambda: apply("quantize", Tensor(np.ones(2, np.int32)), dtype=U8), DTypeError, "quantize: x is int32"),
        (lambda: apply("fake_quant", Tensor(np.ones(2, np.int32)), dtype=U8), DTypeError, "fake_quant: x is int32"),
    ],
)
def test_wrong_calls(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_average_refuses_padding_as_large_as_the_window():
    window = {"kernel": (2, 2), "stride": (1, 1), "padding": ((2, 0), (0, 0)), "count_include_pad": True}
    with pytest.raises(OptionError, match="padding .* smaller than the window"):
        infer("qavg_pool2d", [q(1, 1, 4, 4).spec], {**window, "dtype": U8})
    with pytest.raises(ShapeError, match="qavg_pool2d: x has shape"):
        infer("qavg_pool2d", [q(1, 4, 4).spec], {**window, "dtype": U8})


def test_linear_checks_its_shapes():
    inputs = [q(2, 5), *map(Tensor._wrap, (np.ones((4, 6), np.int8), np.zeros(4, np.int32), *[np.ones(4, "f4")] * 2))]
    with pytest.raises(ShapeError, match=r"expected x \[..., K\] and w \[O, K\]"):
        apply("qlinear", *inputs, **CLAMP)


@pytest.mark.parametrize("dtype", [U8, qint8((0.01, 0.3, 0.05), -3, axis=1)])
def test_fake_quant_is_quantize_then_dequantize(dtype):
    x = Tensor(np.random.default_rng(0).normal(0, 9, (64, 3)).astype(np.float32))
    both = apply("dequantize", apply("quantize", x, dtype=dtype))
    np.testing.assert_array_equal(apply("fake_quant", x, dtype=dtype).numpy(), both.numpy())


def test_fake_quant_passes_the_gradient_inside_the_range():
    x = Tensor(np.float32([[-0.6, -0.5, 0, 12.25, 12.3]]))
    context = SimpleNamespace(inputs=(x,), attrs={"dtype": U8})
    (gradient,) = registry["fake_quant"].vjp(context, Tensor(np.full((1, 5), 2, np.float32)))
    np.testing.assert_array_equal(gradient.numpy(), [[0, 2, 2, 2, 0]])


@pytest.mark.parametrize("op", ["fake_quant", "quantize"])
def test_a_single_number_stays_one(op):
    x = Tensor(np.float32(0.52))
    for _ in range(2):
        assert apply(op, x, dtype=U8).numpy().shape == ()
