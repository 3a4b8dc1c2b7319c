from fractions import Fraction

import numpy as np
import pytest

from megengine.core.errors import CalibrationError, OptionError
from megengine.quantization.ranges import methods, scales
from megengine.quantization.ranges.averages import KEPT, ExactMean, SampleExtrema
from megengine.quantization.ranges.methods import RangeMethod, choose_range, error_of_range, weight_reach
from megengine.quantization.ranges.statistics import Histogram, TensorStatistics


def batches(seed=0, n=20):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(2, 3, 5)) * rng.choice([1e-3, 1, 40])).astype(np.float32) for _ in range(n)]


def seen(parts, **options):
    s = TensorStatistics("x", **options)
    for x in parts:
        s.update(x)
    return s


def same(a: TensorStatistics, b: TensorStatistics):
    assert (a.count, a.minimum, a.maximum) == (b.count, b.minimum, b.maximum)
    assert (a.histogram.exponent, a.histogram.first) == (b.histogram.exponent, b.histogram.first)
    np.testing.assert_array_equal(a.histogram.counts, b.histogram.counts)
    np.testing.assert_array_equal(a.channel_minimum, b.channel_minimum)


@pytest.mark.parametrize("bins", [16, 256, 4096])
@pytest.mark.parametrize("order", ["reversed", "joined", "workers"])
def test_result_does_not_depend_on_order_or_workers(order, bins):
    data = batches()
    expected = seen(data, bins=bins)
    if order == "reversed":
        got = seen(data[::-1], bins=bins)
    elif order == "joined":
        got = seen([np.concatenate(data)], bins=bins)
    else:
        got = seen(data[::3], bins=bins)
        got.merge(seen(data[1::3], bins=bins))
        got.merge(seen(data[2::3], bins=bins))
        got.merge(TensorStatistics("nothing", bins=bins))
    same(got, expected)


def test_histogram_counts_equal_numpy():
    x = np.concatenate([b.reshape(-1) for b in batches(1)])
    h = Histogram(bins=128)
    for part in np.array_split(x, 7):
        h.update(part)
    assert len(h.counts) <= 128
    np.testing.assert_array_equal(h.counts, np.histogram(x, h.edges)[0])


@pytest.mark.parametrize("value", [0.0, 1.0, -3.25, 1e-30, 3e38, 1e-45])
def test_constant_tensor(value):
    x = np.full((4, 2), value, np.float32)
    s = seen([x, x])
    assert (s.minimum, s.maximum, s.histogram.counts.sum()) == (np.float32(value), np.float32(value), 16)
    for how in (scales.UNSIGNED, scales.SIGNED, scales.ASYMMETRIC):
        for method in methods.METHODS:
            dtype = scales.quantized_dtype(*choose_range(s, RangeMethod(method), how), how)
            assert dtype.scale > 0


def test_memory_is_bounded():
    s = TensorStatistics("x", bins=64)
    for k in range(200):
        s.update(np.full((1, 3), 2.0 ** (k % 100), np.float32))
    assert len(s.histogram.counts) <= 64


@pytest.mark.parametrize(("bad", "kind"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_not_finite_names_the_node(bad, kind):
    x = np.zeros((2, 3), np.float32)
    x[1, 1] = bad
    with pytest.raises(CalibrationError, match=rf"1 of 6 values of 'conv3' are {kind}"):
        TensorStatistics("conv3").update(x)


def test_nothing_seen_names_the_node():
    with pytest.raises(CalibrationError, match="no value reached 'conv3'"):
        choose_range(TensorStatistics("conv3"), RangeMethod(), scales.SIGNED)


def test_channels_that_change_are_refused():
    s = seen([np.zeros((1, 3), np.float32)])
    with pytest.raises(CalibrationError, match="4 channels in one batch and 3 in another"):
        s.update(np.zeros((1, 4), np.float32))


def test_moving_average_is_the_same_in_any_order_and_parts():
    values = np.random.default_rng(0).normal(size=(3 * KEPT, 2)).astype(np.float32)

    def taken(rows):
        one = SampleExtrema()
        for lo, hi in rows.tolist():
            one.update(lo, hi)
        return one

    whole, parts = taken(values), taken(values[::2])
    parts.merge(taken(values[1::2][::-1]))
    np.testing.assert_array_equal(whole.last(), parts.last())
    assert len(whole.last()) == KEPT
    assert parts.moving_average() == whole.moving_average()
    weights = 0.9 ** np.arange(KEPT - 1, -1, -1)
    np.testing.assert_allclose(whole.moving_average(), np.average(whole.last(), axis=0, weights=weights))


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1.0, 1e30, 3e38])
def test_means_are_exact_in_any_order_and_parts(scale):
    rng = np.random.default_rng(1)
    rows = (rng.normal(size=(301, 5)) * rng.choice([1e-3, 1, 0], size=(301, 5))).clip(-1, 1) * scale
    rows = rows.astype(np.float32)

    def taken(part):
        one = ExactMean()
        for row in part:
            one.update(row)
        return one

    whole, parts = taken(rows), taken(rows[1::2][::-1])
    parts.merge(ExactMean())
    parts.merge(taken(rows[::2]))
    np.testing.assert_array_equal(whole.settled(), parts.settled())
    expected = [float(sum(map(Fraction, map(float, column))) / len(rows)) for column in rows.T]
    np.testing.assert_allclose(whole.value, expected, rtol=1e-15)
    np.testing.assert_array_equal(whole.value, parts.value)


def test_samples_of_a_batch_count_one_by_one():
    data = batches()
    expected, got = (
        seen([x[i : i + 1] for x in data for i in range(2)], averaged=True),
        TensorStatistics("x", averaged=True),
    )
    for x in data:
        got.update(x, samples=2)
    same(got, expected)
    np.testing.assert_array_equal(got.samples.last(), expected.samples.last())
    np.testing.assert_array_equal(got.means.value, expected.means.value)
    mean = np.concatenate(data).mean(axis=(0, 2), dtype=np.float64)
    np.testing.assert_allclose(got.means.value, mean, rtol=1e-5)


def test_a_number_of_a_batch_of_samples_is_one_value():
    got = TensorStatistics("x")
    got.update(np.float32(1.5).reshape(()), samples=2)
    assert (got.count, got.minimum, got.maximum) == (1, 1.5, 1.5)


def test_percentile_cuts_the_tail():
    x = np.linspace(0, 1, 10001, dtype=np.float32)
    x[-1] = 50
    lo, hi = choose_range(seen([x]), RangeMethod("percentile", percentile=99.0), scales.UNSIGNED)
    assert lo == 0
    assert hi == pytest.approx(0.99, abs=0.02)


@pytest.mark.parametrize("how", [scales.UNSIGNED, scales.SIGNED, scales.ASYMMETRIC], ids=lambda s: s.dtype)
def test_mse_is_no_worse_than_a_fine_grid(how):
    rng = np.random.default_rng(3)
    x = rng.laplace(size=20000).astype(np.float32)
    x = np.abs(x) if how.qmin == 0 and how.symmetric else x
    s = seen([x])
    found = error_of_range(s.histogram, *choose_range(s, RangeMethod("mse"), how), how)
    grid = min(error_of_range(s.histogram, s.minimum * f, s.maximum * f, how) for f in np.linspace(0.1, 1, 200))
    assert found <= grid * 1.01
    assert found < error_of_range(s.histogram, s.minimum, s.maximum, how)


def test_kl_does_not_collapse_on_a_peak():
    x = np.zeros(100000, np.float32)
    x[:2000] = np.random.default_rng(4).uniform(0, 6, 2000)
    s = seen([x])
    _, hi = choose_range(s, RangeMethod("kl"), scales.UNSIGNED)
    assert hi > 5


@pytest.mark.parametrize("how", [scales.UNSIGNED, scales.SIGNED, scales.ASYMMETRIC], ids=lambda s: s.dtype)
@pytest.mark.parametrize("tail", ["t2", "t3", "lognormal", "mixture"])
def test_kl_has_no_more_error_than_minmax_on_heavy_tails(tail, how):
    rng = np.random.default_rng(7)
    x = {
        "t2": lambda: rng.standard_t(2, 50000),
        "t3": lambda: rng.standard_t(3, 50000),
        "lognormal": lambda: rng.lognormal(0, 1.5, 50000) - (how is not scales.UNSIGNED),
        "mixture": lambda: rng.normal(size=50000) * np.where(rng.random(50000) < 1e-3, 20, 1),
    }[tail]()
    s = seen([np.maximum(x, 0 if how is scales.UNSIGNED else -np.inf).astype(np.float32)])
    errors = [error_of_range(s.histogram, *choose_range(s, RangeMethod(m), how), how) for m in ("kl", "minmax")]
    assert errors[0] <= errors[1]


def test_kl_clips_a_far_outlier():
    x = np.random.default_rng(4).normal(size=100000).astype(np.float32)
    x[0] = 40
    s = seen([x])
    _, hi = choose_range(s, RangeMethod("kl"), scales.SIGNED)
    assert hi < 20


@pytest.mark.parametrize("method", ["minmax", "mse"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_weight_reach(method, axis):
    rng = np.random.default_rng(5)
    w = rng.normal(size=(4, 6, 3)).astype(np.float32) * np.array([1, 10, 0, 1e-3], np.float32)[:, None, None]
    reach = weight_reach(w, axis, method, scales.WEIGHT)
    assert reach.shape == (() if axis is None else (w.shape[axis],))
    whole = np.abs(w).max(axis=None if axis is None else tuple(i for i in range(3) if i != axis))
    assert np.all(reach <= whole)
    if axis == 0:
        assert reach[2] == 0
        scale, _ = scales.scale_and_zero(-reach, reach, scales.WEIGHT)
        assert np.all(scale > 0)
    if method == "minmax":
        np.testing.assert_array_equal(reach, whole)


def test_zero_is_always_exact():
    rng = np.random.default_rng(6)
    for how in scales.SCHEMES.values():
        for lo, hi in rng.normal(size=(50, 2)) * 10:
            scale, zero = scales.scale_and_zero(min(lo, hi), max(lo, hi), how)
            assert how.qmin <= zero <= how.qmax
            assert scale.dtype == np.float32


def test_asymmetric_covers_the_range():
    scale, zero = scales.scale_and_zero(-1.0, 3.0, scales.ASYMMETRIC)
    assert zero == 64
    assert float(scale) == pytest.approx(4 / 255)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RangeMethod("mes"), "did you mean 'mse'"),
        (lambda: RangeMethod("percentile", percentile=3), r"expected a value in \(50, 100\]"),
        (lambda: RangeMethod("percentile", percentile="99"), r"percentile is '99'; expected a value in \(50, 100\]"),
        (lambda: scales.scheme("u9"), "unknown 'u9'"),
        (lambda: weight_reach(np.ones((2, 2)), 0, "kl", scales.WEIGHT), "expected minmax or mse"),
        (lambda: scales.quantized_dtype(-np.ones(2), np.ones(2), scales.ASYMMETRIC, axis=0), "symmetric"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(OptionError, match=message):
        make()
