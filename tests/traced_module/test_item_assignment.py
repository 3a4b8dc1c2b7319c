"""`node[key] = value` while a graph is edited: what follows uses the new value, as it does of a tensor."""

import numpy as np
import pytest
from saved_content import content

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, MegEngineError
from megengine.tensor import DeferredValueError, tensor
from megengine.traced_module import EditLog, trace_module

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
Y = np.maximum(X, 0)  # what the graph has in the middle


class Net(M.Module):
    def forward(self, x):
        y = F.relu(x)
        return y * 2, y + 1


TRACED = trace_module(Net(), tensor(X))


def assigned(x, key, value):
    """The array after an assignment, by NumPy."""
    x = x.copy()
    x[key] = value
    return x


def made_and_replaced(graph, node):
    with graph.inserting_after(node):
        made = node + 0
        made[:, 0] = made[:, 1] * 3
        graph.replace_node({node: made})


def replaced_behind_the_block(graph, node):
    with graph.inserting_after(node):
        made = node + 0
        made[:, 0] = made[:, 1] * 3
    graph.replace_node({node: made})


def used_in_the_block(graph, node):
    with graph.inserting_after(node):
        made = node * 1
        made[:, 0] = made[:, 1] * 3
        graph.replace_node({node: F.concat([made[:, :1], made[:, 1:]], axis=1).reshape(made.shape)})


def what_stands_is_assigned(graph, node):
    with graph.inserting_after(node):
        node[:, 0] = node[:, 1] * 3


def of_several_the_last_counts(graph, node):
    with graph.inserting_after(node):
        node[:] = 5
        node[:, 1:] = F.maximum(graph.inputs[1][:, 1:], 0)
        node[:, 0] = node[:, 1] * 3


def no_place_is_given(graph, node):
    with graph.insert_exprs():
        made = node + 0
        made[:, 0] = made[:, 1] * 3
        node.replace_all_uses_with(made)


WAYS = [
    made_and_replaced,
    replaced_behind_the_block,
    used_in_the_block,
    what_stands_is_assigned,
    of_several_the_last_counts,
    no_place_is_given,
]


@pytest.mark.parametrize("edit", WAYS, ids=lambda f: f.__name__)
def test_what_follows_uses_the_assigned_value(edit, tmp_path):
    model, before = TRACED.clone(), content(TRACED)
    with model.graph.transaction():
        edit(model.graph, model.graph.node("relu_out"))
    model.graph.lint()
    y = assigned(Y, (slice(None), 0), Y[:, 1] * 3)
    for got, want in zip(model(tensor(X)), (y * 2, y + 1), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
    after = content(model)
    assert model.graph.undo() and content(model) == before
    assert model.graph.redo() and content(model) == after
    model.edit_log.save(tmp_path / "log")
    other = TRACED.clone()
    EditLog.load(tmp_path / "log").replay(other)
    assert content(other) == after


def test_an_assigned_value_becomes_an_output():
    for add in (False, True):
        model = TRACED.clone()
        graph, node = model.graph, model.graph.node("relu_out")
        with graph.inserting_after(node):
            made = node * 2
            made[0] = -1
        graph.add_output_node(made) if add else graph.reset_outputs({"y": made})
        result = model(tensor(X))
        np.testing.assert_array_equal((result[-1] if add else result["y"]).numpy(), assigned(Y * 2, 0, -1))


def test_an_input_is_assigned():
    model = TRACED.clone()
    with model.graph.insert_exprs():
        model.graph.inputs[1][:, :, 2:] = 0
    y = assigned(Y, (slice(None), slice(None), slice(2, None)), 0)
    np.testing.assert_array_equal(model(tensor(X))[1].numpy(), y + 1)


def test_what_is_in_front_of_an_assignment_keeps_the_value_before():
    model = TRACED.clone()
    graph, node = model.graph, model.graph.node("relu_out")
    with graph.inserting_after(graph.node("mul_out")):
        node[:] = 0
    double, more = model(tensor(X))
    np.testing.assert_array_equal(double.numpy(), Y * 2)
    np.testing.assert_array_equal(more.numpy(), np.ones_like(Y))


def test_a_call_gets_an_assigned_value_as_its_argument():
    model = TRACED.clone()
    graph, node = model.graph, model.graph.node("relu_out")
    with graph.inserting_after(node):
        made = node + 0
        made[:] = 3
    graph.node("mul_out").expr.set_arg(0, made)
    np.testing.assert_array_equal(model(tensor(X))[0].numpy(), Y * 3)


def test_what_stood_before_is_itself_in_a_later_insertion():
    model = TRACED.clone()
    graph, node = model.graph, model.graph.node("relu_out")
    with graph.inserting_after(node):
        node[:] = 0
    with graph.inserting_after(node):
        made = node + 1  # in front of the assignment
    graph.add_output_node(made)
    np.testing.assert_array_equal(model(tensor(X))[-1].numpy(), Y + 1)


def assigned_twice():
    graph = TRACED.clone().graph
    node = graph.node("mul_out")
    with graph.insert_exprs():
        made = node + 0
        made[0] = 0
        made[1] = 0
        graph.replace_node({node: made})
    return graph, made, *(expr.output for expr in graph.get_method_by_type("__setitem__"))


def test_a_value_between_two_assignments_is_itself():
    """No program holds it; who asks the graph for it means that value."""
    graph, made, first, second = assigned_twice()
    with graph.insert_exprs():
        assert F.relu(first).expr.inputs == [first]
        assert F.relu(made).expr.inputs == [second]


def test_of_two_assignments_the_last_that_is_there_counts():
    graph, made, first, second = assigned_twice()
    graph.replace_node({second: first})
    graph.compile()
    with graph.insert_exprs():
        assert F.exp(made).expr.inputs == [first]


def test_an_assignment_that_is_undone_counts_no_more():
    model = TRACED.clone()
    graph, node = model.graph, model.graph.node("relu_out")
    with graph.insert_exprs():
        made = node + 0
    with graph.insert_exprs():
        made[:] = 0
    assert graph.undo()
    graph.replace_node({node: made})
    np.testing.assert_array_equal(model(tensor(X))[1].numpy(), Y + 1)


def test_an_assignment_in_a_shared_submodule_holds_for_every_call():
    class Twice(M.Module):
        def __init__(self):
            super().__init__()
            self.part = Net()

        def forward(self, x):
            return self.part(self.part(x)[0])[1]

    model = trace_module(Twice(), tensor(X))
    node = model.graph.node("part.relu_out")
    with node.top_graph.inserting_after(node):
        node[:, 0] = 1
    y = assigned(np.maximum(assigned(Y, (slice(None), 0), 1) * 2, 0), (slice(None), 0), 1)
    np.testing.assert_allclose(model(tensor(X)).numpy(), y + 1, rtol=1e-6)


@pytest.mark.parametrize("value", ["number", "row"])
def test_items_are_chosen_by_a_mask(value):
    model = TRACED.clone()
    graph, node = model.graph, model.graph.node("relu_out")
    with graph.inserting_after(node):
        if value == "number":
            node[node > 0.5] = 7
        else:
            node[node[:, :, 0] > 0.5] = node[0, 0] - 1
    graph.lint()
    y = assigned(Y, Y > 0.5, 7) if value == "number" else assigned(Y, Y[:, :, 0] > 0.5, Y[0, 0] - 1)
    np.testing.assert_allclose(model(tensor(X))[1].numpy(), y + 1, rtol=1e-6)


def test_a_mask_that_fits_nothing_is_refused_where_it_is_used():
    model, before = TRACED.clone(), content(TRACED)
    graph, node = model.graph, model.graph.node("relu_out")
    with pytest.raises(MegEngineError, match="mask|index|shape"), graph.insert_exprs():
        node[node[:, :2] > 0] = 1
    assert content(model) == before


def test_what_depends_on_values_is_refused_with_what_does_not():
    model, before = TRACED.clone(), content(TRACED)
    graph, node = model.graph, model.graph.node("relu_out")
    with (
        pytest.raises(DeferredValueError, match=r"linspace gives depends on values.*F\.where.*-1 stands for"),
        graph.insert_exprs(),
    ):
        kept = node[node > 0]
        F.linspace(0, 1, kept.shape[0])
    for change in (lambda: node.set_value(node * 2), node.reset_zero):
        with pytest.raises(GraphError, match=r"'relu_out': it changes or gives .*node\[:\] ="), graph.insert_exprs():
            change()
    assert content(model) == before
