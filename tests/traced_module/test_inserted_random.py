"""Random functions in edits: drawn anew at every call of the graph, as MegEngine 1.13 records them."""

import numpy as np

import megengine.functional as F
import megengine.module as M
from megengine import random, tensor
from megengine.traced_module import trace_module


class Increment(M.Module):
    def forward(self, x):
        return x + 1


def test_random_numbers_of_an_edit_are_new_at_every_call():
    traced = trace_module(Increment(), tensor([1.0, 2.0]))
    graph = traced.graph
    with graph.insert_exprs():
        noise = random.normal(size=(2,))
        graph.reset_outputs(noise + graph.outputs[0])
    first, second = traced(tensor([1.0, 2.0])).numpy(), traced(tensor([1.0, 2.0])).numpy()
    assert not np.array_equal(first, second)
    assert [e.func for e in graph.get_function_by_type(random.normal)] == [random.normal]


def test_random_numbers_stand_where_the_edit_is():
    traced = trace_module(Increment(), tensor([1.0]))
    graph = traced.graph
    with graph.insert_exprs(graph.outputs[0].expr):
        graph.reset_outputs(random.uniform(5.0, 6.0, (1,)) * graph.outputs[0])
    assert [node.name for node in graph.nodes()] == ["self", "x", "add_out", "uniform_out", "mul_out"]
    assert 10.0 <= traced(tensor([1.0])).item() <= 12.0


def test_layers_made_in_an_edit_have_weights():
    traced = trace_module(Increment(), tensor([[1.0, 2.0]]))
    with traced.graph.insert_exprs():
        layer = M.Linear(2, 2)
        M.init.normal_(layer.weight)
        kept = F.ones((2,)) * 2  # computed once: nothing in it changes
    assert layer.weight.shape == (2, 2)
    assert kept.tolist() == [2.0, 2.0]
    assert len(traced.graph.exprs().as_list()) == 3
