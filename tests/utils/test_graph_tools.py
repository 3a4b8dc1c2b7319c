"""Graph tools by MegEngine's names, on a lowered graph."""

import re

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError
from megengine.traced_module import lower, trace_module
from megengine.utils import comp_graph_tools as tools
from megengine.utils import network


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = M.Conv2d(1, 2, 3), M.Linear(8, 3)

    def forward(self, x):
        y = F.relu(self.conv(x))
        return self.fc(F.reshape(y + y, (1, -1)))


def lowered():
    return lower(trace_module(Net(), mge.tensor(np.ones((1, 1, 4, 4), np.float32)))).graph


@pytest.fixture
def graph():
    return lowered()


def test_questions(graph):
    (out,) = graph.outputs
    oprs = tools.get_oprs_seq(out)
    kinds = [tools.get_opr_type(o) for o in oprs]
    assert kinds[0] == "Input"
    assert [k for k in kinds if k in ("conv2d", "relu", "add", "reshape")][:3] == ["conv2d", "relu", "add"]
    assert "Constant" not in kinds
    assert "reshape" not in {tools.get_opr_type(o) for o in tools.get_oprs_seq([out], prune_reshape=True)}
    assert "Constant" in {tools.get_opr_type(o) for o in tools.get_oprs_seq(out, prune_immtensor=False)}
    (relu,) = tools.get_dep_vars(out, "relu")
    assert tools.get_owner_opr_type(relu) == "relu"
    assert tools.get_owner_opr_type(tools.get_owner_opr_inputs(relu)[0]) == "conv2d"
    assert out in tools.get_dep_vars(out)
    assert tools.find_vars_by_name(out, [relu.name]) == [relu]
    with pytest.raises(GraphError, match="no var 'nothing_like_it' among"):
        tools.find_vars_by_name(out, ["nothing_like_it"])


def test_tables(graph):
    (out,) = graph.outputs
    oprs, variables, makers, receivers, by_degree, degrees = tools.graph_traversal(out)
    assert set(oprs) == {e.id for e in tools.get_oprs_seq(out, prune_immtensor=False)}
    for ident, var in variables.items():
        assert var.expr is oprs[makers[ident]]
    for source, users in receivers.items():
        for user in users:
            assert any(v.expr is oprs[source] for v in oprs[user].inputs)
    (add,) = (i for i, o in oprs.items() if tools.get_opr_type(o) == "add" and len(set(o.inputs)) == 1)
    assert degrees[add] == 1  # y + y uses one opr twice
    assert sorted(i for ids in by_degree.values() for i in ids) == sorted(oprs)


def test_edits(graph):
    graph.keep_edits()
    (relu,) = tools.get_dep_vars(graph.outputs[0], "relu")
    (before,) = relu.expr.inputs
    assert tools.replace_vars([relu, graph.outputs[0]], {relu: before}) == [before, graph.outputs[0]]
    assert tools.get_dep_vars(graph.outputs[0], "relu") == []
    graph.lint()
    assert graph.undo()
    assert tools.replace_oprs([relu], {relu.expr: before.expr}) == [before]
    other = lowered()
    with pytest.raises(GraphError, match="of different graphs"):
        tools.replace_vars([], {relu: other.outputs[0]})


def test_filters(graph):
    all_of = network.NodeFilter.make_all_deps(*graph.outputs)
    relu = all_of.type("relu").as_unique()
    assert all_of.data_provider().as_count() == 1
    assert all_of.param_provider().as_count() == len(all_of.type("Constant").as_list()) > 1
    assert all_of.type(type(relu)).as_count() + all_of.not_type(type(relu)).as_count() == all_of.as_count()
    assert relu in all_of.has_input(relu.inputs[0]).as_list()
    assert all_of.as_dict()[relu.name] is relu
    assert all_of.name(relu.name.upper()[:3] + "*").as_count() >= 1
    assert all_of.name("RELU*", ignorecase=False).as_count() == 0
    assert all_of.name(re.compile(re.escape(relu.name))).as_unique() is relu
    assert network.as_varnode(relu) is network.as_varnode(relu.outputs[0])
    assert network.as_oprnode(relu.outputs[0]) is network.as_oprnode(relu) is relu
    for call, text in (
        (lambda: all_of.type("nothing").as_unique(), "0 expressions; expected one"),
        (lambda: all_of.as_unique(), r"expressions \(.*\); expected one"),
        (lambda: all_of.check_type("relu").as_list(), "expected relu"),
        (lambda: network.as_varnode(3), "got int; expected a node"),
    ):
        with pytest.raises(GraphError, match=text):
            call()
    assert all_of.type("relu").check_type("relu").as_count() == 1


def test_what_is_left_out_says_so():
    with pytest.raises(AttributeError, match=r"'Network': .*lower"):
        network.Network
