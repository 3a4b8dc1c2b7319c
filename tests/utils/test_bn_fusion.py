"""Folding of batch norms: the folded layer computes what the layers compute."""

import re

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
from megengine.core.errors import OptionError
from megengine.utils.bn_fusion import fold_weight_bias, fuse_conv_bn_relu_module, fuse_linear_bn_relu_module

RANDOM = np.random.default_rng(3)


def trained(bn):
    for name in ("weight", "bias", "running_mean", "running_var"):
        old = getattr(bn, name)
        old._reset(type(old)(RANDOM.uniform(0.5, 1.5, old.shape).astype(np.float32)))
    return bn


CASES = [
    (lambda: M.Conv2d(4, 6, 3), (2, 4, 7, 7), fuse_conv_bn_relu_module),
    (lambda: M.Conv2d(4, 6, 3, groups=2, bias=False), (2, 4, 7, 7), fuse_conv_bn_relu_module),
    (lambda: M.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5), fuse_conv_bn_relu_module),
    (lambda: M.ConvTranspose2d(4, 6, 3, groups=2, bias=False), (2, 4, 5, 5), fuse_conv_bn_relu_module),
    (lambda: M.Linear(4, 6), (3, 4), fuse_linear_bn_relu_module),
    (lambda: M.Linear(4, 6, bias=False), (3, 4), fuse_linear_bn_relu_module),
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("parts", ["bn relu", "bn", "relu"])
@pytest.mark.parametrize(("make", "shape", "fuse"), CASES)
def test_fused_is_the_same(make, shape, fuse, parts, training):
    layer = make()
    bn = trained(M.BatchNorm1d(6) if isinstance(layer, M.Linear) else M.BatchNorm2d(6)) if "bn" in parts else None
    relu = M.ReLU() if "relu" in parts else None
    chain = M.Sequential(*[p for p in (layer, bn, relu) if p is not None]).train(training)
    x = mge.tensor(RANDOM.standard_normal(shape).astype(np.float32))
    fused = fuse(layer, bn, relu)
    assert fused.training is training
    kept = "Bn" * (training and bn is not None) + "Relu" * (relu is not None)
    assert re.sub(r"^(Conv(Transpose)?|Linear)|[12]d$", "", type(fused).__name__) == kept
    expected = chain(x).numpy()
    if training and bn is not None:
        fused.train()
    np.testing.assert_allclose(fused(x).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert fused is not layer


def test_weights_without_scale_and_offset():
    w = mge.tensor(np.ones((2, 1, 1, 1), np.float32))
    mean, var = (mge.tensor(np.full((1, 2, 1, 1), v, np.float32)) for v in (3.0, 4.0))
    weight, bias = fold_weight_bias(w, None, None, None, mean, var, eps=0.0)
    np.testing.assert_allclose(weight.numpy().ravel(), [0.5, 0.5])
    np.testing.assert_allclose(bias.numpy(), np.full((1, 2, 1, 1), -1.5))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((M.Conv2d(1, 1, 1), None, None), "no layer computes Conv2d"),
        ((M.Conv1d(1, 1, 1), M.BatchNorm1d(1), None), "no layer computes Conv1d"),
        ((M.Conv2d(1, 1, 1), M.BatchNorm2d(1), mge.functional.relu), "expected ReLU or None"),
        ((M.Conv2d(1, 1, 1), M.ReLU(), None), "expected BatchNorm1d or BatchNorm2d or None"),
    ],
)
def test_what_has_no_common_form(arguments, text):
    with pytest.raises(OptionError, match=text):
        fuse_conv_bn_relu_module(*arguments)
