"""Ends of detectors: boxes and scores of different ranges that are joined, and peaks that are chosen from scores."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import Tensor
from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.traced_module import trace_module
from megengine.traced_module.ir.expr import Apply

RNG = np.random.default_rng(0)


class Head(M.Module):
    """A layer, of whose six channels `end` makes the results."""

    def __init__(self, end):
        super().__init__()
        self.stem, self.out, self.end = M.Conv2d(3, 16, 3, padding=1), M.Conv2d(16, 6, 1), end

    def forward(self, x):
        y = self.out(F.relu(self.stem(x)))
        return self.end(F.transpose(y.reshape(1, 6, -1), (0, 2, 1)))


PLACES = np.arange(64, dtype=np.float32)[:, None] * 8


def joined(y):
    """YOLO: places in pixels beside scores from 0 to 1."""
    z = F.sigmoid(y)
    return F.concat([(z[..., :2] * 2 - 0.5 + Tensor(PLACES)) * 8, (z[..., 2:4] * 2) ** 2 * 30, z[..., 4:]], axis=2)


def corners(y):
    """RetinaNet: corners from centres and sizes."""
    centre, half = y[..., :2] * 3 + Tensor(PLACES), F.exp(F.minimum(y[..., 2:4], 4)) * 16
    return F.concat([centre - half, centre + half, F.sigmoid(y[..., 4:])], axis=2)


def together(y):
    """FCOS: the geometric mean of two scores."""
    return F.sqrt(F.sigmoid(y[..., :3]) * F.sigmoid(y[..., 3:]))


def sqnr(wanted, got):
    return 10 * np.log10(np.mean(np.square(wanted)) / np.mean((got - wanted) ** 2))


@pytest.mark.parametrize("end", [joined, corners, together])
def test_results_have_more_than_the_steps_of_the_largest(end):
    batches = [RNG.standard_normal((1, 3, 8, 8)).astype(np.float32) for _ in range(6)]
    net = Head(end)
    net.out.weight[:] = RNG.normal(0, 0.5, (6, 16, 1, 1)).astype(np.float32)
    quantized = quantize_model(trace_module(net, Tensor(batches[0])), batches)
    wanted = np.stack([net(Tensor(x)).numpy() for x in batches])
    got = np.stack([quantized(x).numpy() for x in batches])
    for column in range(wanted.shape[-1]):  # scores had 18 dB, in steps of a quarter
        assert sqnr(wanted[..., column], got[..., column]) > 30
    assert verify(quantized, batches[:1]).exact


class Forecast(M.Module):
    """A small correction of a large trend, both of layers."""

    def __init__(self):
        super().__init__()
        self.trend, self.first, self.last = M.Linear(16, 4), M.Linear(16, 32), M.Linear(32, 4)

    def forward(self, x):
        return self.trend(x) + self.last(F.relu(self.first(x)))


def test_a_last_sum_is_not_rounded():
    batches = [RNG.standard_normal((8, 16)).astype(np.float32) for _ in range(6)]
    net = Forecast()
    quantized = quantize_model(trace_module(net, Tensor(batches[0])), batches)
    plain = quantize_model(trace_module(net, Tensor(batches[0])), batches, QuantConfig(profile="megengine"))
    wanted = np.stack([net(Tensor(x)).numpy() for x in batches])
    got, rounded = (np.stack([one(x).numpy() for x in batches]) for one in (quantized, plain))
    assert sqnr(wanted, got) > sqnr(wanted, rounded) + 1
    layers = [e for e in quantized.integer_graph.exprs() if isinstance(e, Apply) and e.op == "qlinear"]
    assert [e.output.dtype for e in layers].count(np.float32) == 2
    assert verify(quantized, batches[:1]).exact
