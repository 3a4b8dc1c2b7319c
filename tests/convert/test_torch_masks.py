"""Assignments to places of a mask, as torch writes them: choices that take any batch."""

import numpy as np
import pytest

from megengine.convert import from_torch
from megengine.traced_module import open_batch
from megengine.traced_module.ir.expr import Apply

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


class Scaled(torch.nn.Module):
    def forward(self, x):
        x = x.clone()
        x[x < 0] *= 0.1
        return x


class Chosen(torch.nn.Module):
    def forward(self, x):
        y, above = torch.zeros_like(x), x > 0.5
        y[above] = torch.log(x[above])
        y[~above] = x[~above].clamp(max=0) ** 2
        y[above] += 1
        return y


class Together(torch.nn.Module):
    """Values that depend on all places of the mask stay as they are."""

    def forward(self, x):
        y, above = x.clone(), x > 0
        y[above] = y[above].softmax(0)
        return y


def ops(net):
    return {e.op for e in net.graph.exprs() if isinstance(e, Apply)}


@pytest.mark.slow
@pytest.mark.parametrize("captured", [1, 2])
@pytest.mark.parametrize("kind", [Scaled, Chosen])
def test_functions_of_the_masked_places(kind, captured):
    x = np.random.default_rng(6).standard_normal((7, 5)).astype(np.float32)
    net = open_batch(from_torch(kind(), x[:captured]))
    assert not ops(net) & {"nonzero", "scatter_nd"}
    np.testing.assert_allclose(net(x).numpy(), kind()(torch.as_tensor(x)).numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_functions_of_all_masked_places_stay():
    x = np.random.default_rng(6).standard_normal((3, 5)).astype(np.float32)
    net = from_torch(Together(), x)
    assert {"nonzero", "scatter_nd"} <= ops(net)
    np.testing.assert_allclose(net(x).numpy(), Together()(torch.as_tensor(x)).numpy(), rtol=1e-6, atol=1e-6)
