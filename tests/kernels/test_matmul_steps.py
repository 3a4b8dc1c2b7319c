"""Products in plans: every rank, transposition and repetition of stacks, with computed and constant operands."""

import numpy as np
import pytest

from megengine.core.dtype import bfloat16
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.kernels import _core, isa, onednn
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family

pytestmark = pytest.mark.skipif(not onednn.available(), reason=onednn.unavailable_reason())

# leading axes of a, of b
STACKS = [((), ()), ((3,), (3,)), ((3,), ()), ((), (3,)), ((1,), (4,)), ((2, 1, 3), (2, 5, 1)), ((1, 2, 3), (1, 2, 3))]
SIZES = [(1, 1, 1), (7, 5, 3), (16, 33, 17), (1, 40, 9), (9, 1, 8)]  # rows, depth, columns


def draw(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def product(a, b, *, ta, tb, constant, threads=1):
    """The product by the kernel that a plan chooses, with guards behind the result."""
    attrs = {"transpose_a": ta, "transpose_b": tb}
    specs = [TensorSpec(x.shape, x.dtype) for x in (a, b)]
    problem = Problem("matmul", specs, [infer("matmul", specs, attrs)], attrs)
    constants = {1: b} if constant else {}
    kernel = family("matmul").for_plan(problem, constants)[0]
    size = problem.outputs[0].size
    buffer = np.full(size + 32, 77, np.float32)
    out = buffer[:size].reshape(problem.outputs[0].shape)
    moving = [a] if kernel.packs else [a, b]
    _core.run_step(kernel.make_step(problem, constants, threads), [*moving, out])
    assert (buffer[size:] == 77).all()
    want = get_op("matmul").reference(a.astype(np.float64), b.astype(np.float64), **attrs)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    return kernel.name


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("of_a", "of_b"), STACKS)
def test_computed_operands(of_a, of_b, ta, tb, threads):
    for m, k, n in SIZES:
        a = draw(*of_a, *((k, m) if ta else (m, k)))
        b = draw(*of_b, *((n, k) if tb else (k, n)))
        if 4 not in (a.ndim, b.ndim):
            assert product(a, b, ta=ta, tb=tb, constant=False, threads=threads) == "onednn_matmul"


@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("leading", [(), (3,), (1, 2, 3)])
@pytest.mark.parametrize("level", isa.available())
def test_a_constant_matrix_is_packed(leading, tb, level):
    with isa.capped(level):
        for m, k, n in SIZES:
            b = draw(n, k) if tb else draw(k, n)
            assert product(draw(*leading, m, k), b, ta=False, tb=tb, constant=True) == "own_matmul_rows"


@pytest.mark.parametrize(
    ("a", "b", "attrs", "kernel", "reason"),
    [
        ((2, 3, 4, 5), (2, 3, 5, 4), {}, "onednn_matmul", "tensors of 4 axes lie channels-last"),
        ((2, 3, 4, 5), (5, 4), {}, "onednn_matmul_rows", "x has 4 axes"),
        ((2, 3, 4, 5), (5, 4), {}, "own_matmul_rows", "x has 4 axes"),
        ((4, 3), (4, 5), {"transpose_a": True}, "own_matmul_rows", "(4, 3), transposed and (4, 5)"),
        ((3, 0), (0, 4), {}, "onednn_matmul", "empty tensors"),
        ((4, 3), (4, 5), {"transpose_a": True}, "onednn_matmul_rows", "(4, 3), transposed and (4, 5)"),
        ((2, 4, 3), (2, 3, 5), {}, "onednn_matmul_rows", "only rows with a matrix"),
    ],
)
def test_why_not(a, b, attrs, kernel, reason):
    attrs = {"transpose_a": False, "transpose_b": False, **attrs}
    specs = [TensorSpec(shape, np.dtype(np.float32)) for shape in (a, b)]
    problem = Problem("matmul", specs, [infer("matmul", specs, attrs)], attrs)
    assert reason in dict(family("matmul").explain(problem, step=True))[kernel]


def test_native_steps_refuse_wrong_arguments():
    from megengine.kernels import _onednn

    with pytest.raises(ValueError, match="shapes and strides of one length"):
        _onednn.matmul_step([2, 3], [3, 1], [1, 3, 4], [12, 4, 1], [2, 4], [4, 1], "float32", 1)
    with pytest.raises(ValueError, match="no function gamma"):
        _core.float_function("gamma", 0.0)
    wrong = _core.function_step(4, "erf", 0.0, 1)  # a capsule of another kind
    with pytest.raises(ValueError, match="incorrect name"):
        _onednn.linear_step(
            1, 2, 3, "float32", "float32", draw(3, 2), None, draw(3), "none", 0.0, 0.0, "", 1.0, 1, wrong
        )


HEADS = [(4, 40, 33, 16), (1, 64, 64, 64), (3, 1, 50, 32), (2, 35, 1, 40)]  # heads, rows, columns, depth


@pytest.mark.skipif("bf16" not in isa.available(), reason="the CPU has no AVX512-BF16")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("result_apart", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sizes", HEADS)
def test_operands_of_bfloat16_that_lie_apart(sizes, turned, result_apart, threads):
    """Heads between joined projections: what lies between the numbers of an operand is neither read nor written."""
    heads, m, n, k = sizes
    pitch = heads * max(m, n, k) + 5
    x, y = (draw(max(m, n, k) + i, pitch).astype(bfloat16) for i in (0, 1))
    a = x[:m, : heads * k].reshape(m, heads, k).transpose(1, 0, 2)
    b = (y[:n, : heads * k].reshape(n, heads, k).transpose(1, 2, 0)) if turned else None
    b_strides = [k, 1, pitch]
    if b is None:
        b, b_strides = y[:k, : heads * n].reshape(k, heads, n).transpose(1, 0, 2), [n, pitch, 1]
    strides = [n, pitch, 1] if result_apart else [m * n, n, 1]
    out = np.full(max(m, heads) * max(n, pitch) * 2, 77, np.uint16)
    lengths = ([heads, m, k], [k, pitch, 1], [heads, k, n], b_strides, [heads, m, n], strides)
    step = onednn._module.matmul_step(*lengths, "bfloat16", threads, scale=0.5)
    _core.run_step(step, [x.view(np.uint16), y.view(np.uint16), out])
    written = np.zeros(out.size, bool)
    places = np.lib.stride_tricks.as_strided
    places(written, (heads, m, n), strides)[...] = True
    assert (out[~written] == 77).all()
    got = places(out, (heads, m, n), [2 * s for s in strides]).view(bfloat16)
    want = 0.5 * a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2.0**-7, atol=1e-4)
