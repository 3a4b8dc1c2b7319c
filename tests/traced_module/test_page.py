"""The page: whole, offline, every graph once, numbers as in the summary, hostile names inert (in a browser too)."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from browser import Browser
from megengine_graphs import NETS, traced

from megengine.core.dtype import quantized
from megengine.core.errors import GraphError
from megengine.core.sizes import named
from megengine.core.spec import TensorSpec
from megengine.models import resnet50
from megengine.tensor import tensor
from megengine.traced_module import InternalGraph, TracedModule, lower, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.ir.queries import child_graphs
from megengine.traced_module.pictures.page import page_data, to_html
from megengine.traced_module.pictures.texts import shape_text

HOSTILE = (
    "</script><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\">'&\u2028\x00\x1b\u202e"
)


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self._in = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in = (tag, dict(attrs).get("id"))

    def handle_endtag(self, tag):
        self._in = None

    def handle_data(self, data):
        self.texts[self._in] = self.texts.get(self._in, "") + data


def hostile_graph():
    g = InternalGraph(HOSTILE)
    x = add_input(g, "x", TensorSpec((1, 4), np.dtype(np.float32)), qualname=HOSTILE)
    meta = {"module": HOSTILE, "source": HOSTILE, "passes": (HOSTILE,)}
    set_outputs(g, [g.apply("relu", x, name="y", meta=meta, qualname=HOSTILE)])
    return g


def chain(count):
    g = InternalGraph("chain")
    x = add_input(g, "x", TensorSpec((1, 4), np.dtype(np.float32)))
    for i in range(count):
        x = g.apply("relu", x, name=f"r{i}")
    set_outputs(g, [x])
    return g


def embedded_data(text):
    return json.loads(Page(text).texts["script", "data"])


def details(node):
    return dict(node["details"])


def test_nothing_is_loaded_and_hostile_text_is_inert():
    text = to_html(hostile_graph())
    page = Page(text)
    names = [tag for tag, _ in page.tags]
    assert names.count("script") == 2 and "img" not in names and "link" not in names
    assert not any({"src", "href"} & set(attrs) for _, attrs in page.tags)
    stored = page.texts["script", "data"]
    assert stored.isascii() and stored.isprintable() and not set("<>&") & set(stored)
    data = json.loads(stored)
    shown = HOSTILE
    for bad in "\u2028\x00\x1b\u202e":
        shown = shown.replace(bad, "\ufffd")
    assert data["name"] == shown and details(data["graphs"][0]["nodes"][1])["source"] == shown


def test_the_policy_allows_this_script_only():
    page = Page(to_html(chain(1)))
    policy = next(a["content"] for tag, a in page.tags if "http-equiv" in a)
    digest = base64.b64encode(hashlib.sha256(page.texts["script", None].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


@pytest.mark.parametrize("name", NETS)
def test_every_call_of_every_graph_is_a_box_below_its_inputs(name):
    module = traced(name)
    graphs = [module.graph]
    for graph in graphs:
        graphs += [g for g in child_graphs(graph) if not any(g is h for h in graphs)]
    data = page_data(module.graphs)
    assert len(data["graphs"]) == len(graphs)
    for graph, made in zip(graphs, data["graphs"], strict=True):
        calls = [e for e in graph.exprs(recursive=False) if e.kind in ("CallMethod", "CallFunction", "Apply")]
        assert {e.name for e in calls} <= {n["name"] for n in made["nodes"]}
        assert len({(n["row"], n["column"]) for n in made["nodes"]}) == len(made["nodes"])
        assert all(made["nodes"][a]["row"] < made["nodes"][b]["row"] for a, b in made["edges"])


def test_boxes_tell_costs_and_provenance():
    module = trace_module(resnet50().eval(), tensor(np.zeros((1, 3, 224, 224), np.float32)))
    data = embedded_data(to_html(module))
    nodes = {n["name"]: n for n in data["graphs"][0]["nodes"]}
    conv, layer = details(nodes["conv1_out"]), nodes["layer1_out"]
    assert conv["MACs"] == "118,013,952" and conv["FLOPs"] == "236,027,904" and conv["module"] == "conv1"
    assert conv["weights"] == "weight: 64x3x7x7 float32" and conv["results"] == "conv1_out: 1x64x112x112 float32"
    assert re.fullmatch(r"test_page\.py:\d+", conv["source"])
    assert details(layer)["parameters"].startswith("215,808 ")
    assert data["graphs"][layer["graph"]]["name"] == "ResNet.layer1"
    assert "25,557,032 parameters" in data["totals"] and "4,089,184,256 MACs" in data["totals"]
    assert embedded_data(to_html(lower(module)))["totals"].endswith("4,089,184,256 MACs")


def test_quantized_values_tell_scale_and_zero_point():
    g = InternalGraph("q")
    x = add_input(g, "x", TensorSpec((1, 4), quantized("quint8", 0.5, 3)))
    w = add_input(g, "w", TensorSpec((12, 4), quantized("qint8", [0.25 * (i + 1) for i in range(12)], axis=0)))
    set_outputs(g, [g.apply("dequantize", x, name="y"), g.apply("dequantize", w, name="v")])
    nodes = {n["name"]: details(n) for n in page_data([g])["graphs"][0]["nodes"]}
    assert nodes["y"]["quantized x"] == "quint8, stored as uint8 in [0, 255]\nscale 0.5\nzero point 3"
    assert "12 scales along axis 0: 0.25 to 3\n0.25, 0.5, " in nodes["v"]["quantized w"]
    assert nodes["v"]["quantized w"].count(",") == 2 + 8 and "…" in nodes["v"]["quantized w"]


def test_a_module_without_graphs_is_refused():
    with pytest.raises(GraphError, match="to_html: the module has no graph"):
        to_html(TracedModule())


def test_ops_fold_by_module_path_and_large_graphs_into_parts():
    module = trace_module(resnet50().eval(), tensor(np.zeros((1, 3, 64, 64), np.float32)))
    calls, ops = page_data(module.graphs), page_data([lower(module).graph])
    folds = [n for n in ops["graphs"][0]["nodes"] if n["kind"] == "fold"]
    assert [n["title"] for n in folds] == ["layer1", "layer2", "layer3", "layer4"]
    submodules = [n for n in calls["graphs"][0]["nodes"] if n["graph"] is not None]
    assert [n["macs"] for n in folds] == [n["macs"] for n in submodules]
    assert "3 add" in details(folds[0])["holds"]
    inside = ops["graphs"][folds[0]["graph"]]["nodes"]
    assert inside[0]["outside"] and inside[0]["name"] == "maxpool_max_pool2d_out"
    assert [n["title"] for n in inside[1:]] == ["layer1.0", "layer1.1", "layer1.2"]
    parts = page_data([chain(10_000)])
    assert max(len(g["nodes"]) for g in parts["graphs"]) <= 151
    assert sum(n["kind"] == "other" for g in parts["graphs"] for n in g["nodes"]) == 10_000


def resnet():
    return trace_module(resnet50().eval(), tensor(np.zeros((1, 3, 64, 64), np.float32)))


def test_boxes_stand_in_the_order_in_which_they_run():
    graph = lower(resnet()).graph
    sheets = page_data([graph])["graphs"]

    def walk(index):
        for node in sheets[index]["nodes"]:
            if node["graph"] is None and not node["outside"]:
                yield node["name"]
            elif node["graph"] is not None:
                yield from walk(node["graph"])

    assert list(walk(0)) == [e.name for e in graph.exprs(recursive=False) if e.kind not in ("Constant", "GetAttr")]


def test_there_is_an_overview_and_there_are_rules_for_dark_and_printed_pages():
    text = to_html(chain(3))
    assert ("svg", "map") in [(tag, attrs.get("id")) for tag, attrs in Page(text).tags]
    assert "color-scheme: light dark" in text and "screen and (prefers-color-scheme: dark)" in text
    assert re.search(r"@media print \{[^}]*overflow: visible", text)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A browser that shows a page of all calls of ResNet-50."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(to_html(resnet()), encoding="utf-8")
    with Browser(folder / "user") as browser:
        browser.open(folder / "page.html")
        yield browser


@pytest.mark.slow
def test_all_of_it_open_is_no_hairline_and_the_overview_moves_it(shown):
    shown.ask("openAll(); fit()")
    assert shown.ask("view.k") >= 0.4 and shown.ask("map.getBoundingClientRect().width") >= 40
    assert shown.ask("size[1] * view.k > 2 * stage.clientHeight")  # so it would have been one
    for _ in range(60):
        shown.ask("zoom(0.8)")
    assert shown.ask("view.k") >= 0.1
    shown.ask("fit()")
    place = "(({left, top, width, height}) => [left + width / 2, top + height * 0.99])(map.getBoundingClientRect())"
    x, y = shown.ask(place)
    for kind in ("mousePressed", "mouseReleased"):
        shown("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    last = "[...drawn.values()].at(-1)"
    assert shown.ask(f"{last}.node.name") == "fc_out"
    assert shown.ask(f"{last}.g.getBoundingClientRect().top < stage.getBoundingClientRect().bottom")
    shown.ask("closeAll(); fit()")
    assert shown.ask("map.hasAttribute('hidden')") and shown.complaints == []


def test_open_sizes_stand_apart():
    assert shape_text((1, 3, 64)) == "1x3x64" and shape_text(()) == "scalar"
    assert shape_text((named("batch", 1), 3, named("x", 2) + 1)) == "batch x 3 x (x + 1)"
    assert shape_text(["batch", 3]) == "batch x 3"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "name", "caption"),
    [
        ("conv2d", "stem", "conv2d  stem"),
        ("first_transpose … last_squeeze", "(100)", "first_transpose … last_sque…  (100)"),  # the count stays whole
        ("first … last", "(100)", "first … last  (100)"),
        (
            "matmul",
            "encoder_layer_0_attention_query",
            f"matmul  …{'encoder_layer_0_attention_query'[-24:]}",
        ),
    ],
)
def test_captions_are_cut_to_the_box(shown, title, name, caption):
    text = shown.ask(f"caption({{title: {title!r}, name: {name!r}}}, 250)")
    assert text == caption and len(text) <= 36


@pytest.mark.slow
def test_the_search_goes_in_the_order_of_execution(shown):
    shown.ask("closeAll(); search.value = 'relu'; find()")
    assert shown.ask("hits.length") == 49
    paths = shown.ask("hits.map((one) => one.key.split('/').map(Number))")
    assert paths == sorted(paths)
    assert shown.ask("hits.slice(0, 2).map((one) => one.node.qualname)") == [
        "ResNet.[func_relu]",
        "ResNet.layer1.0.[func_relu]",
    ]


@pytest.mark.slow
def test_the_drawing_prints_over_several_pages(shown):
    shown.ask("openAll()")
    assert len(re.findall(rb"/Type /Page\b", shown.printed())) > 2
    assert shown.ask("layer.hasAttribute('transform')")


@pytest.mark.slow
@pytest.mark.parametrize("make", [hostile_graph, lambda: chain(1000)], ids=["hostile", "chain"])
def test_a_browser_draws_it(make, tmp_path):
    graph = make()
    (tmp_path / "page.html").write_text(to_html(graph), encoding="utf-8")
    with Browser(tmp_path / "user") as browser:
        browser.open(tmp_path / "page.html")
        boxes = browser.ask("document.querySelectorAll('[role=button]').length")
        assert boxes == len(page_data([graph])["graphs"][0]["nodes"])
        assert browser.ask("document.title") != "owned" and not browser.ask("document.querySelectorAll('img').length")
        assert browser.requests == [(tmp_path / "page.html").as_uri()] and browser.complaints == []
