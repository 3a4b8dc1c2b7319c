"""Names from files are hostile text: one table of names, every output, nothing that runs, hides or breaks out."""

import ast
import json
import re
import traceback
import xml.etree.ElementTree as ET
from collections import OrderedDict
from html.parser import HTMLParser

import numpy as np
import pytest
from click.testing import CliRunner

import megengine.functional as F
import megengine.module as M
from megengine.cli.app import group
from megengine.cli.report import Section, render
from megengine.convert import onnx
from megengine.core.errors import MegEngineError
from megengine.core.spec import TensorSpec
from megengine.tensor import tensor
from megengine.traced_module import InternalGraph, TracedModule, interpret, load_tm, lower, save_tm, trace_module
from megengine.traced_module import diff as difference
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.formats import native as files
from megengine.traced_module.pictures.dot import to_dot
from megengine.traced_module.pictures.drawing import to_svg
from megengine.traced_module.pictures.page import to_html
from megengine.traced_module.pictures.summary import summarize
from megengine.traced_module.source import to_source

NAMES = {
    "markup": "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>",
    "comment": "--><!-- ]]>",
    "entity": "&lt;b&gt;&#x3c;",
    "quotes": "'\"`\"\"\"'''",
    "injection": '"; import os; os.system("touch owned"); "',
    "newline": "a\nimport os\r\n\x0bb\u2028c\u2029d\x85e",
    "escape": "\x1b[31mred\x1b]0;owned\x07\x9b2J",
    "bidi": "\u202egnp.\u2066exe\u2069\u200f",
    "invisible": "\u200b\ufeff\u00ad",
    "null": "a\x00b",
    "surrogate": "\ud83d alone \udc00",
    "backslash": "\\N\\G\\l\\",
    "braces": "{{ 7 * 7 }} {% raw %} ${x} {0} %s %(a)s",
    "rich": "[bold red]x[/] [link=file:///etc/passwd]y[/link] [/",
    "keyword": "class",
    "dunder": "__class__",
    "path": "../../etc/passwd",
    "formula": "=cmd|' /C calc'!A0",
    "dots": "....",
    "empty": "",
    "digits": "0",
    "long": "n" * 20_000,
}
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


@pytest.fixture(params=NAMES.values(), ids=NAMES)
def name(request):
    return request.param


def ops(name):
    """A graph of ops in which all text is the name."""
    g = InternalGraph(name)
    x = add_input(g, name, TensorSpec((1, 4), np.dtype(np.float32)), qualname=name)
    meta = {"module": name, "source": name, "passes": (name,), "onnx": name}
    for _ in range(4):
        x = g.apply("relu", x, name=name or "y", meta=meta, qualname=name)
    set_outputs(g, [x])
    return g


def calls(name):
    """A traced module whose attributes, and keys of whose result, are the name."""

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            setattr(self, name, M.Sequential(M.Linear(4, 4), M.ReLU()))
            self.names = name

        def forward(self, x):
            return {name: F.relu(getattr(self, name)(x)), "y": x}

    Net.__name__ = Net.__qualname__ = name.encode("ascii", "ignore").decode().replace("\x00", "") or "Net"
    try:
        return trace_module(Net().eval(), tensor(np.ones((1, 4), np.float32)))
    except (MegEngineError, TypeError):
        return None  # Python or we refuse such a module


def models(name):
    return [m for m in (ops(name), calls(name)) if m is not None]


def harmless(text):
    """No character that hides, reorders or commands; for files, encodable."""
    assert not (found := CONTROL.search(text)), f"{found.group()!r} in {text[max(found.start() - 40, 0) :][:90]!r}"
    text.encode("utf-8")


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [key for key, _ in attrs]


def tags_of(text):
    found = Tags(text)
    return found.tags, [key for key in found.attributes if key.startswith("on") or key in ("src", "href")]


def graph_of(model):
    return model if isinstance(model, InternalGraph) else model.graph


def test_pictures(name):
    for model in models(name):
        for depth in (None, 0):
            text = to_svg(graph_of(model), depth=depth)
            harmless(text)
            assert {e.tag.rpartition("}")[2] for e in ET.fromstring(text).iter()} <= {
                *("svg", "g", "rect", "text", "title", "path")
            }
            assert len(text) < 200_000


def test_dot(name):
    for model in models(name):
        text = to_dot(graph_of(model))
        harmless(text)
        string = r'"(?:[^"\\\n]|\\.)*"'
        bare = re.sub(string, '""', text)
        assert '"' not in bare.replace('""', "") and "<" not in bare.replace("->", "")
        words = {
            w for w in re.findall(r"[\w#]+", bare.partition("{")[2]) if not re.fullmatch(r"(?:cluster_)?n(?:_\d+)+", w)
        }
        known = ("node", "graph", "shape", "box", "style", "rounded", "fontname", "color", "label", "fillcolor")
        assert words <= {"subgraph", *known}
        assert not re.search(r"(?<!\\)(?:\\\\)*\\[NGElrTH]", "".join(re.findall(string, text)))


def test_page(name):
    for model in models(name):
        text = to_html(model)
        harmless(text)
        tags, loud = tags_of(text)
        assert tags.count("script") == 2 and "img" not in tags and not loud
        assert json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])["graphs"]


def test_differences(name):
    pairs = [(ops(name), ops("a")), (ops("a"), ops(name))]
    if (traced := calls(name)) is not None:
        other = traced.clone()
        other.graph.rename(other.graph.outputs[0], "renamed")
        pairs.append((traced, other))
    for a, b in pairs:
        found = difference(a, b)
        harmless(str(found))
        harmless(found.to_svg())
        ET.fromstring(found.to_svg())
        page = found.content(".html")
        harmless(page)
        tags, loud = tags_of(page)
        assert "img" not in tags and tags.count("script") == 0 and not loud
        text = found.content(".json")
        harmless(text)
        json.loads(text)


def test_summary(name):
    for model in models(name):
        text = repr(summarize(graph_of(model)))
        harmless(text)
        assert max(map(len, text.splitlines())) < 600


def test_generated_source(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for model in models(name):
        try:
            text = to_source(model)
        except MegEngineError as error:
            harmless(str(error))
            continue
        harmless(text)
        tree = ast.parse(text)
        imported = [a.name for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names]
        assert not {"os", "subprocess"} & set(imported)
        exec(compile(tree, "made.py", "exec"), {"__name__": "made", "__file__": str(tmp_path / "made.py")})
        assert not (tmp_path / "owned").exists()


def test_files_keep_the_names_or_refuse_them(name, tmp_path):
    for model in models(name):
        whole = model if isinstance(model, TracedModule) else TracedModule.from_graph(model)
        writers = [(".mgt", files.save, files.load), (".onnx", onnx.export, onnx.load)]
        if isinstance(model, TracedModule):
            writers.append((".tm", save_tm, load_tm))
        for suffix, save, load in writers:
            path = tmp_path / f"net{suffix}"
            try:
                save(whole, path)
            except MegEngineError as error:
                harmless(str(error))
                assert not path.exists()
                continue
            again = load(path)
            if suffix == ".mgt":
                assert not difference(whole, again)
            for node in again.graph.nodes():
                assert node.name.isidentifier()
            path.unlink()
        assert sorted(tmp_path.iterdir()) == []


def test_commands(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for model in models(name):
        whole = model if isinstance(model, TracedModule) else TracedModule.from_graph(model)
        try:
            files.save(whole, "net.mgt")
        except MegEngineError:
            continue
        wanted = name.replace("\x00", "")
        for words in (
            ["inspect", "net.mgt"],
            ["inspect", "net.mgt", "--calls", "--find", "*"],
            ["inspect", "net.mgt", "--find", wanted or "?"],
            ["lint", "net.mgt"],
            ["diff", "net.mgt", "net.mgt"],
            ["draw", "net.mgt", "-o", "a.svg"],
            ["draw", "net.mgt", "--ops", "-o", "a.html"],
            ["draw", "net.mgt", "-o", "c.html", "--module", wanted],
            ["edit", "net.mgt", "-o", "b.mgt", "--rename", f"{wanted}=b"],
            ["edit", "net.mgt", "-o", "b.mgt", "--insert", f"{wanted}=F.relu(_)"],
            ["edit", "net.mgt", "-o", "b.mgt", "--replace", f"relu_out={wanted}(_)"],
            ["edit", "net.mgt", "-o", "b.mgt", "--passes", wanted],
            ["draw", f"./{wanted[:60]}.mgt".replace("/..", "__"), "-o", "a.svg"],
        ):
            for more in ([], ["--json"]):
                done = CliRunner().invoke(group, [*words, *more], catch_exceptions=False)
                assert done.exit_code in (0, 1, 2), (words, done.stderr)
                harmless(done.stdout)
                harmless(done.stderr)
                assert "Traceback" not in done.stderr and len(done.stderr) < 60_000
                if more and done.stdout:
                    json.loads(done.stdout)


def one_of_each(text):
    """No line of the text begins as a name would have it."""
    harmless(text)
    assert not re.search("^(import os|b$|c$|d$)", text, re.M), text


def test_what_python_prints(name):
    """repr and str of models, graphs, nodes, expressions, lists of them, layers and results."""
    for model in models(name):
        graph = graph_of(model)
        for item in (model, graph, *graph.nodes(), *graph.exprs(), graph.nodes(), graph.exprs()):
            one_of_each(repr(item))
            one_of_each(str(item))
        if isinstance(model, TracedModule) and name:
            flat = model.flatten()
            for item in (flat, flat.graph, *model.specializations, model.edit_log, *model.children()):
                one_of_each(repr(item))
                one_of_each(str(item))


def layers(name):
    """A module whose attributes and entries are the name; None where Python or we refuse it."""
    net = M.Module()
    try:
        setattr(net, name, M.Sequential(OrderedDict([(name or "a", M.Linear(4, 4))])))
        net.table = {name: M.ReLU()}
    except (MegEngineError, TypeError):
        return None
    net.forward = lambda x: getattr(net, name)(x)
    return net


def test_printed_layers(name):
    if (net := layers(name)) is not None:
        one_of_each(repr(net))


def printed(error):
    return "".join(traceback.format_exception_only(error))


def test_error_messages_and_their_notes(name, tmp_path):
    wrong = tensor(np.ones((1, 5), np.float32))
    found = []
    for model in models(name):
        whole = model if isinstance(model, TracedModule) else TracedModule.from_graph(model)
        found.append(raised(lambda whole=whole: whole(wrong)))
        found.append(raised(lambda whole=whole: whole.graph.node(f"{name}?")))
        found.append(raised(lambda whole=whole: whole.graph.get_node_by_name(f"{name}?").as_unique()))
    if (net := layers(name)) is not None:
        found += [raised(lambda: net(wrong)), raised(lambda: net.load_state_dict({name: np.zeros(3)}))]
    for error in filter(None, found):
        one_of_each(printed(error))
    for load in (onnx.load, files.load, load_tm):
        harmless(printed(raised(lambda load=load: load(f"{tmp_path}/{name[:50]}"))))


def test_errors_that_are_not_ours_get_harmless_notes(name):
    def refuse(node, value):
        raise ZeroDivisionError

    for model in models(name):
        error = raised(lambda model=model: interpret(graph_of(model), [np.ones((1, 4), np.float32)], on_value=refuse))
        one_of_each(printed(error))


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    return None


def test_report(name):
    def page(text):
        edge = {**dict.fromkeys(("name", "op", "module", "dtype"), text), "scale": 0.1, "zero_point": 0, "cosine": 1.0}
        edge |= {
            "sqnr_db": 20.0,
            "cut": 0.0,
            "steps_sqnr_db": 30.0,
            "noise_from": "",
            "observed": (0.0, 1.0),
            "representable": (0.0, 1.0),
        }
        two = {text: text}
        floating = [{**dict.fromkeys(("name", "op", "module", "reason"), text), "macs": 1, "share": 0.5}]
        section = Section(
            text,
            two,
            [(text, text)] * 2,
            text,
            [edge] * 2,
            floating=floating,
            runs=[(text, text)] * 2,
            graph=ops(text),
            plan=text,
            verify=text,
        )
        return render(text, [section], recipe=two, lines=[text])

    made = page(name)
    harmless(made)
    tags, loud = tags_of(made)
    plain, _ = tags_of(page("a"))
    assert [t for t in tags if t != "br"] == [t for t in plain if t != "br"] or name == ""
    assert set(loud) <= {"href"}
    links = re.findall(r'href="([^"]*)"', made)
    assert links == ["#edge-1-1", "#edge-1-2"]  # no name stands in one


def test_ops_of_a_lowered_model_carry_no_more(name):
    if (model := calls(name)) is not None:
        harmless(to_html(lower(model)))
        harmless(to_svg(lower(model).graph))
