"""Structure edits: legal ones keep lint clean and results right, wrong ones are refused without effect."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import megengine.functional as F
from megengine.core.errors import GraphError, NameInUseError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.tensor import tensor
from megengine.traced_module import InternalGraph, interpret, record

F32 = np.dtype(np.float32)
SPEC = TensorSpec((1, 3, 6, 6), F32)


def small_graph() -> InternalGraph:
    w = tensor(np.random.default_rng(0).standard_normal((4, 3, 3, 3)))
    return record(lambda x: F.relu(F.conv2d(x, w, padding=1)) + 1, [SPEC], name="net")


def run(graph):
    x = np.random.default_rng(1).standard_normal(SPEC.shape).astype(np.float32)
    return interpret(graph, [x])[0].numpy()


def test_capture_computes_nothing_and_equals_the_function():
    graph = small_graph()
    graph.lint()
    assert [e.op for e in graph.exprs() if e.kind == "Apply"] == ["conv2d", "relu", "add"]
    x = np.random.default_rng(1).standard_normal(SPEC.shape).astype(np.float32)
    w = graph.exprs()[1].value
    np.testing.assert_array_equal(run(graph), (F.relu(F.conv2d(tensor(x), w, padding=1)) + 1).numpy())


def test_asking_for_a_value_while_recording_is_an_error():
    with pytest.raises(RuntimeError, match="value of float32.* is not known while a graph is being recorded"):
        record(lambda x: x * float(x.sum()), [SPEC])


def test_insert_and_replace():
    graph = small_graph()
    relu = graph.get_apply_by_type("relu")[0]
    new = graph.apply("relu6", relu.output, after=relu, name="clamp")
    graph.replace_all_uses(relu.output, new)
    graph.lint()
    assert new.users[0].op == "add"
    assert relu.output.users == (new.expr,)
    assert run(graph).max() <= 7


@pytest.mark.parametrize(
    ("edit", "error", "match"),
    [
        (lambda g: g.rename(g.node("relu_out"), "add_out"), NameInUseError, "already names"),
        (lambda g: g.rename(g.node("relu_out"), "a b"), GraphError, "is not a name"),
        (lambda g: g.erase(g.node("relu_out").expr), GraphError, "still used by add_out"),
        (lambda g: g.erase(g.outputs[0].expr), GraphError, "still used by the graph's outputs"),
        (lambda g: g.replace_all_uses(g.node("relu_out"), g.inputs[0]), ShapeError, "expected equal"),
        (lambda g: g.replace_all_uses(g.node("conv2d_out"), g.node("add_out")), GraphError, "before 'add_out' is made"),
        (lambda g: g.set_input(g.node("relu_out").expr, 0, g.inputs[0]), ShapeError, "changes its results"),
        (lambda g: g.set_input(g.node("relu_out").expr, 0, g.node("add_out")), GraphError, "made after"),
        (lambda g: g.set_attrs(g.node("conv2d_out").expr, {"stride": (2, 2)}), ShapeError, "changes its results"),
        (
            lambda g: g.apply("matmul", *g.inputs * 2, attrs={"transpose_a": 0, "transpose_b": 0, "x": 1}),
            TypeError,
            "x",
        ),
        (lambda g: g.apply("conv", g.inputs[0]), ValueError, "unknown op 'conv'; did you mean"),
        (lambda g: g.apply("relu", small_graph().inputs[0]), GraphError, "does not belong"),
        (lambda g: g.node("relu_ou"), GraphError, "did you mean 'relu_out'"),
    ],
)
def test_wrong_edits_are_refused_without_effect(edit, error, match):
    graph = small_graph()
    before = repr(graph)
    with pytest.raises(error, match=match):
        edit(graph)
    assert repr(graph) == before
    graph.lint()


def test_remove_dead_keeps_inputs():
    graph = small_graph()
    graph.set_outputs([graph.node("conv2d_out")])
    assert graph.remove_dead() == 3
    assert len(graph.inputs) == 1
    graph.lint()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=12))
def test_random_edits_keep_lint_clean(edits):
    graph = small_graph()
    for kind, choice in edits:
        nodes = graph.nodes()
        node = nodes[choice % len(nodes)]
        if kind == 0:
            new = graph.apply("neg", node, after=node.expr)
            graph.replace_all_uses(node, new)
        elif kind == 1:
            graph.rename(node, f"renamed_{choice}" if f"renamed_{choice}" not in graph._names else node.name)
        elif kind == 2:
            graph.remove_dead()
        else:
            graph = graph.clone()
        graph.lint()
    assert run(graph).shape == (1, 4, 6, 6)


def test_item_assignment_is_recorded():
    def function(x):
        y = x * 2
        y[:, 0] = 0
        return y + 1

    graph = record(function, [SPEC])
    x = np.random.default_rng(0).standard_normal(SPEC.shape).astype(np.float32)
    np.testing.assert_array_equal(interpret(graph, [x])[0].numpy(), function(tensor(x)).numpy())
