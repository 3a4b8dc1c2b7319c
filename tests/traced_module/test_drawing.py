"""Pictures: well-formed, every op in them, hostile names escaped."""

import io
import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from megengine_graphs import NETS, traced

from megengine.core.dtype import quantized
from megengine.core.errors import GraphError
from megengine.core.spec import TensorSpec
from megengine.traced_module import InternalGraph, lower
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.pictures.boxes import called_name, kind_of
from megengine.traced_module.pictures.dot import to_dot
from megengine.traced_module.pictures.drawing import to_png, to_svg
from megengine.traced_module.pictures.hierarchy import shown

SVG = "{http://www.w3.org/2000/svg}"


def diamond(meta=None) -> InternalGraph:
    g = InternalGraph("net")
    x = add_input(g, "x", TensorSpec((1, 4), np.dtype(np.float32)))
    a = g.apply("relu", x, name="a", meta=meta or {})
    b = g.apply("sigmoid", x, name="b")
    c = g.apply("relu", a, name="c")
    set_outputs(g, [g.apply("add", c, b, name="y")])
    return g


def boxes_of(root):
    """(left, top, right, bottom) of each rectangle, translations of the groups around it added."""
    found = []

    def walk(element, x, y):
        if (moved := element.get("transform")) is not None:
            dx, dy = map(float, moved.removeprefix("translate(").removesuffix(")").split(","))
            x, y = x + dx, y + dy
        if element.tag == f"{SVG}rect":
            left, top = x + float(element.get("x", 0)), y + float(element.get("y", 0))
            found.append((left, top, left + float(element.get("width")), top + float(element.get("height"))))
        for child in element:
            walk(child, x, y)

    walk(root, 0, 0)
    return found


def apart_or_inside(a, b):
    apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    return apart or any(p[0] <= q[0] and p[1] <= q[1] and q[2] <= p[2] and q[3] <= p[3] for p, q in ((a, b), (b, a)))


def titles(text):
    return [t.text for t in ET.fromstring(text).iter(f"{SVG}title")]


def test_every_expression_has_a_box():
    g = diamond()
    text = to_svg(g)
    root = ET.fromstring(text)
    assert len(titles(text)) == len(g.exprs()) == 5 and len(root.findall(f"{SVG}path")) == 5
    assert [t.text for t in root.findall(f"{SVG}text")] == ["input", "other", "output"]  # the legend


@pytest.mark.parametrize("depth", [None, 0, 1])
@pytest.mark.parametrize("name", NETS)
def test_boxes_do_not_overlap_and_stand_inside_the_picture(name, depth):
    module = traced(name)
    for graph in (module.graph, module.flatten().graph, lower(module).graph):
        root = ET.fromstring(to_svg(graph, depth=depth))
        boxes = boxes_of(root)
        assert all(apart_or_inside(a, b) for i, a in enumerate(boxes) for b in boxes[:i])
        width, height = float(root.get("width")), float(root.get("height"))
        assert all(b[0] >= 0 and b[1] >= 0 and b[2] <= width and b[3] <= height for b in boxes)


def test_depth_opens_so_many_levels():
    module = traced("call_mix")
    closed, opened = to_svg(module.graph, depth=0), to_svg(module.graph)
    assert len(titles(closed)) == len(shown(module.graph)) < len(titles(opened))
    assert "Scale  branches_4_out" in closed and "Scale  branches_4_out" in opened
    assert "cluster" not in to_dot(module.graph, depth=0) and "subgraph cluster_" in to_dot(module.graph)
    for depth in (-1, 1.5, "1"):
        with pytest.raises(GraphError, match="drawing: depth is .*expected None or a count of levels"):
            to_svg(module.graph, depth=depth)


def test_hostile_text_is_escaped():
    g = diamond({"module": '</title><script>alert("x")</script>\x1b', "source": "a&b.py:1"})
    text = to_svg(g)
    assert "<script" not in text and "\x1b" not in text
    ET.fromstring(text)


def test_dot_has_every_edge():
    text = to_dot(diamond())
    assert text.count("->") == 5 and text.startswith("digraph net {") and text.rstrip().endswith("}")


@pytest.mark.parametrize("name", NETS)
def test_dot_connects_what_the_flat_graph_connects(name):
    """Through clusters, calls are connected as in the graph in which every submodule's calls stand in place."""
    module = traced(name)
    text = to_dot(module.graph)
    assert text.count("{") == text.count("}")
    labels = dict(re.findall(r'(n(?:_\d+)+) \[label="(.*?)\\n', text))
    arrows = re.findall(r"(n(?:_\d+)+) -> (n(?:_\d+)+)", text)
    assert all(end in labels for arrow in arrows for end in arrow)
    below = {}
    for start, end in arrows:
        below.setdefault(end, []).append(start)

    def sources(box):
        """What a box reads, inputs of submodules passed through."""
        found = []
        for start in below.get(box, ()):
            passed = labels[start].startswith("input") and start.count("_") > 1
            found += sources(start) if passed else [labels[start].split("  ")[0]]
        return found

    drawn = sorted(
        (label.split("  ")[0], sorted(set(sources(box)))) for box, label in labels.items() if "input" not in label
    )
    flat = module.flatten().graph
    wanted = [
        (called_name(e), sorted({called_name(n.expr) for n in e.inputs if n.expr in shown(flat)}))
        for e in shown(flat)
        if e.kind != "Input"
    ]
    assert drawn == sorted(wanted)


def test_png_is_the_picture_and_text_shows_without_system_fonts(monkeypatch):
    resvg = pytest.importorskip("resvg_py")
    from PIL import Image

    def picture(graph):
        return np.asarray(Image.open(io.BytesIO(to_png(graph, scale=1))).convert("L"))

    g = diamond()
    root = ET.fromstring(to_svg(g))
    made = picture(g)
    assert made.shape == (int(root.get("height")), int(root.get("width"))) and len(np.unique(made)) > 20
    draw = resvg.svg_to_bytes
    monkeypatch.setattr(resvg, "svg_to_bytes", lambda **options: draw(skip_system_fonts=True, **options))
    bare = picture(g)
    box = (slice(20, 48), slice(30, 200))  # the text of the first box
    assert bare[box].min() < 90 and abs(float(bare[box].mean()) - float(made[box].mean())) < 12


def test_large_pictures_are_drawn_smaller():
    from PIL import Image

    g = InternalGraph("long")
    x = add_input(g, "x", TensorSpec((4,), np.dtype(np.float32)))
    for _ in range(330):
        x = g.apply("relu", x)
    set_outputs(g, [x])
    root = ET.fromstring(to_svg(g))
    height = int(root.get("height"))
    assert 16_000 < height < 64_000  # too high at two pixels for one
    made = Image.open(io.BytesIO(to_png(g)))
    assert 31_000 < made.height <= 32_000
    with pytest.raises(GraphError, match=r"open fewer levels \(depth=1\), draw one module, or write SVG"):
        to_png(g, scale=2)


def test_png_without_its_package_and_of_too_many_pixels(monkeypatch):
    with pytest.raises(
        GraphError, match=r"to_png: the picture would be .*, in pixels; expected at most 32,000 each way"
    ):
        to_png(diamond(), scale=1000)
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(GraphError, match=r"needs the package resvg_py; run `pip install resvg_py`"):
        to_png(diamond())


def test_quantized_values_and_what_computes_with_them_have_a_colour_of_their_own():
    g = InternalGraph("q")
    x = add_input(g, "x", TensorSpec((1, 4), quantized("quint8", 0.5, 3)))
    set_outputs(g, [g.apply("dequantize", x, name="y")])
    assert "1x4 quint8(0.5, 3)" in to_svg(g) and kind_of(g.exprs()[-1]) == "integer"
