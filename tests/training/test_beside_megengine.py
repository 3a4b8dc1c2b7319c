"""Training as MegEngine 1.13 trains: from the same weights and batches, the same loss at every step.

`tests/recording/curves.py` and `optimizer_curves.py` recorded MegEngine's losses.
"""

from pathlib import Path

import curves
import numpy as np
import optimizer_curves
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M

DATA = Path(__file__).parents[1] / "data" / "recorded"
RECORDED = np.load(DATA / "curves.npz")
OF_OPTIMIZERS = np.load(DATA / "optimizer_curves.npz")


@pytest.mark.parametrize("name", curves.CASES)
def test_losses_are_megengines(name):
    found = curves.losses(name)
    assert len(found) == len(RECORDED[name]) == curves.STEPS
    np.testing.assert_allclose(found, RECORDED[name], rtol=1e-4)
    assert np.mean(found[-5:]) < 0.75 * np.mean(found[:5])  # it learns


@pytest.mark.parametrize("name", optimizer_curves.CASES)
def test_losses_with_every_optimizer_are_megengines(name):
    """Fifty steps, with schedules and limits of gradients; the rates of the schedule after the last are there too."""
    found, wanted = optimizer_curves.losses(name), OF_OPTIMIZERS[name]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-9)
    steps = optimizer_curves.STEPS
    assert steps == 50
    assert np.mean(found[steps - 5 : steps]) < 0.6 * found[0]  # it learns


def test_every_optimizer_has_curves():
    made = {name.split(",")[0] for name in optimizer_curves.CASES}
    assert made | {"LAMB", "LAMBFp16", "Optimizer"} == {  # MegEngine 1.13 cannot make the first two
        name
        for name, kind in vars(mge.optimizer).items()
        if isinstance(kind, type) and name.isidentifier() and issubclass(kind, mge.optimizer.Optimizer)
    }


def test_the_layer_is_the_memory_spelled_out():
    """M.LSTM with the weights of the network above: same results."""
    net, layer = curves.Recurrent(), M.LSTM(5, 12, batch_first=True)
    w, b = net.gates.weight.numpy(), net.gates.bias.numpy()
    flat = np.concatenate([p.ravel() for p in (w[:, :5], w[:, 5:], b, np.zeros_like(b))])
    layer._flatten_weights.set_value(flat.reshape(layer._flatten_weights.shape))
    x = mge.tensor(np.random.default_rng(0).standard_normal((3, 6, 5)).astype(np.float32))
    out, _ = layer(x)
    np.testing.assert_allclose(F.linear(out[:, -1], net.head.weight, net.head.bias).numpy(), net(x).numpy(), atol=1e-6)
