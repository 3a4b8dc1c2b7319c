"""Helpers of `megengine.core.tensor`, graphs of operators, and `Grad`, beside what MegEngine 1.13.0 answers."""

# pyright: reportCallIssue=false, reportArgumentType=false

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
from megengine.autodiff import GradManager
from megengine.core._imperative_rt.core2 import apply, getitem_cpp, matmul_cpp, reshape_cpp, setitem_cpp, transpose_cpp
from megengine.core.autodiff.grad import Grad
from megengine.core.dtype import quantized
from megengine.core.errors import GradientError, MegEngineError
from megengine.core.ops import builtin as B
from megengine.core.tensor import dtype as D
from megengine.core.tensor import utils as U

T = mge.tensor
FLOAT = np.dtype("float32")


@pytest.fixture
def x():
    return T(np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (3, (3,)),
        (np.array([2, 3]), (2, 3)),
        (T([2, 3]), (2, 3)),
        ([T(2), 3], (2, 3)),
        ((2, T([3, 4])), (2, 3, 4)),
        ((), ()),
    ],
    ids=str,
)
def test_shapes_of_numbers_and_tensors(given, shape):
    assert U.make_shape_tuple(given) == shape


@pytest.mark.parametrize("given", [(2, (3, 4)), 2.5, [[1]], "ab"], ids=str)
def test_what_is_no_shape(given):
    with pytest.raises(MegEngineError, match="make_shape_tuple: got .*expected integers, or flat tensors of them"):
        U.make_shape_tuple(given)


def test_scalars(x):
    given = [3, x, T(3), T([3]), np.array(3), [3], np.float32(2), "a", None, True]
    assert [U.isscalar(v) for v in given] == [True, False, True, False, False, False, True, True, False, True]


def test_flat_tensors(x):
    """As the wheel makes them: values, dtype."""
    cases = [
        (([1, 2],), {}, [1, 2], "int32"),
        (([1, T(2)],), {}, [1, 2], "int32"),
        (((1, 2), x), {}, [1, 2], "int32"),
        (([1, 2],), {"dtype": "float32"}, [1, 2], "float32"),
        ((T([1, 2]),), {"dtype": "int32"}, [1, 2], "int32"),
        (([T(1), T([2, 3])],), {"dtype": "int32"}, [1, 2, 3], "int32"),
        ((np.array([1, 2]), x), {"dtype": "int32", "device": x.device}, [1, 2], "int32"),
        (([],), {}, [], "float32"),
        (([1.5, 2],), {}, [1.5, 2], "float32"),
    ]
    for args, options, values, dtype in cases:
        found = U.astensor1d(*args, **options)
        assert (found.tolist(), found.dtype) == (values, np.dtype(dtype))
    with pytest.raises(TypeError, match="astensor1d: got 3; expected a tensor, or a list"):
        U.astensor1d(3)
    with pytest.raises(ValueError, match="astensor1d: got 2 axes"):
        U.astensor1d(x)


def test_conversion_of_inputs(x):
    assert [t.dtype for t in U.convert_inputs(x, 2)] == [FLOAT, FLOAT]
    assert [t.dtype for t in U.convert_inputs(2, 3.5)] == [FLOAT, FLOAT]
    assert [t.dtype for t in U.convert_inputs(x, T(2))] == [FLOAT, FLOAT]
    assert U.convert_inputs(x, None)[1] is None
    assert [t.dtype.name for t in U.cast_tensors(x, T(1))] == ["float16", "float16"]
    assert [t.dtype.name for t in U.cast_tensors(x, T(1), promote=True)] == ["float32", "float32"]
    assert (U.result_type(x, T(1)), U.result_type(x)) == (np.float64, np.float32)
    assert U.convert_single_value(2, dtype="float32", device="xpux").dtype == FLOAT
    assert U.Const([1, 2], "int32", "xpux").tolist() == [1, 2]
    assert U.set_convert_inputs(True) is U.get_convert_inputs() is True


def test_axes():
    assert U._normalize_axis(3, -1) == 2
    assert U._normalize_axis(3, [-1, 0]) == [0, 2]
    assert U._normalize_axis(3, [0, -1], reverse=True) == [2, 0]
    with pytest.raises(AssertionError, match="axis 5 is out of bounds for tensor of dimension 3"):
        U._normalize_axis(3, 5)
    with pytest.raises(AssertionError, match=r"\[0, 0\] contains duplicated indices"):
        U._normalize_axis(3, [0, 0])


def test_operators_as_functions(x):
    np.testing.assert_array_equal(getitem_cpp(x, 1).numpy(), [3, 4, 5])
    changed = setitem_cpp(x, 1, 0.0)
    assert (changed[1].tolist(), x[1].tolist()) == ([0, 0, 0], [3, 4, 5])
    assert reshape_cpp(x, 3, 2).shape == transpose_cpp(x, 1, 0).shape == (3, 2)
    np.testing.assert_array_equal(matmul_cpp(x, x, 2, 2, False, True).numpy(), x.numpy() @ x.numpy().T)


def test_arrays_of_quantized_dtypes():
    """Ties go to even, as the wheel's do."""
    rows = [
        ("qint8", (0.1,), [-100, 0.24, 0.25, 0.35, 100], [-128, 2, 2, 4, 127]),
        ("qint8", (0.1,), [-0.25, 0.05, 0.15, -0.05], [-2, 0, 2, 0]),
        ("quint8", (0.1, 3), [-1, 0.25, 30], [0, 5, 255]),
        ("qint4", (0.25,), [-3, 0.3, 5], [-8, 1, 7]),
        ("quint4", (0.25, 8), [-3, 0.3, 5], [0, 9, 15]),
        ("qint32", (0.25,), [-3, 0.3, 5], [-12, 1, 20]),
        ("qint1", (0.25,), [-3, 0.3, 5], [0, 1, 1]),
    ]
    for name, scale, real, stored in rows:
        dtype = getattr(D, name)(*scale)
        made = getattr(D, f"convert_to_{name}")(np.float32(real), dtype)
        assert made.tolist() == stored
        back = getattr(D, f"convert_from_{name}")(made)
        zero = scale[1] if len(scale) > 1 else 0
        np.testing.assert_allclose(back, (np.float32(stored) - zero) * np.float32(scale[0]), rtol=1e-6)
        assert D.get_scale(made.dtype) == pytest.approx(scale[0])
    for wrong in (
        lambda: D.convert_to_qint8(np.float32([0.1]), D.quint8(0.1, 3)),
        lambda: D.convert_from_qint8(np.int8([1])),
        lambda: D.convert_to_qint8(1.0, D.qint8(0.1)),
    ):
        with pytest.raises(ValueError, match=r"convert_(to|from)_qint8: .*expected a "):
            wrong()


def test_quantized_dtypes_describe_themselves():
    """Scripts read scales from `.metadata`."""
    dtype = D.quint8(0.5, 3)
    described = {"mgb_dtype": {"name": "Quantized8Asymm", "scale": 0.5, "zero_point": 3}}
    assert dtype.metadata == dtype.numpy_dtype.metadata == described
    assert (dtype.kind, dtype.type, dtype.numpy_dtype) == ("u", np.uint8, np.uint8)
    assert T([1.0], dtype=dtype.numpy_dtype).dtype == dtype and D.is_quantize(dtype.numpy_dtype)
    assert dtype != np.uint8 and np.dtype(np.uint8) != dtype
    assert D.qint32(0.5).metadata == {"mgb_dtype": {"name": "QuantizedS32", "scale": 0.5}}
    with pytest.raises(MegEngineError, match="has a scale per channel; expected one for all"):
        quantized("qint8", (0.5, 0.25), axis=0).metadata
    with pytest.raises(MegEngineError, match="has no name in MegEngine; expected one of"):
        quantized("mine", 0.5, own=(np.dtype(np.int8), -3, 3)).metadata


def test_questions_about_dtypes():
    assert D.is_bfloat16(D.bfloat16) and not D.is_bfloat16(np.float32)
    assert [D.is_differentible_dtype(t) for t in (np.float32, np.int32, D.bfloat16, D.intb4)] == [
        True,
        False,
        True,
        False,
    ]
    assert D.is_dtype_equal(D.qint8(0.1), D.qint8(0.1)) and not D.is_dtype_equal(D.qint8(0.1), D.qint8(0.2))
    assert D.is_dtype_equal(np.float32, "float32") and D.is_dtype_equal(D.intb1, D.intb1)
    assert D.is_lowbit(D.intb4) and not D.is_lowbit(np.float32)
    assert D._builtin_quant_dtypes["qint8_narrow"].qmin == -127
    with pytest.raises(MegEngineError, match="intb4: tensors of it do not exist; use a quantized type"):
        D.intb4([1])
    with pytest.raises(MegEngineError, match="intb4.* is not a dtype"):
        T([1], dtype=D.intb4)


# ---------------------------------------------------------------- graphs of operators


def test_a_function_written_in_operators(x):
    @U.subgraph_fn("Sq", dtype=FLOAT, device=x.device, nr_inputs=2)
    def function(inputs, f, c):
        a, b = inputs[0:2]
        y = f("*", f("+", a, b), c(2))
        head, moved = f("[?:]", a, c([1], "int32")), f("cond_leq_mov", a, c(2), b)
        return (y, f("exp", f("-", a)), f(B.Elemwise("ADD"), a, c(2)), head, moved), (True, True, True, False, True)

    found = [t.numpy() for t in function(x, x)]
    v = x.numpy()
    for got, want in zip(found, (4 * v, np.exp(-v), v + 2, v[1:], np.where(v <= 2, v, 0)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    with pytest.raises(MegEngineError, match="Sq: got 1 tensor; expected 2"):
        function(x)


def test_gradients_of_a_graph_of_operators(x):
    """Those of its operators, or the ones that the function yields itself."""

    @U.subgraph_fn("Five", dtype=FLOAT, device=x.device, nr_inputs=1, custom_grad=True)
    def five(inputs, f, c):
        (grad,) = yield (f("relu", inputs[0]),)
        yield (f("*", grad, c(5.0)),)

    @U.subgraph("Fma", dtype=FLOAT, device=x.device, nr_inputs=2)
    def fma(inputs, f, c):
        return (f("fma3", *inputs, c(1.0)),), (True,)

    assert repr(fma()) == "Fma"
    for function, slope in ((lambda: five(x)[0], 5 * np.ones((2, 3))), (lambda: apply(fma(), x, x)[0], 2 * x.numpy())):
        x.grad = None
        with GradManager().attach(x) as gm:
            gm.backward(function().sum())
        np.testing.assert_allclose(x.grad.numpy(), slope)


def test_graphs_that_are_interpreted(x):
    half = U.subgraph_fn("Half", FLOAT, x.device, 1, interpret=True)(lambda i, f, c: ((f("/", i[0], c(2)),), (True,)))
    assert type(half(x)) is list
    np.testing.assert_allclose(half(x)[0].numpy(), x.numpy() / 2)
    size = U.interpret_subgraph(lambda i, f, c: ((f("abs", i[0]),), (True,)), FLOAT, x.device)
    np.testing.assert_allclose(size(-x)[0].numpy(), x.numpy())


def test_operators_that_do_not_exist(x):
    wrong = U.subgraph_fn("W", FLOAT, x.device, 1)(lambda i, f, c: ((f("fma", *i),), (True,)))
    with pytest.raises(MegEngineError, match=r"W: no operator 'fma' of 1 tensor; expected one of .*did you mean 'fma"):
        wrong(x)


# ---------------------------------------------------------------- Grad


def test_grad_calls_back():
    x, found = T([2.0]), {}
    with Grad() as grad:
        grad.wrt(x, callback=lambda g: found.update(a=g))
        y = x * x
        grad(y, T([1.0]))
    assert found["a"].item() == 4
    grad = Grad("second").wrt(x, callback=lambda g: found.update(b=g))
    y = x * x
    grad.suppress()
    z = y * x
    grad.resume()
    assert grad._is_attached_to(x)
    grad([y], [T([2.0])])
    assert (found["b"].item(), z.item()) == (8, 8)
    with pytest.raises(GradientError, match="Grad.wrt: it was called or closed already"):
        grad.wrt(x)


def test_grads_of_grads():
    """Two of them, each with its own."""
    x, first, second = T([3.0]), [], []
    with Grad() as outer:
        outer.wrt(x, callback=second.append)
        with Grad() as inner:
            inner.wrt(x, callback=first.append)
            inner(x * x * x)
        outer(first[0])
    assert (first[0].item(), second[0].item()) == (27, 18)


def test_wrong_uses_of_grad():
    with Grad() as grad:
        with pytest.raises(TypeError, match=r"Grad.wrt: got \[1.0\]; expected tensors"):
            grad.wrt([1.0])
        x = T([1.0])
        grad.wrt(x)
        with pytest.raises(GradientError, match="1 target and 2 cotangents"):
            grad(x * 2, [T([1.0]), T([1.0])])


def test_ops_are_differentiated():
    x = T(np.float32([[1, -2], [3, 4]]))
    with GradManager().attach(x) as gm:
        (y,) = apply(B.Reduce(mode="SUM_SQR", axis=1), x)
        gm.backward(F.sum(y))
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy())
