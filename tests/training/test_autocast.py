"""`amp.autocast`: what is cast, gradients, nesting, and the network that conversion makes."""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import amp
from megengine.autodiff import GradManager
from megengine.core.dtype import bfloat16
from megengine.dispatch.apply import Listener, begin, end
from megengine.quantization import to_half
from megengine.traced_module import trace_module

X = mge.tensor(np.random.default_rng(0).normal(0, 1, (2, 3, 6, 6)).astype(np.float32))
W = mge.tensor(np.random.default_rng(1).normal(0, 1, (4, 3, 3, 3)).astype(np.float32))
A = mge.tensor(np.random.default_rng(2).normal(0, 1, (3, 5)).astype(np.float32))

# as MegEngine 1.13 has them, where "low" is float16
DTYPES = {
    "conv2d": (lambda: F.conv2d(X, W), "low"),
    "conv_transpose2d": (lambda: F.conv_transpose2d(X, F.ones((3, 2, 3, 3))), "low"),
    "linear": (lambda: F.linear(A.T, F.ones((4, 3))), "low"),
    "matmul": (lambda: F.matmul(A, A.T), "low"),
    "of a low one": (lambda: F.relu(F.conv2d(X, W)), "low"),
    "with a float32 one": (lambda: F.conv2d(X, W) + X[:, :1, :4, :4], "float32"),
    "conv3d": (lambda: F.conv3d(F.expand_dims(X, 2), F.expand_dims(W, 2)), "float32"),
    "add": (lambda: X + X, "float32"),
    "softmax": (lambda: F.softmax(A), "float32"),
}


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_of_results(name, low):
    run, dtype = DTYPES[name]
    for _ in range(3):  # equal calls are repeated without their Python functions
        run()
        with amp.autocast(low_prec_dtype=low):
            assert run().dtype == (low if dtype == "low" else dtype)
    assert run().dtype == np.float32


def test_values_are_those_of_cast_operands():
    with amp.autocast(low_prec_dtype="bfloat16"):
        got = F.conv2d(X, W).numpy()
    want = F.conv2d(X.astype("bfloat16"), W.astype("bfloat16")).numpy()
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


class _Casts(Listener):
    """Counts casts by the sizes of what is cast."""

    def __init__(self):
        self.sizes = []

    def observe(self, op, tensors, attrs, out):
        self.sizes += [tensors[0].size] if op.name == "cast" else []


LAYERS = {
    "conv2d": (lambda x, w: F.conv2d(x, w, F.zeros(3, dtype=w.dtype)), (2, 4, 6, 6), (3, 4, 3, 3), 2),
    "conv_transpose2d": (F.conv_transpose2d, (2, 4, 6, 6), (4, 3, 3, 3), 1),
    "linear": (lambda x, w: F.linear(x, w, F.zeros(3, dtype=w.dtype)), (2, 4), (3, 4), 2),
    "matmul": (F.matmul, (2, 4), (4, 3), 1),
    "einsum": (lambda x, w: F.einsum("ij,jk->ki", x, w), (2, 4), (4, 3), 1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_an_activation_in_the_lower_precision_is_not_cast(name):
    """It was raised to the weight's float32 and lowered again, and so was its gradient: equal bits, but two passes."""
    run, x, w, casts = LAYERS[name]
    rng = np.random.default_rng(3)
    x, w = (mge.tensor(rng.normal(0, 1, shape).astype(np.float32)) for shape in (x, w))
    half, low = x.astype("float16"), w.astype("float16")
    found, gm = _Casts(), GradManager().attach([half, w])
    with amp.autocast(), gm:
        begin(found)
        try:
            y = run(half, w)
        finally:
            end(found)
        gm.backward((y.astype("float32") ** 2).sum())
    assert len(found.sizes) == casts
    assert y.dtype == half.grad.dtype == np.float16 and w.grad.dtype == np.float32
    have, half.grad = half.grad, None
    with GradManager().attach([half, low]) as gm:
        want = run(half, low)
        gm.backward((want.astype("float32") ** 2).sum())
    for got, expected in ((y, want), (have, half.grad), (w.grad, low.grad.astype("float32"))):
        np.testing.assert_array_equal(got.numpy(), expected.numpy())


ALONE = {
    "conv3d": (F.conv3d, (1, 2, 3, 3, 3), (2, 2, 1, 1, 1)),
    "conv_transpose3d": (F.conv_transpose3d, (1, 2, 3, 3, 3), (2, 2, 1, 1, 1)),
    "local_conv2d": (F.local_conv2d, (2, 4, 3, 3), (1, 2, 2, 4, 2, 2, 3)),
}


@pytest.mark.parametrize("name", ALONE)
def test_layers_that_are_not_lowered_raise_what_is_low(name):
    """As in MegEngine 1.13: the values and gradients are those without autocast."""
    layer, x, w = ALONE[name]
    rng = np.random.default_rng(1)
    x, w = (mge.tensor(rng.normal(0, 1, shape).astype(np.float32)) for shape in (x, w))
    found = []
    for enabled in (True, False):
        gm = GradManager().attach([x, w])
        with amp.autocast(enabled=enabled), gm:
            assert layer(x.astype("float16"), w).dtype == np.float32
            y = layer(x, w)
            gm.backward((y * y).sum())
        found.append([y.numpy(), x.grad.numpy(), w.grad.numpy()])
        x.grad = w.grad = None
    for got, want in zip(*found, strict=True):
        np.testing.assert_array_equal(got, want)


def test_wider_operands_keep_their_digits():
    wide = A.astype("float64")
    with amp.autocast():
        got = F.matmul(wide, A.T)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got.numpy(), F.matmul(wide, A.T).numpy())


@pytest.mark.parametrize("tape_first", [True, False])
def test_gradients_stay_float32(tape_first):
    def gradient():
        gm = GradManager().attach([W])
        contexts = [gm, amp.autocast(low_prec_dtype="bfloat16")]
        with contexts[not tape_first], contexts[tape_first]:
            gm.backward((F.conv2d(X, W).astype("float32") ** 2).sum())
        made, W.grad = W.grad, None
        return made

    with GradManager().attach([W]) as gm:
        gm.backward((F.conv2d(X, W) ** 2).sum())
    want, W.grad = W.grad, None
    got = gradient()
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=0.05, atol=0.02 * np.abs(want.numpy()).max())


def test_nesting_and_functions():
    low = amp.autocast(low_prec_dtype="bfloat16")

    @low
    def product():
        return F.matmul(A, A.T)

    assert product().dtype == bfloat16
    with low, low:
        assert product().dtype == bfloat16
        with amp.autocast(enabled=False):
            assert F.matmul(A, A.T).dtype == np.float32
        with amp.autocast(low_prec_dtype="float16"):
            assert F.matmul(A, A.T).dtype == np.float16
        assert F.matmul(A, A.T).dtype == bfloat16
    assert F.matmul(A, A.T).dtype == np.float32


def test_the_converted_network_is_near():
    net = M.Sequential(M.Conv2d(3, 8, 3), M.ReLU(), M.Conv2d(8, 4, 3)).eval()
    converted = to_half(trace_module(net, X), "bfloat16")(X).numpy()
    with amp.autocast(low_prec_dtype="bfloat16"):
        got = net(X).numpy().astype(np.float32)
    np.testing.assert_allclose(got, converted, rtol=2.0**-6, atol=2.0**-8)


def test_training_in_bfloat16():
    rng = np.random.default_rng(0)
    x = mge.tensor(rng.normal(0, 1, (64, 4)).astype(np.float32))
    y = (x[:, 0] > 0).astype("int32")
    net = M.Linear(4, 2)
    gm, optimizer = GradManager().attach(net.parameters()), mge.optimizer.SGD(net.parameters(), lr=0.5)
    losses = []
    for _ in range(30):
        with amp.autocast(low_prec_dtype="bfloat16"), gm:
            loss = F.nn.cross_entropy(net(x), y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0]


def test_enabled_is_a_setting():
    assert amp.enabled is False
    try:
        amp.low_prec_dtype, amp.enabled = "bfloat16", True
        assert F.matmul(A, A.T).dtype == bfloat16
        with amp.autocast(enabled=False):
            assert not amp.enabled
        with amp.autocast("yes" == "yes", "float16"):
            assert amp.low_prec_dtype == "float16" and F.exp(F.matmul(A, A.T)).dtype == np.float32
        assert F.exp(F.matmul(A, A.T)).dtype == np.float32
    finally:
        amp.enabled, amp.low_prec_dtype = False, "float16"
    assert F.matmul(A, A.T).dtype == np.float32
    for name, value, text in (("enabled", 3, "expected True or False"), ("low_prec_dtype", "f17", "expected")):
        with pytest.raises(ValueError if name != "enabled" else TypeError, match=text):
            setattr(amp, name, value)
    with pytest.raises(AttributeError, match="has no option 'enable'; did you mean 'enabled'"):
        amp.enable = True
