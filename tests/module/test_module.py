"""Modules: parameters and state by path, layers against NumPy formulas, tracing of whole networks."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine.core.dtype import quantized
from megengine.core.errors import OptionError, ShapeError
from megengine.tensor import Parameter, tensor
from megengine.traced_module import lower, trace_module
from megengine.traced_module.ir.queries import applied


class Block(M.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv = M.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn = M.BatchNorm2d(cout)
        self.down = M.Sequential(M.Conv2d(cin, cout, 1, stride), M.BatchNorm2d(cout)) if stride > 1 else None

    def forward(self, x):
        y = self.bn(self.conv(x))
        return F.relu(y + (x if self.down is None else self.down(x)))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.stages = [Block(8, 8), Block(8, 16, 2)]
        self.stem = M.ConvBnRelu2d(3, 8, 3, padding=1)
        self.dw = M.Conv2d(16, 16, 3, padding=1, groups=16)
        self.fc = M.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.fc(F.flatten(F.adaptive_avg_pool2d(self.dw(x), 1), 1))


@pytest.fixture
def net():
    return Net().eval()


def picture(n=2):
    return np.random.default_rng(0).standard_normal((n, 3, 12, 12)).astype(np.float32)


def test_state_dict_is_alphabetical_per_level(net):
    keys = list(net.state_dict())
    assert keys[:4] == ["dw.bias", "dw.weight", "fc.bias", "fc.weight"]
    assert "stages.1.down.0.weight" in keys
    assert net.dw.weight.shape == (16, 1, 1, 3, 3)
    assert net.dw.bias.shape == (1, 16, 1, 1)


def test_state_dict_round_trip_and_errors(net):
    other = Net().eval()
    other.load_state_dict(net.state_dict())
    np.testing.assert_array_equal(net(tensor(picture())).numpy(), other(tensor(picture())).numpy())
    state = net.state_dict()
    state["fc.weigth"] = state.pop("fc.weight")
    with pytest.raises(
        OptionError, match=r"missing \['fc.weight'\], unknown \['fc.weigth'\]; did you mean 'fc.weight'"
    ):
        net.load_state_dict(state)
    net.load_state_dict(state, strict=False)
    state = net.state_dict()
    state["fc.bias"] = np.zeros(3, np.float32)
    with pytest.raises(ShapeError, match=r"fc.bias has shape \(3,\); expected \(10,\)"):
        net.load_state_dict(state)
    state["fc.bias"] = None  # as if it were not there
    with pytest.raises(OptionError, match=r"missing \['fc.bias'\], unknown \[\]"):
        net.load_state_dict(state)
    net.load_state_dict(state, strict=False)
    state["fc.bias"] = [None] * 10
    with pytest.raises(TypeError, match=r"fc.bias is \[None, .*\.\.\.\]; expected numbers of shape \(10,\)"):
        net.load_state_dict(state)


def test_training_updates_running_statistics():
    bn = M.BatchNorm2d(3)
    x = picture() * 2 + 1
    y = bn(tensor(x)).numpy()
    np.testing.assert_allclose(y.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(bn.running_mean.numpy().ravel(), 0.1 * x.mean((0, 2, 3)), rtol=1e-5)
    unbiased = x.transpose(1, 0, 2, 3).reshape(3, -1).var(1, ddof=1)
    np.testing.assert_allclose(bn.running_var.numpy().ravel(), 0.9 + 0.1 * unbiased, rtol=1e-5)


def test_hooks_and_modes(net):
    seen = []
    handle = net.fc.register_forward_hook(lambda m, i, o: seen.append(o.shape) or o * 0)
    assert not net(tensor(picture())).numpy().any()
    handle.remove()
    assert net(tensor(picture())).numpy().any()
    assert seen == [(2, 10)]
    assert not net.stages[1].bn.training
    assert net.train().stages[1].bn.training


def test_a_traced_network_equals_the_module(net):
    traced = trace_module(net, picture())
    traced.graph.lint()
    np.testing.assert_allclose(traced(picture()).numpy(), net(tensor(picture())).numpy(), rtol=1e-6)
    ops = lower(traced).graph
    conv = applied(ops, "conv2d")[0]
    assert conv.meta["module"] == "stem.conv"
    assert any(e.meta.get("module") == "stages.1.down.0" for e in applied(ops, "conv2d"))
    assert any("test_module.py" in e.meta.get("source", "") for e in applied(ops, "relu"))
    assert "fc_weight" in [n.name for n in ops.nodes()]


def test_wrong_arguments():
    with pytest.raises(OptionError, match="groups=3 must divide in_channels=4"):
        M.Conv2d(4, 6, 3, groups=3)
    with pytest.raises(OptionError, match="unknown method 'ADDD'"):
        M.Elemwise("ADDD")
    with pytest.raises(ShapeError, match="conv2d: x has 4 channels"):
        M.Conv2d(3, 4, 3)(tensor(np.zeros((1, 4, 8, 8))))


def test_integers_for_a_quantized_tensor_are_its_stored_ones():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.weight = Parameter(np.zeros((2, 3), np.int8), dtype=quantized("qint8", (0.5, 0.25), axis=0))

    net, stored = Net(), np.arange(-3, 3, dtype=np.int8).reshape(2, 3)
    net.load_state_dict({"weight": stored})
    assert net.weight.dtype == quantized("qint8", (0.5, 0.25), axis=0)
    np.testing.assert_array_equal(net.weight._storage(), stored)
