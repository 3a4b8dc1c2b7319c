"""Integer networks on the GPU: every value is that of the processor, node by node, and the results of plans."""

import numpy as np
import pytest
from quant_nets import drawn_net

from megengine import models
from megengine.core.errors import MegEngineError
from megengine.plan import compile as compile_plan
from megengine.quantization import quantize_model
from megengine.tensor import Tensor
from megengine.traced_module import interpret, lower, trace_module
from megengine.traced_module.elsewhere import Elsewhere
from megengine.traced_module.interpret import as_tensors

NETWORKS = {
    "mobilenet_v2": models.mobilenet_v2,
    "resnet50": models.resnet50,
    "efficientnet_lite0": models.efficientnet_lite0,
}


def _same_everywhere(integer, arrays) -> int:
    """How many values were compared: of an eager run, and of the three ways of a plan."""
    there, here = {}, {}
    Elsewhere(integer, "gpu0").run(integer, arrays, lambda node, value: there.update({node.name: value.numpy()}))
    interpret(
        integer, as_tensors(arrays, integer), on_value=lambda node, value: here.update({node.name: value.numpy()})
    )
    assert there.keys() == here.keys()
    for name, want in here.items():
        assert there[name].dtype == want.dtype
        np.testing.assert_array_equal(there[name], want, err_msg=name)
    plan, wanted = compile_plan(integer, device="gpu0"), compile_plan(integer)(*arrays)
    for _ in range(3):  # step by step, recorded, replayed
        for have, want in zip(plan(*arrays), wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(have), want)
    return sum(a.size for a in here.values())


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_pictures(name):
    """With He's weights, so that values neither vanish nor saturate."""
    net, rng = NETWORKS[name](), np.random.default_rng(0)
    for parameter in net.parameters():
        if len(parameter.shape) > 1:
            drawn = rng.standard_normal(parameter.shape) * np.sqrt(2 / np.prod(parameter.shape[1:]))
            parameter[...] = Tensor(drawn.astype(np.float32))
    pictures = rng.standard_normal((4, 1, 3, 224, 224)).astype(np.float32)
    traced = lower(trace_module(net.eval(), Tensor(pictures[0])))
    integer = quantize_model(traced, [*pictures]).integer_graph
    assert _same_everywhere(integer, (pictures[1],)) > 1_000_000


@pytest.mark.parametrize("first", range(0, 200, 10))
def test_drawn_networks(first):
    compared = 0
    for seed in range(first, first + 10):
        _, graph = drawn_net(seed)
        rng = np.random.default_rng(seed)
        data = [tuple(rng.standard_normal(n.spec.shape).astype(np.float32) for n in graph.inputs) for _ in range(3)]
        try:
            integer = quantize_model(graph, data).integer_graph
        except MegEngineError:
            continue  # nothing to quantize
        compared += _same_everywhere(integer, data[0]) > 0
    assert compared >= 5
