"""Scores against hand-made numbers; the page is whole, offline, and hostile names stay text."""

import math
from html.parser import HTMLParser

import numpy as np
import pytest

from megengine.cli.benching import interleaved
from megengine.cli.evaluation import logits_of, score, sqnr
from megengine.cli.report import Section, decibel, histogram, number, percent, render
from megengine.quantization import TensorStatistics


def test_score_by_hand():
    reference = np.array([[4.0, 1, 0], [0, 3, 1], [0, 0, 2]])
    logits = np.array([[3.0, 1, 0], [0, 1, 2], [0, 0, 2]])
    one = score(logits, reference, [(0,), (0, 1), (2,)])
    assert one.agreement == pytest.approx(2 / 3) and one.top1 == pytest.approx(2 / 3) and one.top5 == 1
    assert one.sqnr == pytest.approx(10 * math.log10(31 / 6))
    assert score(reference, reference, [(0,), (0,), (0,)]).describe()["sqnr"] is None
    assert sqnr(reference, reference) == math.inf
    assert logits_of(lambda x: x * 2, [np.ones((1, 3)), np.ones((2, 3))]).shape == (3, 3)


def test_interleaved_runs_each_in_turn():
    order = []
    times = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, warmup=1)
    assert order == ["a", "b"] * 4 and set(times) == {"a", "b"}


def edge(name: str, **changes):
    values = {"op": "conv2d", "module": "m", "dtype": "quint8", "scale": 0.1, "zero_point": 3, "sqnr_db": 20.0}
    more = {
        "cosine": 0.9,
        "cut": 0.001,
        "steps_sqnr_db": 30.0,
        "noise_from": "its own steps",
        "observed": (-1.0, 2.0),
        "representable": (-0.5, 1.5),
    }
    return {"name": name, **values, **more, **changes}


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
