"""Which samples calibrate and which score, what is suspicious about them, and what their digest follows."""

import numpy as np
import pytest

from megengine.cli.readers import Reader
from megengine.cli.samples import Samples


def reader(values):
    arrays = [(np.full((1, 2), v, np.float32),) for v in values]
    return Reader("data", len(arrays), lambda: iter(arrays))


def numbers(batches):
    return [float(x[0, 0]) for (x,) in batches]


def test_every_tenth_sample_scores_and_does_not_calibrate():
    samples = Samples(reader(range(45)), most=3)
    assert numbers(samples.held_out()) == [9, 19, 29]
    assert set(numbers(samples)) == set(range(45)) - {9, 19, 29}
    assert samples.counts == {"calibration": 42, "held out": 3}
    assert samples.scored_on() == "3 samples held out of calibration (number 10, 20, 30)"
    assert Samples(reader(range(200)), 16).scored_on() == "16 samples held out of calibration (number 10, 20, ..., 160)"


def test_every_second_sample_may_judge():
    samples = Samples(reader(range(9)), most=100, every=2)
    assert numbers(samples.held_out()) == [1, 3, 5, 7]
    assert numbers(samples) == [0, 2, 4, 6, 8]
    assert samples.scored_on() == "4 samples held out of calibration (number 2, 4, ..., 8)"
    assert numbers(Samples(reader(range(9)), most=2, every=2).held_out()) == [1, 3]


@pytest.mark.parametrize(("count", "most"), [(9, 16), (45, 0)])
def test_without_a_held_out_sample_the_score_says_so(count, most):
    samples = Samples(reader(range(count)), most)
    assert len(list(samples)) == count and "none is held out" in samples.scored_on()
    assert numbers(samples.held_out()) == list(range(min(count, most or 10)))


@pytest.mark.parametrize(
    ("values", "warning"),
    [([1], "is one sample"), ([2] * 5, "all 5 samples of the data are equal"), ([1, 2], "")],
)
def test_one_sample_and_equal_samples_are_a_warning(values, warning):
    found = Samples(reader(values), 16).warnings()
    assert (warning in found[0]) if warning else found == []


def test_the_digest_follows_values_order_and_nothing_else():
    first = Samples(reader([1, 2, 3]), 16)
    list(first)
    assert first.digest == Samples(reader([1, 2, 3]), 0).digest
    assert len({first.digest, *(Samples(reader(v), 16).digest for v in ([1, 3, 2], [1, 2], [1, 2, 4]))}) == 4
