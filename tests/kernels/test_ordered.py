"""Sums of one order: the bits of the reference in every kernel, and the numbers of NumPy in float64."""

import numpy as np
import pytest

from megengine.core.spec import TensorSpec
from megengine.dispatch import apply, get_op, infer
from megengine.kernels import _core, isa
from megengine.kernels.native import to_step
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.tensor import Tensor


def noise(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def geometry(stride, padding, dilation, groups, **more):
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, **more}


# x, w, attributes: short and long runs of channels, groups, single channels, and depths around the blocks of 256
CONVOLUTIONS = [
    ((1, 3, 17, 15), (8, 3, 3, 3), geometry((2, 2), ((1, 1), (0, 1)), (1, 1), 1)),
    ((2, 64, 7, 9), (40, 64, 1, 1), geometry((1, 1), ((0, 0), (0, 0)), (1, 1), 1)),
    ((2, 64, 9, 9), (33, 64, 3, 3), geometry((1, 1), ((2, 2), (2, 2)), (2, 2), 1)),
    ((3, 32, 9, 9), (32, 1, 3, 3), geometry((1, 1), ((1, 1), (1, 1)), (1, 1), 32)),
    ((1, 37, 19, 9), (37, 1, 5, 3), geometry((2, 1), ((2, 2), (1, 1)), (1, 2), 37)),
    ((1, 32, 8, 8), (64, 4, 3, 3), geometry((1, 1), ((1, 1), (1, 1)), (1, 1), 8)),
    ((2, 8, 8, 8), (24, 1, 3, 3), geometry((1, 1), ((1, 1), (1, 1)), (1, 1), 8)),
    ((1, 300, 5, 5), (20, 300, 3, 1), geometry((1, 1), ((1, 1), (0, 0)), (1, 1), 1)),
    ((2, 40, 5, 6, 7), (33, 40, 3, 2, 3), geometry((1, 2, 1), ((1, 1), (0, 1), (2, 0)), (1, 1, 2), 1)),
    ((2, 4, 5, 6, 7), (4, 1, 3, 2, 3), geometry((1, 1, 1), ((1, 1), (0, 1), (1, 0)), (1, 1, 1), 4)),
]
TRANSPOSED = [
    ((2, 33, 4, 5), (33, 20, 3, 3), geometry((2, 2), ((1, 1), (1, 1)), (1, 1), 1, output_padding=(1, 0))),
    ((1, 4, 3, 3), (4, 3, 2, 3), geometry((1, 3), ((0, 0), (0, 0)), (2, 1), 2, output_padding=(0, 0))),
    ((1, 8, 6, 5), (8, 1, 4, 4), geometry((2, 2), ((1, 1), (1, 1)), (1, 1), 8, output_padding=(0, 0))),
    ((1, 4, 3, 3), (4, 5, 1, 2), geometry((3, 2), ((0, 0), (0, 0)), (1, 1), 1, output_padding=(2, 0))),
    (
        (1, 4, 2, 3, 3),
        (4, 3, 2, 3, 2),
        geometry((1, 2, 3), ((0, 0), (1, 0), (1, 1)), (2, 1, 1), 2, output_padding=(0, 1, 2)),
    ),
]
PRODUCTS = [
    ((5, 7), (7, 9)),
    ((2, 3, 100, 300), (2, 3, 300, 33)),
    ((2, 3, 17, 5), (5, 20)),
    ((1, 4, 3), (6, 1, 3, 40)),
    ((1, 600), (600, 1)),
    ((200, 257), (257, 17)),
]


def step_of(op, arrays, attrs, threads, *, packed):
    """A plan's step on the arrays, with numbers behind the result that must stay."""
    spec = infer(op, [TensorSpec(a.shape, a.dtype) for a in arrays], attrs)
    problem = Problem(op, [TensorSpec(a.shape, a.dtype) for a in arrays], [spec], attrs)
    constants = dict(enumerate(arrays)) if packed else {}
    constants.pop(0, None)
    kernel, *_ = family(op).for_plan(problem, constants)
    step = kernel.make_step(problem, constants, threads)
    out = np.full(spec.size + 16, 77, np.float32)
    moving = [to_step(a) for i, a in enumerate(arrays) if i not in kernel.packs]
    _core.run_step(step, [*moving, out[:-16]])
    assert (out[-16:] == 77).all()
    values = out[:-16]
    if spec.ndim != 4:
        return values.reshape(spec.shape)
    n, c, h, w = spec.shape
    return values.reshape(n, h, w, c).transpose(0, 3, 1, 2)


def check(op, arrays, attrs, *, packed=(True,)):
    wanted = get_op(op).reference(*arrays, **attrs)
    wide = get_op(op.removeprefix("ordered_")).reference(*(a.astype(np.float64) for a in arrays), **attrs)
    np.testing.assert_allclose(wanted, wide, rtol=1e-4, atol=1e-4)
    for level in isa.available():
        with isa.capped(level):
            np.testing.assert_array_equal(apply(op, *map(Tensor, arrays), **attrs).numpy(), wanted, level)
            for threads in (1, 3):
                for with_weights in packed:
                    got = step_of(op, arrays, attrs, threads, packed=with_weights)
                    np.testing.assert_array_equal(got, wanted, f"{level}, {threads}, {with_weights}")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "attrs"), CONVOLUTIONS)
def test_convolutions(x, w, attrs, bias):
    op = f"ordered_conv{len(x) - 2}d"
    check(op, [noise(*x), noise(*w), *([noise(w[0])] if bias else [])], attrs)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "attrs"), TRANSPOSED)
def test_transposed_convolutions(x, w, attrs, bias):
    op, channels = f"ordered_conv_transpose{len(x) - 2}d", w[1] * attrs["groups"]
    check(op, [noise(*x), noise(*w), *([noise(channels)] if bias else [])], attrs)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize(("a", "b"), PRODUCTS)
def test_products(a, b, transpose_a, transpose_b):
    shapes = [(*s[:-2], s[-1], s[-2]) if turned else s for s, turned in ((a, transpose_a), (b, transpose_b))]
    arrays, attrs = [noise(*s) for s in shapes], {"transpose_a": transpose_a, "transpose_b": transpose_b}
    if max(len(s) for s in shapes) == 4:  # plans ask with an axis in front, where values lie in rows
        arrays = [a[None] if a.ndim == 4 else a for a in arrays]
    check("ordered_matmul", arrays, attrs, packed=(True, False))


def test_sums_take_the_products_in_the_order_that_is_written_down():
    """1e8 swallows what is added to it, and not what comes behind -1e8."""
    one = {"transpose_a": False, "transpose_b": False}
    x = np.array([[1e8, 1, -1e8, 3]], np.float32)
    assert get_op("ordered_matmul").reference(x, np.ones((4, 1), np.float32), **one).item() == 3
    picture = np.array([[[1e8, -1e8]], [[1, 3]]], np.float32)[None]  # two channels, one row of two places
    window = geometry((1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    w = np.ones((1, 2, 1, 2), np.float32)
    assert get_op("ordered_conv2d").reference(picture, w, np.float32([0.5]), **window).item() == 3.5


@pytest.mark.parametrize("op", ["ordered_windows_step", "ordered_product_step"])
def test_wrong_sizes_are_refused(op):
    axes, w = (1, 1, 1), np.zeros((1, 2, 2), np.float32)
    with pytest.raises(ValueError, match=op):
        if op == "ordered_product_step":
            _core.ordered_product_step(0, 1, 1, False, False, [(0, 0)], None, 1)
        else:
            phases = [((0, 0, 0), axes, [(0, 0, 0)], w)]
            _core.ordered_windows_step((1, 3, 2, 1), axes, axes, axes, axes, phases, None, False, 1)
