"""Differences of models: empty for copies, exact for edits, the same from both sides, safe to print."""

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from block_nets import BlockNet
from hypothesis import example, given, settings
from hypothesis import strategies as st
from megengine_graphs import NETS, traced

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import FileFormatError, GraphError
from megengine.core.spec import TensorSpec
from megengine.tensor import Parameter, tensor
from megengine.traced_module import InternalGraph, diff, lower, optimize, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.editing.rewiring import set_input
from megengine.traced_module.ir.queries import child_graphs

SHAPE = (2, 3)
UNARY, BINARY = ("relu", "sigmoid", "exp", "neg"), ("add", "mul", "sub")


def op_graph(choices: list[tuple[int, int, int]]) -> InternalGraph:
    """A graph of ops: each triple picks an op and two operands among the values so far."""
    g = InternalGraph("g")
    values = [add_input(g, "x", TensorSpec(SHAPE, np.dtype(np.float32))), add_input(g, "y", _spec())]
    for kind, i, j in choices:
        left, right = values[i % len(values)], values[j % len(values)]
        if kind % 8 == 7:
            values.append(g.constant(np.full(SHAPE, kind + i, np.float32), "weight"))
        elif kind % 2:
            values.append(g.apply(UNARY[kind % len(UNARY)], left))
        else:
            values.append(g.apply(BINARY[kind % len(BINARY)], left, right))
    set_outputs(g, values[-2:])
    return g


def _spec() -> TensorSpec:
    return TensorSpec(SHAPE, np.dtype(np.float32))


GRAPHS = st.lists(st.tuples(*[st.integers(0, 40)] * 3), min_size=1, max_size=25).map(op_graph)


def told(found) -> set[tuple]:
    """What a difference says, without texts."""
    return {(c.kind, c.element, c.old, c.new, c.what) for c in found.changes}


@settings(max_examples=60, deadline=None)
@given(GRAPHS)
def test_a_copy_does_not_differ(g):
    found = diff(g, g.clone())
    assert not found and found.to_text() == "no differences" and found.to_json()["equal"] is True


@settings(max_examples=60, deadline=None)
@given(GRAPHS, st.data())
def test_new_names_are_only_new_names(g, data):
    other = g.clone()
    names = [n.name for n in g.nodes()]
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    for i, name in enumerate(chosen):
        other.rename(other.node(name), f"new_{i}")
    found = diff(g, other)
    assert {(c.kind, c.old, c.new) for c in found.changes} == {
        ("renamed", name, f"new_{i}") for i, name in enumerate(chosen)
    }


class Named(M.Module):
    """Modules in a module, under a name that can be chosen."""

    def __init__(self, name, body):
        super().__init__()
        self.place = name
        setattr(self, name, body)

    def forward(self, x):
        return getattr(self, self.place)(x) * 2


@pytest.mark.parametrize("name", ["b", "stem", "a_longer_name"])
def test_the_inside_of_a_renamed_module_is_not_different(name):
    body = Named("inner", Named("part", M.Linear(3, 3)))
    x = tensor(np.zeros(SHAPE, np.float32))
    found = diff(*[trace_module(Named(place, body), x) for place in ("body", name)])
    assert {(c.kind, c.where) for c in found.changes} == {("renamed", "")}
    assert ("renamed", "module", "body", name, "") in told(found)


@settings(max_examples=60, deadline=None)
@given(GRAPHS, st.data())
def test_one_edit_is_told_as_what_it_is(g, data):
    other = g.clone()
    edit = data.draw(st.sampled_from(["insert", "rewire", "output", "dead"]))
    if edit == "insert":  # an op that the graph has nowhere: a copy of its neighbour could be either of them
        name = data.draw(st.sampled_from([n.name for n in g.nodes() if n.users or n in g.outputs]))
        node = other.node(name)
        behind = other.inputs[-1].expr if node in other.inputs else node.expr
        other.replace_node({node: other.apply("tanh", node, name="inserted", after=behind)})
        expected = {("added", "expr", None, "inserted", "")}
        expected |= {("rewired", "expr", user, user, what) for user, what in _inputs(g, name)}
        expected |= {("rewired", "output", str(i), str(i), "") for i, n in enumerate(g.outputs) if n.name == name}
        assert told(diff(g, other)) == expected
    elif edit == "dead":
        other.apply("tanh", other.inputs[0], name="dead")
        assert told(diff(g, other)) == {("added", "expr", None, "dead", "")}
    elif edit == "output":
        node = data.draw(st.sampled_from(list(other.nodes())))
        set_outputs(other, [node, other.outputs[1]])
        want = set() if node.name == g.outputs[0].name else {("rewired", "output", "0", "0", "")}
        assert told(diff(g, other)) == want
    else:
        _rewire(g, other, data)


def _inputs(g: InternalGraph, name: str) -> list[tuple[str, str]]:
    return [(e.name, f"input {i}") for e in g.exprs() for i, n in enumerate(e.inputs) if n.name == name]


def _rewire(g: InternalGraph, other: InternalGraph, data) -> None:
    users = [e for e in other.exprs() if e.inputs]
    if not users:
        return
    expr = data.draw(st.sampled_from(users))
    index = data.draw(st.integers(0, len(expr.inputs) - 1))
    earlier = [n for n in other.nodes() if n.expr._key < expr._key]
    node, old = data.draw(st.sampled_from(earlier)), expr.inputs[index]
    set_input(other, expr, index, node)
    want = set() if node is old else {("rewired", "expr", expr.name, expr.name, f"input {index}")}
    assert told(diff(g, other)) == want


@settings(max_examples=60, deadline=None)
@given(GRAPHS, GRAPHS)
@example(  # a scale is gone behind an op of one operand, a constant that has another value
    op_graph([(7, 1, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0), (1, 38, 0)]),
    op_graph([(0, 0, 0), (0, 0, 0), (7, 0, 0), (0, 0, 0), (1, 0, 0), (22, 4, 6)]),
)
def test_seen_from_the_other_side_it_is_the_same(a, b):
    there, back = diff(a, b), diff(b, a)
    assert {c.reversed() for c in there.changes} == set(back.changes)
    assert len(there.changes) == len(back.changes)
    json.dumps(there.to_json(), allow_nan=False)
    ET.fromstring(there.to_svg())


@pytest.mark.parametrize("name", NETS)
def test_models_of_calls(name):
    m = traced(name)
    assert not diff(m, m.clone()) and not diff(m.graph, m.clone().graph) and not diff(lower(m), lower(m.clone()))
    again = diff(m, traced(name))  # with new random weights
    assert {c.what for c in again.changes} == {"values"} and {c.element for c in again.changes} == {"parameter"}


# ---------------------------------------------------------------- single kinds of change


class Net(BlockNet):
    def end(self, x):
        return self.fc(F.flatten(x, 1))


def net():
    return trace_module(Net().eval(), tensor(np.zeros((1, 3, 6, 6), np.float32)))


def changes(a, b, *kinds) -> list[tuple]:
    return [(c.kind, c.path, c.what, c.before, c.after) for c in diff(a, b).changes if not kinds or c.kind in kinds]


def test_an_argument_of_a_call():
    a = net()
    b = a.clone()
    b.graph.get_method_by_type("__mul__").as_unique().set_arg("value", 3.0)
    (change,) = diff(a, b).changes
    assert (change.kind, change.name, change.before, change.after) == ("changed", "mul_out", "2.0", "3.0")
    assert change.reversed().before == "3.0"


def test_an_attribute_of_an_op_and_a_shape_that_follows():
    def graph(axis):
        g = InternalGraph("g")
        x = add_input(g, "x", TensorSpec((2, 3, 4), np.dtype(np.float32)))
        y = g.apply("softmax", x, attrs={"axis": axis}, name="y")
        set_outputs(g, [g.apply("relu", y, name="z")])
        return g

    assert changes(graph(1), graph(2)) == [("changed", "y", "axis", "1", "2")]
    small = InternalGraph("g")
    x = add_input(small, "x", TensorSpec((2, 3, 5), np.dtype(np.float32)))
    set_outputs(small, [small.apply("relu", small.apply("softmax", x, attrs={"axis": 1}, name="y"), name="z")])
    assert changes(graph(1), small) == [
        ("changed", "x", "shape", "(2, 3, 4)", "(2, 3, 5)"),
        ("result", "y", "shape", "(2, 3, 4)", "(2, 3, 5)"),
        ("result", "z", "shape", "(2, 3, 4)", "(2, 3, 5)"),
    ]


def test_a_call_inside_a_submodule():
    a = net()
    b = a.clone()
    graph = child_graphs(b.graph)[1]
    relu = graph.get_function_by_type(F.relu, recursive=False).as_unique()
    with graph.insert_exprs():
        graph.replace_node({relu.output: F.sigmoid(relu.output)})
    assert [(c.kind, c.where, c.name) for c in diff(a, b).changes] == [
        ("rewired", "blocks.1", "add_out"),
        ("added", "blocks.1", "sigmoid_out"),
    ]


def test_weights_hyperparameters_and_layers():
    a = net()
    b = a.clone()
    old = a.stem
    new = M.Conv2d(3, 4, 1)
    weight = old.weight.numpy().copy()
    weight[1, 2] += 0.5
    new.weight, new.bias, new.padding = Parameter(weight), old.bias, (0, 0)
    b.graph.replace_module(b.graph.get_calls_of(M.Conv2d).as_list()[0].inputs[0], new.eval())
    (change,) = [c for c in diff(a, b).changes if c.element == "parameter"]
    largest = max(np.abs(weight).max(), np.abs(old.weight.numpy()).max())
    assert (change.path, change.what) == ("stem.weight", "values") and str(change.after).startswith("1 of 12 values")
    assert change.distance == pytest.approx(0.5, rel=1e-6) and change.relative == pytest.approx(0.5 / largest, rel=1e-6)
    assert "stem.weight" not in str(diff(a, a.clone()))
    fused = diff(a, optimize(a))
    assert [(c.kind, c.what, c.path) for c in fused.changes if c.where == "blocks.0" and c.element == "expr"] == [
        ("changed", "folded", "blocks.0.conv_out")
    ]


def test_values_that_are_not_numbers():
    def graph(*values):
        g = InternalGraph("g")
        c = g.constant(np.array(values, np.float32), "c")
        set_outputs(g, [g.apply("relu", c, name="y")])
        return g

    nan, inf = float("nan"), float("inf")
    assert not diff(graph(nan, inf), graph(nan, inf))
    found = diff(graph(1.0, nan), graph(1.0, 2.0))
    assert found.changes[0].distance == inf and found.to_json()["changes"][0]["distance"] == "inf"
    zero = diff(graph(0.0), graph(-0.0)).changes[0]
    assert zero.distance == 0 and "sign" in (zero.after or "")
    assert diff(graph(1.0), graph(1.0, 2.0)).changes[0].what == "shape"


def test_what_moved_and_results():
    def graph(*order):
        g = InternalGraph("g")
        x = add_input(g, "x", _spec())
        made = {op: g.apply(op, x, name=op) for op in order}
        set_outputs(g, [made["relu"], made["exp"]])
        return g

    assert [c.kind for c in diff(graph("relu", "exp"), graph("exp", "relu")).changes] == ["moved"]
    b = graph("relu", "exp")
    set_outputs(b, [b.node("exp")])
    assert [(c.kind, c.element, c.old) for c in diff(graph("relu", "exp"), b).changes] == [
        ("rewired", "output", "0"),
        ("removed", "output", "1"),
    ]


def test_a_module_under_another_name():
    class Named(M.Module):
        def __init__(self, name):
            super().__init__()
            layer = M.Linear(3, 3)
            layer.weight = Parameter(np.ones((3, 3), np.float32))
            setattr(self, name, layer)
            self.key = name

        def forward(self, x):
            return getattr(self, self.key)(x)

    a, b = (trace_module(Named(n).eval(), tensor(np.zeros(SHAPE, np.float32))) for n in ("first", "second"))
    kinds = {c.kind for c in diff(a, b).changes}
    assert kinds == {"renamed"}
    assert ("renamed", "module", "first", "second", "") in told(diff(a, b))


# ---------------------------------------------------------------- size, output, wrong use


def test_long_chains_need_no_recursion():
    def chain(extra):
        g = InternalGraph("g")
        value = add_input(g, "x", _spec())
        for i in range(3000):
            value = g.apply("relu", value, name=f"r{i}")
            if i == extra:
                value = g.apply("relu", value, name="inserted")
        set_outputs(g, [value])
        return g

    assert told(diff(chain(-1), chain(1500))) == {
        ("added", "expr", None, "inserted", ""),
        ("rewired", "expr", "r1501", "r1501", "input 0"),
    }


def test_pictures_have_the_colours_of_the_changes(tmp_path):
    a = net()
    b = a.clone()
    with b.graph.insert_exprs():
        node = b.graph.outputs[0]
        b.graph.replace_node({node: F.exp(node)})
    picture = diff(a, b).to_svg()
    ET.fromstring(picture)
    assert picture.count("#cdeccf") == 2 and picture.count("#f8d0cf") == 1  # one added, none removed, and the legend
    assert diff(b, a).to_svg().count("#f8d0cf") == 2
    for suffix in (".svg", ".html", ".json", ".txt"):
        diff(a, b).to_file(tmp_path / f"d{suffix}")
    assert json.loads((tmp_path / "d.json").read_text())["counts"] == {"added": 1, "rewired": 1}
    with pytest.raises(FileFormatError, match=r"cannot be written as '.pdf'; expected .svg"):
        diff(a, b).to_file(tmp_path / "d.pdf")
    assert not (tmp_path / "d.pdf").exists()


def test_hostile_names_do_nothing():
    def graph(text):
        g = InternalGraph("<script>")
        x = add_input(g, "x", _spec())
        y = g.apply("relu", x, name="y", meta={"module": text})
        y._name = text  # as a damaged file could have it
        g._outputs = (y,)
        return g

    bad = "</title><script>alert('\"')</script>\x1b[31m\n\u202e"
    found = diff(graph("y"), graph(bad))
    for text in (found.to_svg(), found.to_html()):
        assert "<script" not in text and "\x1b" not in text
    ET.fromstring(found.to_svg())
    assert "\x1b" not in found.to_text() and "\u202e" not in found.to_text() and found.to_text().count("\n") == 3


def test_wrong_use_is_refused():
    a = net()
    with pytest.raises(GraphError, match="expected a TracedModule or an InternalGraph, got Conv2d"):
        diff(a, a.stem)
    with pytest.raises(GraphError, match="give two of one kind"):
        diff(a, a.graph)
    with pytest.raises(GraphError, match="`lower` the one of calls"):
        diff(a, lower(a))
    with pytest.raises(GraphError, match="unknown kind 'addde'; expected one of added"):
        diff(a, a).of_kind("addde")


def test_dtypes_among_arguments_are_named():
    class Cast(M.Module):
        def __init__(self, dtype):
            super().__init__()
            self.dtype = dtype

        def forward(self, x):
            return x.astype(self.dtype)

    x = tensor(np.zeros((1, 3), np.float32))
    made = [trace_module(Cast(dtype), x) for dtype in ("float32", np.int32, np.dtype("float16"))]
    assert "astype_out dtype: 'float32' -> 'int32'" in diff(made[0], made[1]).to_text()
    assert "astype_out dtype: 'int32' -> 'float16'" in diff(made[1], made[2]).to_text()
