"""Subnormal numbers count as zero in float products and convolutions of oneDNN, and nowhere else."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.kernels import onednn
from megengine.tensor import Tensor
from megengine.traced_module import trace_module

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")

TINY = np.float32(1e-40)


class Product(M.Module):
    def forward(self, x, y):
        return F.matmul(x, F.transpose(y, (0, 2, 1)))


def test_products_take_them_for_zero_and_what_follows_keeps_them():
    x = np.full((2, 33, 17), TINY, np.float32)
    y = np.full((2, 33, 17), 2, np.float32)
    compiled = plan.compile(trace_module(Product(), Tensor(x), Tensor(y)))
    assert "onednn" in compiled.describe()
    np.testing.assert_array_equal(*compiled(x, y), np.zeros((2, 33, 33), np.float32))
    assert TINY * np.float32(2) > 0, "the mode of the processor is as before"
    normal = np.ones_like(x)
    np.testing.assert_array_equal(*compiled(normal, y), np.full((2, 33, 33), 34, np.float32))


def test_convolutions_apply_their_function_behind_the_mode():
    layer = M.Sequential(M.Conv2d(3, 4, 1, bias=True), M.SiLU())
    layer[0].weight[...] = 0
    layer[0].bias[...] = TINY
    x = np.zeros((1, 3, 8, 8), np.float32)
    compiled = plan.compile(trace_module(layer.eval(), Tensor(x)))
    (out,) = compiled(x)
    assert ((out == 0) | (out == TINY / 2)).all()
    assert TINY * np.float32(2) > 0
