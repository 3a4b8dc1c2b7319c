"""Quantizing, compiling and exporting take work that grows as the network does: calls are counted on a chain."""

import functools
import sys

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import Tensor, plan
from megengine.convert import onnx
from megengine.quantization import QuantConfig, annotate, quantize_model, verify
from megengine.traced_module import lower, trace_module

SIZES, SLACK = (12, 48), 1.25
X = np.random.default_rng(0).standard_normal((2, 1, 4)).astype(np.float32)


class Chain(M.Module):
    """Layers with a sum around each, so that data reaches every value over ops that work element by element."""

    def __init__(self, size):
        super().__init__()
        self.layers = [M.Linear(4, 4) for _ in range(size)]

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x)) + x * 0.1
        return x


def calls_of(run):
    """How many functions are called."""
    count = 0

    def see(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture(scope="module")
def nets():
    traced = [trace_module(Chain(size).eval(), Tensor(X[0])) for size in SIZES]
    return [(net, quantize_model(net, X)) for net in traced]


OPERATIONS = {
    "quantize": lambda net, q, path: quantize_model(net, X),
    "compile": lambda net, q, path: plan.compile(q.traced()),
    "verify": lambda net, q, path: verify(q, X),
    "export": lambda net, q, path: onnx.export_qdq(q, path),
    "import": lambda net, q, path: onnx.load(path),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_work_grows_as_the_network(nets, tmp_path, name):
    onnx.export(nets[0][0], tmp_path / "0.onnx")
    onnx.export(nets[1][0], tmp_path / "1.onnx")
    small, large = (
        calls_of(functools.partial(OPERATIONS[name], *pair, tmp_path / f"{i}.onnx")) for i, pair in enumerate(nets)
    )
    assert large < small * SIZES[1] / SIZES[0] * SLACK, (small, large)


def test_choosing_integers_grows_as_a_longer_network():
    """The way from each value back to the data was walked for each op."""
    graphs = [lower(trace_module(Chain(size).eval(), Tensor(X[0]))).graph for size in (40, 160)]
    small, large = (calls_of(functools.partial(annotate, graph, QuantConfig())) for graph in graphs)
    assert large < small * 4 * SLACK, (small, large)
