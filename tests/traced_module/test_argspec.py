"""What MegEngine's traced modules say of their calls: argspec, and graphs and results by arguments."""

import inspect

import megengine.module as M
from megengine import tensor
from megengine.traced_module import TracedModule, trace_module


class Scaled(M.Module):
    def forward(self, x, *others, factor=2, **named):
        return {"scaled": x * factor}


class Both(M.Module):
    def __init__(self):
        super().__init__()
        self.scaled = Scaled()

    def forward(self, x):
        return self.scaled(x)["scaled"] + self.scaled(x, x, factor=3)["scaled"]


def test_argspec_is_that_of_the_forward():
    spec = trace_module(Scaled(), tensor([1.0])).argspec
    assert spec == inspect.getfullargspec(Scaled.forward)
    assert spec.args == ["self", "x"]


def test_graphs_and_nestings_of_results_by_arguments():
    traced = trace_module(Both(), tensor([1.0]))
    inner = traced.scaled
    assert list(inner.argdef_graph_map.values()) == list(inner.graphs)
    assert list(inner.argdef_outdef_map) == list(inner.argdef_graph_map)
    assert [d.num_leaves for d in inner.argdef_outdef_map.values()] == [1, 1]
    assert traced.argdef_graph_map[next(iter(traced.argdef_graph_map))] is traced.graph


def test_a_module_without_graph_has_none():
    empty = TracedModule()
    assert empty.argspec is None
    assert not empty.argdef_graph_map
