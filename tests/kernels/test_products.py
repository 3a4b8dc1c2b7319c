"""Own float products with constant weights: every tile and its edges, at every instruction set."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan, tensor
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.kernels import _core, isa, products
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.ops.fused import ACTIVATIONS
from megengine.traced_module import trace_module

GUARD = 77
# rows, depth, columns: around tiles of 4, 6 and 12 rows and vectors of 4, 8 and 16 columns
SIZES = [
    *((rows, 5, 17) for rows in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 25)),
    *((13, 7, columns) for columns in (1, 3, 4, 5, 8, 9, 15, 16, 31, 32, 33, 63, 64, 65, 130)),
    *((13, depth, 33) for depth in (1, 2, 63, 64, 255, 256, 1024)),
    (300, 31, 70),
]


def draw(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def case(rows, depth, columns, activation="none", residual=False):
    """The problem of a linear layer, and its arrays."""
    leading = rows if isinstance(rows, tuple) else (rows,)
    arrays = [draw(*leading, depth), draw(columns, depth), draw(columns)]
    if residual:
        arrays.append(draw(*leading, columns))
    specs, attrs = [TensorSpec(a.shape, a.dtype) for a in arrays], {"activation": activation}
    return Problem("fused_linear", specs, [infer("fused_linear", specs, attrs)], attrs), arrays


def run(problem, arrays, threads=1):
    """The result of the kernel, whose neighbours stay as they are."""
    size = problem.outputs[0].size
    buffer = np.full(size + 32, GUARD, np.float32)
    out = buffer[16 : 16 + size].reshape(problem.outputs[0].shape)
    moving = [arrays[0], out]
    if len(arrays) == 4:
        out[...] = arrays[3]
        moving.insert(1, out)
    step = products.own_fused_linear.make_step(problem, {1: arrays[1], 2: arrays[2]}, threads)
    _core.run_step(step, moving)
    assert (buffer[:16] == GUARD).all()
    assert (buffer[16 + size :] == GUARD).all()
    return out


def check(problem, arrays):
    want = get_op("fused_linear").reference(*(a.astype(np.float64) for a in arrays), **problem.attrs)
    np.testing.assert_allclose(run(problem, arrays), want, rtol=1e-5, atol=3e-7 * arrays[0].shape[-1] + 1e-5)


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("residual", [False, True])
def test_every_tile_is_near_the_float64_reference(level, residual):
    with isa.capped(level):
        for rows, depth, columns in SIZES:
            check(*case(rows, depth, columns, residual=residual))


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(level, activation):
    with isa.capped(level):
        for rows, columns in ((3, 33), (40, 37), (120, 70), (9, 8200)):
            check(*case(rows, 9, columns, activation, residual=columns == 37))


def test_leading_axes_are_rows():
    check(*case((2, 1, 3, 5, 2), 6, 7, "relu"))


@pytest.mark.parametrize("activation", ["none", "gelu"])
@pytest.mark.parametrize(("rows", "columns"), [(300, 70), (5, 700), (64, 256)])
def test_threads_give_the_same_bits(rows, columns, activation):
    problem, arrays = case(rows, 64, columns, activation, residual=True)
    one = run(problem, arrays)
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(run(problem, arrays, threads), one)


def test_a_row_has_the_same_bits_among_any_others():
    problem, arrays = case(29, 300, 40)
    whole = run(problem, arrays)
    for rows in (1, 3, 5, 12):
        few, given = case(rows, 300, 40)
        np.testing.assert_array_equal(run(few, [arrays[0][:rows], *given[1:]]), whole[:rows])


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("activation", _core.clamp_names())
def test_nan_and_infinity_pass(level, activation):
    problem, (x, w, b) = case(7, 3, 5, activation)
    x[2, 1], x[4] = np.nan, 0
    b[3] = np.inf
    with isa.capped(level):
        out = run(problem, [x, w, b])
    assert np.isnan(out[2]).all()
    assert (out[4, 3] == 6) if activation == "relu6" else (out[4, 3] == np.inf)


def test_subnormal_numbers_count_as_zero_in_products_only():
    tiny = np.float32(1e-40)
    problem, (x, w, b) = case(9, 4, 33, "silu")
    x[...], b[...] = tiny, 0
    assert (run(problem, [x, w, b]) == 0).all()
    assert tiny * np.float32(2) > 0, "the mode of the processor is as before"


def test_empty_tensors_are_left_to_others():
    for shape in ((0, 4, 3), (2, 4, 0)):
        problem, _ = case(*shape)
        assert "no elements" in dict(family("fused_linear").explain(problem, step=True))["own_fused_linear"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, draw(3, 2), draw(3), False, "none", None, 1), "not empty, expected"),
        ((1, draw(3, 2), draw(2), False, "none", None, 1), "a bias .columns."),
        ((1, draw(3, 2), draw(3), False, "gelu", None, 1), "no clamp gelu"),
        ((1, draw(3, 2), draw(3), False, "none", _core.function_step(4, "erf", 0.0, 1), 1), "incorrect name"),
    ],
)
def test_the_native_step_refuses_wrong_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        _core.linear_step(*arguments)


# ---------------------------------------------------------------- convolutions of single pixels


def pointwise(size, depth, columns, activation="none", residual=False, images=1, **attrs):
    """The problem of a convolution of 1x1, and its arrays."""
    arrays = [draw(images, depth, *size), draw(columns, depth, 1, 1), draw(columns)]
    if residual:
        arrays.append(draw(images, columns, *size))
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    given = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "activation": activation}
    given |= attrs
    return Problem("fused_conv2d", specs, [infer("fused_conv2d", specs, given)], given), arrays


def check_pointwise(problem, arrays):
    assert products.own_fused_pointwise.usable(problem) is None
    want = get_op("fused_conv2d").reference(*(a.astype(np.float64) for a in arrays), **problem.attrs)
    out = products.own_fused_pointwise.run(problem, *arrays)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=3e-7 * arrays[0].shape[1] + 1e-5)


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("residual", [False, True])
def test_a_convolution_of_pixels_is_near_the_float64_reference(level, residual):
    with isa.capped(level):
        for size in ((1, 1), (1, 13), (5, 5), (20, 20)):
            for depth, columns in ((1, 1), (3, 17), (256, 65)):
                check_pointwise(*pointwise(size, depth, columns, "silu" if residual else "relu6", residual))
        check_pointwise(*pointwise((3, 2), 5, 33, residual=residual, images=4))


def test_pixels_are_few_and_their_convolution_is_plain():
    reasons = {
        "401 pixels": pointwise((1, 401), 2, 3),
        "1200 pixels": pointwise((20, 20), 2, 3, images=3),
        "not a convolution of single pixels": pointwise((4, 4), 2, 3, stride=(2, 2)),
        "single pixels": pointwise((4, 4), 2, 3, padding=((1, 0), (0, 0))),
        "no elements": pointwise((4, 4), 2, 3, images=0),
    }
    for reason, (problem, _) in reasons.items():
        assert reason in products.own_fused_pointwise.usable(problem)


def test_a_plan_computes_few_pixels_by_the_product():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.many, self.few = M.Conv2d(3, 4, 1), M.Conv2d(4, 5, 1)

        def forward(self, x):
            return F.silu(self.few(F.avg_pool2d(self.many(x), 2)))

    net, x = Net(), draw(1, 3, 24, 24)
    compiled = plan.compile(trace_module(net, x))
    assert [step.kernel for step in compiled.steps].count("own_fused_pointwise") == 1
    np.testing.assert_allclose(compiled(x)[0], net(tensor(x)).numpy(), rtol=1e-5, atol=1e-6)
