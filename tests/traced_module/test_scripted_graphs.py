"""Graphs as MegEngine's users script them: users before a new value, scales of whole blocks, inside names."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError
from megengine.tensor import tensor
from megengine.traced_module import optimize, trace_module
from megengine.traced_module.editing.rewiring import set_input
from megengine.traced_module.ir.queries import child_graphs

X = tensor(np.random.default_rng(3).standard_normal((1, 4, 6, 6)).astype(np.float32))


class Block(M.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.relu = M.Conv2d(4, 4, 3, padding=1), M.Conv2d(4, 4, 3, padding=1), M.ReLU()

    def forward(self, x):
        return self.b(self.relu(self.a(x) * 2.0)) * 0.5


@pytest.fixture
def flat():
    return trace_module(M.Sequential(Block(), Block()).eval(), X).flatten()


def test_scales_of_flattened_blocks_leave_no_multiplication(flat):
    folded = optimize(flat, "BackwardFoldScale")
    assert "__mul__" in str(flat.graph) and "__mul__" not in str(folded.graph)
    np.testing.assert_allclose(folded(X).numpy(), flat(X).numpy(), rtol=1e-5, atol=1e-6)


def test_unused_calls_before_the_new_value_stay_as_they_are(flat):
    graph = flat.graph
    second = graph.get_module_by_type(M.Conv2d).as_list()[1].expr
    call = graph.get_calls_of(M.Conv2d)[1]
    old = call.inputs[1]
    with graph.insert_exprs():
        unused = F.exp(F.relu(old))
        new = old + 1
    graph.replace_node({old: new})
    assert second is not None and call.inputs[1] is new and unused.expr.inputs[0].expr.inputs[0] is old
    graph.lint()


def test_needed_calls_before_the_new_value_are_an_error(flat):
    graph = flat.graph
    call = graph.get_calls_of(M.Conv2d)[1]
    old = call.inputs[1]
    with graph.insert_exprs():
        early = F.relu(old)
        late = old + early
    graph.replace_node({call.inputs[1]: late})
    graph.undo()
    with graph.insert_exprs():
        behind = graph.outputs[0] + 1
    with pytest.raises(GraphError, match="before .* is made; insert what makes"):
        graph.replace_node({old: behind})


def test_a_call_between_users_of_a_value_gets_those_behind_it(flat):
    graph = flat.graph
    first, second = graph.get_calls_of(M.Conv2d)[:2]
    old = first.inputs[1]
    set_input(graph, second, 1, old)
    with graph.insert_exprs(first):
        new = F.relu(old)
    graph.replace_node({old: new})
    assert first.inputs[1] is old and second.inputs[1] is new
    graph.lint()


def test_top_graph_holds_an_expression_and_graph_is_the_one_that_its_call_enters():
    model = trace_module(M.Sequential(Block(), M.ReLU()).eval(), X)
    graph, inner = model.graph, child_graphs(model.graph)[0]
    block, layer = graph.get_method_by_type("__call__", recursive=False)
    assert block.graph is inner and layer.graph is None  # of a layer of the package, as of a tensor's method
    assert inner.get_method_by_type("__mul__")[0].graph is None
    assert {e.top_graph for e in inner.exprs()} == {inner} == {n.top_graph for n in inner.nodes()}
    assert block.top_graph is graph is block.outputs[0].top_graph is inner.top_graph and graph.top_graph is None


def test_expressions_that_enter_no_graph_give_the_one_that_they_stand_in(flat):
    read = flat.graph.get_module_by_type(M.Conv2d)[0].expr
    assert read.graph is read.top_graph is flat.graph


def test_inside_names_of_graphs_can_be_read(flat):
    graph = flat.graph
    nodes, exprs = graph._total_ids
    assert nodes > max(n._id for n in graph.nodes()) and exprs > max(e._id for e in graph._exprs)
    assert graph.inputs[1]._name in graph._namespace
    assert graph.inputs[1]._qualname == graph.inputs[1].qualname
