"""Gradients (single ops: the contract test): composition, accumulation, higher order, custom functions, errors."""

import weakref

import numpy as np
import pytest

import megengine.functional as F
from megengine.autodiff import Function, GradManager, jvp
from megengine.core.errors import ArgumentError, GradientError, MegEngineError
from megengine.dispatch import apply
from megengine.tensor import tensor


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


class ProductAndSum(Function):
    def forward(self, a, b):
        a, b = (a[0], a[1]) if isinstance(a, list) else (a, b)
        self.a, self.b = a, b
        return [a * b, a + b]

    def backward(self, product, total):
        return product * self.b + total, product * self.a + total


def test_custom_function_with_a_list_of_results():
    x, y = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    with GradManager().attach([x, y]) as gm:
        results = ProductAndSum()(x, y)
        assert type(results) is list
        gm.backward(results[0].sum() + 2 * results[1].sum())
    np.testing.assert_allclose(x.grad.numpy(), [5, 6])
    np.testing.assert_allclose(y.grad.numpy(), [3, 4])


@pytest.mark.parametrize("call", [lambda x, y: ProductAndSum()(x, b=y), lambda x, y: ProductAndSum()([x, y], None)])
def test_custom_functions_take_tensors_with_gradients_by_place(call):
    x, y = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    call(x, y)
    with (
        GradManager().attach([y]),
        pytest.raises(ArgumentError, match="ProductAndSum: a tensor that wants a gradient is passed by name or in a"),
    ):
        call(x, y)


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (lambda gm, x: gm.record(), "records already"),
        (lambda gm, x: gm.backward([x.sum()], [x, x]), "1 target and 2 cotangents"),
        (lambda gm, x: gm.attach([1]), "got 1; expected tensors"),
    ],
)
def test_errors(action, match):
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm, pytest.raises(MegEngineError, match=match):
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


def test_values_are_let_go_on_the_way_back():
    made = []

    class Watched(Function):
        def forward(self, x):
            return x * 2

        def backward(self, dy):
            made.append(sum(ref() is not None for ref in alive))
            return dy * 2

    x = tensor(np.ones(5, np.float32))
    gm = GradManager().attach([x])
    with gm:
        y, alive = Watched()(x), []
        for _ in range(10):
            y = y + 1
            alive.append(weakref.ref(y))
        loss = y.sum()
        del y
        gm.backward(loss)
    np.testing.assert_array_equal(x.grad.numpy(), np.full(5, 2))
    assert made == [0]


OF_OTHER_KINDS = {  # functions of two vectors, through numbers that the checks of single ops do not follow
    "complex, real": lambda a, b: F.real(F.complex(a * b, a)),
    "complex, imag": lambda a, b: F.imag(F.complex(a, a * b)),
    "polar": lambda a, b: F.real(F.polar(a, b)) * F.imag(F.polar(b, a)),
    "cast": lambda a, b: (a * b).astype("float32").astype("float64") * a,
}


def gradients(function, *points):
    """Of the sum of the results, by each point: tensors that can be differentiated again."""
    manager = GradManager().attach(list(points))
    with manager:
        manager.backward(function(*points).sum())
    found = [p.grad for p in points]
    for p in points:
        p.grad = None
    return found


@pytest.mark.parametrize("name", OF_OTHER_KINDS)
def test_numbers_of_other_kinds_numerically(name):
    """First and second order against central differences; jvp against vjp."""
    rng, function = np.random.default_rng(0), OF_OTHER_KINDS[name]
    a, b, da, db = rng.uniform(0.5, 1.5, (4, 5))
    step, near = (1e-6, 1e-8) if name != "cast" else (1e-2, 1e-3)  # float32 between has seven digits

    def value(t):
        return float(function(*wide(a + t * da, b + t * db)).sum().numpy())

    def slope(*points):
        ga, gb = gradients(function, *points)
        return ga * wide(da)[0] + gb * wide(db)[0]

    def slope_at(t):
        return float(slope(*wide(a + t * da, b + t * db)).sum().numpy())

    numeric = (value(step) - value(-step)) / (2 * step)
    assert slope_at(0) == pytest.approx(numeric, rel=max(near, 1e-6))
    second = sum(float((g.numpy() * d).sum()) for g, d in zip(gradients(slope, *wide(a, b)), (da, db), strict=True))
    assert second == pytest.approx((slope_at(step) - slope_at(-step)) / (2 * step), rel=max(near, 1e-6))
    _, forward = jvp(function, list(wide(a, b)), list(wide(da, db)))
    assert float(forward.sum().numpy()) == pytest.approx(slope_at(0), rel=max(near, 1e-12))


def wide(*arrays):
    return tuple(tensor(x, dtype="float64") for x in arrays)
