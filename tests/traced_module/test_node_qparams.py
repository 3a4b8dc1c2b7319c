"""Nodes of traced QAT networks hold the scales of their values, as in MegEngine 1.13, where converters read them."""

import copy
import pickle

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
import megengine.quantization as Q
from megengine import tensor
from megengine.core.errors import FileFormatError
from megengine.traced_module import trace_module
from megengine.traced_module.formats.checks import qparams_of
from megengine.traced_module.node import TensorNode


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.layer, self.dequant = M.QuantStub(), M.ConvRelu2d(2, 3, 1), M.DequantStub()

    def forward(self, x):
        return self.dequant(self.layer(self.quant(x)))


@pytest.fixture(scope="module")
def traced():
    net = Q.quantize_qat(Net(), qconfig=Q.ema_fakequant_qconfig)
    x = tensor(np.linspace(-1, 2, 32, dtype=np.float32).reshape(1, 2, 4, 4))
    net(x)
    return trace_module(net.eval(), x), net


def scales(traced):
    nodes = [n for n in traced.graph.nodes() if isinstance(n, TensorNode)]
    return {n.name: n.qparams.scale.item() for n in nodes if n.qparams is not None}


def test_nodes_have_the_scales_of_their_values(traced):
    traced, net = traced
    wanted = {f"{k}_out": getattr(net, k).act_observer.get_qparams().scale.item() for k in ("quant", "layer")}
    assert scales(traced) == wanted
    assert all(node.value is None for node in traced.graph.nodes() if isinstance(node, TensorNode))
    assert traced.graph.node("quant_out").qparams.dtype_meta.name == "qint8"


@pytest.mark.parametrize("ending", ["tm", "mgt"])
def test_files_keep_them(traced, tmp_path, ending):
    mge.save(traced[0], tmp_path / f"net.{ending}")
    assert scales(mge.load(tmp_path / f"net.{ending}")) == scales(traced[0])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t)), lambda t: t.flatten()])
def test_copies_keep_them(traced, copied):
    assert scales(copied(traced[0])) == scales(traced[0])


def test_files_with_something_else_are_refused():
    with pytest.raises(FileFormatError, match="the qparams of node 'x' are 3"):
        qparams_of("x", 3)
