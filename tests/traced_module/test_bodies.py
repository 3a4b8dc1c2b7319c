"""Graphs that ops run, in pictures, costs, differences and edits."""

import onnx
import pytest

from megengine.convert.onnx import export, load
from megengine.core.errors import GraphError, OptionError
from megengine.traced_module.bodies import Body, operands_of
from megengine.traced_module.comparing.diff import diff
from megengine.traced_module.editing.edit_log import EditLog
from megengine.traced_module.editing.rewiring import set_attrs
from megengine.traced_module.formats import native
from megengine.traced_module.ir.lookup import node_named
from megengine.traced_module.pictures.dot import to_dot
from megengine.traced_module.pictures.drawing import to_svg
from megengine.traced_module.pictures.page import page_data
from megengine.traced_module.pictures.summary import summarize
from megengine.traced_module.source import to_source

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
BRANCHES = """g (float[2,3] x, bool c) => (float[2,3] y)
    <float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
    h = MatMul (x, w)
    z = If (c) <then_branch = a () => (float[2,3] p) { r = Relu (h)
                                                       p = MatMul (r, w) },
                else_branch = b () => (float[2,3] q) { s = Abs (x)
                                                       q = Neg (s) }>
    y = Sigmoid (z) }"""
ROUNDS = """g (float[2] x, int64 n, bool c) => (float[2] y, float[m,2] all) {
    y, all = Loop (n, , x) <body = b (int64 i, bool go, float[2] h) => (bool go_out, float[2] h_out, float[2] o)
        { go_out = Identity (go)
          h_out = If (c) <then_branch = d () => (float[2] p) { p = Sin (h) },
                          else_branch = e () => (float[2] q) { q = Cos (h) }>
          o = Add (h_out, x) }> }"""
MODELS = {"branches": BRANCHES, "rounds": ROUNDS}


def read(text):
    return load(onnx.parser.parse_model(HEAD + text).SerializeToString())


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_from_a_file_is_no_difference(name, tmp_path):
    net = read(MODELS[name])
    native.save(net, tmp_path / "net.mgt")
    assert not diff(net, native.load(tmp_path / "net.mgt"))
    assert not diff(net, read(MODELS[name]))
    export(net, tmp_path / "net.onnx")
    assert [c.kind for c in diff(net, load(tmp_path / "net.onnx")).changes if c.kind != "renamed"] == []


def test_differences_name_the_op_and_its_graph():
    changes = diff(read(BRANCHES), read(BRANCHES.replace("Abs", "Exp"))).changes
    assert {change.where for change in changes} == {"z.otherwise"}
    assert {(c.kind, c.old, c.new) for c in changes if c.kind in ("added", "removed")} == {
        ("removed", "s", None),
        ("added", None, "s"),
    }
    (where,) = {change.where for change in diff(read(ROUNDS), read(ROUNDS.replace("Cos", "Exp"))).changes}
    assert where == "y.body.h_out.otherwise"


def test_graphs_are_equal_by_what_they_compute():
    def then(text):
        return next(e for e in read(text).graph.exprs() if e.name == "z").attrs["then"]

    one = then(BRANCHES)
    assert one == then(BRANCHES.replace("r = Relu (h)", "other = Relu (h)").replace("(r, w)", "(other, w)"))
    assert hash(one) == hash(then(BRANCHES))
    assert one != then(BRANCHES.replace("Relu", "Abs"))
    assert one != then(BRANCHES.replace("8, 9}", "8, 8}"))
    assert one != 3


def test_costs_list_what_the_graphs_do():
    table = summarize(read(BRANCHES).graph)
    rows = {row.node: row for row in table.rows}
    assert list(rows) == ["h", "z", "z.then.r", "z.then.p", "z.otherwise.s", "z.otherwise.q", "y"]
    assert rows["z.then.p"].depth == 1
    assert rows["z.then.p"].macs == rows["h"].macs == 18
    assert rows["z"].macs is None
    assert table.unknown == ("z",)
    assert rows["z"].parameters == 9
    assert [row.node for row in summarize(read(BRANCHES).graph, depth=0).rows] == ["h", "z", "y"]
    inner = [row.node for row in summarize(read(ROUNDS).graph).rows]
    assert inner == ["y", "y.body.h_out", "y.body.h_out.then.p", "y.body.h_out.otherwise.q", "y.body.o"]


def test_pictures_open_the_graphs():
    net = read(BRANCHES)
    text = to_dot(net.graph)
    assert text.count("subgraph") == 3
    for label in ("then  (4)", "otherwise  (4)", "relu  r", "neg  q"):
        assert label in text
    assert to_dot(net.graph, depth=0).count("subgraph") == 0
    assert to_dot(net.graph, depth=1).count("subgraph") == 1
    assert "neg  q" in to_svg(net.graph)
    assert "neg  q" not in to_svg(net.graph, depth=1)
    assert [g["name"] for g in page_data([read(ROUNDS).graph])["graphs"]][1:] == ["y", "b", "h_out", "d", "e"]


def test_operands_of_rounds_come_behind_their_number_and_condition():
    (expr,) = (e for e in read(ROUNDS).graph.exprs() if e.name == "y")
    assert [(a.name, b.name) for a, b in operands_of(expr, expr.attrs["body"])] == [("x", "h"), ("c", "c"), ("x", "x")]


def test_values_inside_are_named_and_edited_by_a_copy():
    net = read(BRANCHES)
    for name in ("q", "z.otherwise.q"):
        with pytest.raises(OptionError, match="'otherwise' that the op 'z' runs, which is never changed"):
            node_named(net.graphs, name)
        with pytest.raises(GraphError, match="edit a clone of that graph"):
            net.graph.node(name)
    with pytest.raises(OptionError, match="'otherwise' that the op 'h_out' runs"):
        node_named(read(ROUNDS).graphs, "y.body.h_out.otherwise.q")
    other = read(BRANCHES.replace("Abs", "Exp"))
    (wanted,) = (e for e in other.graph.exprs() if e.name == "z")
    (op,) = (e for e in net.graph.exprs() if e.name == "z")
    net.graph.keep_edits()
    set_attrs(net.graph, op, {"otherwise": Body(wanted.attrs["otherwise"].graph.clone())})
    assert not diff(net, other)
    net.graph.undo()
    assert not diff(net, read(BRANCHES))


def test_edits_around_them_are_logged_and_done_again(tmp_path):
    net, log = read(BRANCHES), tmp_path / "edits.log"
    net.graph.keep_edits()
    net.graph.rename(net.graph.node("z"), "chosen")
    net.graph.edit_log.save(log)
    again = read(BRANCHES)
    EditLog.load(log).replay(again)
    assert not diff(net, again)


def test_python_source_has_no_form_for_them():
    with pytest.raises(GraphError, match=r"'if' runs graphs \(then, otherwise\), which have no form in Python source"):
        to_source(read(BRANCHES))
