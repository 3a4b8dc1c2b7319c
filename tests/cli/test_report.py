"""Scores against hand-made numbers; the page is whole, offline, and hostile names stay text."""

import base64
import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from report_sections import edge, long_section

from megengine.cli.demo import Measured, conclusion
from megengine.cli.drawing_parts import both_histograms, channel_ranges, one_by_one, picture_of, predictions
from megengine.cli.evaluation import Score, logits_of, score
from megengine.cli.images import Recipe
from megengine.cli.measuring import interleaved
from megengine.cli.quantizing import Found, noted
from megengine.cli.report import WORDS, Section, decibel, histogram, number, percent, profile, ratio_words, render
from megengine.models import resnet50
from megengine.quantization import Risk, TensorStatistics
from megengine.tensor import tensor
from megengine.traced_module import lower, trace_module
from megengine.traced_module.pictures.page import hash_of, viewer


def test_score_by_hand():
    reference = np.array([[4.0, 1, 0], [0, 3, 1], [0, 0, 2]])
    logits = np.array([[3.0, 1, 0], [0, 1, 2], [0, 0, 2]])
    one = score(logits, reference, [(0,), (0, 1), (2,)])
    assert one.agreement == pytest.approx(2 / 3) and one.top1 == pytest.approx(2 / 3) and one.top5 == 1
    assert one.sqnr == pytest.approx(10 * math.log10(31 / 6))
    assert score(reference, reference, [(0,), (0,), (0,)]).describe()["sqnr"] is None
    assert score(reference, reference, [(0,), (0,), (0,)]).sqnr == math.inf
    assert logits_of(lambda x: x * 2, [np.ones((1, 3)), np.ones((2, 3))]).shape == (3, 3)


def test_interleaved_runs_each_in_turn():
    order = []
    times = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, warmup=1)
    assert order == ["a", "b"] * 4 and set(times) == {"a", "b"}


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_page_escapes_names_and_loads_nothing():
    hostile = '<script>alert("x")</script>'
    layers = [edge(hostile, module=hostile, op=hostile), edge("b", sqnr_db=None)]
    stats = TensorStatistics("b")
    stats.update(np.linspace(-1, 2, 1000, dtype=np.float32))
    section = Section(
        hostile,
        facts={hostile: hostile},
        scores=[("network", "top-1"), (hostile, "1 %")],
        layers=layers,
        statistics={"b": stats},
        floating=[{"name": hostile, "op": hostile, "module": hostile, "reason": hostile, "macs": 1, "share": 0.1}],
        floating_line=hostile,
        plan=hostile,
        verify=hostile,
        exact=False,
    )
    page = render(hostile, [section], recipe={hostile: hostile}, lines=[hostile])
    assert page.count("<script") == 1 and page.count("&lt;script&gt;") >= 12
    tags = Tags()
    tags.feed(page)
    assert not [a for _, a in tags.found if "src" in a or "href" in a]
    assert ("span", {"class": "bad"}) in tags.found
    assert sum(tag == "rect" for tag, _ in tags.found) > 20


def test_histogram_marks_the_ends_of_the_integers():
    stats = TensorStatistics("x")
    assert histogram(stats, (0.0, 1.0)) is None
    stats.update(np.random.default_rng(0).standard_normal(4000).astype(np.float32))
    drawn = histogram(stats, (-1.0, 1.0))
    assert len(drawn["marks"]) == 2 and drawn["marks"][0] < drawn["marks"][1]
    assert max(bar["h"] for bar in drawn["bars"]) == drawn["height"]
    assert all(bar["x"] + bar["w"] <= drawn["width"] for bar in drawn["bars"])
    assert histogram(stats, (-100.0, 100.0))["marks"] == []


def test_numbers_for_people():
    assert decibel(-0.004) == "0.0" and ratio_words(-0.04) == "SQNR 0.0 dB" and decibel(-0.06) == "-0.1"
    assert (number(None), number(0.123456), number(3)) == ("–", "0.1235", "3")
    assert (decibel(None), decibel(math.inf), decibel(12.34)) == ("exact", "exact", "12.3")
    assert (percent(0), percent(0.00123)) == ("0", "0.123 %")


def test_edges_can_be_sorted_and_searched():
    text = render("a", [Section("n", layers=[edge("a"), edge("b", sqnr_db=None)])], recipe={})
    tags = Tags()
    tags.feed(text)
    assert [attrs.get("class") for tag, attrs in tags.found if tag == "input"] == ["filter"]
    assert sum(tag == "script" for tag, _ in tags.found) == 1 and "script-src 'sha256-" in text
    assert 'data-v="20.0"' in text and 'data-v="999"' in text


@pytest.mark.parametrize(
    ("count", "marked", "said"),
    [(3, 0, "order (a heading"), (5, 1, "(the lowest SQNR in red; a"), (11, 2, "(the two lowest SQNR"),
     (55, 5, "(the five lowest SQNR in red")],
)  # fmt: skip
def test_of_few_edges_few_are_marked(count, marked, said):
    text = render("a", [long_section(count)], recipe={})
    assert said in text and text.count('class="worst"') == 2 * marked, "a dot and a row for each"


def test_the_chart_has_axes_and_a_link_to_each_row():
    tags = Tags()
    tags.feed(text := render("a", [long_section(55), long_section(30)], recipe={}))
    links = [attrs["href"] for tag, attrs in tags.found if tag == "a" and attrs["href"].startswith("#edge")]
    rows = [attrs["id"] for tag, attrs in tags.found if tag == "tr" and "id" in attrs]
    assert links == [f"#{row}" for row in rows] and len(set(rows)) == len(rows) == 85
    assert text.count("SQNR, dB</text>") == text.count("edge, in execution order</text>") == 2
    assert text.count("<title>1: edge_0, 20.0</title>") == 2


@pytest.mark.parametrize(
    ("values", "grid", "ticks"),
    [
        ([20.0, 30.0, None], [0, 10, 20, 30], [1, 2, 3]),
        ([-12.0, 3.0], [-20, -10, 0, 10], [1, 2]),
        ([150.0] * 200, list(range(0, 151, 20)), [1, *range(20, 201, 20)]),
    ],
)
def test_the_axes_bear_round_numbers(values, grid, ticks):
    drawn = profile([{**edge("a", sqnr_db=value), "worst": False} for value in values])
    assert [db for db, _ in drawn["grid"]] == grid and [number for number, _ in drawn["ticks"]] == ticks
    assert all(0 <= dot["x"] <= drawn["width"] and 0 <= dot["y"] <= drawn["height"] for dot in drawn["dots"])
    assert drawn["dots"][0]["x"] == 0 and drawn["dots"][-1]["x"] == drawn["width"]


def test_no_line_is_drawn_through_fewer_than_two_edges():
    assert profile([]) is None and profile([{**edge("a", sqnr_db=None), "worst": False}] * 3) is None


def test_there_are_rules_for_dark_narrow_and_printed_pages():
    text = render("a", [long_section(3)], recipe={})
    assert "color-scheme: light dark" in text and "(prefers-color-scheme: dark)" in text
    narrow = text.partition("screen and (max-width: 1000px)")[2]
    assert "attr(data-label)" in narrow
    printed = text.partition("@media print {")[2].partition("</style>")[0]
    assert re.search(r"\.scroll \{ overflow: visible; max-height: none", printed)
    assert "break-inside: avoid" in printed
    hidden = ",".join(re.findall(r"([^{}]*)\{ display: none; \}", printed))
    assert {"details.network", "details.plan:not([open])"} <= {one.strip() for one in hidden.split(",")}


def test_the_graph_is_the_page_of_draw_once_and_its_script_is_allowed():
    text = render("a", [long_section(5, "one"), long_section(6, "two")], recipe={})
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.S)
    graphs, frame, own = [json.loads(one) for one in scripts[:2]], json.loads(scripts[2]), scripts[3]
    assert [one["name"] for one in graphs] == ["one", "two"] and frame == viewer()[0]
    policy = re.search(r"script-src ([^\"]*)\"", text)[1]
    script = re.findall(r"<script>(.*?)</script>", frame, re.S)[0]
    assert policy == f"'{hash_of(own)}' '{hash_of(script)}'"
    assert "<iframe" not in text and "<svg xmlns" not in text  # made when it is opened
    plain = render("a", [Section("n", layers=[edge("a")])], recipe={})
    assert plain.count("<script") == 1 and not re.search(r"details class=.(network|plan)", plain)


def test_the_report_of_a_large_network_stays_small():
    module = trace_module(resnet50().eval(), tensor(np.zeros((1, 3, 64, 64), np.float32)))
    text = render("a", [replace(long_section(130), graph=lower(module).graph)], recipe={})
    assert len(text.encode()) < 5e6


def test_bars_are_the_float_values_and_a_line_the_integer_ones():
    counts = {"low": -1.0, "high": 3.0, "float": [0, 4, 16, 1], "integer": [0, 16, 0, 4]}
    drawn = both_histograms(counts, (0.0, 2.0))
    assert [(bar["x"], bar["h"]) for bar in drawn["bars"]] == [(33.0, 13.0), (66.0, 26.0), (99.0, 6.5)]
    assert drawn["line"] == "16.5,26.0 49.5,0.0 82.5,26.0 115.5,13.0" and drawn["marks"] == [33.0, 99.0]
    assert both_histograms({}, (0, 1)) is None and both_histograms({**counts, "float": [0] * 4}, (0, 1)) is None


def test_a_line_for_each_channel_and_many_channels_share_one():
    drawn = channel_ranges([-1.0, -2.0], [3.0, 0.0])
    assert [(one["a"], one["b"]) for one in drawn["lines"]] == [(0.0, 20.8), (15.6, 26.0)] and drawn["zero"] == 15.6
    assert len(channel_ranges([-1.0] * 1000, [1.0] * 1000)["lines"]) == 66 and channel_ranges([], []) is None


def test_inputs_are_shown_as_pictures_before_and_after():
    red = np.zeros((1, 3, 8, 8), np.float32)
    red[:, 0] = 1
    samples = (np.concatenate([red, red * 0.5]),), (np.zeros((1, 4)),), (red, red)
    before, after = (list(np.split(np.eye(4)[rows], [2, 3])) for rows in ([0, 1, 2, 3], [0, 0, 2, 3]))
    shown = predictions(one_by_one(samples, before, after), None)
    assert [(one["number"], one["same"]) for one in shown] == [(2, False), (1, True)]
    assert shown[0]["before"] == "1 (1)" and shown[0]["after"] == "0 (1)"
    data = base64.b64decode(shown[1]["src"].partition(",")[2])
    assert Image.open(io.BytesIO(data)).getpixel((4, 4)) == (255, 0, 0)
    how = Recipe(size=(8, 8), mean=(10.0,), std=(2.0,), colour="BGR")
    data = base64.b64decode(picture_of(red * 50, how).partition(",")[2])
    assert Image.open(io.BytesIO(data)).getpixel((4, 4)) == (10, 10, 110)


def test_what_was_found_layers_alone_and_pictures_stand_on_the_page():
    hostile = '<img src=x onerror="a()">'
    layer = {
        **{"name": hostile, "op": "conv2d", "module": hostile, "alone": 20.0, "freed": None, "gain": None},
        **{"local": {"weights": 30.0}, "weight_low": [-1.0], "weight_high": [1.0]},
    }
    shown = [{"src": "data:image/png;base64,AA==", "number": 1, "before": hostile, "after": "b", "same": False}]
    found = {"headline": hostile, "notes": [("advice", hostile)], "sensitivity": [layer], "pictures": shown}
    section = replace(long_section(3), **found)
    text = render("a", [section], recipe={})
    assert text.count("&lt;img src=x") >= 5 and text.count("<img") == 1 and "img-src data:;" in text
    assert 'data-node="edge_1"' in text and 'class="range"' in text
    graphs = json.loads(re.findall(r"<script[^>]*>(.*?)</script>", text, re.S)[0])["graphs"]
    noise = {box["name"]: (box["noise"], box["ratio"]) for one in graphs for box in one["nodes"] if "noise" in box}
    assert noise["edge_0"] == (0.667, "SQNR 20.0 dB") and set(noise) == {"edge_0", "edge_1", "edge_2"}


def test_notes_of_a_kind_share_a_line_behind_the_layers_that_lost_most():
    risks = tuple(Risk(f"conv_{i}", "bias", f"seen {i}", "added later") for i in range(5))
    worst = [SimpleNamespace(name="relu", op="relu", sqnr_db=12.5, noise_from="weights"), edge_of_no_noise()]
    edges = SimpleNamespace(
        worst=lambda n: worst[:n], output_agreement=None, output_sqnr_db=20.0, output_cosine=1.0, to_json=dict
    )
    notes = noted(Found(edges, risks=(*risks, Risk("fc", "dead channels", "a", "b"), Risk("x", "bias", "huge"))))[
        "notes"
    ]
    assert [kind for kind, _ in notes] == ["danger", "lost most", "next", "note", "note"]
    assert notes[1][1] == "relu (relu): 12.5 dB, by weights"
    assert notes[3][1] == "5 layers (conv_0, conv_1, conv_2, and 2 more): bias: of conv_0, seen 0; added later"
    assert notes[4][1] == "fc: dead channels: a; b"


def edge_of_no_noise():
    return SimpleNamespace(name="pad", op="pad", sqnr_db=math.inf, noise_from="")


def test_a_page_explains_its_words():
    page = render("a", [long_section(5)], recipe={})
    told = re.search(r'<details class="words">.*?</details>', page, re.S)[0]
    assert all(f"<dt>{word}</dt>" in told for word in WORDS) and {"SQNR", "edge", "cosine", "verify"} <= {*WORDS}
    noise = [float(n) for n in re.findall(r"([\d.]+) %", WORDS["SQNR"])]
    ratios = [float(n) for n in re.findall(r"([\d.]+) dB", WORDS["SQNR"])]
    assert noise == [round(100 * 10 ** (-db / 20)) for db in ratios]
    assert "Words on this page" not in render("a", [], recipe={})


def test_the_demo_concludes():
    def one(agreement, ms, sizes, exact=True):
        scores = Score(0.8, 0.9, 1.0, np.inf, 1.0, 135), Score(0.75, 0.9, agreement, 20.0, 0.9, 135)
        return Measured(None, scores, sizes, ms, SimpleNamespace(exact=exact), None, None, "")

    first, second = one(0.926, (4.0, 1.0), (40, 10)), one(0.97, (3.0, 1.5), (30, 10), exact=False)
    assert "first class for 92.6 % of 135 pictures, with top-1 75.0 % against 80.0 %, in 0.25 of its time" in (
        first.headline()
    )
    assert "equal the specification in every value" in first.headline() and "do not equal" in second.headline()
    assert "for 92.6 to 97.0 % of the pictures, in 0.25 to 0.50 of the time and 0.25 to 0.33 of" in (
        conclusion([first, second])
    )
    assert "The integers of 1 of 2" in conclusion([first, second]) and "1 network shows" in conclusion([first])
