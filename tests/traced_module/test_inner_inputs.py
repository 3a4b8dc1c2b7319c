"""Inputs of submodules: calls get them from inputs of the graphs around, wherever the graph is called."""

import numpy as np
import pytest
from saved_content import content

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError
from megengine.tensor import tensor
from megengine.traced_module import EditLog, trace_module

X = tensor(np.random.default_rng(0).standard_normal((1, 4)).astype(np.float32))


class Inner(M.Module):
    def __init__(self):
        super().__init__()
        self.fc = M.Linear(4, 4)

    def forward(self, x, *, twice=False):
        x = self.fc(x)
        return x + x if twice else F.relu(x)


class Block(M.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(self.inner(x))


class Outer(M.Module):
    def __init__(self):
        super().__init__()
        self.block, self.other = Block(), Inner()

    def forward(self, x):
        return self.other(self.block(x), twice=True)


TRACED = trace_module(Outer(), X)


@pytest.fixture
def model():
    return TRACED.clone()


def with_gain(model):
    """The inner results are multiplied by a new input."""
    graph = model.block.inner.graph
    gain = graph.add_input_node((1, 4), name="gain")
    with graph.insert_exprs():
        graph.replace_node({graph.outputs[0]: graph.outputs[0] * gain})


@pytest.mark.parametrize("form", [".mgt", ".tm"])
def test_an_input_of_a_submodule_comes_from_the_outermost_graph(model, form, tmp_path):
    before, gain = content(model), tensor(np.array([[0, 1, 2, -1]], np.float32))
    with_gain(model)
    model.graph.lint()
    assert [n.name for n in model.graph.inputs] == ["self", "x", "gain"]
    assert [call.args[2].name for call in model.block.graph.get_method_by_type("__call__", recursive=False)] == [
        "gain"
    ] * 2
    inner = TRACED.block.inner
    want = TRACED.other(inner(inner(X) * gain) * gain, twice=True).numpy()
    np.testing.assert_allclose(model(X, gain).numpy(), want, rtol=1e-5, atol=1e-6)
    after = content(model)
    model.edit_log.save(tmp_path / "log")
    other = TRACED.clone()
    EditLog.load(tmp_path / "log").replay(other)
    assert content(other) == after
    mge.save(model, tmp_path / f"net{form}")
    np.testing.assert_allclose(mge.load(tmp_path / f"net{form}")(X, gain).numpy(), want, rtol=1e-5, atol=1e-6)
    while model.graph.undo():
        pass
    assert content(model) == before


def test_a_submodule_can_take_other_inputs(model):
    graph = model.block.inner.graph
    with graph.transaction():
        zero = graph.constant(np.zeros((1, 4), np.float32), before=graph.get_module_by_type(M.Linear)[0].expr)
        graph.replace_node({graph.inputs[1]: zero})
        (new,) = graph.reset_inputs(X)
        graph.replace_node({zero: new})
    model.graph.compile()
    model.graph.lint()
    assert [n.name for n in model.graph.inputs] == ["self", "x", "args"]
    np.testing.assert_allclose(model(X, X).numpy(), TRACED.other(TRACED.block.inner(X), twice=True).numpy(), rtol=1e-5)


def test_two_graphs_of_one_module_cannot_have_calls_of_one_form():
    class Summed(M.Module):
        def forward(self, *values):
            return sum(values[1:], F.relu(values[0]))

    class Both(M.Module):
        def __init__(self):
            super().__init__()
            self.summed = Summed()

        def forward(self, x):
            return self.summed(self.summed(x), x)

    model = trace_module(Both(), X)
    before = content(model)
    with pytest.raises(GraphError, match="has another graph for calls of that form; flatten the module first"):
        model.summed.graphs[0].add_input_node((1, 4))
    assert content(model) == before
    model(X)


def test_inputs_that_were_added_are_given_by_name(tmp_path):
    """In any order, in files and copies too; names that are not those of the rest are refused."""

    class Net(M.Module):
        def forward(self, x):
            return x * 2

    x, y, z = (np.array([value], np.float32) for value in (1.0, 10.0, 100.0))
    model = trace_module(Net(), tensor(x))
    graph = model.graph
    for name, factor in (("bias", 1), ("offset", 2)):
        made = graph.add_input_node((1,), "float32", name)
        with graph.insert_exprs():
            graph.replace_node({graph.outputs[0]: graph.outputs[0] + made * factor})
    graph.rename(graph.node("offset"), "shift")
    mge.save(model, tmp_path / "net.mgt")
    for each in (model, model.clone(), mge.load(tmp_path / "net.mgt")):
        given = {"shift": tensor(z), "bias": tensor(y)}
        for result in (
            each(tensor(x), **given),
            each(x=tensor(x), **given),
            each(tensor(x), tensor(y), shift=tensor(z)),
        ):
            assert result.item() == 212
        for wrong in ({"bias": tensor(y)}, {**given, "x": tensor(x)}, {"bias": tensor(y), "offset": tensor(z)}):
            with pytest.raises(GraphError, match=r"it knows \(x, bias, shift\)"):
                each(tensor(x), **wrong)
