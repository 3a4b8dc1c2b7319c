"""Quantized products of batches of matrices: near the float layer, the same integers as in training."""

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
from megengine.core.errors import DTypeError
from megengine.module import qat, quantized
from megengine.quantization import quantize, quantize_qat


class Net(M.Module):
    def __init__(self, bias, mode):
        super().__init__()
        self.enter, self.leave = M.QuantStub(), M.DequantStub()
        self.product = M.BatchMatMulActivation(2, 3, 4, bias, mode)

    def forward(self, x):
        return self.leave(self.product(self.enter(x)))


@pytest.mark.parametrize("mode", ["identity", "relu"])
@pytest.mark.parametrize("bias", [True, False])
def test_float_trained_and_quantized_agree(bias, mode):
    random = np.random.default_rng(5)
    net = Net(bias, mode)
    if bias:
        net.product.bias.set_value(random.standard_normal(4).astype(np.float32))
    x = mge.tensor(random.standard_normal((2, 3, 4)).astype(np.float32))
    expected = net(x).numpy()
    quantize_qat(net)
    assert type(net.product) is qat.BatchMatMulActivation
    trained = net(x).numpy()
    np.testing.assert_allclose(trained, expected, atol=0.05 * np.abs(expected).max())
    net.eval()
    trained = net(x).numpy()
    quantize(net).eval()
    assert type(net.product) is quantized.BatchMatMulActivation
    np.testing.assert_array_equal(net(x).numpy(), trained)
    assert net.product.weight.numpy().dtype == np.int8
    with pytest.raises(DTypeError, match="put a QuantStub before the layer"):
        net.product(x)
