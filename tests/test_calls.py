"""Calls that are repeated natively: the same results and errors as in Python, whatever stands in between."""

import copy
import inspect
import pickle
import threading

import numpy as np
import pytest
from any_call import Arguments
from hypothesis import given, settings
from hypothesis import strategies as st

import megengine as mge
import megengine.functional as F
from megengine.autodiff import GradManager
from megengine.core.errors import DTypeError, MegEngineError
from megengine.core.spec import TensorSpec
from megengine.dispatch import Interposer, Listener, apply, interpose, public, public_functions
from megengine.dispatch.apply import run_eager
from megengine.dispatch.public import retract, watched_function
from megengine.kernels.kernel import EagerKernel
from megengine.kernels.registry import family
from megengine.tensor import Parameter, Tensor, tensor

REPEATING = sorted(name for name, record in public_functions.items() if record.by_spec)


def rows(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def outcome(call, args, kwargs):
    """What a call gave, in a form that can be compared: values and dtypes, or the error with its notes."""
    try:
        out = call(*args, **kwargs)
    except MegEngineError as error:
        return type(error), str(error), [n for n in getattr(error, "__notes__", []) if n.startswith("while")]
    several = out if isinstance(out, tuple) else [out]
    return [(type(t), t.dtype, t.device, t.numpy().tobytes(), t.numpy().shape) for t in several]


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.sampled_from(REPEATING), st.integers(0, 2**32))
def test_repeated_calls_are_equal(qualified, seed):
    record = public_functions[qualified]
    args, kwargs = Arguments(seed).of(record)
    function = watched_function(record)
    first = outcome(function, args, kwargs)
    # noted down at the second, repeated from the third on
    assert [outcome(function, args, kwargs) for _ in range(3)] == [first] * 3


def test_operators_are_repeated_with_new_values():
    for i in range(5):
        a, b = rows(3, 4, seed=i), rows(3, 4, seed=i + 50)
        x, y = tensor(a), Parameter(b)
        np.testing.assert_array_equal((x + y).numpy(), a + b)
        np.testing.assert_array_equal((2 - x).numpy(), 2 - a)
        np.testing.assert_allclose((x @ y.T).numpy(), np.matmul(a, b.T), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal((x + x).numpy(), a + a)
        assert type(y + 1) is Tensor


def test_options_that_are_equal_in_python_are_told_apart():
    x = tensor([[1, 2], [3, 4]])
    for _ in range(4):
        assert (x + 1).dtype == np.int32
        assert (x + 1.0).dtype == np.float32
        assert (x * True).dtype == np.int32
        assert F.sum(x, 0).shape == F.sum(x, axis=0).shape == (2,)
        assert F.sum(x, 0, True).shape == (1, 2)
        assert F.sum(x, (0, 1)).shape == ()
    zero = tensor(np.zeros(2))
    for _ in range(4):
        assert np.signbit((zero * 0.0).numpy()).tolist() == [False, False]
        assert np.signbit((zero * -0.0).numpy()).tolist() == [True, True]


def test_options_that_are_tensors_or_lists_are_read_at_every_call():
    x, w = tensor(rows(1, 1, 6, 6)), tensor(rows(1, 1, 1, 1))
    stride, strides = tensor(1), [1, 1]
    sizes = []
    for i in range(1, 6):
        stride.set_value(min(i, 3))
        strides[:] = [min(i, 3)] * 2
        a, b = F.conv2d(x, w, stride=stride), F.conv2d(x, w, stride=strides)
        assert a.shape == b.shape
        sizes.append(a.shape[-1])
    assert sizes == [6, 3, 2, 2, 2]


def test_errors_of_repeated_calls_name_the_call():
    x = tensor([6, 4])
    for _ in range(4):
        np.testing.assert_array_equal(F.floor_div(x, tensor([2, 3])).numpy(), [3, 1])
    with pytest.raises(MegEngineError, match="integer division by zero") as caught:
        F.floor_div(x, tensor([2, 0]))
    assert caught.value.__notes__[-1] == "while calling floor_div(tensor int32(2,), tensor int32(2,))"


def test_foreign_errors_of_repeated_calls_are_explained():
    kernel = EagerKernel("test_fragile", lambda problem, x: x[7:8] if x[0] > 0 else x["no"])
    with family("exp").planted(kernel):
        for _ in range(3):
            F.exp(tensor([1.0]))
        with pytest.raises(MegEngineError, match=r"exp: .*got exp\(tensor float32\(1,\)\)") as caught:
            F.exp(tensor([-1.0]))
        assert isinstance(caught.value.__cause__, IndexError)


def test_interrupts_pass_through():
    def stopped(problem, x):
        raise KeyboardInterrupt

    for _ in range(3):
        F.exp(tensor([1.0]))
    with family("exp").planted(EagerKernel("test_stopped", stopped)), pytest.raises(KeyboardInterrupt):
        F.exp(tensor([1.0]))


def test_a_kernel_that_is_added_or_removed_is_noticed():
    x = tensor([1.0, 2.0])
    for _ in range(4):
        np.testing.assert_array_equal((x * x).numpy(), [1, 4])
    with family("mul").planted(EagerKernel("test_wrong", lambda problem, a, b: a * 0 + 7)):
        np.testing.assert_array_equal((x * x).numpy(), [7, 7])
        np.testing.assert_array_equal(apply("mul", x, x).numpy(), [7, 7])
    np.testing.assert_array_equal((x * x).numpy(), [1, 4])


class Counting(Listener):
    def __init__(self):
        self.seen = []

    def observe(self, op, tensors, attrs, out):
        self.seen.append((op.name, len(tensors), attrs, out))


class Doubling(Interposer):
    def apply(self, op, tensors, attrs, proceed):
        return proceed(tuple(apply("add", t, t) for t in tensors))


def test_listeners_see_every_op_of_a_repeated_call():
    x, w, b = tensor(rows(1, 2, 3, 3)), tensor(rows(4, 2, 1, 1)), tensor(rows(1, 4, 1, 1))
    for _ in range(4):
        with interpose(Counting()) as outer, interpose(Counting()) as inner:
            out = F.conv2d(x, w, b)
        assert [name for name, *_ in outer.seen] == ["reshape", "conv2d"]
        assert outer.seen == inner.seen
        assert outer.seen[1][3] is out
        assert outer.seen[0][2] == {"shape": (4,)}


def test_other_interposers_are_asked_also_after_calls_were_repeated():
    x = tensor([1.0, -1.0])
    for _ in range(4):
        np.testing.assert_array_equal(F.relu(x).numpy(), [1, 0])
        with interpose(Counting()) as counting, interpose(Doubling()):
            np.testing.assert_array_equal(F.relu(x).numpy(), [2, 0])
        assert [name for name, *_ in counting.seen] == ["add", "relu"]


def test_a_listener_that_raises_ends_the_call():
    class Refusing(Listener):
        def observe(self, op, tensors, attrs, out):
            raise DTypeError("not here")

    x = tensor([1.0])
    for _ in range(4):
        F.exp(x)
        with interpose(Refusing()), pytest.raises(DTypeError, match="not here"):
            F.exp(x)


def test_attributes_that_a_listener_changes_are_its_own():
    class Spoiling(Listener):
        def observe(self, op, tensors, attrs, out):
            attrs.clear()

    x = tensor(rows(2, 3))
    for _ in range(4):
        with interpose(Spoiling()):
            assert F.sum(x, 1).shape == (2,)


def test_gradients_of_repeated_calls_and_their_gradients():
    for i in range(4):
        value = rows(3, seed=i)
        x = tensor(value)
        with GradManager().attach(x) as outer:
            with GradManager().attach(x) as inner:
                y = F.sum(x * x * x)
                inner.backward(y)
            first, x.grad = x.grad, None
            outer.backward(first)
        np.testing.assert_allclose(first.numpy(), 3 * value**2, rtol=1e-6)
        np.testing.assert_allclose(x.grad.numpy(), 6 * value, rtol=1e-6)


def test_deferred_values_are_computed():
    spec = TensorSpec((2,), np.dtype(np.float32))
    for i in range(4):
        x = Tensor._deferred(spec, lambda i=i: np.full(2, i, np.float32))
        np.testing.assert_array_equal((x + 1).numpy(), [i + 1, i + 1])
        y = Tensor._deferred(spec, lambda i=i: np.full(2, i, np.float32))
        np.testing.assert_array_equal(apply("neg", y).numpy(), [-i, -i])


def test_devices_are_told_apart():
    for _ in range(4):
        assert (tensor([1.0], device="test0") + 1).device == "test0"
        assert (tensor([1.0]) + 1).device == "cpu0"


def test_results_that_are_cast_or_scalars_are_arrays_of_the_inferred_dtype():
    for _ in range(3):
        out = apply("add", tensor(1.0), tensor(2.0))
        assert isinstance(out._value, np.ndarray)
        assert out._value.dtype == np.float32
        half = apply("softplus", tensor([0.5], dtype="float16"))
        assert half._value.dtype == half.dtype == np.float16


@pytest.mark.filterwarnings("error")
def test_infinities_give_no_warning_and_numpy_is_left_as_it_was():
    x = tensor([3e38, -1.0])
    with np.errstate(over="raise"):
        for _ in range(4):
            assert np.isinf((x + x).numpy()[0])
            assert np.isnan(F.log(x).numpy()[1])
        with pytest.raises(MegEngineError):  # an error in a reference leaves it too
            apply("floor_div", tensor([1]), tensor([0]))
        with pytest.raises(FloatingPointError):
            np.float32(3e38) * np.float32(10)


def test_wrong_kernels_are_refused():
    kernel = EagerKernel("test_short", lambda problem, x: (x,))
    with family("split").planted(kernel), pytest.raises(ValueError, match="of a kernel is 1; expected 2"):
        F.split(tensor(rows(4)), 2)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: apply(), "expected an op and tensors"),
        (lambda x: apply("nothing_like_it", x), "unknown op"),
        (lambda x: apply("add", x, 3), "input 1 is of type int; expected a tensor"),
        (lambda x: apply("sum", x, axis=[0], keepdims=False), "unhashable"),
        (lambda x: run_eager("add", x, {}), "expected an op, a tuple of tensors and a dict"),
    ],
)
def test_wrong_calls(call, match):
    with pytest.raises((TypeError, ValueError), match=match):
        call(tensor([1.0]))


def test_hashable_attributes_that_are_not_plain_are_compared():
    x = tensor(rows(4))
    for _ in range(3):
        for dtype in ("int32", np.dtype("float64"), np.float16):
            assert x.astype(dtype).dtype == np.dtype(dtype)
        big = apply("clip", x, lo=-(10**30), hi=10**30)
        np.testing.assert_array_equal(big.numpy(), x.numpy())


def test_many_inputs():
    parts = [tensor([float(i)]) for i in range(60)]
    for _ in range(3):
        np.testing.assert_array_equal(F.concat(parts).numpy(), np.arange(60))


def test_calls_with_ever_new_shapes_and_numbers_are_right():
    x = tensor([1.0])
    for i in range(700):  # more than are remembered
        assert (x + i).item() == 1 + i
        if i % 7 == 0:
            assert F.relu(tensor(np.ones((i, 1)))).shape == (i, 1)
    assert (x + 3).item() == 4


def test_threads_share_what_is_remembered():
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for i in range(300):
            a = rng.standard_normal((i % 5 + 1, 3)).astype(np.float32)
            x = tensor(a)
            if not np.array_equal((F.relu(x) + i % 11 - x).numpy(), np.maximum(a, 0) + np.float32(i % 11) - a):
                failures.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):  # lists change meanwhile
        with family("relu").planted(EagerKernel("test_unusable", np.negative, lambda problem: "never")):
            threads[0].join(0.002)
    for thread in threads:
        thread.join()
    assert failures == []


# ---------------------------------------------------------------- the functions themselves


def test_functions_look_like_functions():
    assert inspect.signature(F.matmul).parameters["transpose_a"].default is False
    assert F.relu.__name__ == "relu"
    assert F.relu.__module__ == "megengine.functional.nn"
    assert "Elementwise `relu`" in F.relu.__doc__
    assert repr(F.relu).startswith("<function relu at 0x")
    assert F.relu.__public__.qualified == "megengine.functional.nn.relu"
    assert inspect.isroutine(F.relu)
    assert callable(F.relu)


def test_functions_bind_as_methods():
    class Net:
        activation = F.relu

    x = tensor([-1.0, 2.0])
    assert Net.activation is F.relu
    with pytest.raises(MegEngineError, match="relu"):
        Net().activation(x)  # self and x, as for any function
    method = x.sum
    assert [method().item() for _ in range(4)] == [1.0] * 4
    assert Tensor.sum(x).item() == 1.0


def test_functions_are_copied_and_pickled_by_name():
    assert copy.deepcopy(F.conv2d) is copy.copy(F.conv2d) is F.conv2d
    assert pickle.loads(pickle.dumps(F.relu)) is F.relu


@pytest.fixture
def returns_its_input():
    @public(home="megengine.functional.nn", by_spec=True)
    def tested(x, y=None, scale=1):
        kept.append((x, y))
        if scale == 1:
            return x
        return x * scale if y is None else (x * scale, y)

    kept = []
    yield tested
    retract("megengine.functional.nn.tested")


def test_what_cannot_be_noted_down_is_called(returns_its_input):
    x, y = tensor([1.0]), tensor([2.0])
    for _ in range(4):
        assert returns_its_input(x) is x
        assert returns_its_input(x, scale=3).item() == 3
        assert [t.item() for t in returns_its_input(x, y, scale=2)] == [2, 2]
        assert returns_its_input(tensor([5.0]), y, scale=4)[0].item() == 20


def test_tensors_survive_copies_and_weak_references():
    x = tensor(rows(2, 2))
    x.anything = 3
    again = pickle.loads(pickle.dumps(x))
    np.testing.assert_array_equal(again.numpy(), x.numpy())
    assert copy.deepcopy(Parameter(x)).dtype == np.float32
    assert mge.Tensor.__new__(mge.Tensor)._value is None


def test_functions_that_ask_for_values_are_called_each_time():
    home = "megengine.test_home"

    @public(home=home, by_spec=True)
    def shifted(x, by):
        return x + float(by.numpy())

    try:
        for i in range(5):
            np.testing.assert_array_equal(shifted(tensor([1.0]), tensor(float(i))).numpy(), [1 + i])
            np.testing.assert_array_equal(shifted(by=tensor(2.0 * i), x=tensor([1.0])).numpy(), [1 + 2 * i])
    finally:
        retract(f"{home}.shifted")


def test_one_tensor_given_twice_and_results_of_several():
    for i in range(5):
        a = rows(3, 4, seed=i)
        x = tensor(a)
        np.testing.assert_array_equal((x * x).numpy(), a * a)
        np.testing.assert_array_equal((x - x).numpy(), a * 0)
        np.testing.assert_array_equal((x * tensor(a + 1)).numpy(), a * (a + 1))
        np.testing.assert_array_equal(F.argsort(x).numpy(), np.argsort(a, kind="stable"))
        for got, want in zip(F.sort(x), (np.sort(a), np.argsort(a, kind="stable")), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
        assert [p.shape for p in F.split(x, 2, axis=1)] == [(3, 2)] * 2


def test_a_tuple_of_results_of_several_ops_is_repeated():
    home, ran = "megengine.test_home", []

    @public(home=home, by_spec=True)
    def both(x, y):
        ran.append(1)
        first, _ = F.split(x, 2)
        return x * y, first, x * y

    try:
        for i in range(6):
            a, b = rows(4, 2, seed=i), rows(4, 2, seed=i + 9)
            for got, want in zip(both(tensor(a), tensor(b)), (a * b, a[:2], a * b), strict=True):
                np.testing.assert_array_equal(got.numpy(), want)
    finally:
        retract(f"{home}.both")
    assert len(ran) == 2  # called, and written down


def test_gradients_stop_at_values_that_repeated_calls_detach():
    weight = Parameter(rows(4, 2))
    for i in range(5):
        gm, index = GradManager().attach(weight), tensor(np.array([0, 1, i % 4], np.int32))
        with gm:
            gm.backward(F.embedding(index, weight, padding_idx=1).sum())
        want = np.bincount(np.array([0, i % 4] if i % 4 != 1 else [0]), minlength=4)
        np.testing.assert_array_equal(weight.grad.numpy(), np.repeat(want[:, None], 2, 1))
        weight.grad = None
