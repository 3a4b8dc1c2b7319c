"""Bags of embeddings of torch, whose number stays open."""

import numpy as np
import pytest

from megengine.convert import from_torch
from megengine.traced_module import open_batch

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


class Bags(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        kinds = [{"mode": "mean"}, {"mode": "max", "padding_idx": 2}, {"mode": "mean", "padding_idx": -8}]
        self.plain = torch.nn.ModuleList(torch.nn.EmbeddingBag(9, 4, **kind) for kind in kinds)
        self.weighted = torch.nn.EmbeddingBag(9, 4, mode="sum", padding_idx=0)

    def forward(self, at, shares):
        return torch.cat([bag(at) for bag in self.plain] + [self.weighted(at, per_sample_weights=shares)], 1)


@pytest.mark.slow
def test_bags_of_embeddings_take_any_batch():
    rng = np.random.default_rng(8)
    at, shares = rng.integers(0, 9, (7, 5)), rng.standard_normal((7, 5)).astype(np.float32)
    at[3], at[4] = 2, 1  # nothing that counts
    net = open_batch(from_torch(Bags(), at[:1], shares[:1]))
    with torch.no_grad():
        wanted = Bags()(torch.as_tensor(at), torch.as_tensor(shares)).numpy()
    for count in (7, 2):
        np.testing.assert_allclose(net(at[:count], shares[:count]).numpy(), wanted[:count], rtol=1e-5, atol=1e-6)
