"""Graphs as objects of the package graphviz, and what notebooks show."""

import re
import shutil
from xml.etree import ElementTree

import graphviz
import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.traced_module as tm
from megengine.core.errors import GraphError
from megengine.traced_module.pictures.dot import rendered

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot is not installed")


class Block(M.Module):
    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(3, 4, 3, padding=1)
        self.bn = M.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.first = Block()
        self.head = M.Linear(4, 2)

    def forward(self, x):
        return self.head(F.avg_pool2d(self.first(x), 8).reshape(1, -1))


@pytest.fixture(scope="module")
def traced():
    return tm.trace_module(Net().eval(), mge.tensor(np.ones((1, 3, 8, 8), np.float32)))


@pytest.fixture
def without_dot(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_graph_is_a_digraph_whose_attributes_can_be_changed(traced):
    picture = traced.to_graphviz()
    assert isinstance(picture, graphviz.Digraph)
    picture.attr(rankdir="LR")
    picture.node("note", "added by hand")
    assert "rankdir=LR" in picture.source and "added by hand" in picture.source
    assert "subgraph cluster_" in picture.source
    assert "cluster" not in traced.graph.to_graphviz(depth=0).source


@needs_dot
@pytest.mark.parametrize(("kind", "start"), [("pdf", b"%PDF"), ("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_dot_draws_it(traced, tmp_path, kind, start):
    picture = traced.to_graphviz(depth=1)
    assert picture.pipe(kind).startswith(start)
    assert picture.render(outfile=tmp_path / f"net.{kind}") == str(tmp_path / f"net.{kind}")
    assert (tmp_path / f"net.{kind}").read_bytes().startswith(start)
    assert rendered(traced.graph, kind, engine="neato").startswith(start)


def test_without_dot_our_own_layout_is_drawn_and_a_warning_says_so(traced, tmp_path, without_dot):
    picture = traced.to_graphviz(depth=1)
    with pytest.warns(RuntimeWarning, match="drawn in another layout, without changed attributes"):
        text = picture.pipe("svg", encoding="utf-8")
    assert "conv" in "".join(ElementTree.fromstring(text).itertext())
    with pytest.warns(RuntimeWarning, match="is not installed"):
        made = picture.render("net", tmp_path, format="svg")
    assert made == str(tmp_path / "net.svg") and (tmp_path / "net.svg").read_text() == text
    with pytest.raises(GraphError, match="'pdf' needs the program dot of Graphviz, which is not installed: `apt-get"):
        picture.pipe("pdf")
    with pytest.raises(GraphError, match="needs the program neato"):
        rendered(traced.graph, "svg", engine="neato")


@needs_dot
def test_what_dot_does_not_draw_is_an_error_of_ours(traced):
    with pytest.raises(GraphError, match="the program dot of Graphviz does not draw the nonsense"):
        rendered(traced.graph, "nonsense")


def test_markup_in_names_stays_text():
    class Odd(M.Module):
        def __init__(self):
            super().__init__()
            setattr(self, "<b>x</b>", M.Linear(2, 2))

        def forward(self, x):
            return getattr(self, "<b>x</b>")(x)

    source = tm.trace_module(Odd(), F.zeros((1, 2))).to_graphviz().source
    assert not re.search(r"label=<", source)


def test_several_graphs_are_drawn_one_by_one():
    class Twice(M.Module):
        def __init__(self):
            super().__init__()
            self.block = Pair()

        def forward(self, x):
            return self.block(x) + self.block(x, x)

    net = tm.trace_module(Twice(), F.zeros((1, 2)))
    assert len(net.block.graphs) == 2
    with pytest.raises(GraphError, match=r"there are 2 graphs; expected one; draw each one of \.graphs"):
        net.block.to_graphviz()
    assert net.block._repr_html_().count("<svg") == 2


class Pair(M.Module):
    def forward(self, x, y=None):
        return x if y is None else x + y


def parsed(html):
    return ElementTree.fromstring(f"<div>{html}</div>")


def shows(html):
    return " ".join("".join(parsed(html).itertext()).split())


def test_notebooks_show_graphs_as_pictures(traced):
    for shown in (traced, traced.graph):
        assert shown._repr_svg_().startswith("<svg")
        text = shows(shown._repr_html_())
        assert "first" in text and "head" in text


def test_a_picture_in_a_notebook_opens_what_there_is_room_for():
    net = tm.trace_module(M.Sequential(*(Net_() for _ in range(70))), F.zeros((1, 3, 8, 8)))
    closed = net._repr_svg_()
    assert closed.count("<rect") < 160 < net.to_graphviz().source.count("label=")


class Net_(M.Module):  # noqa: N801
    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(3, 3, 1)

    def forward(self, x):
        return F.relu(self.conv(x)) + x


def test_notebooks_show_tensors_summaries_profiles_and_differences(traced):
    x = mge.tensor(np.ones((1, 3, 8, 8), np.float32))
    assert "Tensor" in shows(mge.tensor([1.5, 2])._repr_html_()) and "1.5" in shows(mge.tensor([1.5, 2])._repr_html_())
    assert "parameters" in shows(traced.summary()._repr_html_())
    assert "ms a run" in shows(tm.profile(traced, x, runs=1)._repr_html_())
    changed = traced.clone()
    with changed.graph.insert_exprs():
        node = changed.graph.outputs[0]
        changed.graph.replace_node({node: F.relu(node)})
    found = tm.diff(traced, changed)
    assert "relu" in shows(found._repr_html_()) and found._repr_svg_().startswith("<svg")
    assert "no differences" in shows(tm.diff(traced, traced.clone())._repr_html_())


def test_names_in_notebooks_are_text():
    class Named(M.Module):
        def forward(self, x):
            return x + 1

    net = tm.trace_module(Named(), F.zeros((1, 2)))
    net.graph.name = "<script>alert(1)</script>\x1b[31m"
    html = net._repr_html_() + net.summary()._repr_html_()
    assert "<script" not in html and "\x1b" not in html
    parsed(html)
