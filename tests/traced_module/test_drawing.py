"""Pictures: well-formed, every op in them, hostile names escaped."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from megengine_graphs import NETS, traced

from megengine.core.spec import TensorSpec
from megengine.traced_module import InternalGraph
from megengine.traced_module.drawing import layout, to_dot, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def diamond(meta=None) -> InternalGraph:
    g = InternalGraph("net")
    x = g.add_input("x", TensorSpec((1, 4), np.dtype(np.float32)))
    a = g.apply("relu", x, name="a", meta=meta or {})
    b = g.apply("sigmoid", x, name="b")
    c = g.apply("relu", a, name="c")
    g.set_outputs([g.apply("add", c, b, name="y")])
    return g


def test_every_expression_has_a_box_of_its_own_below_its_inputs():
    g = diamond()
    boxes = layout(g)
    assert len({(b.row, b.column) for b in boxes.values()}) == len(g.exprs()) == 5
    for box in boxes.values():
        assert all(boxes[id(n.expr)].row < box.row for n in box.expr.inputs)
    root = ET.fromstring(to_svg(g))
    assert len(root.findall(f"{SVG}g")) == 5 and len(root.findall(f"{SVG}path")) == 5
    width, height = int(root.get("width")), int(root.get("height"))
    assert all(b.left + 190 < width and b.top + 40 < height for b in boxes.values())


def test_hostile_text_is_escaped():
    g = diamond({"module": '</title><script>alert("x")</script>\x1b', "source": "a&b.py:1"})
    text = to_svg(g)
    assert "<script" not in text and "\x1b" not in text
    ET.fromstring(text)


def test_dot_has_every_edge():
    text = to_dot(diamond())
    assert text.count("->") == 5 and text.startswith('digraph "net" {') and text.rstrip().endswith("}")


@pytest.mark.parametrize("name", NETS)
def test_graphs_of_calls_are_drawn(name):
    module = traced(name)
    for graph in (module.graph, module.flatten().graph):
        boxes = layout(graph)
        calls = [e for e in graph.exprs(recursive=False) if e.kind in ("CallMethod", "CallFunction", "Apply")]
        assert all(id(e) in boxes for e in calls)
        assert all(boxes[id(n.expr)].row < b.row for b in boxes.values() for n in b.expr.inputs if id(n.expr) in boxes)
        root = ET.fromstring(to_svg(graph))
        assert len(root.findall(f"{SVG}g")) == len(boxes)
    assert "Conv2d  head_out" in to_svg(traced("call_mix").graph)
    assert "Module  branches_4_out" in to_dot(traced("call_mix").graph)
