"""Gradients: every op numerically, composition, accumulation, higher order, custom functions, errors."""

import numpy as np
import pytest

import megengine.functional as F
from megengine.autodiff import Function, GradManager
from megengine.core.errors import GradientError
from megengine.dispatch import NoRule, apply, registry
from megengine.tensor import Tensor, tensor

CASES = [
    (name, i, s)
    for name in sorted(registry)
    if not isinstance(registry[name].vjp, NoRule) and not registry[name].needs_specs
    for i, s in enumerate(registry[name].samples())
    if s.differentiable
]


def outputs(out):
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize(("name", "index", "sample"), CASES, ids=[f"{n}-{i}" for n, i, _ in CASES])
def test_gradient_in_a_random_direction(name, index, sample):
    """<vjp(ct), d> equals the central difference of <f, ct> along d, in float64."""
    rng = np.random.default_rng(index)
    inputs = [Tensor._wrap(np.asarray(a, np.float64) if a.dtype.kind == "f" else a) for a in sample.inputs]
    moving = [t for t in inputs if t.dtype == np.float64]
    gm = GradManager().attach(moving)
    with gm:
        outs = [o for o in outputs(apply(name, *inputs, **sample.attrs)) if o.dtype == np.float64]
        cts = [Tensor._wrap(np.asarray(rng.standard_normal(o.shape))) for o in outs]
        gm.backward(outs, cts)
    if not sum(t.size for t in moving):
        return
    directions = {id(t): np.asarray(rng.standard_normal(t.shape)) for t in moving}

    def value(step):
        moved = [Tensor._wrap(t.numpy() + step * directions[id(t)]) if id(t) in directions else t for t in inputs]
        found = [o for o in outputs(apply(name, *moved, **sample.attrs)) if o.dtype == np.float64]
        return sum(float((o.numpy() * ct.numpy()).sum()) for o, ct in zip(found, cts, strict=True))

    eps = 1e-6
    numeric = (value(eps) - value(-eps)) / (2 * eps)
    exact = sum(float((t.grad.numpy() * directions[id(t)]).sum()) for t in moving if t.grad is not None)
    assert exact == pytest.approx(numeric, rel=2e-5, abs=2e-6)


def test_gradients_accumulate_until_cleared():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    for factor in (1, 2):
        with gm:
            gm.backward((x * x).sum())
        np.testing.assert_allclose(x.grad.numpy(), factor * 2 * x.numpy())


def test_second_order():
    x = tensor([1.0, 2.0, -3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward((x**3).sum())
        first, x.grad = x.grad, None
        outer.backward(first.sum())
    np.testing.assert_allclose(x.grad.numpy(), 6 * x.numpy(), rtol=1e-6)


def test_convolution_second_order():
    rng = np.random.default_rng(0)
    x, w = tensor(rng.standard_normal((1, 2, 5, 5))), tensor(rng.standard_normal((3, 2, 3, 3)))
    outer, inner = GradManager().attach([x, w]), GradManager().attach(w)
    with outer:
        with inner:
            y = F.conv2d(x, w, padding=1)
            inner.backward((y * y).sum())
        g, w.grad = w.grad, None
        outer.backward((g * g).sum())
    assert x.grad.shape == x.shape
    assert w.grad.numpy().any()


def test_callbacks_and_in_place_update():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x, callbacks=lambda t, g: g * 10)
    with gm:
        y = x * 3
        y += 1
        gm.backward(y.sum())
    np.testing.assert_allclose(x.grad.numpy(), [30, 30])


def test_custom_function():
    class Double(Function):
        def forward(self, x):
            self.x = x
            return x * x

        def backward(self, dy):
            return dy * self.x * 5

    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        gm.backward(Double()(x).sum())
    np.testing.assert_allclose(x.grad.numpy(), [5, 10])


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (lambda gm, x: gm.backward(x * 2), "y has shape .2,.; expected one number"),
        (lambda gm, x: gm.record(), "records already"),
        (lambda gm, x: gm.backward([x.sum()], [x, x]), "1 targets and 2 cotangents"),
        (lambda gm, x: gm.attach([1]), "got int; expected tensors"),
    ],
)
def test_errors(action, match):
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm, pytest.raises(GradientError, match=match):
        action(gm, x)


def test_backward_without_recording():
    with pytest.raises(GradientError, match="nothing was recorded"):
        GradManager().backward(tensor(1.0))


def test_an_op_without_gradient_says_why():
    x = tensor([[1.0, 2.0]])
    gm = GradManager().attach(x)
    with gm, pytest.raises(GradientError, match="fused_linear has no gradient"):
        y = apply("fused_linear", x, tensor([[1.0, 2.0]]), tensor([0.0]), activation="none")
        gm.backward(y.sum())


def test_item_assignment():
    x = tensor([1.0, 2.0, 3.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * 2
        z = y * y
        y[1] = x[0] * 5
        gm.backward(z.sum() + y.sum())
    np.testing.assert_allclose(x.grad.numpy(), 8 * x.numpy() + [2 + 5, 0, 2])
