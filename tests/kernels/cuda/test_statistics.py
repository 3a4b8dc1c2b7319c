"""What calibration counts on the emulated GPU, beside the statistics of the processor."""

import numpy as np
import pytest
from emulated_gpu import ORDERS, EmulatedGpu

import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.core.errors import CalibrationError, OptionError
from megengine.kernels.cuda import statistics
from megengine.kernels.cuda.runtime import installed
from megengine.quantization import QuantConfig, collect, quantize_model
from megengine.quantization.ranges import TensorStatistics
from megengine.traced_module import trace_module

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 3, 5, 4), 1),
        ((1, 1), 1),
        ((3, 257), 1),
        ((2, 4, 300), 2),
        ((2, 5, 7, 9), 3),
        ((4, 6), None),
        ((1, 300, 3), 1),
    ],
)
def test_extrema_and_sums(shape, axis, order):
    x = RNG.normal(size=shape).astype(np.float32)
    x.flat[0] = -0.0
    found = statistics.spans(EmulatedGpu(order=order).upload(x), shape[0], axis)
    axes = tuple(i for i in range(1, x.ndim) if i != axis)
    wanted = x.min(axes), x.max(axes), x.sum(axes, dtype=np.float64)
    for have, want in zip(found[:2], wanted[:2], strict=True):
        np.testing.assert_array_equal(have, want.reshape(have.shape))
    np.testing.assert_allclose(found[2], wanted[2].reshape(found[2].shape), rtol=1e-12, atol=1e-12)


def test_more_samples_than_a_grid_has_blocks(monkeypatch):
    """A batch of rows, as of a table, may have more than 65,535."""
    monkeypatch.setattr(statistics, "_DOWN", 3)
    x = RNG.normal(size=(8, 257)).astype(np.float32)
    lo, hi, sums = statistics.spans(EmulatedGpu().upload(x), 8, 1)
    np.testing.assert_array_equal(lo, x)
    np.testing.assert_array_equal(hi, x)
    np.testing.assert_array_equal(sums, x)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 299, 300, 599])
def test_values_that_are_not_finite_are_seen(bad, place):
    x = np.ones((2, 1, 300), np.float32)
    x.flat[place] = bad
    lo, hi, _ = statistics.spans(EmulatedGpu().upload(x), 2, 1)
    finite = np.isfinite(lo) & np.isfinite(hi)
    assert finite.ravel().tolist() == [place >= 300, place < 300]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000])
def test_counts(size, order):
    x = (RNG.normal(size=size) * 3).astype(np.float32)
    exponent, first = -3, int(np.floor(x.min() * 8))
    bins = int(np.floor(x.max() * 8)) - first + 1
    counts = np.arange(bins).astype(np.int64)
    statistics.count(EmulatedGpu(order=order).upload(x), exponent, first, counts)
    want = np.bincount(np.floor(x.astype(np.float64) * 8).astype(int) - first, minlength=bins)
    np.testing.assert_array_equal(counts, want + np.arange(bins))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = M.Conv2d(3, 8, 3, padding=1), M.Linear(8, 5)

    def forward(self, x):
        return self.fc(F.mean(F.relu(self.conv(x)), axis=(2, 3)))


DATA = [RNG.normal(size=(1, 3, 6, 6)).astype(np.float32) for _ in range(35)]


@pytest.fixture(scope="module")
def traced():
    return trace_module(Net().eval(), tensor(DATA[0]))


def equal(one: TensorStatistics, other: TensorStatistics) -> None:
    assert one.count == other.count
    np.testing.assert_allclose((one.minimum, one.maximum), (other.minimum, other.maximum), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.channel_maximum, other.channel_maximum, rtol=1e-4, atol=1e-5)
    assert one.histogram.exponent == other.histogram.exponent and one.histogram.first == other.histogram.first
    assert one.histogram.counts.sum() == other.histogram.counts.sum()
    assert len(one.samples.last()) == len(other.samples.last())
    if other.averaged:
        np.testing.assert_allclose(one.means.value, other.means.value, rtol=1e-4, atol=1e-5)


def test_statistics_of_a_network_are_those_of_the_processor(traced):
    wanted = collect(traced, DATA)
    with installed(EmulatedGpu()) as gpu:
        found = collect(traced, DATA, device="gpu0")
        assert sum(kernel == "count" for _, kernel in gpu.launched) == 2 * len(found.edges)  # 32 samples, then 3
    assert found.samples == wanted.samples and found.edges.keys() == wanted.edges.keys()
    for name in wanted.edges:
        equal(found.edges[name], wanted.edges[name])


def test_a_network_quantized_on_the_gpu(traced):
    plain = quantize_model(traced, DATA[:4], QuantConfig())
    with installed(EmulatedGpu()):
        there = quantize_model(traced, DATA[:4], QuantConfig(), device="gpu0")
    x = tensor(DATA[5])
    np.testing.assert_allclose(there(x).numpy(), plain(x).numpy(), atol=0.05)
    assert {n.name for n in there.integer_graph.nodes()} == {n.name for n in plain.integer_graph.nodes()}


def test_bad_data_and_settings(traced):
    with installed(EmulatedGpu()):
        with pytest.raises(CalibrationError, match="1 of 108 values of 'x' are NaN"):
            bad = DATA[0].copy()
            bad[0, 0, 0, 0] = np.nan
            collect(traced, [bad], device="gpu0")
        with pytest.raises(OptionError, match="workers: expected 1 on gpu0, got 2"):
            collect(traced, DATA, workers=2, device="cuda")
