"""Marks of calls that quantization leaves in float: honoured at both levels, kept by passes, files and logs, undone."""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.convert import onnx
from megengine.core.errors import GraphError
from megengine.quantization import quantize_model
from megengine.traced_module import EditLog, lower, optimize, trace_module
from megengine.traced_module.editing.excluding import exclude
from megengine.traced_module.formats import native
from megengine.traced_module.formats.tm_writing import save_tm

SAMPLE = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
REASON = "excluded in the model"


class Block(M.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.bn = M.Conv2d(channels, 4, 3, padding=1), M.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = Block(3), Block(4), Block(4)

    def forward(self, x):
        return self.third(self.second(self.first(x)))


def traced():
    return trace_module(Net().eval(), mge.tensor(SAMPLE))


def left(model):
    """The convolutions that are left in float by a mark."""
    floating = quantize_model(model, [SAMPLE]).annotation.floating
    return sorted(name.split("_")[0] for name, why in floating.items() if why == REASON and "conv2d" in name)


def test_a_mark_on_a_submodule_leaves_all_of_it_in_float_until_undone():
    net = traced()
    exclude(net.graph, [net.graph.node("second_out")])
    assert left(net) == ["second"] and left(net.clone()) == ["second"] and left(net.flatten()) == ["second"]
    assert "conv_out is left in float" in net.edit_log.to_text()
    net.graph.undo()
    assert left(net) == []


def test_a_mark_on_what_is_folded_marks_the_layer():
    net = traced().flatten()
    (norm,) = [n for n in net.graph.nodes() if n.qualname.endswith("third.bn.[out]")]
    exclude(net.graph, [norm])
    assert left(net) == ["third"]
    assert left(optimize(net, passes="FuseConvBn")) == ["third"]
    exclude(net.graph, [norm], excluded=False)
    assert left(net) == []


@pytest.mark.parametrize("suffix", ["mgt", "tm", "onnx"])
def test_files_keep_marks(tmp_path, suffix):
    net, path = traced(), tmp_path / f"net.{suffix}"
    exclude(net.graph, [net.graph.node("first_out")])
    {"mgt": native.save, "tm": save_tm, "onnx": onnx.export}[suffix](net, path)
    read = {"mgt": native.load, "tm": mge.load, "onnx": onnx.load}[suffix](path)
    assert left(read) == ["first"]


def test_a_graph_of_ops_and_its_log(tmp_path):
    ops = lower(traced())
    copy = ops.clone()
    copy.graph.keep_edits()
    (conv,) = [e.output for e in copy.graph.exprs() if e.name == "second_conv_conv2d_out"]
    exclude(copy.graph, [conv])
    copy.edit_log.save(tmp_path / "e.log")
    other = ops.clone()
    EditLog.load(tmp_path / "e.log").replay(other)
    assert left(copy) == left(other) == ["second"] and left(ops) == []


def test_inputs_are_refused():
    net = traced()
    with pytest.raises(GraphError, match="exclude: 'x' is no result of a call; give that of the call that uses it"):
        exclude(net.graph, [net.graph.node("x")])
    assert len(net.edit_log) == 0
