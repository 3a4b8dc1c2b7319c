"""Activations that files spell out are found by one pattern behind the pass `name_activations`."""

import math

import numpy as np
import pytest

import megengine.functional as F
from megengine.tensor import tensor
from megengine.traced_module import TracedModule, optimize, record
from megengine.traced_module.ir.queries import applied
from megengine.traced_module.passes.rewriting import Rule, rewrite
from megengine.traced_module.patterns import any_, call

x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
SPELLINGS = {
    "silu": (lambda v: v * F.sigmoid(v), lambda v: v / (1 + np.exp(-v))),
    "gelu": (
        lambda v: v * (F.erf(v / math.sqrt(2)) + 1) * 0.5,
        lambda v: v * (1 + np.vectorize(math.erf)(v / math.sqrt(2))) / 2,
    ),
    "hswish": (lambda v: v * (F.relu6(v + 3) / 6), lambda v: v * np.clip(v + 3, 0, 6) / 6),
}


def spelled(function) -> TracedModule:
    return TracedModule.from_graph(record(lambda v: function(v + 1) * 2, [tensor(x).spec], name="net"))


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_becomes_an_op_that_can_be_replaced(name):
    function, reference = SPELLINGS[name]
    net = spelled(function)
    assert not applied(net.graph, name) and not applied(optimize(net, passes="all").graph, name)
    named = optimize(net, passes=["name_activations"], check_with=[tensor(x)])
    assert len(applied(named.graph, name)) == 1
    wide = x.astype(np.float64) + 1
    np.testing.assert_allclose(named(tensor(x)).numpy(), 2 * reference(wide), rtol=1e-5, atol=1e-6)
    v = any_()
    assert rewrite(named.graph, [Rule("relu", call(name, v), lambda m: m.apply("relu", m[v]))])
    np.testing.assert_allclose(named(tensor(x)).numpy(), 2 * np.maximum(wide, 0), rtol=1e-6)
