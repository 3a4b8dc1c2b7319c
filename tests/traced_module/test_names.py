"""Traced graphs have the nodes and the names that MegEngine 1.13 gives them (listings written by it)."""

import numpy as np
import pytest
from megengine_graphs import NETS, check, inputs_of, leaves, listing, nets, traced

from megengine.quantization import ema_fakequant_qconfig, enable_observer, quantize, quantize_qat
from megengine.tensor import tensor
from megengine.traced_module import trace_module


@pytest.mark.parametrize("name", NETS)
def test_traced(name):
    module = traced(name)
    module.graph.lint()
    corrected = {"19", "21"} if name == "multi_io" else set()
    check(module, name, corrected)


@pytest.mark.parametrize("name", NETS)
def test_flattened(name):
    module = traced(name)
    before = listing(module)
    flat = module.flatten()
    flat.graph.lint()
    check(flat, f"{name}_flat", {"18", "20"} if name == "multi_io" else set())
    assert listing(module) == before
    given = [tensor(x) for x in inputs_of(name)]
    for a, b in zip(leaves(module(*given)), leaves(flat(*given)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("kind", ["qat", "q"])
def test_networks_in_quantization(kind):
    net = nets().ResFused().eval()
    given = [tensor(x) for x in inputs_of("res_fused")]
    qat = quantize_qat(net, qconfig=ema_fakequant_qconfig)
    enable_observer(qat)
    qat.train()
    qat(*given)
    qat.eval()
    module = trace_module(qat if kind == "qat" else quantize(qat), *given)
    module.graph.lint()
    check(module, f"res_fused_{kind}")
    flat = module.flatten()
    check(flat, f"res_fused_{kind}_flat")
    np.testing.assert_array_equal(flat(*given).numpy(), module(*given).numpy())
