"""Texts of graphs with ids and paths at the names, as MegEngine 1.13 prints them: `f"{graph:ip}"`."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.traced_module import lower, trace_module


class Block(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.relu = M.Conv2d(3, 4, 1), M.ReLU()

    def forward(self, x):
        return self.relu(self.conv(x))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.b1, self.fc = Block(), M.Linear(4, 2)

    def forward(self, x):
        return self.fc(F.flatten(F.avg_pool2d(self.b1(x), 8), 1))


@pytest.fixture(scope="module")
def traced():
    return trace_module(Net(), tensor(np.zeros((1, 3, 8, 8), np.float32)))


INNER = {
    "": ("Net_b1.Graph (self, x)", '%7:\trelu = getattr(self, "relu") -> (ReLU)', "return relu_out"),
    "i": ("Net_b1.Graph (%5_self, %6_x)", '%7_relu = getattr(%5_self, "relu")', "return %10_relu_out"),
    "p": ("Net_b1.Graph (Net_b1_self, Net_b1_x)", 'Net_b1_relu = getattr(Net_b1_self, "relu")', "Net_b1_relu_out"),
    "ip": (
        "Net_b1.Graph (%5_Net_b1_self, %6_Net_b1_x)",
        "%10_Net_b1_relu_out = %7_Net_b1_relu(%9_Net_b1_conv_out, )",
        "}",
    ),
}


@pytest.mark.parametrize("letters", INNER)
def test_names_in_texts_of_graphs(traced, letters):
    text = format(traced.b1.graph, letters)
    assert all(part in text for part in INNER[letters])
    assert str(traced.b1.graph) == repr(traced.b1.graph) == format(traced.b1.graph)


def test_names_of_nodes_and_in_expressions(traced):
    node = traced.b1.graph.outputs[0]
    assert [f"{node}", f"{node:i}", f"{node:p}", f"{node:pi}"] == [
        "relu_out",
        "%10_relu_out",
        "Net_b1_relu_out",
        "%10_Net_b1_relu_out",
    ]
    assert f"{node.expr:p}".endswith("Net_b1_relu_out = Net_b1_relu(Net_b1_conv_out, )")
    assert f"{node:>10}" == "  relu_out" and str(node) == "relu_out"
    with pytest.raises(ValueError, match="format"):
        format(traced.graph, "z")


def test_names_in_texts_of_graphs_of_ops(traced):
    text = format(lower(traced).graph, "p")
    assert "Net_fc_add_out = add(Net_fc_matmul_out, Net_fc_bias)" in text
