"""Graphs of submodules take the specs that their calls give them, when edits around them change those."""

import numpy as np
import pytest
from megengine_graphs import listing

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import ShapeError
from megengine.tensor import tensor
from megengine.traced_module import lower, trace_module

X = np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype(np.float32)


class Leaf(M.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = M.Conv2d(channels, channels, 3)

    def forward(self, x):
        return F.relu(self.conv(x)), x.shape[2]


class Middle(M.Module):
    def __init__(self, channels):
        super().__init__()
        self.leaf = Leaf(channels)

    def forward(self, x):
        y, size = self.leaf(x)
        return {"y": y * 2, "size": F.ones((size, 1))}


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.middle = M.Conv2d(3, 4, 1), Middle(4)

    def forward(self, x):
        first = self.middle(self.stem(x))
        second = self.middle(first["y"])  # in another shape
        return F.mean(second["y"], [2, 3]), second["size"]


def _traced():
    return trace_module(Net().eval(), tensor(X))


def _shapes(traced):
    """Shape of each tensor node of all graphs that calls reach, by module and name."""
    nodes = (n for n in traced.graph.nodes() if hasattr(n, "spec"))
    return {(n.top_graph.qualname, n.name): tuple(n.shape) for n in nodes}


def _pooled(traced):
    graph = traced.graph
    x = graph.inputs[1]
    with graph.insert_exprs():
        graph.replace_node({x: F.avg_pool2d(x, 2)})
    return traced


def _same(a, b):
    return all(np.array_equal(p.numpy(), q.numpy()) for p, q in zip(a, b, strict=True))


def test_an_edit_around_submodules_is_inferred_inside_of_them(tmp_path):
    traced = _traced()
    before, text = _shapes(traced), listing(traced)
    assert before["Net.middle.leaf", "conv_out"] == (2, 4, 10, 10)  # of the first of two calls
    _pooled(traced)
    after = _shapes(traced)
    assert after["Net.middle.leaf", "x"] == (2, 4, 6, 6)
    assert after["Net.middle.leaf", "conv_out"] == after["Net.middle", "mul_out"] == (2, 4, 4, 4)
    assert {after["Net", f"middle_out{i}"] for i in ("", "_1")} == {(2, 4, 4, 4), (6, 1)}
    traced.graph.lint()
    expected = traced(tensor(X))
    assert _same(expected, traced.flatten()(tensor(X)))
    assert _same(expected, lower(traced)(tensor(X)))
    for suffix in (".tm", ".mgt"):
        mge.save(traced, str(tmp_path / f"net{suffix}"))
        loaded = mge.load(str(tmp_path / f"net{suffix}"))
        assert _shapes(loaded) == after
        assert _same(expected, loaded(tensor(X)))
    again = _traced()
    again.load_state_dict(traced.state_dict())
    traced.edit_log.replay(again)
    assert _shapes(again) == after
    assert traced.graph.undo()
    assert (_shapes(traced), listing(traced)) == (before, text)
    assert traced.graph.redo()
    assert _shapes(traced) == after


def test_a_shape_that_one_of_several_calls_gives_stays():
    class Twice(M.Module):
        def __init__(self):
            super().__init__()
            self.leaf = Leaf(3)

        def forward(self, x, y):
            return self.leaf(x)[0], self.leaf(y)[0]

    traced = trace_module(Twice(), tensor(X), tensor(X))
    graph = traced.graph
    for node in (graph.inputs[1], graph.inputs[2]):
        with graph.insert_exprs():
            graph.replace_node({node: F.avg_pool2d(node, 2)})
        leaf = _shapes(traced)["Twice.leaf", "x"]
        assert leaf == ((2, 3, 12, 12) if node is graph.inputs[1] else (2, 3, 6, 6))
        graph.lint()


def test_what_a_submodule_cannot_take_is_refused_where_it_is():
    traced = _traced()
    before = _shapes(traced)
    graph = traced.graph
    with pytest.raises(ShapeError, match="conv2d"), graph.insert_exprs():
        graph.replace_node({graph.inputs[1]: F.avg_pool2d(graph.inputs[1], 6)})
    assert _shapes(traced) == before


def test_edits_inside_and_around_that_fit_together_only():
    traced = _traced()
    graph = traced.graph
    with graph.transaction():
        traced.middle.leaf.conv = M.Conv2d(8, 8, 3)  # before what calls it gives 8 channels
        traced.stem = M.Conv2d(3, 8, 1)
    assert _shapes(traced)["Net.middle.leaf", "conv_out"] == (2, 8, 10, 10)
    graph.lint()
    assert traced(tensor(X))[0].shape == (2, 8)


@pytest.mark.parametrize("levels", [1, 60])
def test_any_depth(levels):
    class Around(M.Module):
        def __init__(self, inside):
            super().__init__()
            self.inside = inside

        def forward(self, x):
            return self.inside(x) + 1

    class Deep(M.Module):
        def __init__(self):
            super().__init__()
            self.inside = M.Conv2d(3, 4, 3)
            for _ in range(levels):
                self.inside = Around(self.inside)

        def forward(self, x):
            return self.inside(x)

    traced = _pooled(trace_module(Deep(), tensor(X)))
    assert {s for (_, name), s in _shapes(traced).items() if name == "x"} == {(2, 3, 12, 12), (2, 3, 6, 6)}
    assert traced(tensor(X)).shape == (2, 4, 4, 4)
    assert len([s for s in _shapes(traced).values() if s == (2, 3, 12, 12)]) == 1
    traced.graph.lint()


def test_a_graph_that_nothing_calls_does_not_hinder_edits():
    flat = _traced().flatten()  # Net.middle and its leaf are there still, to be called
    with flat.graph.transaction():
        flat.stem = M.Conv2d(3, 8, 1)
        flat.middle.leaf.conv = M.Conv2d(8, 8, 3)
    assert flat(tensor(X))[0].shape == (2, 8)
    with flat.graph.insert_exprs():
        result = flat.graph.inputs[0].middle(flat.graph.inputs[0].stem(flat.graph.inputs[1]))["y"]
    assert result.shape == (2, 8, 10, 10)
