"""Watch points, end points, containers of the user's, and the check of what was traced."""

from dataclasses import dataclass

import numpy as np
import pytest
from megengine_graphs import inputs_of, traced

import megengine.functional as F
import megengine.module as M
import megengine.traced_module as tm
from megengine.core import pytree
from megengine.core.errors import GraphError, NameInUseError
from megengine.tensor import tensor
from megengine.traced_module.traced_module import TracedModule
from megengine.traced_module.utils import assign_attr, get_subattr


def test_watch_and_end_points_reach_into_submodules():
    module = traced("res_plain")
    x = tensor(inputs_of("res_plain")[0])
    whole = module(x).numpy()
    seen = {}
    module.run([x], lambda node, value: seen.update({node.qualname: value.numpy()}))
    inner = next(n for n in module.graph.nodes() if n.qualname == "ResPlain.stages.1.conv1.[out]")
    pool = module.graph.get_node_by_name("pool_out").as_unique()
    module.set_watch_points([inner, pool])
    np.testing.assert_array_equal(module(x).numpy(), whole)
    assert set(module.watch_node_value) == {inner, pool}
    np.testing.assert_array_equal(module.watch_node_value[inner].numpy(), seen[inner.qualname])
    module.set_end_points([inner])
    (value,) = module(x)
    np.testing.assert_array_equal(value.numpy(), seen[inner.qualname])
    assert set(module.watch_node_value) == {inner}
    module.clear_end_points()
    module.clear_watch_points()
    np.testing.assert_array_equal(module(x).numpy(), whole)
    assert module.watch_node_value == {}
    with pytest.raises(GraphError, match="set_end_points: fc_out is not a tensor node of this module"):
        module.set_end_points(traced("res_plain").graph.outputs[0])
    with pytest.raises(GraphError, match="self is not a tensor node"):
        module.set_watch_points(module.graph.inputs[0])
    assert module.flatten().watch_points == [] == module.clone().end_points


def test_an_error_names_the_expression_and_the_users_line():
    module = traced("multi_io")
    with pytest.raises(Exception, match="linear: inp has shape") as caught:
        module(*[tensor(np.zeros((2, 3, 5), np.float32))] * 2)
    notes = "\n".join(caught.value.__notes__)
    assert "fc_out = fc(x, ) of MultiIO.inner (nets.py:" in notes and "inner_out = inner(a, b" in notes


@dataclass(frozen=True)
class Pair:
    a: object
    b: object


class Swap(M.Module):
    def forward(self, pair):
        return Pair(F.relu(pair.b), pair.a * 2)


def test_containers_of_the_users():
    with pytest.raises(GraphError, match="expected both flatten_fn and unflatten_fn"):
        tm.register_supported_type(Pair, lambda p: ([p.a, p.b], None))
    tm.register_supported_type(Pair, lambda p: ([p.a, p.b], None), lambda children, aux: Pair(*children))
    try:
        given = Pair(tensor([1.0, -1.0]), tensor([2.0, -2.0]))
        module = tm.trace_module(Swap(), given)
        assert [n.name for n in module.graph.inputs] == ["self", "pair_0", "pair_1"]
        result = module(given)
        assert result.a.tolist() == [2.0, 0.0] and result.b.tolist() == [2.0, -2.0]
    finally:
        del pytree._NODES[Pair]


class Stateful(M.Module):
    """Gives something else each time, which a graph cannot."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count += 1
        return x * self.count


def test_what_was_traced_can_be_checked():
    x = tensor([1.0])
    tm.trace_module(Stateful(), x)
    tm.enable_expr_checker()
    try:
        tm.trace_module(M.ReLU(), x)
        with pytest.raises(GraphError, match="result 0 of the graph differs from that of Stateful"):
            tm.trace_module(Stateful(), x)
    finally:
        tm.disable_default_checker()
    tm.trace_module(Stateful(), x)


def test_attributes_by_path():
    net = M.Sequential(M.Sequential(M.Linear(2, 2)), M.ReLU())
    assert get_subattr(net, "0.0.weight") is net[0][0].weight
    assign_attr(M.Sigmoid(), net, "0.0")
    assert isinstance(net[0][0], M.Sigmoid)
    with pytest.raises(GraphError, match=r"Sequential has no attribute '0.5': '5' is missing"):
        assign_attr(tensor([1.0]), net, "0.5.x")
    with pytest.raises(NameInUseError, match="'training' is a bool"):
        assign_attr(tensor([1.0]), net, "training")
    assert TracedModule is tm.TracedModule
