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
from megengine.plan import compile as compile_plan
from megengine.quantization import QuantConfig, collect, quantize_model
from megengine.quantization.pipeline import device_counting
from megengine.quantization.pipeline.calibrate import calibrate, observe_all, prepared
from megengine.quantization.ranges import Histogram, TensorStatistics
from megengine.traced_module import open_batch, trace_module

copy_out = EmulatedGpu.copy_out
RNG = np.random.default_rng(7)


def measured(x, samples, axis, *, order=ORDERS[0], bins=4096, averaged=True):
    """What a GPU counts, as ends, extrema of channels, the means, and a histogram."""
    gpu = EmulatedGpu(order=order)
    room = statistics.Room(gpu)
    room.take((3,), np.uint8)  # the rest is aligned
    one = statistics.measure(gpu.upload(x), samples, axis, room, bins=bins, averaged=averaged)
    copies = room.copy()()
    exponent, first, used = one.used.of(copies).tolist()
    counts = one.counts.of(copies)
    assert not counts[used:].any()
    parts = None if one.parts is None else one.parts.of(copies)
    histogram = Histogram(bins, exponent, first, counts[:used].astype(np.int64))
    return one.ends.of(copies), one.lows.of(copies), one.highs.of(copies), parts, histogram


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
        ((130, 2), 1),
    ],
)
def test_what_is_counted_is_what_the_processor_counts(shape, axis, order):
    x = (RNG.normal(size=shape) * np.exp2(RNG.integers(-40, 20, shape))).astype(np.float32)
    x.flat[0] = -0.0
    wanted = TensorStatistics("x", axis, averaged=axis is not None)
    wanted.update(x, samples=shape[0])
    ends, lows, highs, parts, histogram = measured(x, shape[0], axis, order=order, averaged=axis is not None)
    found = TensorStatistics("x", axis, averaged=axis is not None)
    found.add(x.size, ends, None if axis is None else (lows, highs))
    found.histogram.merge(histogram)
    assert not np.signbit(ends[ends == 0]).any() and not np.signbit(lows[lows == 0]).any()
    if parts is not None:
        found.means.join(parts, shape[0])
        single = x.size == shape[0] * x.shape[axis]  # means of one value: sums have no order
        check = np.testing.assert_array_equal if single else np.testing.assert_allclose
        check(found.means.value, wanted.means.value)
        np.testing.assert_array_equal(found.channel_minimum, wanted.channel_minimum)
        np.testing.assert_array_equal(found.channel_maximum, wanted.channel_maximum)
    np.testing.assert_array_equal(found.samples.last(), wanted.samples.last())
    np.testing.assert_array_equal(found.histogram.counts, wanted.histogram.counts)
    have, want = ((s.count, s.minimum, s.maximum, s.histogram.exponent, s.histogram.first) for s in (found, wanted))
    assert have == want


@pytest.mark.parametrize("values", [[0.0], [-0.0, 0.0], [1e-45, -1e-45], [3.4e38, -3.4e38], [-1.0], [7.0, 8.0]])
@pytest.mark.parametrize("bins", [2, 7, 4096])
def test_bins_of_a_batch_are_those_of_a_histogram(values, bins):
    x = np.array([values], np.float32)
    wanted = Histogram(bins)
    wanted.update(x)
    *_, found = measured(x, 1, None, bins=bins, averaged=False)
    assert (found.exponent, found.first, found.counts.tolist()) == (
        wanted.exponent,
        wanted.first,
        wanted.counts.tolist(),
    )


def test_more_samples_than_a_grid_has_blocks(monkeypatch):
    """A batch of rows, as of a table, may have more than 65,535."""
    monkeypatch.setattr(statistics, "_DOWN", 3)
    x = RNG.normal(size=(8, 257)).astype(np.float32)
    lo, hi, sums = statistics._spans(EmulatedGpu().upload(x), 8, 1)
    np.testing.assert_array_equal(lo.numpy(), x)
    np.testing.assert_array_equal(hi.numpy(), x)
    np.testing.assert_array_equal(sums.numpy(), x)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 299, 300, 599])
def test_values_that_are_not_finite_are_seen(bad, place):
    x = np.ones((2, 1, 300), np.float32)
    x.flat[place] = bad
    ends, *_, histogram = measured(x, 2, 1)
    assert np.isfinite(ends).all(axis=1).tolist() == [place >= 300, place < 300]
    assert not len(histogram.counts)


def test_a_room_grows(monkeypatch):
    monkeypatch.setattr(statistics, "_CHUNK", 64)
    room = statistics.Room(EmulatedGpu())
    slots = [room.take((n,), np.int32) for n in (3, 20, 16, 1)]
    copies = room.copy()()
    assert [one.of(copies).tolist() for one in slots] == [[0] * n for n in (3, 20, 16, 1)]
    assert [one.chunk for one in slots] == [0, 1, 2, 3]


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
        assert sum(kernel == "count_all" for _, kernel in gpu.launched) == 2 * len(found.edges)  # 32, then 3
    assert found.samples == wanted.samples and found.edges.keys() == wanted.edges.keys()
    for name in wanted.edges:
        equal(found.edges[name], wanted.edges[name])


def test_rows_of_a_network_for_any_batch_run_together(traced):
    opened, batches = open_batch(traced), [np.concatenate(DATA[:20]), np.concatenate(DATA[20:])]
    wanted = collect(opened, batches)
    with installed(EmulatedGpu()) as gpu:
        found = collect(opened, batches, device="gpu0")
        assert sum(kernel == "count_all" for _, kernel in gpu.launched) == 2 * len(found.edges)
    assert found.samples == wanted.samples
    for name in wanted.edges:
        equal(found.edges[name], wanted.edges[name])


def test_data_may_come_in_the_same_memory_again_and_again(traced):
    memory = np.empty_like(DATA[0])

    def given():
        for one in DATA:
            memory[...] = one
            yield memory

    with installed(EmulatedGpu()):
        plain, found = (collect(traced, data, device="gpu0") for data in (DATA, given()))
        one, other = (quantize_model(traced, data, device="gpu0") for data in (DATA, given()))
    assert found.samples == plain.samples
    for name in plain.edges:
        assert found.edges[name].minimum == plain.edges[name].minimum
        np.testing.assert_array_equal(found.edges[name].histogram.counts, plain.edges[name].histogram.counts)
    assert one.report == other.report
    np.testing.assert_array_equal(one(DATA[5]).numpy(), other(DATA[5]).numpy())


@pytest.mark.parametrize("opened", [False, True])
def test_what_is_seen_comes_with_the_results_of_the_device(traced, opened, monkeypatch):
    graph, seen = prepared(open_batch(traced) if opened else traced), []
    (name,), plan = [node.name for node in graph.outputs], compile_plan(graph)

    def look(arrays, shown):
        seen.append((arrays[0].copy(), {name: y.copy() for name, y in shown.items()}))

    with installed(EmulatedGpu()):
        calibrate(graph, observe_all(graph, QuantConfig()), DATA, look=look, device="gpu0")
        assert sorted(x.tobytes() for x, _ in seen) == sorted(x.tobytes() for x in DATA)
        for x, shown in seen:
            np.testing.assert_allclose(shown[name], plan(x)[0], rtol=1e-4, atol=1e-5)
        monkeypatch.setattr(device_counting, "_SHOWN", 0)
        calibrate(graph, observe_all(graph, QuantConfig()), DATA[:2], look=look, device="gpu0")
    assert [shown for _, shown in seen[len(DATA) :]] == [{}, {}], "results that are too many"


def test_a_network_waits_once_for_a_batch(traced, monkeypatch):
    """Beside the two that compare a sample alone with the sample among others."""
    copies = []
    monkeypatch.setattr(EmulatedGpu, "copy_out", lambda self, *a: copies.append(a) or copy_out(self, *a))
    with installed(EmulatedGpu()):
        collect(traced, DATA * 2, device="gpu0")
    assert len(copies) == 1 + 3  # batches of 32, 32, 6


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
