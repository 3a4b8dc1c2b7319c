"""Sums, products and moves of small tensors: NumPy's bits where they are promised, in any layout, with any axes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_problems import kernel_of, problem_of, rows

import megengine.functional as F
from megengine.core import _engine
from megengine.dispatch import apply, get_op
from megengine.kernels import _core, isa
from megengine.kernels.registry import family
from megengine.tensor import Tensor, tensor

LENGTHS = [1, 2, 3, 7, 8, 9, 17, 40, 130, 300]
shapes = st.lists(st.sampled_from(LENGTHS), max_size=5).filter(lambda s: np.prod(s, dtype=int) <= 1 << 14)


def same_bits(a, b):
    assert a.shape == b.shape
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(shapes, st.sampled_from(["sum", "mean"]), st.booleans(), st.data())
def test_sums_round_as_numpy_does(shape, op, keepdims, data):
    axes = data.draw(st.none() | st.sets(st.integers(-len(shape), -1)).map(tuple)) if shape else None
    attrs = {"axis": axes, "keepdims": keepdims}
    x = rows(*shape)
    x[rows(*shape, seed=1) > 0.7] = -0.0
    kernel, problem = kernel_of(op, [x], attrs)
    assert kernel.name == f"own_small_{op}"
    want = np.asarray(get_op(op).reference(x, **attrs))
    same_bits(kernel.run(problem, x), want)
    for layout in (x, np.asarray(x, order="F"), np.repeat(x[..., None], 2, -1)[..., 0]):
        same_bits(apply(op, Tensor._wrap(layout), **attrs).numpy(), want)


def test_sums_of_what_is_no_number():
    x = np.array([[np.inf, 1, -np.inf], [np.nan, 2, 3], [3e38, 3e38, 0]], np.float32)
    with np.errstate(all="ignore"):
        for axis in (None, (0,), (1,)):
            np.testing.assert_array_equal(F.sum(tensor(x), axis).numpy(), np.sum(x, axis))
            np.testing.assert_array_equal(F.mean(tensor(x), axis).numpy(), np.mean(x, axis))


def test_large_empty_and_other_sums_are_left_to_numpy():
    attrs = {"axis": None, "keepdims": False}
    for x, reason in (
        (rows(200, 200), "40000 elements"),
        (rows(0, 3), "no elements"),
        (rows(3).astype(np.float64), "float32 only, got float64"),
    ):
        assert dict(family("sum").explain(problem_of("sum", [x], attrs)))["own_small_sum"] == reason
    assert F.sum(tensor(rows(0, 3))).numpy() == 0
    with pytest.raises(ValueError, match="at least one length"):
        _core.sum_step([], True, 1.0)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.tuples(*[st.integers(1, 12)] * 3),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from([((), ()), ((3,), (3,)), ((2, 1), (4,)), ((), (2, 3)), ((5,), ())]),
)
def test_products_of_matrices(lengths, transposed, leading):
    m, k, n = lengths
    (ta, tb), attrs = transposed, {"transpose_a": transposed[0], "transpose_b": transposed[1]}
    a = rows(*leading[0], *((k, m) if ta else (m, k)))
    b = rows(*leading[1], *((n, k) if tb else (k, n)), seed=1)
    kernel, problem = kernel_of("matmul", [a, b], attrs)
    assert kernel.name == "own_small_matmul"
    want = get_op("matmul").reference(a.astype(np.float64), b.astype(np.float64), **attrs)
    got = apply("matmul", tensor(a), tensor(b), **attrs).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    same_bits(get_op("matmul").reference(a, b, **attrs), got)
    turned = [Tensor._wrap(np.asarray(x, order="F")) for x in (a, b)]
    same_bits(apply("matmul", *turned, **attrs).numpy(), got)
    same_bits(kernel.run(problem, a, b), got)
    for level in isa.available():
        with isa.capped(level):
            same_bits(apply("matmul", tensor(a), tensor(b), **attrs).numpy(), got)


def test_large_and_long_products_are_left_to_blas():
    attrs = {"transpose_a": False, "transpose_b": False}
    for a, b, reason in (
        ((32, 64), (64, 64), "163840 products and moves"),
        ((2, 600), (600, 2), "sums of 600 products"),
        ((0, 4), (4, 2), "no elements"),
    ):
        found = dict(family("matmul").explain(problem_of("matmul", [rows(*a), rows(*b)], attrs)))
        assert found["own_small_matmul"] == reason


def test_products_of_zeros_and_infinities():
    a = np.array([[0, np.inf], [-2, 1]], np.float32)
    with np.errstate(all="ignore"):
        want = a[:, :1] * a[:1] + a[:, 1:] * a[1:]
    np.testing.assert_array_equal((tensor(a) @ tensor(a)).numpy(), want)
    assert np.isnan(want).any()


MOVES = [
    ("transpose", (2, 3, 4), {"perm": (2, 0, 1)}),
    ("transpose", (2, 3, 4, 5), {"perm": (0, 3, 1, 2)}),
    ("slice", (2, 3, 4, 5), {"starts": (1, 0, None, 4), "stops": (2, 2, None, 1), "steps": (1, 1, -1, -2)}),
    ("slice", (4,), {"starts": (3,), "stops": (4,), "steps": (1,)}),
    ("broadcast_to", (3, 1, 5), {"shape": (2, 3, 4, 5)}),
    ("broadcast_to", (), {"shape": (2, 3)}),
    ("pad", (2, 3, 4, 5), {"widths": ((1, 0), (0, 2), (0, 0), (3, 1)), "mode": "constant", "value": 2.0}),
    ("split", (2, 6, 3, 2), {"sections": (1, 2, 3), "axis": 1}),
    ("split", (2, 6), {"sections": (6,), "axis": 1}),
    ("reshape", (2, 6), {"shape": (3, 4)}),
    ("reshape", (), {"shape": (1, 1)}),
    ("slice", (), {"starts": (), "stops": (), "steps": ()}),
    ("transpose", (), {"perm": ()}),
    ("copy", (), {"device": "cpu0"}),
]


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "int64", "float16", "complex64"])
@pytest.mark.parametrize(("op", "shape", "attrs"), MOVES)
def test_moves_equal_the_reference(op, shape, attrs, dtype):
    x = (rows(*shape) * 50).astype(dtype)
    with np.errstate(all="ignore"):
        want = get_op(op).reference(
            x, **attrs, **({"in_specs": [Tensor._wrap(x).spec], "out_specs": []} if op == "pad" else {})
        )
    for layout in (x, np.asarray(x, order="F"), np.repeat(x[..., None], 2, -1)[..., 0]):
        before = layout.copy()
        got = apply(op, Tensor._wrap(layout), **attrs)
        for g, w in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
            assert g.dtype == w.dtype
            np.testing.assert_array_equal(g.numpy(), w)
        np.testing.assert_array_equal(layout, before)


def test_brackets_of_a_tensor_without_axes():
    for _ in range(4):
        x = tensor(7)
        assert x[()].item() == x[...].item() == x[None, ...].item() == 7
        x[...] = 3
        assert x.item() == 3
        x[()] = tensor(4)
        assert x.item() == 4


SETTINGS = [
    (0, (4, 5)),
    ((0, slice(1, 3)), (2, 5)),
    ((slice(None, None, -1), 2), (1, 5)),
    ((..., 1), ()),
    ((None, slice(1, 3), -1), (1, 2, 5)),
    ((slice(5, 9),), ()),
    (..., (3, 4, 5)),
]


@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "int64"])
@pytest.mark.parametrize(("key", "shape"), SETTINGS)
def test_ranges_that_are_set(key, shape, dtype):
    for i in range(4):
        want = (rows(3, 4, 5, seed=i) * 50).astype(dtype)
        value = (rows(*shape, seed=i + 9) * 50).astype(dtype)
        for layout in (want, np.asarray(want, order="F")):
            x = Tensor._wrap(layout.copy(order="K"))
            before = x.detach()
            x[key] = tensor(value, dtype=dtype)
            expected = want.copy()
            expected[key] = value
            np.testing.assert_array_equal(x.numpy(), expected)
            np.testing.assert_array_equal(before.numpy(), want)


def test_values_that_do_not_fit_are_refused():
    for _ in range(4):
        x = tensor(rows(3, 4))
        for key, value in ((0, rows(3)), ((0, 0), rows(2)), (slice(0, 2), rows(3, 4)), (slice(9, 9), rows(3, 4))):
            with pytest.raises(ValueError, match="does not fit|do not broadcast"):
                x[key] = tensor(value)
        with pytest.raises(IndexError, match="out of range"):
            x[3] = 0
        np.testing.assert_array_equal(x.numpy(), rows(3, 4))


def test_gradients_of_ranges_that_are_set():
    from megengine.autodiff import GradManager

    for _ in range(4):
        x, v = tensor(rows(3, 4)), tensor(rows(4, seed=1))
        gm = GradManager().attach([x, v])
        with gm:
            y = x * 2
            y[1] = v * 3
            gm.backward(y, tensor(rows(3, 4, seed=2)))
        ct = rows(3, 4, seed=2)
        np.testing.assert_allclose(v.grad.numpy(), ct[1] * 3, rtol=1e-6)
        ct[1] = 0
        np.testing.assert_allclose(x.grad.numpy(), ct * 2, rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (1,), (4, 4), (2, 3, 5, 7)])
def test_relu_and_its_gradient_give_the_bits_of_numpy(shape):
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.0, -3.0], np.float32)
    for seed in range(6):
        x = np.random.default_rng(seed).choice(special, shape).astype(np.float32)
        ct = np.random.default_rng(seed + 9).choice(special, shape).astype(np.float32)
        kernel, problem = kernel_of("relu", [x], {})
        assert kernel.name == "own_small_relu"
        want = np.asarray(get_op("relu").reference(x))
        assert kernel_of("relu_backward", [ct, x], {})[0].name == "own_small_relu_backward"
        back = np.asarray(get_op("relu_backward").reference(ct, x))
        for layout in (x, np.asarray(x, order="F")):
            same_bits(apply("relu", Tensor._wrap(layout)).numpy(), want)
            np.testing.assert_array_equal(apply("relu_backward", tensor(ct), Tensor._wrap(layout)).numpy(), back)
        same_bits(kernel.run(problem, x), want)


def test_native_creation_refuses_what_is_no_shape():
    for call, match in (
        (lambda: _engine.filled([2], np.dtype("f4"), None, "cpu0"), "a shape, a dtype"),
        (lambda: _engine.filled((2,), "f4", None, "cpu0"), "a NumPy dtype"),
        (lambda: _engine.filled(("a",), np.dtype("f4"), None, "cpu0"), "integer"),
        (lambda: _engine.filled((1,) * 70, np.dtype("f4"), None, "cpu0"), "a shape"),
        (lambda: _engine.wrap([1], None, "cpu0"), "expected an array"),
        (lambda: _engine.ones_like(3), "expected a tensor"),
    ):
        with pytest.raises(TypeError, match=match):
            call()
    with pytest.raises(ValueError, match="negative"):
        _engine.filled((-1,), np.dtype("f4"), None, "cpu0")


def test_parts_joined_in_any_layout():
    parts = [rows(2, n, 4, 3, seed=n) for n in (1, 3, 2)]
    turned = [Tensor._wrap(np.asarray(p, order="F")) for p in parts]
    np.testing.assert_array_equal(F.concat(turned, axis=1).numpy(), np.concatenate(parts, 1))
    many = [tensor([float(i)]) for i in range(100)]
    np.testing.assert_array_equal(F.concat(many).numpy(), np.arange(100))


def test_a_reshaped_tensor_keeps_its_values():
    x = tensor(rows(2, 6))
    view, before = x.reshape(3, 4), x.numpy().copy()
    x += 1
    x[0] = 7
    np.testing.assert_array_equal(view.numpy(), before.reshape(3, 4))


def test_brackets_are_repeated():
    a = rows(4, 5)
    keys = [0, -1, slice(1, 3), slice(None, None, -2), (1, 2), (slice(2), None), ..., (..., 0), None, np.int64(2)]
    for _ in range(4):
        for key in keys:
            np.testing.assert_array_equal(tensor(a)[key].numpy(), a[key])
    x = tensor(a)
    for i in range(4):  # values of indices may change
        mask = rows(4, seed=i) > 0
        np.testing.assert_array_equal(x[tensor(mask)].numpy(), a[mask])
        np.testing.assert_array_equal(x[tensor(np.array([i, 0]))].numpy(), a[[i, 0]])
        np.testing.assert_array_equal(x[[i, 1]].numpy(), a[[i, 1]])
        np.testing.assert_array_equal(x[slice(tensor(i), None)].numpy(), a[i:])
        np.testing.assert_array_equal(x[1].numpy(), a[1])
    for _ in range(4):
        with pytest.raises(IndexError, match="index 4 is out of range"):
            x[4]
