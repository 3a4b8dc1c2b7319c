"""Calibration runs a plan that shows values where they lie; what is seen is that of the network, in any order."""

import numpy as np
import pytest
from quant_nets import Builder, concat_net, gated_net, residual_net, transposed_net

from megengine.core.errors import CalibrationError
from megengine.plan.compiler import Plan
from megengine.quantization import QuantConfig
from megengine.quantization.pipeline.calibrate import calibrate, observe_all
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.quantization.ranges import as_batches, as_tensors
from megengine.traced_module import interpret

NETS = [residual_net, concat_net, gated_net, transposed_net]


def edges(stats):
    """What ranges and bias corrections are taken from, as plain values."""
    return {
        name: (
            *(one.count, one.minimum, one.maximum, one.histogram.exponent, one.histogram.first),
            one.histogram.counts.tolist(),
            one.samples.last().tolist(),
            None if one.channel_minimum is None else [one.channel_minimum.tolist(), one.channel_maximum.tolist()],
            None if one.means.settled() is None else one.means.settled().tolist(),
        )
        for name, one in stats.items()
    }


def seen(graph, data):
    return calibrate(graph, observe_all(graph, QuantConfig()), data)


@pytest.mark.parametrize("net", NETS)
def test_watched_values_are_those_of_the_ops(net):
    b, g = net()
    g = canonicalize(g)
    names = [*observe_all(g, QuantConfig())]
    got = {}
    run = Plan(g, watch={name: lambda x, name=name: got.update({name: x.copy()}) for name in names})
    wanted = {}
    for arrays in as_batches(b.data(2), g):
        assert run(*arrays) == []
        interpret(g, as_tensors(arrays, g), on_value=lambda node, x: wanted.update({node.name: x.numpy()}))
        for name in names:
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("net", NETS)
def test_statistics_are_the_same_in_any_order(net):
    b, g = net()
    g, data = canonicalize(g), b.data(7)
    assert edges(seen(g, data)) == edges(seen(g, [data[i] for i in (3, 0, 5, 1, 6, 4, 2)]))


def test_an_error_of_a_watcher_ends_the_run():
    b = Builder()
    g = b.done(b.conv(b.x, 4, label="layer"))
    x = b.data(1)[0]
    with pytest.raises(CalibrationError, match="1 of .* values of 'x' are NaN"):
        seen(canonicalize(g), [np.where(np.arange(x.size).reshape(x.shape) == 5, np.nan, x).astype(np.float32)])
