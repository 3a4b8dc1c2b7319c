"""Traced modules in Python's own pickles and in deep copies."""

import copy
import pickle

import numpy as np
import pytest
from megengine_graphs import NETS, inputs_of, leaves, traced

import megengine.functional as F
import megengine.module as M
from megengine.tensor import tensor
from megengine.traced_module import diff, lower, optimize, trace_module


def same(a, b, given) -> None:
    assert repr(a) == repr(b) and not diff(a, b)
    for x, y in zip(leaves(a(*given)), leaves(b(*given)), strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())


def pickled(module):
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
@pytest.mark.parametrize("name", NETS)
def test_every_net_and_its_forms(name, copied):
    module = traced(name)
    given = [tensor(x) for x in inputs_of(name)]
    for form in (module, module.flatten(), optimize(module, "all")):
        made = copied(form)
        same(form, made, given)
        for graph in made.graphs:
            graph.lint()
        assert [e.meta for g in made.graphs for e in g.exprs()] == [e.meta for g in form.graphs for e in g.exprs()]


def test_graphs_of_ops():
    ops = lower(traced("res_plain"))
    same(ops, pickled(ops), [tensor(x) for x in inputs_of("res_plain")])
    for made in (pickled(ops.graph), copy.deepcopy(ops.graph)):
        assert repr(made) == repr(ops.graph) and not diff(made, ops.graph)


class Shared(M.Module):
    def __init__(self):
        super().__init__()
        self.first = Inner()
        self.again, self.many = self.first, [Inner(), {"a": M.Linear(3, 3)}]

    def forward(self, x):
        y = self.again(self.first(x), scale=2) + self.many[0](x)
        return {"y": self.many[1]["a"](y), "x": [x * 2]}


class Inner(M.Module):
    def __init__(self):
        super().__init__()
        self.fc = M.Linear(3, 3)

    def forward(self, x, scale=1):
        return F.relu(self.fc(x)) * scale


def test_shared_modules_stay_shared_and_edits_of_the_copy_stay_there():
    x = tensor(np.ones((2, 3), np.float32))
    module = trace_module(Shared(), x)
    made = pickled(module)
    same(module, made, [x])
    assert made.first is made.again and len(made.first.graphs) == 2
    assert made.first.fc is not module.first.fc
    before = repr(module)
    graph = made.first.graphs[0]
    with graph.insert_exprs():
        graph.replace_node({graph.outputs[0]: F.exp(graph.outputs[0])})
    assert made.graph.undo() and repr(made) == before == repr(module)
    assert made.graph.redo() and repr(module) == before
    names = [n.id for g in (made.graph, *made.first.graphs) for n in g.nodes(recursive=False)]
    assert len(set(names)) == len(names)


def test_deep_copies_have_weights_of_their_own():
    x = tensor(np.ones((2, 3), np.float32))
    module = trace_module(Inner(), x)
    made = copy.deepcopy(module)
    made.fc.weight[...] = 0
    assert np.abs(module.fc.weight.numpy()).max() > 0
    assert made.fc is not module.fc


class Chain(M.Module):
    def forward(self, x):
        for _ in range(3000):
            x = x + 1
        return x


def test_long_graphs_do_not_nest_deep():
    module = trace_module(Chain(), tensor(np.zeros(1, np.float32)))
    assert repr(pickled(module)) == repr(copy.deepcopy(module)) == repr(module)
