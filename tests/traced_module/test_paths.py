"""One way to name a value or a layer of a submodule: `blocks.1.relu_out`."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import traced_module as tm
from megengine.core.errors import GraphError, OptionError
from megengine.tensor import tensor
from megengine.traced_module.ir.lookup import node_path

X = tensor(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))


class Block(M.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.table = M.Linear(4, 4), {"a": M.Linear(4, 4)}

    def forward(self, x, twice=False):
        y = F.relu(self.table["a"](self.fc(x)))
        return y * 2 if twice else y


class Net(M.Module):
    """Blocks in a list, one of them shared under a second name, and one called with two kinds of arguments."""

    def __init__(self):
        super().__init__()
        self.blocks = [Block(), Block(), Block()]
        self.again = self.blocks[0]

    def forward(self, x):
        x = self.again(self.blocks[1](self.blocks[0](x)))
        return self.blocks[2](self.blocks[2](x), twice=True)


MODEL = tm.trace_module(Net(), X)
GRAPH = MODEL.graph


def inner(i, graph=0):
    return MODEL.blocks.__dict__[str(i)].graphs[graph]


def test_a_graph_finds_nodes_of_submodules_by_path():
    relu = inner(1)._names.get("relu_out")
    for name in ("blocks.1.relu_out", relu.qualname, relu.qualname.removeprefix("Net.")):
        assert GRAPH.node(name) is relu
        assert GRAPH.node(name).graph is inner(1)
    assert node_path(relu) == "blocks.1.relu_out"


def test_layers_have_paths_too():
    fc = inner(1).node("fc")
    assert GRAPH.node("blocks.1.fc") is fc
    assert GRAPH.node("blocks.1.table.a") is inner(1).node("table_a")
    assert GRAPH.node("blocks.1") is GRAPH.node("blocks_1")


def test_a_submodule_finds_them_by_the_path_below_it_and_by_the_whole_one():
    assert inner(1).node("blocks.1.relu_out") is inner(1).node("relu_out")

    class Outer(M.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x):
            return self.net(x)

    model = tm.trace_module(Outer(), X)
    assert model.net.graph.node("blocks.1.relu_out") is model.graph.node("net.blocks.1.relu_out")
    assert model.net.graph.node("net.blocks.1.relu_out") is model.graph.node("net.blocks.1.relu_out")


def test_a_shared_module_is_found_under_each_of_its_names():
    assert GRAPH.node("again.relu_out") is GRAPH.node("blocks.0.relu_out")
    model = MODEL.clone()
    model.set_watch_points(["again.relu_out"])
    model.set_end_points(["again.relu_out"])
    assert model.watch_points == model.end_points == [model.graph.node("blocks.0.relu_out")]


def test_graphs_of_one_module_are_told_apart_by_their_places():
    with pytest.raises(
        GraphError,
        match=r"2 values are called 'blocks.2.relu_out'; give one by its path: "
        r"blocks\.2\[0\]\.relu_out, blocks\.2\[1\]\.relu_out",
    ):
        GRAPH.node("blocks.2.relu_out")
    assert GRAPH.node("blocks.2.mul_out") is inner(2, 1).node("mul_out")
    for i in range(2):
        node = GRAPH.node(f"blocks.2[{i}].relu_out")
        assert node.graph is inner(2, i) and node_path(node) == f"blocks.2[{i}].relu_out"
        MODEL.clone().set_end_points(f"blocks.2[{i}].relu_out")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("blocks.1.relu_out", ["blocks.1.relu_out"]),
        (
            "blocks.*.relu_out",
            ["blocks.0.relu_out", "blocks.1.relu_out", "blocks.2[0].relu_out", "blocks.2[1].relu_out"],
        ),
        ("*.[func_relu]", ["blocks.0.relu_out", "blocks.1.relu_out", "blocks.2[0].relu_out", "blocks.2[1].relu_out"]),
        ("Net.blocks.1.fc", ["blocks.1.fc"]),
        ("BLOCKS.1.FC", ["blocks.1.fc"]),
        ("again.relu_out", []),
        ("blocks*relu_out", []),
    ],
)
def test_patterns_with_a_dot_are_patterns_of_paths(pattern, found):
    assert list(map(node_path, GRAPH.get_node_by_name(pattern))) == found


def test_what_is_not_unique_is_told_by_paths():
    with pytest.raises(GraphError, match=r"found 4 \(blocks\.0\.relu_out, blocks\.1\.relu_out, blocks\.2\[0\]\.relu_"):
        GRAPH.get_node_by_name("relu_out").as_unique()
    with pytest.raises(GraphError, match=r"found 4 \(blocks\.0\.relu_out, blocks\.1\.relu_out, "):
        GRAPH.get_function_by_type(F.relu).as_unique()
    with pytest.raises(GraphError, match=r"found 11 \(self, x, again, blocks_1, blocks_0, \.\.\.\)"):
        GRAPH.nodes(recursive=False).as_unique()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("blocks.1.relu_ot", "did you mean 'blocks.1.relu_out'"),
        ("blocks.7.relu_out", "did you mean 'blocks.1.relu_out'|did you mean 'blocks.0.relu_out'"),
        ("blocks.2[5].relu_out", r"did you mean 'blocks\.2\["),
        ("fc", r"a submodule has it: 'blocks\.0\.fc' and 3 more; give that path"),
        (".", "no node '.'$"),
        ("blocks..x", "no node 'blocks..x'"),
        (7, "got 7, a int; expected the name of a node"),
    ],
)
def test_wrong_paths_get_the_nearest(name, told):
    with pytest.raises(GraphError, match=told):
        GRAPH.node(name)


def test_points_at_paths_that_several_graphs_have_are_refused():
    with pytest.raises(OptionError, match=r"2 values are called .* blocks\.2\[0\]\.relu_out, blocks\.2\[1\]\.relu_out"):
        MODEL.clone().set_watch_points("blocks.2.relu_out")


def test_names_in_logs_are_names_of_their_graph():
    """A path in a log would reach into another graph."""
    model = MODEL.clone()
    model.graph.rename(model.graph.node("blocks_1_out"), "second")
    log = model.edit_log
    log.steps[0].edits[0]["node"] = "blocks.1.relu_out"
    with pytest.raises(GraphError, match="has no node 'blocks.1.relu_out'"):
        log.replay(MODEL.clone())
