"""Initial values: moments, reproducibility, and the gains and fans recorded from MegEngine 1.13."""

import numpy as np
import pytest

import megengine.module as M
from megengine import random
from megengine.core.errors import OptionError, ShapeError
from megengine.module import init
from megengine.random import rng
from megengine.tensor import Parameter, Tensor

BIG = (rng._LARGE // 64 + 1, 64)  # a counter-based stream


def drawn(fill, shape, *args, **kwargs):
    random.seed(1)
    tensor = init.parameter(shape)
    fill(tensor, *args, **kwargs)
    return tensor.numpy()


@pytest.mark.parametrize("shape", [(64, 64), BIG])
def test_moments_and_seeds(shape):
    normal = drawn(init.normal_, shape, 2.0, 0.5)
    assert abs(normal.mean() - 2) < 0.03
    assert abs(normal.std() - 0.5) < 0.03
    np.testing.assert_array_equal(normal, drawn(init.normal_, shape, 2.0, 0.5))
    uniform = drawn(init.uniform_, shape, -1.0, 3.0)
    assert uniform.min() >= -1
    assert uniform.max() < 3
    assert abs(uniform.mean() - 1) < 0.1
    assert len(np.unique(normal.reshape(-1, 4), axis=0)) == normal.size // 4


@pytest.mark.parametrize(
    ("fill", "options", "std"),
    [
        (init.xavier_normal_, {}, (2 / 96) ** 0.5),
        (init.xavier_uniform_, {"gain": 2.0}, 2 * (2 / 96) ** 0.5),
        (init.msra_normal_, {}, (2 / 32) ** 0.5),
        (init.msra_uniform_, {"mode": "fan_out", "nonlinearity": "linear"}, (1 / 64) ** 0.5),
        (init.msra_normal_, {"a": 1.0}, (1 / 32) ** 0.5),
    ],
)
def test_scaled_by_fans(fill, options, std):
    assert abs(drawn(fill, (64, 32), **options).std() / std - 1) < 0.05


def test_gains_and_fans_are_megengines():
    assert init.calculate_gain("tanh") == 5 / 3
    assert init.calculate_gain("leaky_relu") == pytest.approx(1.4141428569978354)
    assert init.calculate_gain("leaky_relu", 0.2) == pytest.approx(1.3867504905630728)
    assert init.calculate_gain("conv_transpose3d") == 1
    assert init.calculate_fan_in_and_fan_out(M.Conv2d(4, 6, 3, groups=2).weight) == (18, 27)
    assert init.calculate_correct_fan(Tensor(np.zeros((3, 4))), "fan_out") == 3


def test_values_and_dtypes_are_kept():
    half = Parameter(np.zeros(3, np.float16))
    init.ones_(half)
    assert half.dtype == np.float16
    assert half.numpy().tolist() == [1, 1, 1]
    init.fill_(half, -2)
    assert half.numpy().tolist() == [-2, -2, -2]


def test_weights_of_layers_have_megengines_variance():
    for layer, fan in ((M.Conv2d(64, 64, 3, groups=64), 576), (M.ConvTranspose2d(64, 32, 3, groups=32), 288)):
        assert abs(layer.weight.numpy().std() * fan**0.5 - 1) < 0.15
        assert not layer.bias.numpy().any()


def test_wrong_arguments():
    with pytest.raises(OptionError, match="nonlinearity is 'selu'"):
        init.calculate_gain("selu")
    with pytest.raises(OptionError, match="fan mode is 'fan'"):
        init.calculate_correct_fan(Tensor(np.zeros((3, 4))), "fan")
    with pytest.raises(ShapeError, match="expected at least two axes"):
        init.xavier_normal_(Tensor(np.zeros(3)))
