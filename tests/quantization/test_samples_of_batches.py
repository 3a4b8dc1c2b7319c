"""Batches of data for networks that take one sample."""

import numpy as np

from megengine.core.sizes import named
from megengine.quantization.ranges.batches import samples_of


def lengths(shapes, stated):
    return [x.shape for x, *_ in samples_of([np.zeros(shape) for shape in shapes], stated)]


def test_batches_are_parted_whatever_the_length_of_their_samples():
    length, batch = named("t", 10), named("b", 1)
    assert lengths([(3, 4, 2)], [(1, length, 2)]) == 3 * [(1, 4, 2)]
    assert lengths([(3, 4), (3, 6)], [(1, length), (1, 6)]) == 3 * [(1, 4)]
    assert lengths([(3, 4, 2)], [(batch, length, 2)]) == [(3, 4, 2)]
    assert lengths([(3, 4, 5)], [(1, length, 2)]) == [(3, 4, 5)]
    assert lengths([(3, 4)], [(1, 4), (1, 4)]) == [(3, 4)]
