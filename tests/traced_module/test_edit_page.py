"""The page of edits: driven in a browser, its logs replay to the networks that the same edits in Python make."""

import base64
import hashlib
import json
import random
import time

import numpy as np
import pytest
from browser import Browser

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError
from megengine.tensor import tensor
from megengine.traced_module import EditLog, TracedModule, lower, trace_module
from megengine.traced_module.editing.excluding import exclude
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.editing.extracting import extract
from megengine.traced_module.ir.expr import Constant, GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.provenance import FLOAT
from megengine.traced_module.pictures.edit_page import edit_data, to_edit_page

SAMPLE = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
FILE = "logFile(steps).arrayBuffer().then((bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes))))"


class Block(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop = M.Conv2d(4, 4, 3, padding=1), M.Dropout(0.5)

    def forward(self, x):
        return F.relu(self.drop(self.conv(x)) + x)


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.same = M.Conv2d(3, 4, 1), M.Identity()
        self.first, self.second = Block(), Block()
        self.head = M.Linear(4, 5)

    def forward(self, x, y=None):
        z = self.same(self.stem(x))
        z = self.second(self.first(z)) if y is None else self.second(self.first(z) + y)
        return {"scores": self.head(z.mean((2, 3))), "map": z}


def calls():
    return trace_module(Net().eval(), tensor(SAMPLE))


def by_keyword():
    return trace_module(Net().eval(), tensor(SAMPLE), y=F.ones((2, 4, 6, 6)))


KINDS = {
    "calls": calls,
    "flat": lambda: calls().flatten(),
    "keyword": lambda: by_keyword().flatten(),
    "ops": lambda: lower(by_keyword()),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def shown(browser, model, folder, **size):
    copy = model.clone()
    copy.graph.keep_edits()
    path = folder / "edit.html"
    path.write_text(to_edit_page(copy.graph, line="mge-quantize edit net.mgt --log net.log"), encoding="utf-8")
    browser.ask('typeof saved === "undefined" || (saved = done.length)')  # else the page asks whether to leave it
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(path, **size)
    return path


def act(browser, **action):
    """Whether the page accepts an edit; None if it does, else what it says."""
    return None if browser.ask(f"act({json.dumps(action)})") else browser.ask("note.textContent")


def value(browser, name):
    return browser.ask(f"state.names.findIndex((name, v) => name === {json.dumps(name)} && lives(state, v))")


def replayed(browser, model, folder):
    (folder / "page.log").write_bytes(base64.b64decode(browser.ask(FILE)))
    copy = model.clone()
    copy.graph.keep_edits()
    EditLog.load(folder / "page.log").replay(copy)
    copy.graph.lint()
    return copy


def mirrored(graph, kind, names, name="", on=True):
    """The same edit in Python."""
    nodes = [graph.node(one) for one in names]
    if kind == "rename":
        graph.rename(nodes[0], name)
    elif kind == "exclude":
        exclude(graph, nodes, excluded=on)
    elif kind == "input":
        extract(graph, nodes, list(graph.outputs))
    elif kind == "remove":
        graph.replace_node({nodes[0]: next(n for n in nodes[0].expr.inputs if isinstance(n, TensorNode))})
        graph.compile()
    else:
        every = {"only": nodes, "also": [*graph.outputs, *nodes]}.get(kind)
        every = [n for n in graph.outputs if n not in nodes] if every is None else every
        if graph.arguments is None:
            set_outputs(graph, every)
        else:
            graph.reset_outputs(every[0] if len(every) == 1 else tuple(every))
        if kind != "also":
            graph.compile()


def facts(model):
    """Names, operands and marks of a graph, and what its module holds."""
    graph = model.graph
    exprs = {
        e.outputs[0].name: (e.kind, [n.name for n in e.inputs], bool(e.meta.get(FLOAT)))
        for e in graph.exprs(recursive=False)
    }
    inside = sum(bool(e.meta.get(FLOAT)) for e in graph.exprs())
    return exprs, [n.name for n in graph.inputs], [n.name for n in graph.outputs], inside


def values_of(model, *inputs):
    found = {}

    def note(node, one):
        found[node.name] = one.numpy()

    model.run(list(inputs), note)
    return found


def tensors_of(graph):
    parts = (Constant, GetAttr)
    return [n for n in graph.nodes(recursive=False) if isinstance(n, TensorNode) and not isinstance(n.expr, parts)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_edits_in_the_page_are_those_of_python(browser, tmp_path, kind, seed):
    model, draw = KINDS[kind](), random.Random(seed)
    mirror = model.clone()
    mirror.graph.keep_edits()
    shown(browser, model, tmp_path)
    accepted = 0
    for number in range(14):
        graph = mirror.graph
        what = draw.choice(("rename", "also", "unreturn", "input", "remove", "exclude", "exclude", "only"))
        name = draw.choice([n.name for n in tensors_of(graph)])
        at = value(browser, name)
        words = {
            "rename": {"value": at, "name": f"n{number}"},
            "exclude": {"exprs": [browser.ask(f"state.maker[{at}]")]},
        }
        more = words.get(what, {"values": [at]}) | ({"on": draw.random() < 0.7} if what == "exclude" else {})
        if act(browser, kind=what, **more) is not None:
            continue
        accepted += 1
        mirrored(graph, what, [name], more.get("name", ""), more.get("on", True))
        if draw.random() < 0.2:  # taken back, and done again
            browser.ask("undo()")
            assert browser.ask("done.length") == accepted - 1
            browser.ask("redo()")
    made = replayed(browser, model, tmp_path)
    assert accepted > 3 and len(made.edit_log) == accepted and not browser.complaints
    assert facts(made) == facts(mirror)
    rng = np.random.default_rng(1)
    inputs = [
        tensor(rng.standard_normal(n.shape).astype(np.float32))
        for n in made.graph.inputs
        if n in tensors_of(made.graph)
    ]
    for one, other in zip(made.graph.interpret(*inputs), mirror.graph.interpret(*inputs), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    while made.graph.undo():
        pass
    assert facts(made) == facts(model)


@pytest.mark.slow
def test_a_part_that_is_cut_out_has_the_values_of_the_network(browser, tmp_path):
    model = calls().flatten()
    every = values_of(model, tensor(SAMPLE))
    shown(browser, model, tmp_path)
    names = [n.name for n in tensors_of(model.graph)]
    begin, end = (next(n for n in names if part in n) for part in ("first_conv", "second_add"))
    assert act(browser, kind="only", values=[value(browser, end)]) is None
    assert act(browser, kind="input", values=[value(browser, begin)]) is None
    part = replayed(browser, model, tmp_path)
    inputs = [every[n.name] for n in part.graph.inputs if isinstance(n, TensorNode)]
    np.testing.assert_array_equal(part.graph.interpret(*map(tensor, inputs))[0].numpy(), every[end])
    assert not hasattr(part, "head")


@pytest.mark.slow
def test_the_page_refuses_what_the_graph_would(browser, tmp_path):
    model = calls()
    shown(browser, model, tmp_path)
    names = {name: value(browser, name) for name in ("x", "stem_out", "same_out", "head_out", "second_out", "stem")}
    said = {
        "rename": act(browser, kind="rename", value=names["x"], name="stem_out"),
        "no name": act(browser, kind="rename", value=names["x"], name="a b"),
        "word": act(browser, kind="rename", value=names["x"], name="class"),
        "layer": act(browser, kind="only", values=[names["stem"]]),
        "input": act(browser, kind="input", values=[names["x"]]),
        "result": act(browser, kind="input", values=[names["head_out"]]),
        "last": act(browser, kind="unreturn", values=[names["head_out"], names["second_out"]]),
        "computed": act(browser, kind="remove", values=[names["stem_out"]]),
        "mark": act(browser, kind="exclude", exprs=[browser.ask(f"state.maker[{names['x']}]")], on=True),
    }
    assert said == {
        "rename": "stem_out is the name of another value",
        "no name": '"a b" is not a name: letters, digits and _; try a_b',
        "word": "class is a word of Python; try _class",
        "layer": "stem is a layer, not a value",
        "input": "x is an input already",
        "result": "head_out is returned: nothing would be computed",
        "last": "a graph returns one value or more; return another one first",
        "computed": "stem_out is computed; only what passes a value on can be removed",
        "mark": "inputs and weights have no integers of their own; select calls",
    }
    assert browser.ask("done.length") == 0 and browser.ask("saveButton.disabled")
    assert act(browser, kind="only", values=[names["stem_out"]]) is None
    assert act(browser, kind="also", values=[names["same_out"]]) == (
        "same_out is not in the graph any more; undo brings it back"
    )


@pytest.mark.slow
def test_keys_and_clicks_edit_and_the_log_is_downloaded(browser, tmp_path):
    model = calls().flatten()
    path = shown(browser, model, tmp_path)
    browser("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))

    def press(key):
        for kind in ("keyDown", "keyUp"):
            browser(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                text={"Enter": "\r"}.get(key, key if len(key) == 1 else ""),
            )

    def click(name, modifiers=0):
        browser.ask(f"show([...inOrder()].find(({{ node }}) => node.name === {json.dumps(name)}).key)")
        box = "drawn.get(chosen).g.getBoundingClientRect()"
        x, y = browser.ask(f"(({{ x, y, width, height }}) => [x + width / 2, y + height / 2])({box})")
        for kind in ("mousePressed", "mouseReleased"):
            browser("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1, modifiers=modifiers)

    click("stem_out")
    press("x")
    press("r")
    browser("Input.insertText", text="begin")
    press("Enter")
    browser.ask("stage.focus()")
    press("i")
    click("head_out", modifiers=8)
    assert browser.ask("picked.size") == 1
    press("o")
    press("u")
    press("y")
    press("Escape")
    words = browser.ask("[...document.querySelectorAll('aside li')].map((item) => item.textContent)")
    assert words[0] == "stem_out left in float" and len(words) == browser.ask("done.length")
    press("w")
    until = time.monotonic() + 20
    while not (logs := list(tmp_path.glob("*.log"))) and time.monotonic() < until:
        time.sleep(0.05)
    copy = model.clone()
    EditLog.load(logs[0]).replay(copy)
    assert [n.name for n in copy.graph.outputs] == ["head_out"] and copy.graph.names.get("begin") is not None
    assert browser.requests == [path.as_uri()] or all(r.startswith("blob:") for r in browser.requests[1:])
    assert not browser.complaints


@pytest.mark.slow
def test_a_box_that_holds_several_calls_marks_what_is_left_of_them(browser, tmp_path):
    model = calls().flatten()
    shown(browser, model, tmp_path)
    assert act(browser, kind="input", values=[value(browser, "first_conv_out")]) is None
    fold = "[...inOrder()].find(({ node }) => node.path === 'first' && node.exprs.length > 1)"
    browser.ask(f"show({fold}.key)")
    browser.ask("keys.x()")
    assert browser.ask("words[1]") == "first_drop_out, first_add_out, first_out left in float"
    marked = [
        e.output.name for e in replayed(browser, model, tmp_path).graph.exprs(recursive=False) if e.meta.get(FLOAT)
    ]
    assert marked == ["first_drop_out", "first_add_out", "first_out"]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (420, "dark")])
def test_it_fits_narrow_windows_and_shows_what_became_of_boxes(browser, tmp_path, width, scheme):
    shown(browser, calls().flatten(), tmp_path, width=width, scheme=scheme)
    assert (
        act(browser, kind="exclude", exprs=[browser.ask(f"state.maker[{value(browser, 'head_out')}]")], on=True) is None
    )
    assert act(browser, kind="input", values=[value(browser, "stem_out")]) is None
    assert browser.ask("document.documentElement.scrollWidth") <= width
    classes = browser.ask(
        "Object.fromEntries([...drawn.values()].map(({ node, g }) => [node.name, g.getAttribute('class')]))"
    )
    assert browser.ask("data.details.slice(0, 2).map((line) => line[1])") == ["stem_out", "second_out\nhead_out"]
    assert "excluded" in classes["head_out"] and "entry" in classes["stem_out"] and "gone" in classes["x"]


@pytest.mark.slow
def test_a_thousand_nodes(browser, tmp_path):
    graph = InternalGraph("chain")
    x = add_input(graph, "x", (tensor(SAMPLE)).spec)
    for i in range(1000):
        x = graph.apply("relu", x, name=f"r{i}")
    set_outputs(graph, [x])
    model = TracedModule.from_graph(graph)
    shown(browser, model, tmp_path)
    start = time.monotonic()
    for i in range(20):
        assert act(browser, kind="rename", value=value(browser, f"r{i}"), name=f"name{i}") is None
    assert act(browser, kind="only", values=[value(browser, "r500")]) is None
    assert time.monotonic() - start < 20  # seconds; edits are made again from the first one
    made = replayed(browser, model, tmp_path)
    assert len(made.graph.exprs(recursive=False).as_list()) == 502 and made.graph.names.get("name19") is not None


def test_what_the_page_knows_of_a_graph():
    data = edit_data(calls().graph)
    exprs = {data["values"][e["out"][0]]["name"]: e for e in data["exprs"]}
    names = [v["name"] for v in data["values"]]
    assert names[exprs["same_out"]["same"]] == "stem_out" and exprs["stem_out"]["same"] is None
    assert {a["name"] for a in data["attributes"]} == {"stem", "same", "first", "second", "head"}
    assert len(exprs["first_out"]["meta"]) == 5 and exprs["x"]["meta"] == []
    json.dumps(data, allow_nan=False)


def test_names_from_files_are_inert():
    bad = "</script><img src=x onerror=alert(1)>"
    graph = InternalGraph(bad)
    x = add_input(graph, "x", tensor(SAMPLE).spec, qualname=bad)
    set_outputs(graph, [graph.apply("relu", x, name="y", meta={"module": bad, "other": bad}, qualname=bad)])
    text = to_edit_page(graph, line=bad)
    assert text.count("</script>") == 2 and "<img" not in text
    digest = base64.b64encode(
        hashlib.sha256(text.rpartition("<script>")[2].partition("</script>")[0].encode()).digest()
    )
    assert f"script-src 'sha256-{digest.decode()}'" in text


def test_graphs_of_submodules_are_refused():
    inner = calls().first.graph
    with pytest.raises(GraphError, match="to_edit_page: Net.first is called by another graph; give the outermost one"):
        to_edit_page(inner)
