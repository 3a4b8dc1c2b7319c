"""Functions that take a largest element out of a sum of powers: infinities give infinities, not NaN."""

import numpy as np
import pytest

import megengine.functional as F
from megengine.autodiff import GradManager
from megengine.tensor import Tensor

INF, NAN = np.inf, np.nan
ROWS = [
    *([INF, 1], [1, INF], [INF, INF], [-INF, -INF], [-INF, 1], [2, -INF], [-INF, INF], [INF, -INF]),
    *([NAN, 1], [INF, NAN], [NAN, -INF], [5, 5], [6e4, -6e4]),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_logarithms_of_sums_of_powers(dtype):
    x = Tensor(np.array(ROWS, "f4"), dtype=dtype)
    with np.errstate(invalid="ignore"):
        want = np.logaddexp.reduce(x.numpy().astype("f8"), 1)
    tolerance = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-14}[dtype]
    for found in (F.logsumexp(x, 1), F.logsumexp(x.T, 0, keepdims=True)[0], F.logaddexp(x[:, 0], x[:, 1])):
        np.testing.assert_allclose(found.numpy().astype("f8"), want, rtol=tolerance)


def test_an_empty_sum_beside_another_has_its_gradient():
    """All paths of a loss through states that cannot be reached: as torch, one infinity takes no part."""
    a, b = Tensor([-INF, 1, INF, 2]), Tensor([1, -INF, 1, 3])
    with GradManager().attach([a, b]) as manager:
        manager.backward(F.logaddexp(a, b).sum())
    share = 1 / (1 + np.exp(1))
    np.testing.assert_allclose(a.grad.numpy(), [0, 1, 1, share], rtol=1e-6)
    np.testing.assert_allclose(b.grad.numpy(), [1, 0, 0, 1 - share], rtol=1e-6)
