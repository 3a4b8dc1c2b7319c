"""Sampling at points of a grid: what ONNX Runtime computes, with gradients."""

import itertools

import numpy as np
import onnx
import pytest

from megengine.autodiff import GradManager
from megengine.core.errors import OptionError, ShapeError
from megengine.ops.grid import BORDERS, grid_sample
from megengine.tensor import tensor
from tests.helpers.onnx_runtime import session_of

runtime = pytest.importorskip("onnxruntime")


def points(shape):
    """Inside and outside of [-1, 1], none half way between two elements."""
    return np.random.default_rng(1).uniform(-1.7, 1.7, shape).astype(np.float32)


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize(
    ("interpolation", "size"), [("linear", (4, 5)), ("nearest", (4, 5)), ("cubic", (4, 5)), ("linear", (3, 4, 5))]
)
def test_values_of_the_runtime(interpolation, size, border, corners):
    x = np.random.default_rng(0).standard_normal((2, 3, *size)).astype(np.float32)
    grid = points((2, *(n + 1 for n in size), len(size)))
    attrs = {"mode": interpolation, "padding_mode": border, "align_corners": int(corners)}
    node = onnx.helper.make_node("GridSample", ["x", "grid"], ["y"], **attrs)
    infos = [onnx.helper.make_tensor_value_info(n, 1, a.shape) for n, a in (("x", x), ("grid", grid))]
    graph = onnx.helper.make_graph([node], "g", infos, [onnx.helper.make_tensor_value_info("y", 1, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    (wanted,) = session_of(model).run(None, {"x": x, "grid": grid})
    got = grid_sample(tensor(x), tensor(grid), interpolation=interpolation, border=border, corners=corners)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("border", "corners"), list(itertools.product(BORDERS, [True, False])))
def test_gradients_are_slopes(border, corners):
    x = tensor(np.random.default_rng(0).standard_normal((1, 2, 4, 5)))
    grid = tensor(np.random.default_rng(2).uniform(-0.7, 0.7, (1, 2, 3, 2)))
    x, grid = x.astype(np.float64), grid.astype(np.float64)
    move = np.random.default_rng(3).standard_normal(grid.shape)

    def total(a, b):
        y = grid_sample(a, b, interpolation="linear", border=border, corners=corners)
        return (y * y).sum()

    manager = GradManager().attach([x, grid])
    with manager:
        manager.backward(total(x, grid))
    step = 1e-6
    ends = [total(x, grid + tensor(sign * step * move)).numpy() for sign in (1, -1)]
    np.testing.assert_allclose((grid.grad.numpy() * move).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-4)
    np.testing.assert_allclose((x.grad * x).sum().numpy(), 2 * total(x, grid).numpy(), rtol=1e-6)


def test_what_is_refused():
    x, grid = tensor(np.zeros((1, 2, 4, 5), np.float32)), tensor(np.zeros((1, 3, 3, 2), np.float32))
    options = {"interpolation": "linear", "border": "zeros", "corners": False}
    with pytest.raises(ShapeError, match="grid_sample: x has shape .* expected .N,C,.size. and .N,.out,axes."):
        grid_sample(x, grid[..., :1], **options)
    with pytest.raises(OptionError, match="grid_sample: interpolation is 'spline'"):
        grid_sample(x, grid, **{**options, "interpolation": "spline"})
