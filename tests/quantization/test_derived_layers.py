"""Subclasses of layers in `quantize_qat`, layers that round nothing, and batch norms in MegEngine's QAT state dicts."""

import numpy as np
import pytest

import megengine.module as M
import megengine.quantization as Q
from megengine.core.errors import StateDictError, UnmappedLayerError
from megengine.tensor import Tensor

RNG = np.random.default_rng(0)
X = Tensor(RNG.standard_normal((2, 3, 6, 6)).astype(np.float32))


class Doubled(M.Conv2d):
    """Computes as the layer; only its sizes are chosen."""

    def __init__(self, channels):
        super().__init__(channels, 2 * channels, 3)

    def growth(self):
        return 2


class Scaled(M.Linear):
    def forward(self, inp):
        return super().forward(inp) * 2


class Cut(M.Conv2d):
    def calc_conv(self, inp, weight, bias):
        return super().calc_conv(inp, weight * 0, bias)


class ScaledQAT(M.qat.Linear):
    def forward(self, inp):
        return super().forward(inp) * 2


def test_a_subclass_that_computes_as_its_layer_becomes_the_qat_layer():
    net = M.Sequential(M.QuantStub(), Doubled(3), M.DequantStub())
    plain = M.Sequential(M.QuantStub(), M.Conv2d(3, 6, 3), M.DequantStub())
    plain.load_state_dict(net.state_dict())
    results = [Q.quantize(Q.quantize_qat(n)) for n in (net, plain) if Q.quantize_qat(n)(X) is not None]
    assert type(results[0][1]) is M.quantized.Conv2d
    np.testing.assert_array_equal(results[0].eval()(X).numpy(), results[1].eval()(X).numpy())


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (Scaled(4, 4), r"1\.0 is a Scaled, a Linear with its own forward, and has no QAT form; give one with mapping="),
        (Cut(3, 3, 1), r"1\.0 is a Cut, a Conv2d with its own calc_conv, and has no QAT form"),
    ],
)
def test_a_subclass_with_its_own_forward_is_a_key_error(layer, text):
    """As in MegEngine; such a layer stayed in float without a word."""
    net = M.Sequential(M.Conv2d(3, 4, 1), M.Sequential(layer))
    with pytest.raises(KeyError, match=text) as info:
        Q.quantize_qat(net)
    assert isinstance(info.value, UnmappedLayerError)
    assert type(net[0]) is M.Conv2d  # refused before the first layer was replaced
    layer.disable_quantize()
    assert type(Q.quantize_qat(net)[1][0]) is type(layer)


def test_a_subclass_with_a_mapping_is_mapped():
    net = Q.quantize_qat(M.Sequential(Scaled(4, 4)), mapping={Scaled: ScaledQAT})
    assert type(net[0]) is ScaledQAT


@pytest.mark.parametrize("layer", [M.Sequential(M.ReLU()), M.Conv1d(3, 3, 1), M.BatchNorm2d(3)])
def test_subclasses_of_other_modules_stay(layer):
    kind = type("Own", (type(layer),), {"forward": lambda self, x: x})
    own = kind.__new__(kind)
    own.__dict__.update(layer.__dict__)
    assert type(Q.quantize_qat(M.Sequential(own))[0]) is kind


def test_layers_that_round_nothing_have_no_qparams():
    net = Q.quantize_qat(M.Sequential(M.QuantStub(), M.DequantStub()))
    net(X)
    assert net[1].get_activation_qparams() is None and net[1].get_activation_dtype() is None
    assert net[0].get_weight_qparams() is None and net[1].get_weight_qparams() is None
    assert net[0].get_activation_qparams().scale.item() > 0


def norms():
    net = M.Sequential(M.QuantStub(), M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.Conv2d(4, 4, 1), M.DequantStub())
    return Q.quantize_qat(net)


def test_state_dicts_of_megengine_without_ranges_of_batch_norms_load():
    """In MegEngine a batch norm that is part of no layer is float in a QAT network, so files hold no range of it."""
    first, second = norms(), norms()
    first(X)
    state = {k: v for k, v in first.state_dict().items() if not k.startswith("2.act_observer")}
    second.load_state_dict(state)
    second.eval()
    x = second[1](second[0](X))
    norm = second[2](x)
    assert norm.qparams.scale is None
    mean, var = (state[f"2.running_{part}"].reshape(1, 4, 1, 1) for part in ("mean", "var"))
    unrounded = (x.numpy() - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(norm.numpy(), unrounded, rtol=1e-4, atol=1e-5)
    second.train()(X)
    assert second[2].act_observer.has_seen
    for key in ("2.weight", "1.act_observer.max_val"):
        with pytest.raises(StateDictError, match=f"missing \\['{key}'\\]"):
            second.load_state_dict({k: v for k, v in state.items() if k != key})
