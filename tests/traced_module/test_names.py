"""Traced graphs have the nodes and the names that MegEngine 1.13 gives them (listings written by it)."""

import numpy as np
import pytest
from megengine_graphs import NETS, check, inputs_of, leaves, listing, traced

from megengine.tensor import tensor


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
