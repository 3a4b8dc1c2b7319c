"""Public functions called with quantized tensors: what has no rule is refused, what has one is traced and named.

What the others give is in tests/recording/quantized_habits.py.
"""

import numpy as np
import pytest

import megengine
import megengine.functional as F
import megengine.traced_module
from megengine.core.errors import DTypeError
from megengine.core.tensor.dtype import qint8, quint8


def q(dtype, *shape):
    return megengine.tensor(np.linspace(-3, 3, int(np.prod(shape)), dtype=np.float32).reshape(shape)).astype(dtype)


S8, U8 = qint8(0.1), quint8(0.1, 30)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: F.argmax(q(S8, 3, 5), axis=1), "argmax: got a tensor of qint8"),
        (lambda: F.prod(q(S8, 3)), "prod: got a tensor of qint8"),
        (lambda: q(S8, 3) * q(S8, 3), "mul: operands are qint8.* dequantized first"),
        (lambda: q(U8, 3) + q(U8, 3), "add: operands are quint8.* dequantized first"),
        (lambda: F.relu(q(U8, 3)), "relu: got a tensor of quint8"),
        (lambda: q(S8, 3) + q(qint8(0.2), 3), "add: operands are qint8"),
        (lambda: F.matmul(q(S8, 3, 5), q(U8, 5, 3)), "matmul: operands are qint8.* and quint8"),
        (lambda: F.linear(q(S8, 3, 5), F.ones((4, 5))), "linear: operands are qint8.* and float32"),
        (lambda: F.exp(q(S8, 3)), "exp: got a tensor of qint8"),
    ],
)
def test_calls_without_a_rule_are_refused(call, text):
    with pytest.raises(DTypeError, match=text):
        call()


def test_calls_with_a_rule_are_traced():
    class Net(megengine.module.Module):
        def forward(self, x):
            return F.max(F.avg_pool2d(x.astype(S8), 2) + 1.0, axis=1)

    x = megengine.tensor(np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32))
    net = Net()
    traced = megengine.traced_module.trace_module(net, x)
    assert traced(x).dtype == S8
    np.testing.assert_array_equal(traced(x).numpy(), net(x).numpy())


def test_arguments_by_name_and_calls_again():
    x = q(U8, 1, 2, 4, 4)
    first = F.avg_pool2d(inp=x, kernel_size=2).numpy()
    for _ in range(3):
        np.testing.assert_array_equal(F.avg_pool2d(x, kernel_size=2).numpy(), first)
