"""Functions of torch with an argument `dtype`, which computes in that type."""

import warnings

import numpy as np
import pytest

from megengine.convert import from_torch

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

REAL = torch.float32


class OfIntegers(torch.nn.Module):
    def forward(self, i):
        functional = torch.nn.functional
        return (
            i.softmax(0, REAL), torch.log_softmax(input=i, dim=1, dtype=REAL), torch.special.softmax(i, 0, dtype=REAL),
            functional.softmin(i, 0, dtype=REAL), (i > 2).softmax(0, dtype=REAL), i.mean(0, dtype=REAL),
            i.mean(dtype=REAL), i.prod(0, dtype=REAL), i.cumprod(0, dtype=REAL), i.cumsum(1, dtype=REAL),
            (i * 0.6).sum(0, dtype=torch.int64), i.cumprod(0), (i * 0.3).mean(0, dtype=torch.float64),
        )  # fmt: skip


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_integers_are_computed_in_the_type_that_is_asked_for(kind):
    """Whole means of the example would not show the fault."""
    i = torch.tensor([[1, 2, 3, 4], [3, 1, 0, 2], [5, 2, 1, 1]]).to(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        net = from_torch(OfIntegers(), torch.ones_like(i))
    for got, wanted in zip(net(i.numpy()), OfIntegers()(i), strict=True):
        assert got.numpy().dtype == wanted.numpy().dtype
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-6)
