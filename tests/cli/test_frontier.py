"""The picture of a search: its marks lie where the measurements say."""

import itertools
from xml.etree import ElementTree

import pytest

from megengine.cli.frontier import picture
from megengine.quantization import Budget, Point, SearchResult

SVG = "{http://www.w3.org/2000/svg}"
BASE = Point((), 4_000_000, 1.0, 20.0, 0.9)
POINTS = (
    BASE,
    Point(("a=w4a8",), 3_000_000, 1.0, 15.0, 0.8),
    Point(("b=w4a8",), 3_500_000, 1.0, 12.0, 0.7),
    Point(("c=w8a16",), 4_000_000, 1.25, 30.0, 1.0),
)


def panels(points, budget):
    """Title, then of each panel the classes and places of its marks."""
    root = ElementTree.fromstring(
        picture("net <1> & others", SearchResult(points[0], points[0], points, {}, 0.0), budget)
    )
    found = []
    for panel in root.findall(f"{SVG}g"):
        marks = {g.find(f"{SVG}title").text: g.find(f"{SVG}circle") for g in panel.findall(f"{SVG}g")}
        found.append((panel, marks))
    assert root.find(f"{SVG}text").text == "net <1> & others"
    return found


def test_marks_lie_in_the_order_of_their_values():
    found = panels(POINTS, Budget(bytes=3_200_000, agreement=0.85))
    assert len(found) == 4
    costs = [lambda p: p.bytes, lambda p: p.latency_ms] * 2
    goods = [lambda p: p.agreement] * 2 + [lambda p: p.sqnr_db] * 2
    for (panel, marks), cost, good in zip(found, costs, goods, strict=True):
        places = {}
        for point in POINTS:
            (circle,) = [c for text, c in marks.items() if f"{point.sqnr_db:.1f} dB" in text]
            places[point] = float(circle.get("cx")), -float(circle.get("cy"))
        for a, b in itertools.permutations(POINTS, 2):
            assert (cost(a) < cost(b)) == (places[a][0] < places[b][0])
            assert (good(a) < good(b)) == (places[a][1] < places[b][1])
        assert [c.get("class") for c in marks.values()].count("base") == 1
        assert len(panel.findall(f"{SVG}line[@class='budget']")) == (cost is costs[0]) + (good is goods[0])


def test_no_axis_goes_beyond_what_can_be():
    (panel, _), *_ = panels((Point((), 1_000, 1.0, 48.0, 1.0),), Budget(sqnr_db=30))
    numbers = [float(text.text) for text in panel.findall(f"{SVG}text[@text-anchor='end']")]
    assert max(numbers) == 100 and len(numbers) > 2


@pytest.mark.parametrize("points", [(BASE,), (BASE, BASE), (Point((), 0, 0.0, -5.0, 0.0),)], ids=str)
def test_networks_that_are_alike_have_a_picture(points):
    assert len(panels(points, Budget(sqnr_db=10))) == 4
