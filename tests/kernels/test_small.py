"""Kernels of small tensors: the reference's values, the same bits at every instruction set, any layout of inputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_problems import kernel_of, problem_of, rows

import megengine.functional as F
import megengine.module as M
from megengine.dispatch import apply, get_op
from megengine.kernels import _core, isa
from megengine.kernels.registry import family
from megengine.tensor import Tensor, tensor

GEOMETRY = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}
CONVOLUTIONS = [
    ((1, 3, 8, 8), (4, 3, 3, 3), {"padding": ((1, 1), (1, 1))}),
    ((2, 3, 7, 9), (5, 3, 3, 2), {"stride": (2, 3), "padding": ((0, 2), (1, 0))}),
    ((1, 4, 9, 17), (6, 2, 2, 3), {"dilation": (2, 3), "groups": 2}),
    ((3, 6, 5, 5), (6, 1, 3, 3), {"groups": 6, "padding": ((1, 1), (1, 1)), "stride": (2, 2)}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((1, 2, 1, 40), (9, 2, 1, 8), {"stride": (1, 8)}),
    ((1, 1, 2, 2), (1, 1, 1, 1), {"padding": ((5, 6), (7, 8)), "stride": (4, 5)}),  # windows of padding alone
    ((1, 2, 3, 3), (4, 2, 3, 3), {"padding": ((4, 0), (0, 4)), "stride": (3, 3)}),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "changed"), CONVOLUTIONS)
def test_convolutions(x, w, changed, bias):
    attrs = {**GEOMETRY, **changed}
    arrays = [rows(*x), rows(*w, seed=1), *([rows(w[0], seed=2)] if bias else [])]
    kernel, problem = kernel_of("conv2d", arrays, attrs)
    assert kernel.name == "own_small_conv2d"
    want = get_op("conv2d").reference(*(a.astype(np.float64) for a in arrays), **attrs)
    results = []
    for level in isa.available():
        with isa.capped(level):
            results += [kernel.run(problem, *arrays), apply("conv2d", *map(tensor, arrays), **attrs).numpy()]
    np.testing.assert_allclose(results[0], want, rtol=1e-5, atol=1e-5)
    for other in results[1:]:
        np.testing.assert_array_equal(other.view(np.uint32), results[0].view(np.uint32))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from([1, 2, 3]),
    st.tuples(st.integers(1, 3), st.integers(1, 5)),
    st.tuples(st.integers(1, 12), st.integers(1, 20)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(*[st.integers(0, 3)] * 4),
)
def test_any_convolution(groups, channels, size, window, step, padding):
    (inside, outside), (top, bottom, left, right) = channels, padding
    shape = (2, inside * groups, size[0] + window[0] * 2, size[1] + window[1] * 2)
    attrs = {"stride": step, "padding": ((top, bottom), (left, right)), "dilation": step[::-1], "groups": groups}
    arrays = [rows(*shape), rows(outside * groups, inside, *window, seed=1), rows(outside * groups, seed=2)]
    try:
        got = apply("conv2d", *map(tensor, arrays), **attrs).numpy()
    except ValueError as error:
        assert "does not fit" in str(error)
        return
    want = get_op("conv2d").reference(*(a.astype(np.float64) for a in arrays), **attrs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_large_or_other_convolutions_are_left_to_others():
    one = rows(1, 1, 1, 1)
    for arrays, attrs, reason in (
        ([rows(1, 1, 1, 20), one], {**GEOMETRY, "stride": (1, 9)}, "stride (1, 9)"),
        ([rows(1, 16, 40, 40), rows(16, 16, 3, 3)], GEOMETRY, "3326976 products"),
        ([rows(1, 1, 300, 300), one], {**GEOMETRY, "stride": (8, 8)}, "x of shape (1, 1, 300, 300)"),
        ([rows(1, 1, 4, 4).astype("f2"), one.astype("f2")], GEOMETRY, "float32 only, got float16"),
        ([rows(0, 1, 4, 4), one], GEOMETRY, "no elements"),
    ):
        assert dict(family("conv2d").explain(problem_of("conv2d", arrays, attrs)))["own_small_conv2d"] == reason
    with pytest.raises(ValueError, match="strides of at most 8"):
        _core.small_conv_step([1] * 11 + [9] + [1] * 4, False)
    with pytest.raises(ValueError, match="16 lengths"):
        _core.small_conv_step([1], False)


SHAPES = [
    ((4, 4), (4, 4)),
    ((3, 1), (1, 17)),
    ((), (5,)),
    ((2, 3, 4, 5), (1, 3, 1, 1)),
    ((), ()),
    ((2, 3), (3,)),
    ((1,), (1,)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize(
    ("op", "function"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide)]
)
def test_arithmetic_gives_the_bits_of_numpy(op, function, a, b):
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -3e38, 3e38], np.float32)
    for seed in range(4):
        x, y = rows(*a, seed=seed), rows(*b, seed=seed + 9)
        if seed:
            x, y = (np.random.default_rng(seed).choice(special, v.shape).astype(np.float32) for v in (x, y))
        kernel, problem = kernel_of(op, [x, y], {})
        assert kernel.name == f"own_small_{op}"
        want = np.asarray(function(x, y))
        for got in (kernel.run(problem, x, y), apply(op, tensor(x), tensor(y)).numpy()):
            assert got.dtype == np.float32
            assert got.shape == want.shape
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            known = ~np.isnan(want)
            np.testing.assert_array_equal(got[known].view(np.uint32), want[known].view(np.uint32))


def test_inputs_in_any_layout():
    a = rows(2, 3, 4, 5)
    moved = np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    bytes_in_front = np.frombuffer(b"0" + a.tobytes(), np.uint8)[1:].view(np.float32).reshape(a.shape)
    for other in (moved, bytes_in_front, np.repeat(a, 2, -1)[..., ::2], a[:, ::-1].copy()[:, ::-1]):
        out = apply("add", Tensor._wrap(other), tensor(a))
        np.testing.assert_array_equal(out.numpy(), a + a)
        assert out._value.flags.c_contiguous
        w = rows(2, 3, 2, 2)
        np.testing.assert_array_equal(
            F.conv2d(Tensor._wrap(other), tensor(w)).numpy(), F.conv2d(tensor(a), tensor(w)).numpy()
        )


def test_large_and_empty_tensors_are_left_to_numpy():
    for shape, reason in (((0, 3), "no elements"), ((200, 200), "40000 elements")):
        assert dict(family("mul").explain(problem_of("mul", [rows(*shape)] * 2, {})))["own_small_mul"] == reason
    assert (tensor(np.ones((0, 3))) + 1).shape == (0, 3)


def test_weights_may_change_between_calls():
    layer, x = M.Conv2d(2, 3, 3, padding=1), rows(1, 2, 5, 5)
    for i in range(5):
        layer.weight.set_value(rows(3, 2, 3, 3, seed=i))
        layer.bias.set_value(rows(1, 3, 1, 1, seed=i))
        want = get_op("conv2d").reference(
            x.astype(np.float64),
            layer.weight.numpy(),
            layer.bias.numpy().ravel(),
            **{**GEOMETRY, "padding": ((1, 1),) * 2},
        )
        np.testing.assert_allclose(layer(tensor(x)).numpy(), want, rtol=1e-5, atol=1e-5)
