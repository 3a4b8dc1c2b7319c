"""Functions that are smooth have right first and second derivatives also where what they are made of bends: at ties,
at zero, where an element of a product is zero. Against central differences, in float64.
"""

import numpy as np
import pytest

import megengine.functional as F
from megengine.autodiff import GradManager
from megengine.tensor import Tensor, tensor


def wide(x):
    return tensor(np.asarray(x, np.float64), dtype="float64")


LABELS = np.array([0.3, 0.8])
FUNCTIONS = {  # function of a vector, and the point
    "logaddexp": (lambda x: F.logaddexp(x[0], x[1]), [5, 5]),
    "logsumexp": (lambda x: F.logsumexp(x, 0), [1, 1, 1]),
    "softplus": (F.softplus, [0, 1]),
    "logsigmoid": (F.logsigmoid, [0, 1]),
    "sigmoid": (F.sigmoid, [0, 40]),
    "softmax": (lambda x: F.softmax(x, 0)[0], [1, 1, 0]),
    "logsoftmax": (lambda x: F.logsoftmax(x, 0)[1], [1, 1, 0]),
    "binary_cross_entropy": (lambda x: F.nn.binary_cross_entropy(x, wide(LABELS)), [0, 0]),
    "cross_entropy": (lambda x: F.nn.cross_entropy(x.reshape(1, 3), tensor([1]), label_smooth=0.1), [1, 1, 1]),
    "gelu": (F.gelu, [0, 0.1]),
    "silu": (F.silu, [0, 1]),
    "asinh": (F.asinh, [0, 1]),
    "expm1": (F.expm1, [0, 1]),
    "square": (F.square, [0, 1]),
    **{f"power of {n}": (lambda x, n=n: x**n, [0, -2]) for n in (1, 2, 3, 4, 2.0)},
    "power of a tensor": (lambda x: F.pow(x[0], x[1]), [2, 0]),
    "prod, one zero": (lambda x: F.prod(x), [0, 2, 3]),
    "prod, two zeros": (lambda x: F.prod(x), [2, 0, 0, 3, 4]),
    "prod of columns": (lambda x: F.prod(x.reshape(3, 2), 0), [0, 2, 3, 0, 1, 5]),
    "prod of all but one axis": (lambda x: F.prod(x.reshape(2, 1, 3), (0, 1), keepdims=True), [0, 2, 3, 0, 1, 5]),
    "var": (F.var, [1, 1, 1]),
    "std": (F.std, [1, 2, 4]),
    "norm": (lambda x: F.norm(x), [3, 0, 4]),
    "norm of order 4": (lambda x: F.norm(x, 4), [3, 0, -4]),
    "normalize": (lambda x: F.normalize(x, axis=0)[0], [3, 0]),
    "atan2": (lambda x: F.atan2(x[0], x[1]), [1, 0]),
    "matinv": (lambda x: F.matinv(x.reshape(2, 2)), [1, 0, 0, 1]),
    "square_loss": (lambda x: F.loss.square_loss(x, wide(LABELS)), LABELS),
}


def gradient(function, x: Tensor) -> Tensor:
    """Of the sum of the result; a tensor that can be differentiated again."""
    with GradManager().attach(x) as manager:
        manager.backward(function(x).sum())
    found, x.grad = x.grad, None
    return wide(np.zeros(x.shape)) if found is None else found


def slopes(value, x, step):
    """Central differences of a number along every axis."""
    return [(value(x + step * d) - value(x - step * d)) / (2 * step) for d in np.eye(x.size)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivative(name):
    function, point = FUNCTIONS[name]
    x = np.asarray(point, np.float64)
    numeric = slopes(lambda p: float(function(wide(p)).sum().numpy()), x, 1e-6)
    np.testing.assert_allclose(gradient(function, wide(x)).numpy(), numeric, rtol=1e-5, atol=1e-6)
    along = np.linspace(0.3, 1, x.size)
    curved = slopes(lambda p: float(gradient(function, wide(p)).numpy() @ along), x, 1e-5)
    found = gradient(lambda p: gradient(function, p) * wide(along), wide(x))
    np.testing.assert_allclose(found.numpy(), curved, rtol=1e-4, atol=1e-4)


def test_long_products():
    """The product of the others is found in halves: of any length, also of none."""
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 3, 5, 8, 17):
        x = rng.uniform(0.5, 2, (2, n))
        others = np.array([[np.prod(np.delete(row, k)) for k in range(n)] for row in x]).reshape(x.shape)
        np.testing.assert_allclose(gradient(lambda t: F.prod(t, 1), wide(x)).numpy(), others)
