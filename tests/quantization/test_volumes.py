"""Convolutions over depth, height and width in integer networks: convolutions of pictures."""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.quantization import quantize_model, verify
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.traced_module import interpret, lower, trace_module

CASES = {
    "padded": {"in_channels": 3, "out_channels": 4, "kernel_size": 3, "padding": 1},
    "strides": {"in_channels": 4, "out_channels": 6, "kernel_size": (3, 1, 2), "stride": (2, 1, 2), "groups": 2},
    "gaps": {
        "in_channels": 2,
        "out_channels": 2,
        "kernel_size": (2, 3, 1),
        "dilation": (3, 2, 1),
        "padding": (2, 0, 0),
    },
    "one_tap": {"in_channels": 2, "out_channels": 3, "kernel_size": 1, "bias": False},
}


class Net(M.Module):
    def __init__(self, options):
        super().__init__()
        self.conv, self.out = M.Conv3d(**options), M.Linear(options["out_channels"], 3)

    def forward(self, x):
        return self.out(F.mean(F.relu(self.conv(x)), (2, 3, 4)))


@pytest.mark.parametrize("case", CASES)
def test_one_convolution_of_pictures_with_the_same_results(case):
    rng = np.random.default_rng(0)
    net = Net(CASES[case])
    net.eval()
    xs = [rng.standard_normal((2, CASES[case]["in_channels"], 6, 7, 5)).astype(np.float32) for _ in range(3)]
    traced = trace_module(net, mge.tensor(xs[0]))
    graph = canonicalize(lower(traced).graph)
    assert [e.op for e in graph.exprs() if getattr(e, "op", "").startswith("conv")] == ["conv2d"]
    np.testing.assert_allclose(
        interpret(graph, [xs[0]])[0].numpy(), net(mge.tensor(xs[0])).numpy(), rtol=1e-4, atol=1e-5
    )
    made = quantize_model(traced, xs)
    ops = [e.op for e in made.integer_graph.exprs() if hasattr(e, "op")]
    assert "qconv2d" in ops and "conv3d" not in ops
    assert verify(made.integer_graph, xs[:1]).exact
