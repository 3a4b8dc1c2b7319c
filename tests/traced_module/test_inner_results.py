"""Values inside submodules as outputs of a model, and cuts there: graphs and calls between get one more result."""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import traced_module as tm
from megengine.core.errors import GraphError, OptionError
from megengine.tensor import tensor
from megengine.traced_module.editing.extracting import extract
from megengine.traced_module.ir.expr import CallMethod
from megengine.traced_module.ir.queries import graphs_of
from tests.traced_module.test_paths import MODEL, X

VALUES: dict[int, list[np.ndarray]] = {}
MODEL.run([X], lambda node, value: VALUES.setdefault(id(node), []).append(value.numpy()))


def computed(node, i=0):
    """What a node was in a run of the model, the i-th time."""
    return VALUES[id(node)][i]


def check(model, start=MODEL):
    """Sound, and undone, done again, replayed, saved: always the same."""
    for graph in graphs_of(model):
        graph.lint()
    text, log = repr(model), model.edit_log
    steps = 0
    while model.graph.undo():
        steps += 1
    assert repr(model) == repr(start)
    for _ in range(steps):
        model.graph.redo()
    assert repr(model) == text
    again = start.clone()
    log.replay(again)
    assert repr(again) == text


def same(got, wanted):
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-6)


PLACES = {  # path -> (qualified node, which time)
    "blocks.1.fc_out": ("blocks.1.fc_out", 0),
    "blocks.0.fc_out": ("blocks.0.fc_out", 0),
    "again.fc_out": ("blocks.0.fc_out", 1),
    "again.relu_out": ("blocks.0.relu_out", 1),
    "blocks.2[0].fc_out": ("blocks.2[0].fc_out", 0),
    "blocks.2[1].relu_out": ("blocks.2[1].relu_out", 0),
    "blocks.2[1].x": ("blocks.2[1].x", 0),
    "again.x": ("blocks.0.x", 1),
}


@pytest.mark.parametrize("path", PLACES)
def test_an_inner_value_becomes_an_output(path, tmp_path):
    model = MODEL.clone()
    model.graph.add_output_node(path)
    name, i = PLACES[path]
    wanted = computed(MODEL.graph.node(name), i)
    mge.save(model, tmp_path / "net.mgt")
    mge.save(model, tmp_path / "net.tm")
    for form in (
        model,
        model.flatten(),
        tm.lower(model),
        mge.load(tmp_path / "net.mgt"),
        mge.load(tmp_path / "net.tm"),
    ):
        first, second = form(X)
        same(first, MODEL(X).numpy())
        same(second, wanted)
    check(model)


def test_a_node_of_a_shared_module_is_that_of_its_first_call():
    model = MODEL.clone()
    model.graph.add_output_node(model.graph.node("blocks.0.fc_out"))
    same(model(X)[1], computed(MODEL.graph.node("blocks.0.fc_out"), 0))


def test_another_call_is_chosen_by_the_call():
    model = MODEL.clone()
    graph = model.graph
    call = graph.node("again_out").expr
    node = graph.value_of(graph.node("blocks.0.fc_out"), through=call)
    assert node.expr is call and node.name == "again_fc_out"
    assert graph.value_of("again.fc_out") is node
    graph.add_output_node(graph.node("blocks.0.fc_out"), through=call)
    same(model(X)[1], computed(MODEL.graph.node("blocks.0.fc_out"), 1))
    check(model)


def test_every_call_gives_the_result_and_other_graphs_of_the_module_do_not():
    model = MODEL.clone()
    model.graph.value_of("blocks.0.fc_out")
    model.graph.value_of("blocks.2[1].fc_out")
    made = {e.name: len(e.outputs) for e in model.graph.exprs(recursive=False) if isinstance(e, CallMethod)}
    assert made == {
        "blocks_0_out": 2, "blocks_1_out": 1, "again_out": 2, "blocks_6_out": 1, "blocks_6_out_1": 2
    }  # fmt: skip
    check(model)


def test_values_that_are_results_already_are_used_as_they_are():
    model = MODEL.clone()
    before = repr(model)
    assert model.graph.value_of("blocks.1.relu_out") is model.graph.node("blocks_1_out")
    assert model.graph.value_of("blocks.1.x") is model.graph.node("blocks_0_out")
    assert repr(model) == before


def test_outputs_nest_as_they_are_given():
    model = MODEL.clone()
    graph = model.graph
    graph.reset_outputs({"a": graph.node("blocks.1.fc_out"), "b": [graph.outputs[0], "again.fc_out"]})
    out = model(X)
    same(out["a"], computed(MODEL.graph.node("blocks.1.fc_out")))
    same(out["b"][1], computed(MODEL.graph.node("blocks.0.fc_out"), 1))
    check(model)


class Deep(M.Module):
    """Three levels, a dict of results, and a call with another shape than the first."""

    def __init__(self):
        super().__init__()
        self.inner = Pair()

    def forward(self, x):
        return self.inner(x)["y"]


class Pair(M.Module):
    def __init__(self):
        super().__init__()
        self.half = Half()

    def forward(self, x):
        return {"y": self.half(x), "z": self.half(x[:1])}


class Half(M.Module):
    def forward(self, x):
        return F.exp(x * 2), None


class First(M.Module):
    def __init__(self):
        super().__init__()
        self.deep = Deep()

    def forward(self, x):
        return self.deep(x)[0] + 1


def test_values_come_through_several_levels_and_kinds_of_results():
    start = tm.trace_module(First(), X)
    model = start.clone()
    graph = model.graph
    graph.add_output_node("deep.inner.half.mul_out")
    same(model(X)[0], start(X).numpy())
    same(model(X)[1], X.numpy() * 2)
    check(model, start)
    calls = model.deep.inner.graph.get_method_by_type("__call__", recursive=False).as_list()
    assert [[n.shape for n in call.outputs] for call in calls] == [[(2, 4), (2, 4)], [(1, 4), (1, 4)]]
    out = model.deep.inner(X)
    assert list(out[0]) == ["y", "z"] and out[0]["y"][1] is None and len(out) == 2


def test_the_graph_of_a_submodule_gets_and_loses_results():
    model = MODEL.clone()
    inner = model.blocks.__dict__["0"].graph
    inner.add_output_node(inner.node("fc_out"))
    assert len(model.graph.node("again_out").expr.outputs) == 2
    same(model(X), MODEL(X).numpy())
    relu, fc = inner.outputs
    inner.reset_outputs({"fc": fc, "relu": relu})
    assert [n.name for n in model.graph.node("again_out").expr.outputs] == ["again_fc_out", "again_out"]
    same(model(X), MODEL(X).numpy())
    with pytest.raises(
        GraphError, match="Net.blocks.0 would no longer return what 'blocks_0_out' is, which is used by"
    ):
        inner.reset_outputs(fc)
    inner.reset_outputs(relu)
    same(model(X), MODEL(X).numpy())
    check(model)


def test_calls_with_hooks_give_it_too():
    model = MODEL.clone()
    model.graph.add_output_node("blocks.1.fc_out")
    seen = []
    model.blocks.__dict__["1"].register_forward_hook(lambda module, inputs, outputs: seen.append(outputs))
    same(model(X)[1], computed(MODEL.graph.node("blocks.1.fc_out")))
    assert len(seen[0]) == 2


# ---------------------------------------------------------------- cuts

CUTS = {
    "in and out of one block": (["blocks.1.fc_out"], ["blocks.1.relu_out"]),
    "from one block to another": (["blocks.1.fc_out"], ["again.fc_out"]),
    "from the second call of a shared one": (["again.fc_out"], ["blocks.2[1].fc_out", "again.relu_out"]),
    "from outside to inside": (["blocks_1_out"], ["again.fc_out"]),
    "from inside to outside": (["blocks.2[0].fc_out"], ["blocks_6_out_1"]),
    "between two calls of a shared one": (["blocks.0.fc_out"], ["again.fc_out"]),
    "two ends in one block": (["again_out", "blocks.2[1].fc_out"], ["blocks.2[1].relu_out", "blocks.2[0].fc_out"]),
}


def of_run(path):
    name, i = PLACES.get(path) or (path, int(path.startswith("again.")))
    return computed(MODEL.graph.node(name.replace("again.", "blocks.0.")), i)


@pytest.mark.parametrize("cut", CUTS)
def test_cuts_go_through_submodules(cut):
    inputs, outputs = CUTS[cut]
    model = MODEL.clone()
    extract(model.graph, inputs, outputs)
    for form in (model, model.flatten(), tm.lower(model)):
        found = form(*[tensor(of_run(path)) for path in inputs])
        for got, path in zip(found if len(outputs) > 1 else [found], outputs, strict=True):
            same(got, of_run(path))
    check(model)


def test_nodes_do_for_cuts_too():
    model = MODEL.clone()
    graph = model.graph
    extract(graph, [graph.node("blocks.1.fc_out")], [graph.node("blocks.1.table_a_out"), graph.outputs[0]])
    same(model(tensor(of_run("blocks.1.fc_out")))[1], MODEL(X).numpy())


def other():
    return tm.trace_module(First(), X).graph.outputs[0]


REFUSED = {
    "a value of another model": (lambda g: g.value_of(other()), GraphError, "stands in a graph of another model"),
    "no value": (lambda g: g.value_of(3), GraphError, "node 3 does not belong to graph 'Net'"),
    "an unknown path": (lambda g: g.value_of("blocks.1.fc_ot"), GraphError, "did you mean 'blocks.1.fc_out'"),
    "a layer": (lambda g: g.add_output_node("blocks.1.fc"), GraphError, "belong|module"),
    "through a layer": (
        lambda g: g.value_of("blocks.1.fc_out", through=g.node("blocks.1.fc_out").expr),
        GraphError,
        "enters no graph; give a call of a submodule",
    ),
    "through another submodule": (
        lambda g: g.value_of(g.node("blocks.1.fc_out"), through=g.node("again_out").expr),
        GraphError,
        "'blocks.1.fc_out' is not computed by graph 'Net' by way of %21",
    ),
    "from the graph of another submodule": (
        lambda g: g.node("blocks.1.fc").graph.add_output_node(g.node("blocks.0.fc_out")),
        GraphError,
        r"'blocks.0.fc_out' is not computed by graph 'Net_blocks_1'; it stands in the graph of Net\.blocks\.0",
    ),
    "a cut at a weight": (lambda g: extract(g, ["blocks.1.fc"], [g.outputs[0]]), GraphError, "part of the model"),
    "a cut that is not needed": (
        lambda g: extract(g, ["blocks.2[1].fc_out"], ["blocks.1.fc_out"]),
        GraphError,
        "is not computed from",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_brought_out_is_refused_and_nothing_changes(case):
    edit, kind, message = REFUSED[case]
    model = MODEL.clone()
    with pytest.raises((kind, OptionError), match=message):
        edit(model.graph)
    assert repr(model) == repr(MODEL) and not model.graph.undo()


def test_a_log_with_wrong_results_is_refused():
    model = MODEL.clone()
    model.graph.value_of("blocks.1.fc_out")
    for key, value, message in (
        ("was", ["x"], "the results of 'blocks_1_out'"),
        ("outputs", [], "is still used|one or more"),
        ("value", 3, "not made of its values|expected"),
    ):
        log = model.edit_log
        next(edit for edit in log.steps[0].edits if edit["do"] == "results")[key] = value
        fresh = MODEL.clone()
        with pytest.raises(GraphError, match=message):
            log.replay(fresh)
        assert repr(fresh) == repr(MODEL)
        next(edit for edit in log.steps[0].edits if edit["do"] == "results").pop(key)
        model = MODEL.clone()
        model.graph.value_of("blocks.1.fc_out")
