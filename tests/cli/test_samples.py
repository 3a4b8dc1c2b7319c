"""Which samples calibrate and which score, what is suspicious about them, and what their digest follows."""

import numpy as np
import pytest

from megengine.cli.readers import Reader
from megengine.cli.samples import Samples, digest_of
from megengine.core.errors import CalibrationError


def reader(values):
    arrays = [(np.full((1, 2), v, np.float32),) for v in values]
    return Reader("data", len(arrays), lambda: iter(arrays))


def numbers(batches):
    return [float(x[0, 0]) for (x,) in batches]


def by_digest(values):
    return sorted(set(values), key=lambda v: digest_of((np.full((1, 2), v, np.float32),)))


@pytest.mark.parametrize(
    ("count", "most", "every", "held"),
    [(45, 3, 10, 3), (45, 16, 10, 8), (120, 16, 10, 12), (9, 100, 2, 4), (8, 16, 10, 2), (15, 16, 10, 3)],
)
@pytest.mark.parametrize("seed", [None, 0])
def test_samples_of_the_smallest_digests_score_and_do_not_calibrate(count, most, every, held, seed):
    values = list(range(count)) if seed is None else np.random.default_rng(seed).permutation(count).tolist()
    samples = Samples(reader(values), most, every)
    wanted = by_digest(values)[:held]
    assert numbers(samples.held_out()) == wanted
    assert numbers(samples) == [v for v in values if v not in wanted]
    assert samples.counts == {"calibration": count - held, "held out": held}
    first = f"sample {values.index(wanted[0]) + 1}"
    assert samples.scored_on().startswith(f"{held} samples held out of calibration ({first}, ")


def test_copies_of_a_held_out_sample_neither_calibrate_nor_score():
    values = [*range(20)] * 3
    samples = Samples(reader(values), 16)
    wanted = by_digest(values)[:5]
    assert numbers(samples.held_out()) == wanted and not set(wanted) & set(numbers(samples))
    assert samples.counts == {"calibration": 45, "held out": 5}


@pytest.mark.parametrize(("values", "most"), [(range(7), 16), (range(45), 0), ([1] * 40, 16)])
def test_without_a_held_out_sample_the_score_says_so(values, most):
    samples = Samples(reader(values), most)
    assert len(list(samples)) == len(values) and "none is held out" in samples.scored_on()
    assert numbers(samples.held_out()) == by_digest(values)[: most or 10]


@pytest.mark.parametrize(
    ("values", "warning"),
    [([1], "is one sample"), ([2] * 5, "all 5 samples of the data are equal"), ([1, 2], "")],
)
def test_one_sample_and_equal_samples_are_a_warning(values, warning):
    found = Samples(reader(values), 16).warnings(scores=False)
    assert (warning in found[0]) if warning else found == []


@pytest.mark.parametrize(
    ("count", "most", "every", "warning"),
    [(2, 16, 10, "2 samples measured the score, so it says little about others; give 32 samples or more"),
     (12, 16, 10, "3 samples measured the score, so it says little about others; give 32 samples or more"),
     (32, 16, 10, ""),
     (32, 4, 10, "4 samples measured the score, so it says little about others; give --held-out 8 or more"),
     (40, 0, 10, ""),
     (7, 100, 2, "3 samples measured the score, so it says little about others; give 16 samples or more"),
     (16, 100, 2, "")],
)  # fmt: skip
def test_a_score_of_few_samples_is_a_warning(count, most, every, warning):
    assert Samples(reader(range(count)), most, every).warnings() == ([warning] if warning else [])


def test_batches_of_a_network_that_takes_several_samples_are_told_as_such():
    """Following the advice ends the warning: 32 batches are so many samples more."""

    def warnings(count):
        batches = Reader("data", count, lambda: iter([(np.full(4, i, np.float32),) for i in range(count)]), at_once=4)
        return Samples(batches, 16).warnings()

    assert warnings(6) == [
        "6 batches of 4 samples measured the score, so it says little about others; give 128 samples or more"
    ]
    assert warnings(128 // 4) == []
    assert "1 batch of 4 samples measured" in warnings(1)[0], "four samples are more than one"


def test_the_digest_follows_values_and_nothing_else():
    first, *others = (Samples(reader(v), m).index for v, m in (([1, 2, 3], 16), ([3, 1, 2], 0)))
    assert {first.digest} == {one.digest for one in others}
    different = {Samples(reader(v), 16).index.digest for v in ([1, 2], [1, 2, 4], [1, 2, 3, 3])}
    assert len({first.digest, *different}) == 4


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ([3, 1, 2], "the samples are the same"),
        ([1, 2], "1 sample of the record is missing (digest {3})"),
        ([4, 3, 2, 1, 5], "sample 1, sample 5 are new or changed"),
        ([1, 7, 3], "sample 2 is new or changed and 1 sample of the record is missing (digest {2})"),
        ([1, 2, 3, 3], "sample 4 is new or changed"),
    ],
)
def test_an_index_names_what_differs(now, said):
    wanted = said.format(*(digest_of((np.full((1, 2), v, np.float32),)).hex()[:8] for v in range(4)))
    before = Samples(reader([1, 2, 3]), 16).index.short
    found = Samples(reader(now), 16).index.differing(before)
    assert wanted in found
    assert Samples(reader(now), 16).index.differing("§") == ""


def test_data_that_is_not_the_same_in_every_reading_is_refused():
    passes = iter([[1, 2, 3], [3, 1, 2], [1, 4, 3], [1, 2], []])
    arrays = {v: (np.full((1, 2), v, np.float32),) for v in range(5)}
    samples = Samples(Reader("f.py:data", None, lambda: iter([arrays[v] for v in next(passes)])), 0)
    assert numbers(samples) == [3, 1, 2]  # the first one took the digests
    for said in ("sample 2 was another one", "gave 3 samples, the next one 2", "gave 3 samples, the next one 0"):
        with pytest.raises(CalibrationError, match=f"'f.py:data': .*{said}.*; give the same samples each time"):
            list(samples)
