"""Native optimizer steps: NumPy's bits, values that nobody sees change, and rules of the user's own."""

import numpy as np
import pytest

import megengine.functional as F
from megengine import optimizer as optim
from megengine.core.errors import ShapeError
from megengine.kernels import isa, updates
from megengine.tensor import Parameter, tensor

RULES = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {}),
    ("Adam", {"betas": (0.8, 0.99), "eps": 1e-4, "weight_decay": 0.1}),
    ("AdamW", {"weight_decay": 0.3}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.01}),
    ("Adadelta", {"weight_decay": 0.01}),
    ("LAMB", {}),
    ("LAMB", {"weight_decay": 0.1, "bias_correction": False}),
    ("LAMBFp16", {"weight_decay": 0.1}),
]
SHAPES = ((), (0, 3), (5,), (3, 4, 3, 3), (40_000,))


def trained(name, options, steps=4):
    """Values and states after some steps; the second parameter gets its first gradient later than the others."""
    rng = np.random.default_rng(0)
    params = [Parameter(rng.standard_normal(s).astype(np.float32)) for s in SHAPES]
    rule = getattr(optim, name)(params, lr=0.07, **options)
    for step in range(steps):
        for i, p in enumerate(params):
            p.grad = None if i == 2 and step == 0 else tensor(rng.standard_normal(p.shape).astype(np.float32))
        rule.step()
    state = rule.state_dict()["state"]
    return [p.numpy() for p in params] + [s for number in sorted(state) for s in state[number].values()]


@pytest.mark.parametrize(("name", "options"), RULES)
def test_native_steps_have_numpys_bits_at_every_level(name, options, monkeypatch):
    calls, native = [], updates.Batch.run
    monkeypatch.setattr(updates.Batch, "run", lambda self, decay: (calls.append(1), native(self, decay)))
    found = []
    for level in isa.available():
        with isa.capped(level):
            found.append(trained(name, options))
    assert calls
    calls.clear()
    monkeypatch.setenv("MEGENGINE_FORCE_KERNEL", "reference")
    want = trained(name, options)
    assert not calls
    for arrays in found:
        for a, b in zip(arrays, want, strict=True):
            np.testing.assert_array_equal(a, b)


def stepped(p, rule):
    p.grad = tensor(np.ones(p.shape, np.float32))
    rule.step()


def test_a_value_is_written_in_place_only_while_nobody_holds_it():
    p = Parameter(np.zeros(1000, np.float32))
    rule = optim.SGD([p], lr=1.0)
    stepped(p, rule)
    place = p.numpy().ctypes.data
    stepped(p, rule)
    assert p.numpy().ctypes.data == place
    array, view, value = p.numpy(), p.numpy()[3:5], p.detach()
    stepped(p, rule)
    assert (array == -2).all() and (view == -2).all() and (value.numpy() == -2).all() and (p.numpy() == -3).all()
    del array, value
    stepped(p, rule)
    stepped(p, rule)
    assert (view == -2).all() and (p.numpy() == -5).all()


def test_a_value_given_from_outside_is_not_written_over():
    p = Parameter(np.zeros(10, np.float32))
    rule = optim.SGD([p], lr=1.0)
    stepped(p, rule)
    other = tensor(np.full(10, 7, np.float32))
    p._reset(other)
    stepped(p, rule)
    assert (other.numpy() == 7).all() and (p.numpy() == 6).all()
    p.grad = p  # the gradient is the value
    rule.step()
    assert (p.numpy() == 0).all()


def test_packed_weights_follow_the_steps():
    w = Parameter(np.ones((8, 8, 3, 3), np.float32))
    x, rule = tensor(np.ones((1, 8, 5, 5), np.float32)), optim.SGD([w], lr=0.25)
    for step in range(4):
        assert F.conv2d(x, w).numpy().flat[0] == 72 * (1 - 0.25 * step)
        stepped(w, rule)


def test_a_subclass_runs_the_rule_it_wrote():
    class Halving(optim.Adam):
        def _update(self, w, g, state, group):
            return w / 2

    p = Parameter(np.ones(3, np.float32))
    stepped(p, Halving([p], lr=1.0))
    np.testing.assert_array_equal(p.numpy(), [0.5] * 3)


def test_gradients_in_any_layout_and_float64_parameters():
    g = np.arange(24, dtype=np.float32).reshape(4, 3, 2).transpose(2, 1, 0)
    p, q = Parameter(np.zeros((2, 3, 4), np.float32)), Parameter(np.zeros((2, 3, 4)), dtype="float64")
    p.grad, q.grad = tensor(g), tensor(g, dtype="float64")
    optim.SGD([p, q], lr=1.0).step()
    np.testing.assert_array_equal(p.numpy(), -g)
    np.testing.assert_array_equal(q.numpy(), -g)
    assert q.dtype == np.float64


def test_a_gradient_of_another_shape_is_refused_before_anything_moves():
    a, b = Parameter(np.ones(3, np.float32)), Parameter(np.ones((2, 2), np.float32))
    rule = optim.Adam([a, b], lr=1.0)
    a.grad, b.grad = tensor(np.ones(3, np.float32)), tensor(np.ones(4, np.float32))
    with pytest.raises(ShapeError, match=r"Adam: a gradient has shape \(4,\); expected \(2, 2\)"):
        rule.step()
    np.testing.assert_array_equal(a.numpy(), np.ones(3))
    assert rule.state_dict()["state"][0]["step"] == 0
