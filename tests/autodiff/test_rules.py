"""Gradient rules that are repeated natively: what they give in Python, to the bit, whatever stands in between."""

# pyright: reportOptionalMemberAccess=false

import gc
import weakref

import numpy as np
import pytest
from op_contract import results, tensors

import megengine.functional as F
from megengine.autodiff import GradManager, rules
from megengine.autodiff.context import Context, pull_back
from megengine.core.dtype import is_differentiable
from megengine.core.errors import GradientError
from megengine.dispatch import (
    Interposer,
    Listener,
    ZeroGradient,
    apply,
    interpose,
    not_differentiable,
    registry,
    zero_gradient,
)
from megengine.dispatch.record import NoRule, define, undefine
from megengine.kernels.kernel import EagerKernel
from megengine.kernels.registry import family
from megengine.tensor import Tensor, tensor

SMOOTH = sorted(name for name, op in registry.items() if not isinstance(op.vjp, NoRule))


def rows(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def calls_of(name):
    """(inputs, outputs, cotangents, attributes) of the samples of an op that have gradients."""
    op = registry[name]
    for sample in op.samples():
        if sample.differentiable:
            inputs = tuple(tensors(sample))
            outputs = results(apply(op, *inputs, **sample.attrs))
            cts = tuple(
                Tensor._wrap(rows(*o.shape).astype(o.numpy().dtype)) if is_differentiable(o.dtype) else None
                for o in outputs
            )
            yield inputs, outputs, cts, dict(sample.attrs)


def gradients(name, inputs, attrs):
    gm = GradManager().attach([t for t in inputs if is_differentiable(t.dtype)])
    with gm:
        outputs = results(apply(name, *inputs, **attrs))
        real = [o for o in outputs if is_differentiable(o.dtype)]
        gm.backward(real, [Tensor._wrap(rows(*o.shape).astype(o.numpy().dtype)) for o in real])
    found = [t.grad for t in inputs]
    for t in inputs:
        t.grad = None
    return found


@pytest.mark.parametrize("name", SMOOTH)
def test_no_rule_asks_for_values(name):
    op = registry[name]
    for inputs, outputs, cts, attrs in calls_of(name):
        for needs in {(True,) * len(inputs), (True, *[False] * (len(inputs) - 1))}:
            assert rules.learn(op, inputs, outputs, attrs, needs, cts) is not None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMOOTH)
def test_repeated_rules_give_the_same_bits(name):
    op = registry[name]
    for inputs, outputs, cts, attrs in calls_of(name):
        want = pull_back(
            Context(inputs, outputs, attrs, tuple(is_differentiable(t.dtype) for t in inputs), name, op.vjp), cts
        )
        for _ in range(4):  # in Python, written down, repeated
            for t, got, one in zip(inputs, gradients(name, inputs, attrs), want, strict=True):
                if is_differentiable(t.dtype) and one is not None:
                    assert got.spec == one.spec
                    np.testing.assert_array_equal(got.numpy(), one.numpy())


def test_recipes_follow_the_values():
    for i in range(5):
        x, w = tensor(rows(3, 4, seed=i)), tensor(rows(5, 4, seed=i + 9))
        gm = GradManager().attach([x, w])
        with gm:
            gm.backward((F.relu(F.linear(x, w)) * 2).sum())
        ct = 2.0 * (x.numpy() @ w.numpy().T > 0)
        np.testing.assert_allclose(x.grad.numpy(), ct @ w.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(w.grad.numpy(), ct.T @ x.numpy(), rtol=1e-5, atol=1e-5)


def test_second_and_third_gradients_of_repeated_rules():
    for i in range(5):
        x = tensor(rows(6, seed=i))
        one, two, three = (GradManager().attach([x]) for _ in range(3))
        with three:
            with two:
                with one:
                    one.backward((x**4).sum())
                first, x.grad = x.grad, None
                two.backward(first)
            second, x.grad = x.grad, None
            three.backward(second)
        np.testing.assert_allclose(first.numpy(), 4 * x.numpy() ** 3, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(second.numpy(), 12 * x.numpy() ** 2, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(x.grad.numpy(), 24 * x.numpy(), rtol=1e-5, atol=1e-5)


def test_only_some_inputs_or_outputs():
    x, w = tensor(rows(4, 3)), tensor(rows(4, 3, seed=1))
    for i in range(8):
        gm = GradManager().attach([x] if i % 2 else [x, w])
        with gm:
            a, b = F.split(x * w, 2)
            gm.backward((a if i % 4 < 2 else b).sum())
        want = w.numpy().copy()
        want[slice(2, None) if i % 4 < 2 else slice(0, 2)] = 0
        np.testing.assert_array_equal(x.grad.numpy(), want)
        assert (w.grad is None) == bool(i % 2)
        x.grad = w.grad = None


class _Counting(Listener):
    def __init__(self):
        self.seen = []

    def observe(self, op, tensors, attrs, out):
        self.seen.append(op.name)


class _Between(Interposer):
    def apply(self, op, tensors, attrs, proceed):
        return proceed()


@pytest.mark.parametrize("standing", [_Counting, _Between])
def test_others_on_the_stack_see_the_ops_of_rules(standing):
    x, seen = tensor(rows(4)), []
    for _ in range(5):
        gm, other = GradManager().attach(x), standing()
        with gm:
            y = F.exp(x).sum()
            with interpose(other):
                gm.backward(y)
        np.testing.assert_array_equal(x.grad.numpy(), F.exp(x).numpy())
        x.grad = None
        seen.append(getattr(other, "seen", None))
    assert seen == [seen[0]] * 5
    assert seen[0] in (None, ["broadcast_to", "mul"])


def _define(vjp):
    return define("test_rule", lambda x: x, lambda x: x * 3, vjp, NoRule("ONNX rule", "a test"), tuple)


def _tripled(x):
    gm = GradManager().attach(x)
    with gm:
        gm.backward(apply("test_rule", x))
    found, x.grad = x.grad, None
    return found


def test_a_rule_that_reads_values_is_called_each_time():
    def vjp(ctx, ct):
        return (ct * float(ctx.inputs[0].numpy().max()),)

    _define(vjp)
    try:
        for i in range(1, 6):
            assert _tripled(tensor([float(i)])).numpy() == i
    finally:
        undefine("test_rule")


@pytest.mark.parametrize(
    ("vjp", "error", "match"),
    [
        (lambda ctx, ct: (ct, ct), ValueError, "the number of gradients of a rule is 2; expected 1"),
        (lambda ctx, ct: (3,), ValueError, "a gradient rule returned int; expected a tensor or None"),
        (lambda ctx, ct: (F.concat([ct, ct]),), GradientError, r"a gradient has shape \(4,\); expected \(2,\)"),
        (lambda ctx, ct: (ct + tensor([1.0, 2.0, 3.0]),), ValueError, "do not broadcast"),
    ],
)
def test_wrong_rules_are_refused_each_time(vjp, error, match):
    _define(vjp)
    try:
        for _ in range(4):
            with pytest.raises(error, match=match):
                _tripled(tensor([1.0, 2.0]))
    finally:
        undefine("test_rule")


def test_an_error_of_a_kernel_in_a_rule_names_the_op():
    x = tensor(rows(3))

    def step():
        gm = GradManager().attach(x)
        with gm:
            gm.backward(F.exp(x))
        x.grad = None

    def fail(problem, *arrays):
        raise MemoryError("no room")

    for _ in range(3):
        step()
    with family("mul").planted(EagerKernel("test_failing", fail)), pytest.raises(Exception, match="no room") as caught:
        step()
    assert "while computing the gradient of exp" in getattr(caught.value, "__notes__", []) + getattr(
        caught.value.__cause__, "__notes__", []
    )
    step()


def test_an_interrupt_in_a_repeated_rule_ends_the_sweep():
    x, calls = tensor(rows(3)), []

    def step():
        gm = GradManager().attach(x)
        with gm:
            gm.backward(F.exp(x))
        x.grad = None

    def interrupted(problem, a, b):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return a * b

    with family("mul").planted(EagerKernel("test_interrupted", interrupted)):
        for _ in range(4):  # in Python, written down, repeated
            step()
        with pytest.raises(KeyboardInterrupt):
            step()
        assert len(calls) == 5
    step()


def test_gradients_are_tensors_of_their_own():
    a, b = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    for _ in range(4):
        gm, dy = GradManager().attach([a, b]), tensor([1.0, 1.0])
        with gm:
            gm.backward(a + b, dy)
        a.grad *= 2
        assert b.grad.numpy().tolist() == dy.numpy().tolist() == [1, 1]
        b.grad += 5
        assert a.grad.numpy().tolist() == [2, 2]
        a.grad = b.grad = None


def test_nothing_is_held_after_the_sweep():
    gone = []
    for _ in range(4):
        x = tensor(rows(3))
        gm = GradManager().attach(x)
        with gm:
            y = F.exp(x * x)
            gone += map(weakref.ref, (x, y))
            gm.backward(y.sum())
        gone.append(weakref.ref(x.grad))
        del x, y, gm
    gc.collect()
    assert not any(reference() is not None for reference in gone)


def test_a_tape_in_a_cycle_is_collected():
    x = tensor(rows(3))
    gm = GradManager().attach(x)
    gm.record()
    y = F.exp(x)
    y.tape = gm._tape  # pyright: ignore[reportAttributeAccessIssue]
    gone = weakref.ref(y)
    gm.release()
    del y, gm
    gc.collect()
    assert gone() is None


def test_wrong_uses_of_the_native_tape():
    from megengine.autodiff.tape import Tape

    tape, x = Tape(), tensor([1.0])
    for call, match in (
        (lambda: tape.watch(3), "got int; expected a tensor"),  # pyright: ignore[reportArgumentType]
        (lambda: tape.gradients([x], [], []), "a seed for each"),
        (lambda: tape.gradients([x], [3], []), "expected a tensor"),  # pyright: ignore[reportArgumentType]
        (lambda: tape._rebind(x, x, 3), "expected a tensor"),  # pyright: ignore[reportArgumentType]
        (lambda: tape._add(Context((x,), (x,), {}, ())), "tuples of inputs, outputs and needs"),
        (lambda: tape._add(Context((3,), (x,), {}, (True,))), "expected a tensor"),
    ):
        with pytest.raises(TypeError, match=match):
            call()
    assert tape.gradients([x], [x], [x]) == [x]


def test_only_the_kind_of_rule_says_that_a_gradient_is_zero():
    """The reason is for people: the same words refuse a gradient, or give none, by the kind of the rule."""
    x = tensor([1.5, -2.5])
    for rule in (zero_gradient, not_differentiable):
        _define(rule("the result is piecewise constant"))
        try:
            if rule is zero_gradient:
                assert _tripled(x) is None
            else:
                with pytest.raises(GradientError, match="test_rule has no gradient: the result is piecewise constant"):
                    _tripled(x)
        finally:
            undefine("test_rule")


@pytest.mark.parametrize("name", sorted(n for n, op in registry.items() if isinstance(op.vjp, ZeroGradient)))
def test_zero_gradients_end_the_way_back(name):
    op = registry[name]
    for sample in op.samples():
        inputs = tuple(tensors(sample))
        outputs = results(apply(op, *inputs, **sample.attrs))
        entry = Context(inputs, outputs, dict(sample.attrs), (True,) * len(inputs), name, op.vjp)
        assert pull_back(entry, outputs) == [None] * len(inputs)
