"""Antialiased resizing of torch by factors, against torch's own."""

import numpy as np
import pytest

from megengine.convert import from_torch

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from megengine.convert.torch_resizing import resizing_decompositions  # noqa: E402

X = torch.tensor(np.random.default_rng(0).standard_normal((2, 3, 9, 13)).astype(np.float32))


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("how", [([4, 20], None), ([1, 1], None), (None, [0.37, 0.6]), (None, [2.3, 1.2])])
def test_resizing_with_antialiasing(kind, corners, how):
    op = getattr(torch.ops.aten, f"_upsample_{kind}2d_aa")
    table = resizing_decompositions(torch)
    wanted = op.vec(X, how[0], corners, how[1])
    torch.testing.assert_close(table[op.vec](X, how[0], corners, how[1]), wanted, rtol=1e-4, atol=2e-6)
    factors = how[1] or (None, None)
    sizes = list(wanted.shape[2:])
    torch.testing.assert_close(table[op.default](X, sizes, corners, *factors), wanted, rtol=1e-4, atol=2e-6)


class Smaller(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.interpolate(x, scale_factor=0.37, mode="bilinear", antialias=True)


@pytest.mark.slow
def test_a_network_that_resizes_by_a_factor():
    made = from_torch(Smaller(), X)(X.numpy()).numpy()
    np.testing.assert_allclose(made, Smaller()(X).numpy(), rtol=1e-4, atol=1e-5)
