"""Elements taken from and put at places, as ONNX has them."""

import numpy as np
import pytest

from megengine.core.errors import IndexOutOfRangeError
from megengine.dispatch import apply
from megengine.tensor import Tensor

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def places(*values):
    return Tensor._wrap(np.array(values, np.int64))


@pytest.mark.parametrize("place", [3, -4])
def test_places_outside_are_refused(place):
    x, row = Tensor(X), Tensor(X[:1])
    for op, inputs, attrs in (
        ("gather_elements", (places([place]),), {"axis": 0}),
        ("scatter_elements", (places([place]), Tensor(X[:1, :1])), {"axis": 0, "reduction": "none"}),
        ("scatter_nd", (places([place]), row), {"reduction": "add"}),
    ):
        with pytest.raises(IndexOutOfRangeError, match=f"{op}: index {place} is out of range for axis 0 of length 3"):
            apply(op, x, *inputs, **attrs)


def test_of_several_updates_the_last_one_stays_and_others_are_combined():
    index, updates = places([0, 0, 0, 0], [0, 2, 0, -3]), Tensor(X[1:] + 100)

    def made(reduction):
        return apply("scatter_elements", Tensor(X), index, updates, axis=0, reduction=reduction).numpy()

    np.testing.assert_array_equal(made("none"), [[108, 105, 110, 111], X[1], [8, 109, 10, 11]])
    np.testing.assert_array_equal(made("add")[0], [0 + 104 + 108, 1 + 105, 2 + 106 + 110, 3 + 107 + 111])
    np.testing.assert_array_equal(made("max")[0], [108, 105, 110, 111])
    np.testing.assert_array_equal(made("min")[0], X[0])
