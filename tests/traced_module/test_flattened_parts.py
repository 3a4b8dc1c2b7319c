"""Graphs of submodules that a flattened module no longer calls; and lowering, which leaves modules as they are."""

import copy
import logging
import pickle

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.tensor import tensor
from megengine.traced_module import TracedModule, lower, trace_module
from megengine.traced_module.ir.queries import applied


class Inner(M.Module):
    def __init__(self):
        super().__init__()
        self.fc = M.Linear(4, 4)

    def forward(self, x, twice=False):
        y = F.relu(self.fc(x))
        return y + y if twice else y


class Outer(M.Module):
    def __init__(self):
        super().__init__()
        self.first = Inner()
        self.again, self.other = self.first, Inner()

    def forward(self, x):
        return self.first(x) + self.again(x, twice=True) + self.other(x)


x = tensor(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))
MODEL = trace_module(Outer(), x)


def through(suffix: str):
    def saved(model: TracedModule, folder):
        mge.save(model, folder / f"net{suffix}")
        return mge.load(folder / f"net{suffix}")

    return saved


COPIES = {
    "itself": lambda model, folder: model,
    "clone": lambda model, folder: model.clone(),
    ".mgt": through(".mgt"),
    ".tm": through(".tm"),
    "pickle": lambda model, folder: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, folder: copy.deepcopy(model),
    "flattened again": lambda model, folder: model.flatten(),
}


@pytest.mark.parametrize("how", COPIES)
def test_uncalled_graphs_are_edited_in_one_history_and_can_be_called(how, tmp_path):
    model = COPIES[how](MODEL.flatten(), tmp_path)
    wanted, part = model(x).numpy(), model.other(x).numpy()
    graphs = (model.graph, *model.first.graphs, model.other.graph)
    assert model.first is model.again and len(model.first.graphs) == 2
    exprs = [e.id for g in graphs for e in g.exprs(recursive=False)]
    assert len(set(exprs)) == len(exprs)
    edits = len(model.edit_log)
    inner = model.other.graph
    with inner.insert_exprs():
        inner.replace_node({inner.outputs[0]: F.exp(inner.outputs[0])})
    for graph in graphs:
        graph.lint()
    np.testing.assert_allclose(model.other(x).numpy(), np.exp(part), rtol=1e-6)
    np.testing.assert_array_equal(model(x).numpy(), wanted)
    assert len(model.edit_log) == edits + 1
    assert model.graph.undo()
    np.testing.assert_array_equal(model.other(x).numpy(), part)
    with model.graph.insert_exprs():
        called = model.graph.inputs[0].other(model.graph.outputs[0])
        model.graph.replace_node({model.graph.outputs[0]: called})
    model.graph.lint()
    np.testing.assert_array_equal(model(x).numpy(), model.other(tensor(wanted)).numpy())
    mge.save(model, tmp_path / "edited.mgt")
    assert repr(mge.load(tmp_path / "edited.mgt")) == repr(model)


class Trained(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = M.Conv2d(3, 4, 3), M.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


@pytest.fixture
def warnings(monkeypatch):
    found = []
    monkeypatch.setattr(
        logging.getLogger("megengine.traced_module.tracing.record"), "warning", lambda text, *rest: found.append(text)
    )
    return found


def test_lowering_a_batch_norm_in_training_mode_leaves_it_alone_and_tells(warnings, tmp_path):
    net = Trained()
    given = tensor(np.random.default_rng(1).standard_normal((2, 3, 6, 6)).astype(np.float32))
    model = trace_module(net, given)
    before = {name: t.numpy().copy() for name, t in net.named_tensors()}
    ops = lower(model)
    assert applied(ops.graph, "batch_norm_training").as_count() == 1
    for name, t in net.named_tensors():
        np.testing.assert_array_equal(t.numpy(), before[name])
    assert len(warnings) == 1 and "norm.running_mean, norm.running_var" in warnings[0] and "call eval()" in warnings[0]
    for suffix in (".mgt", ".tm"):
        mge.save(model, tmp_path / f"net{suffix}")
    wanted = net(given).numpy()
    np.testing.assert_allclose(ops(given).numpy(), wanted, rtol=1e-5, atol=1e-6)
    after = dict(net.named_tensors())["norm.running_mean"].numpy()
    assert not np.array_equal(after, before["norm.running_mean"])


def test_lowering_in_evaluation_says_nothing(warnings):
    lower(trace_module(Trained().eval(), tensor(np.zeros((2, 3, 6, 6), np.float32))))
    assert warnings == []
