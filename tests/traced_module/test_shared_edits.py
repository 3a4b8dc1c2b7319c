"""Edits of what several calls share, and observers put in by hand."""

import numpy as np
import pytest
from saved_content import content

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, ShapeError
from megengine.quantization import FakeQuantize, MinMaxObserver
from megengine.traced_module import trace_module

RNG = np.random.default_rng(2)
X, Y = (mge.tensor(RNG.standard_normal((2, 4)).astype(np.float32)) for _ in range(2))


class Tower(M.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = M.Linear(4, 6), M.Linear(6, 3)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))


class Pair(M.Module):
    """Two pictures through one network, once from a submodule that holds it too."""

    def __init__(self):
        super().__init__()
        self.tower = Tower()
        self.second = M.Sequential(self.tower)

    def forward(self, a, b):
        return F.abs(self.tower(a) - self.tower(b)) + self.second(b)


def test_a_shared_head_gets_another_width_at_every_call():
    pair = Pair()
    traced = trace_module(pair, X, Y)
    before = traced(X, Y).numpy()
    head = M.Linear(6, 5)
    traced.tower.head = head
    traced.graph.lint()
    assert traced.graph.outputs[0].shape == (2, 5)
    pair.tower.head = head
    np.testing.assert_array_equal(traced(X, Y).numpy(), pair(X, Y).numpy())
    assert traced.graph.undo()
    traced.graph.lint()
    np.testing.assert_array_equal(traced(X, Y).numpy(), before)


def test_a_shared_head_that_fits_no_call_is_refused():
    traced = trace_module(Pair(), X, Y)
    text = repr(traced)
    with pytest.raises(ShapeError, match="head = Linear of Pair.tower"):
        traced.tower.head = M.Linear(5, 5)
    traced.graph.lint()
    assert repr(traced) == text


def test_observers_and_fake_quantizers_are_layers(tmp_path):
    traced = trace_module(Tower(), X)
    graph, seen = traced.graph, MinMaxObserver()
    seen(X)
    with graph.insert_exprs():
        own, node = graph.inputs[0], graph.node("relu_out")
        own.observer, own.fake = MinMaxObserver(), FakeQuantize("qint8")
        graph.replace_node({node: own.fake(own.observer(node), seen.get_qparams())})
    graph.lint()
    wanted = np.maximum(traced.body(X).numpy(), 0)
    got = traced(X).numpy()
    assert traced.observer.max_val.item() == wanted.max()
    mge.save(traced, tmp_path / "a.mgt")
    read = mge.load(tmp_path / "a.mgt")
    read.graph.lint()
    for model in (traced.clone(), read):
        np.testing.assert_array_equal(model(X).numpy(), got)


class Around(M.Module):
    """One part under two names, of which the first one is read by another result only."""

    def __init__(self):
        super().__init__()
        inner = M.Sequential(M.Linear(3, 3), M.ReLU())
        self.parts, self.inner = [inner, M.Linear(3, 3)], inner

    def forward(self, x):
        return self.inner(x), self.parts[1](self.parts[0](x))


@pytest.mark.parametrize("way", ["dropped", "replaced"])
def test_logs_find_a_part_by_the_name_that_is_left(way):
    start = trace_module(Around(), mge.tensor(np.ones((2, 3), np.float32)))
    model = start.clone()
    graph = model.graph
    inside = graph.node("inner").owner.graph
    with inside.insert_exprs():  # by its first name
        inside.replace_node({inside.outputs[0]: inside.outputs[0] * 2})
    if way == "dropped":
        graph.reset_outputs(graph.outputs[0])
        graph.compile()
    else:
        model.parts[0] = M.Linear(3, 3)
    with inside.insert_exprs():
        inside.replace_node({inside.outputs[0]: inside.outputs[0] + 1})
    again = start.clone()
    model.edit_log.replay(again)
    assert content(again) == content(model)
    while model.graph.undo():
        pass
    assert content(model) == content(start)


class Tied(M.Module):
    """A weight of a layer is used a second time."""

    def __init__(self):
        super().__init__()
        self.first, self.second = M.Linear(3, 3), M.Linear(3, 3)

    def forward(self, x):
        return self.second(self.first(x)) + F.linear(x, self.first.weight)


@pytest.mark.parametrize(
    ("make", "has"),
    [
        (M.Identity, "nothing"),
        (lambda: M.Linear(3, 4), r"float32\[4, 3\]"),
        (lambda: M.Sequential(M.ReLU()), "nothing"),
    ],
)
def test_a_layer_whose_weight_is_read_is_not_replaced_by_one_without(make, has):
    traced = trace_module(Tied(), mge.tensor(np.ones((2, 3), np.float32)))
    before = content(traced)
    wanted = rf"'first\.weight' is read by Tied through Tied\.first, and the new one has {has} there"
    with pytest.raises(GraphError, match=wanted):
        traced.graph.replace_module(traced.graph.node("first"), make())
    assert content(traced) == before


def test_a_layer_whose_weight_is_read_is_replaced_by_one_like_it():
    x = mge.tensor(np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32))
    net, layer = Tied(), M.Linear(3, 3)
    traced = trace_module(net, x)
    traced.graph.replace_module(traced.graph.node("first"), layer)
    traced.graph.lint()
    want = net.second(layer(x)) + F.linear(x, layer.weight)
    np.testing.assert_allclose(traced(x).numpy(), want.numpy(), rtol=1e-6)
