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


RAISED = {
    "raised": {"in_channels": 3, "out_channels": 4, "kernel_size": 2, "stride": 2},
    "raised_in_groups": {
        "in_channels": 4,
        "out_channels": 6,
        "kernel_size": (3, 4, 3),
        "stride": (3, 2, 1),
        "padding": (0, 1, 1),
        "groups": 2,
        "bias": False,
    },
    "raised_in_height": {"in_channels": 2, "out_channels": 3, "kernel_size": (1, 2, 2), "stride": (1, 2, 2)},
    "raised_with_overlaps": {"in_channels": 3, "out_channels": 4, "kernel_size": 3, "stride": 2, "padding": 1},
    "raised_to_twice": {
        "in_channels": 2,
        "out_channels": 3,
        "kernel_size": 3,
        "stride": 2,
        "padding": 1,
        "output_padding": 1,
    },
    "raised_in_even_taps": {
        "in_channels": 4,
        "out_channels": 6,
        "kernel_size": (4, 2, 2),
        "stride": (2, 2, 1),
        "padding": (3, 0, 1),
        "groups": 2,
    },
    "raised_with_gaps": {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "stride": (3, 1, 1), "dilation": 2},
    "raised_apart": {"in_channels": 2, "out_channels": 3, "kernel_size": 1, "stride": 2, "output_padding": 1},
}


class Net(M.Module):
    def __init__(self, options, kind=M.Conv3d):
        super().__init__()
        self.conv, self.out = kind(**options), M.Linear(options["out_channels"], 3)

    def forward(self, x):
        return self.out(F.mean(F.relu(self.conv(x)), (2, 3, 4)))


@pytest.mark.parametrize("case", [*CASES, *RAISED])
def test_one_convolution_of_pictures_with_the_same_results(case):
    rng = np.random.default_rng(0)
    options, kind = (CASES[case], M.Conv3d) if case in CASES else (RAISED[case], M.ConvTranspose3d)
    net = Net(options, kind)
    net.eval()
    if net.conv.bias is not None:
        net.conv.bias[:] = mge.tensor(rng.standard_normal(net.conv.bias.shape).astype(np.float32))
    xs = [rng.standard_normal((2, options["in_channels"], 6, 7, 5)).astype(np.float32) for _ in range(3)]
    traced = trace_module(net, mge.tensor(xs[0]))
    graph = canonicalize(lower(traced).graph)
    layer = "conv2d" if case in CASES else "conv_transpose2d"
    assert [e.op for e in graph.exprs() if getattr(e, "op", "").startswith("conv")] == [layer]
    np.testing.assert_allclose(
        interpret(graph, [xs[0]])[0].numpy(), net(mge.tensor(xs[0])).numpy(), rtol=1e-4, atol=1e-5
    )
    made = quantize_model(traced, xs)
    ops = [e.op for e in made.integer_graph.exprs() if hasattr(e, "op")]
    assert "qconv2d" in ops and not any(op.startswith(("conv", "ordered_conv")) for op in ops)
    assert verify(made.integer_graph, xs[:1]).exact
