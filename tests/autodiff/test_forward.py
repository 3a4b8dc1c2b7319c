"""Forward mode: closed forms, agreement with reverse mode for every op, mixed modes, custom functions."""

import numpy as np
import pytest

import megengine.functional as F
from megengine.autodiff import Function, GradManager, get_backwarding_grad_manager, jvp
from megengine.autodiff.forward import Forward
from megengine.core.errors import GradientError, ShapeError
from megengine.dispatch import NoRule, apply, registry
from megengine.tensor import Tensor, tensor

SAMPLES = [
    pytest.param(name, sample, id=f"{name}-{i}")
    for name in sorted(registry)
    for i, sample in enumerate(registry[name].samples())
    if callable(registry[name].vjp) and sample.differentiable
]


def wide(array, rng=None):
    return Tensor._wrap(np.asarray(array if rng is None else rng.standard_normal(array.shape), np.float64))


def floats(outputs):
    found = outputs if isinstance(outputs, tuple) else (outputs,)
    return tuple(o for o in found if o.dtype == np.float64)


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_forward_and_reverse_agree(name, sample):
    """<ct, jvp(d)> equals <vjp(ct), d> in float64."""
    rng = np.random.default_rng(0)
    inputs = [wide(a) if a.dtype.kind == "f" else Tensor._wrap(a) for a in sample.inputs]
    moving = [i for i, t in enumerate(inputs) if t.dtype == np.float64]
    directions = [wide(inputs[i].numpy(), rng) for i in moving]

    def function(*given):
        args = list(inputs)
        for i, value in zip(moving, given, strict=True):
            args[i] = value
        return floats(apply(name, *args, **sample.attrs))

    outputs, tangents = jvp(function, [inputs[i] for i in moving], directions)
    attached = [inputs[i].detach() for i in moving]
    with GradManager().attach(attached) as manager:
        again = function(*attached)
        cts = [wide(o.numpy(), rng) for o in again]
        manager.backward(list(again), cts)
    forward = sum(float((t.numpy() * ct.numpy()).sum()) for t, ct in zip(tangents, cts, strict=True))
    reverse = sum(
        float((t.grad.numpy() * d.numpy()).sum())
        for t, d in zip(attached, directions, strict=True)
        if t.grad is not None
    )
    assert forward == pytest.approx(reverse, rel=1e-9, abs=1e-9)
    assert [o.shape for o in outputs] == [t.shape for t in tangents]


def test_closed_forms():
    x, d = np.linspace(0.1, 2, 7), np.linspace(-1, 1, 7)
    y, dy = jvp(lambda v: F.exp(F.sin(v)) * v, [wide(x)], [wide(d)])
    np.testing.assert_allclose(y.numpy(), np.exp(np.sin(x)) * x)
    np.testing.assert_allclose(dy.numpy(), d * np.exp(np.sin(x)) * (1 + x * np.cos(x)))
    same = wide(x)
    (a, b), (da, db) = jvp(lambda u, v: (u * v, F.floor(u)), [same, same], [wide(d), wide(0 * d)])
    np.testing.assert_allclose(da.numpy(), d * x)
    np.testing.assert_array_equal(db.numpy(), 0)
    assert a.shape == b.shape


def test_directions_can_be_differentiated():
    """Forward over reverse: a Hessian times a vector."""
    x, d = np.array([0.5, -1.5]), np.array([2.0, 1.0])

    def gradient(v):
        with GradManager().attach(v) as manager:
            manager.backward(F.sum(v * v * v))
        return v.grad

    _, hessian_times_d = jvp(gradient, [wide(x)], [wide(d)])
    np.testing.assert_allclose(hessian_times_d.numpy(), 6 * x * d)


def test_reverse_over_forward():
    x, d = wide([0.5, -1.5]), np.array([2.0, 1.0])
    with GradManager().attach(x) as manager:
        _, dy = jvp(lambda v: v * v * v, [x], [wide(d)])
        manager.backward(F.sum(dy))
    np.testing.assert_allclose(x.grad.numpy(), 6 * x.numpy() * d)


def test_callbacks_know_who_runs():
    x, seen = tensor([1.0, 2.0]), []

    def double(parameter, grad):
        seen.append(get_backwarding_grad_manager())
        return grad * 2

    manager = GradManager().attach([x], callbacks=double)
    with manager:
        manager.backward(x * x)  # without dy: the sum of all elements
    np.testing.assert_array_equal(x.grad.numpy(), [4, 8])
    assert seen == [manager]
    assert get_backwarding_grad_manager() is None


def test_assignment_moves_tangents():
    def function(v):
        out = F.zeros((3,), dtype="float64")
        out[1:] = v * 2
        return out

    _, dy = jvp(function, [wide([1.0, 2.0])], [wide([1.0, 10.0])])
    np.testing.assert_array_equal(dy.numpy(), [0, 2, 20])


class Cube(Function):
    def forward(self, x):
        self.x = x
        return Tensor(x.numpy() ** 3, dtype=x.dtype)

    def backward(self, dy):
        return dy * 3 * self.x * self.x


def test_custom_functions_have_tangents():
    _, dy = jvp(lambda v: Cube()(v), [wide([1.0, 2.0])], [wide([1.0, 0.5])])
    np.testing.assert_allclose(dy.numpy(), [3, 6])


def test_wrong_directions():
    x = tensor([1.0, 2.0])
    with pytest.raises(GradientError, match="1 primal and 2 tangents"):
        jvp(F.exp, [x], [x, x])
    with pytest.raises(ShapeError, match=r"tangent has shape \(3,\); expected \(2,\)"):
        jvp(F.exp, [x], [tensor([1.0, 2.0, 3.0])])
    op = next(n for n, op in registry.items() if isinstance(op.vjp, NoRule) and n.startswith("q"))
    forward = Forward()
    forward.give(x, x)
    with pytest.raises(GradientError, match=f"{op} has no gradient"):
        forward.push(op, registry[op].vjp, (x,), (tensor([1.0, 2.0]),), {})
