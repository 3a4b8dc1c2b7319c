"""Structure edits: legal ones keep lint clean and results right, wrong ones are refused without effect."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import megengine.functional as F
from megengine.core.dtype import quantized
from megengine.core.errors import ArgumentError, GraphError, MegEngineError, NameInUseError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.tensor import tensor
from megengine.traced_module import InternalGraph, interpret, passes, record
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.editing.rewiring import replace_all_uses, set_attrs, set_input
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.ir.queries import applied

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
    relu = applied(graph, "relu")[0]
    new = graph.apply("relu6", relu.output, after=relu, name="clamp")
    replace_all_uses(graph, relu.output, new)
    graph.lint()
    assert new.users[0].op == "add"
    assert relu.output.users == [new.expr]
    assert run(graph).max() <= 7


@pytest.mark.parametrize(
    ("edit", "error", "match"),
    [
        (lambda g: g.rename(g.node("relu_out"), "add_out"), NameInUseError, "already names"),
        (
            lambda g: set_attrs(g, g.node("conv2d_out").expr, {"padding": (1, 1), "groups": 1}),
            ArgumentError,
            r"expected the form of the present padding=\(\(1, 1\), \(1, 1\)\), groups=1",
        ),
        (
            lambda g: g.node("conv2d_out").expr.set_arg("stride", 2),
            ArgumentError,
            r"expected the form of the present stride=\(1, 1\)",
        ),
        (lambda g: g.rename(g.node("relu_out"), "a b"), GraphError, "is not a name"),
        (lambda g: g.erase(g.node("relu_out").expr), GraphError, "still used by add_out"),
        (lambda g: g.erase(g.outputs[0].expr), GraphError, "still used by the graph's outputs"),
        (lambda g: replace_all_uses(g, g.node("relu_out"), g.inputs[0]), ShapeError, "expected equal"),
        (
            lambda g: replace_all_uses(g, g.node("conv2d_out"), g.node("add_out")),
            GraphError,
            "before 'add_out' is made",
        ),
        (lambda g: set_input(g, g.node("relu_out").expr, 0, g.inputs[0]), ShapeError, "changes its results"),
        (lambda g: set_input(g, g.node("relu_out").expr, 0, g.node("add_out")), GraphError, "made after"),
        (lambda g: set_attrs(g, g.node("conv2d_out").expr, {"stride": (2, 2)}), ShapeError, "changes its results"),
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


def dense_graph() -> InternalGraph:
    specs = [TensorSpec(shape, F32) for shape in ((2, 3), (2, 4), (3, 4))]
    return record(lambda a, b, w: (F.relu(F.matmul(a, w) + b), F.exp(a)), specs, input_names=["a", "b", "w"])


# edits that are impossible on graphs of ops -> what the message names
WRONG = {
    "an op that is none": (lambda g: g.apply("reluu", g.node("a")), "unknown op 'reluu'; did you mean 'relu'"),
    "too few operands": (lambda g: g.apply("add", g.node("a")), r"add\(a\): missing 1 required .* 'y'"),
    "too many operands": (lambda g: g.apply("relu", g.node("a"), g.node("b")), r"relu\(a, b\): takes 1"),
    "an unknown attribute": (
        lambda g: g.apply("softmax", g.node("a"), attrs={"axes": 1}),
        r"softmax\(a, axes=1\): got an unexpected keyword argument 'axes'",
    ),
    "a missing attribute": (lambda g: g.apply("softmax", g.node("a")), r"softmax\(a\): missing .* 'axis'"),
    "an attribute of another kind": (
        lambda g: g.apply("softmax", g.node("a"), attrs={"axis": "x"}),
        "softmax: axis is 'x'; expected an integer",
    ),
    "an axis outside": (
        lambda g: g.apply("softmax", g.node("a"), attrs={"axis": 5}),
        "softmax: axis 5 is out of range",
    ),
    "operands of other shapes": (
        lambda g: g.apply("add", g.node("a"), g.node("b")),
        r"add: shapes \(2, 3\) and \(2, 4\)",
    ),
    "operands of other dtypes": (lambda g: mixed(g, TensorSpec((2, 3), np.dtype(np.float64))), "float32 and float64"),
    "quantized and real operands": (
        lambda g: mixed(g, TensorSpec((2, 3), quantized("qint8", 0.1))),
        "dequantize it first",
    ),
    "other scales": (lambda g: mixed(g, TensorSpec((2, 4), F32)), "do not broadcast"),
    "a node of another graph": (lambda g: g.apply("relu", dense_graph().node("a")), "node a does not belong to graph"),
    "a number for a node": (lambda g: g.apply("relu", 3), "node 3 does not belong"),
    "a value before it is made": (
        lambda g: g.apply("relu", g.node("exp_out"), before=g.node("matmul_out").expr),
        "input 'exp_out' is made after",
    ),
    "attributes that the op lacks": (
        lambda g: set_attrs(g, g.node("relu_out").expr, {"axis": 1}),
        "relu: attributes are",
    ),
    "attributes that change the result": (
        lambda g: set_attrs(g, g.node("matmul_out").expr, {"transpose_a": True}),
        "matmul: inner sizes differ",
    ),
    "attributes of an input": (lambda g: set_attrs(g, g.node("a").expr, {"axis": 1}), "is a Input; expected a Apply"),
    "attributes of another graph's": (
        lambda g: set_attrs(g, dense_graph().node("relu_out").expr, {}),
        "relu_out = relu.* does not belong",
    ),
    "an input beyond the last": (lambda g: set_input(g, g.node("add_out").expr, 2, g.node("b")), "none of number 2"),
    "an input before the first": (lambda g: set_input(g, g.node("add_out").expr, -1, g.node("b")), "none of number -1"),
    "an input of an input": (lambda g: set_input(g, g.node("a").expr, 0, g.node("b")), "has 0 inputs"),
    "an expression of another graph": (
        lambda g: set_input(g, dense_graph().node("add_out").expr, 1, g.node("b")),
        "add_out = add.* does not belong",
    ),
    "a value of another shape for all": (lambda g: replace_all_uses(g, g.node("a"), g.node("b")), "'b' is float32"),
    "a later value for all": (
        lambda g: replace_all_uses(g, g.node("matmul_out"), g.node("relu_out")),
        "'add_out' uses 'matmul_out' before 'relu_out' is made",
    ),
    "a number for all": (lambda g: replace_all_uses(g, g.node("a"), 3), "node 3 does not belong"),
    "a list of replacements": (lambda g: g.replace_node([g.node("a")]), "got a list; expected a dict"),
    "an input without a spec": (
        lambda g: add_input(g, "z", (2, 3)),
        r"'z' has the spec \(2, 3\); expected a TensorSpec",
    ),
    "a constant that is no number": (lambda g: g.constant(object(), "odd"), "'odd' has elements of object"),
    "a constant that is a text": (lambda g: g.constant("text", "odd"), "'odd' has elements of <U4"),
    "outputs that are numbers": (lambda g: set_outputs(g, [3]), "node 3 does not belong"),
    "no outputs": (lambda g: set_outputs(g, []), r"got \[\]; expected one tensor node or more"),
    "erasing what is used": (lambda g: g.erase(g.node("a").expr), "'a' is still used by matmul_out, exp_out"),
    "erasing of another graph": (lambda g: g.erase(unused(dense_graph())), "neg_out = neg.* does not belong"),
    "erasing twice": (lambda g: erased_twice(g), "does not belong.*it was taken out of it"),
    "erasing a number": (lambda g: g.erase(3), "expression 3 does not belong"),
    "a name that is a number": (lambda g: g.rename(g.node("a"), 3), "rename: 'a' to 3; expected a text"),
    "a name that is none": (lambda g: g.rename(g.node("a"), None), "rename: 'a' to None"),
    "renaming a number": (lambda g: g.rename(3, "z"), "node 3 does not belong"),
    "calls among ops": (lambda g: g.insert_exprs().__enter__(), "is a graph of ops; graph.apply adds ops"),
    "a module among ops": (lambda g: g.replace_module(g.node("a"), 3), "a does not read a submodule"),
    "inputs by assignment": (
        lambda g: setattr(g.node("add_out").expr, "inputs", ()),
        "inputs of the Apply 'add_out' cannot be set; use replace_inputs",
    ),
    "users by assignment": (
        lambda g: setattr(g.node("add_out"), "users", ()),
        "users of the TensorNode 'add_out' cannot be set; use graph.replace_node",
    ),
    "a spec by assignment": (
        lambda g: setattr(g.node("add_out"), "spec", SPEC),
        "spec of the TensorNode 'add_out' cannot be set; use insert_exprs",
    ),
    "outputs by assignment": (
        lambda g: setattr(g, "outputs", ()),
        "outputs of the InternalGraph 'graph' cannot be set; use add_output_node",
    ),
    "attributes by assignment": (lambda g: put(g.node("matmul_out").expr.attrs, "transpose_a", True), "mappingproxy"),
}


def mixed(graph, spec):
    with graph.transaction():
        graph.apply("add", graph.node("a"), add_input(graph, "other", spec))


def unused(graph):
    return graph.apply("neg", graph.node("a")).expr


def erased_twice(graph):
    with graph.transaction():
        expr = unused(graph)
        graph.erase(expr)
        graph.erase(expr)


def put(mapping, key, value):
    mapping[key] = value


@pytest.mark.parametrize("name", WRONG)
def test_impossible_edits_of_ops_name_the_culprit_and_change_nothing(name):
    edit, message = WRONG[name]
    graph = dense_graph()
    before = repr(graph)
    with pytest.raises((MegEngineError, AttributeError, TypeError), match=message):
        edit(graph)
    assert repr(graph) == before
    assert {n.name for n in graph.nodes()} == set(graph._names)
    graph.lint()


def test_remove_dead_keeps_inputs():
    graph = small_graph()
    set_outputs(graph, [graph.node("conv2d_out")])
    assert remove_dead(graph) == 3
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
            replace_all_uses(graph, node, new)
        elif kind == 1:
            graph.rename(node, f"renamed_{choice}" if f"renamed_{choice}" not in graph._names else node.name)
        elif kind == 2:
            remove_dead(graph)
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


def test_a_batch_norm_that_divides_by_nothing_is_not_folded():
    w = tensor(np.ones((4, 3, 1, 1), np.float32))
    mean, variance = (tensor(np.full((1, 4, 1, 1), v, np.float32)) for v in (0, -1))
    one, none = (tensor(np.full((1, 4, 1, 1), v, np.float32)) for v in (1, 0))

    def net(x):
        return F.batch_norm(F.conv2d(x, w), mean, variance, one, none, training=False)

    graph = record(net, [SPEC], name="net")
    assert not passes.fold_batch_norm(graph)
