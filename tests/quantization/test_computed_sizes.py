"""Training of networks that compute with their sizes: for any batch where only sizes follow from it."""

import numpy as np
import pytest

import megengine.functional as F
from megengine.module import Conv2d, Linear, Module
from megengine.quantization import prepare_qat, quantize_model
from megengine.tensor import Tensor
from megengine.traced_module import trace_module

HEADS = {
    "window": lambda x: F.avg_pool2d(x, x.shape[-1]),
    "windows and steps": lambda x: F.avg_pool2d(x, (x.shape[2], x.shape[3]), stride=(x.shape[2], x.shape[3])),
    "quotient": lambda x: F.adaptive_avg_pool2d(x, x.shape[-1] // 8),
    "padding": lambda x: F.max_pool2d(F.nn.pad(x, ((0, 0), (0, 0), (x.shape[2] // 2, 0), (0, 0))), (12, x.shape[3])),
    "resize": lambda x: F.nn.interpolate(x, (x.shape[2] * 2, x.shape[3] * 2)).mean(axis=(2, 3)),
    "lengths of the batch": lambda x: x.reshape(x.shape[0], 4, -1).mean(axis=2),
    "batch and channels in one axis": lambda x: x.reshape(x.shape[0] * 4, -1).mean(axis=1).reshape(x.shape[0], 4),
    "parts": lambda x: sum(F.squeeze(t, 2) for t in F.split(x.mean(axis=3), x.shape[2], axis=2)),
    "copies": lambda x: F.avg_pool2d(F.tile(x, (1, 1, x.shape[2], 1)), (64, x.shape[3])),
    "values as many as samples": lambda x: F.avg_pool2d(x, x.shape[-1]) * F.full((x.shape[0], 4, 1, 1), 2.0),
}


class Net(Module):
    def __init__(self, head):
        super().__init__()
        self.conv, self.head, self.last = Conv2d(3, 4, 3, padding=1), head, Linear(4, 5)

    def forward(self, x):
        return self.last(F.flatten(self.head(self.conv(x)), 1))


def pictures(count):
    return Tensor(np.random.default_rng(count).standard_normal((count, 3, 8, 8)).astype(np.float32))


@pytest.mark.parametrize("head", HEADS)
def test_networks_that_compute_with_their_sizes_train(head):
    net = Net(HEADS[head]).eval()
    traced = trace_module(net, pictures(2))
    module = prepare_qat(traced, calibration=[pictures(2).numpy()]).eval()
    fixed = head == "values as many as samples"
    assert module.batch_size == (2 if fixed else None)
    for count in (2,) if fixed else (1, 2, 5):
        x = pictures(count)
        np.testing.assert_array_equal(module(x).numpy(), module.convert()(x).numpy())
        module.fake_quantizing = False
        np.testing.assert_allclose(module(x).numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)
        module.fake_quantizing = True
    assert quantize_model(traced, [pictures(2).numpy()]).traced()(pictures(2)).shape == (2, 5)
    assert traced.graph.inputs[1].shape == (2, 3, 8, 8)
