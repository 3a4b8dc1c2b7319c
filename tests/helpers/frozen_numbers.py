"""Comparing what quantization decided for two networks."""

import numpy as np


def same(a, b):
    """Whether two networks have the same integers, scales and biases, to the bit."""
    assert a.edges == b.edges
    assert a.weights.keys() == b.weights.keys() and a.biases.keys() == b.biases.keys()
    for name, one in a.weights.items():
        assert one.dtype == b.weights[name].dtype
        np.testing.assert_array_equal(one.values, b.weights[name].values)
    for place, one in a.biases.items():
        np.testing.assert_array_equal(one, b.biases[place])
    return True
