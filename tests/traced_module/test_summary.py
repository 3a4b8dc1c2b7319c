"""Costs against hand-made and published numbers; the table is aligned, and hostile names come out harmless."""

import math

import numpy as np
import pytest
from megengine_graphs import NETS, traced

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError
from megengine.core.spec import TensorSpec
from megengine.models import resnet50
from megengine.tensor import Parameter, tensor
from megengine.traced_module import Input, InternalGraph, TracedModule, lower, trace_module, wrap
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.ir.queries import child_graphs
from megengine.traced_module.pictures.summary import summarize


def conv_macs(out, weight, groups=1):
    """By the definition: one multiplication for each result, input channel of its group and cell of the window."""
    return math.prod(out) * weight[1] // groups * weight[2] * weight[3]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolutions_by_hand(groups):
    net = M.Sequential(M.Conv2d(4, 8, 3, padding=1, groups=groups), M.ConvTranspose2d(8, 4, 2, stride=2, groups=groups))
    module = trace_module(net.eval(), tensor(np.zeros((2, 4, 6, 5), np.float32)))
    wanted = [conv_macs((2, 8, 6, 5), (8, 4, 3, 3), groups), conv_macs((2, 8, 6, 5), (8, 4, 2, 2), groups)]
    assert [row.macs for row in module.summary().rows] == wanted
    found = lower(module).summary()
    assert [row.macs for row in found.rows if row.macs] == wanted and found.macs == sum(wanted)


def test_resnet50_has_its_published_numbers():
    module = trace_module(resnet50().eval(), tensor(np.zeros((1, 3, 224, 224), np.float32)))
    found = module.summary()
    assert found.parameters == 25_557_032 and found.weight_bytes == 4 * 25_557_032
    assert found.macs == 4_089_184_256 == lower(module).summary().macs == module.flatten().summary().macs
    outer = module.summary(depth=0)
    assert len(outer.rows) == 11 and {row.depth for row in outer.rows} == {0}
    assert sum(row.macs for row in outer.rows) == found.macs
    assert sum(row.parameters for row in outer.rows) == found.parameters
    assert {row.depth for row in module.summary(depth=1).rows} == {0, 1}


def calls(graph):
    return [e for e in graph.exprs(recursive=False) if e.kind in ("CallMethod", "CallFunction", "Apply")]


@pytest.mark.parametrize("name", NETS)
def test_every_call_has_a_row(name):
    module = traced(name)
    rows = module.summary().rows
    assert [row.name for row in rows if row.depth == 0] == [e.name for e in calls(module.graph)]
    inside = {e.name for graph in child_graphs(module.graph) for e in calls(graph)}
    assert {row.name for row in rows if row.depth == 1} == inside
    assert not module.summary().unknown
    if name == "call_mix":
        return  # assigns to items, which only values can do at op level
    flat = lower(module)
    ops = [e for e in flat.graph.exprs() if e.kind == "Apply"]
    assert [row.specs for row in flat.summary().rows] == [tuple(n.spec for n in e.outputs) for e in ops]


class Shared(M.Module):
    def __init__(self):
        super().__init__()
        self.part = M.Sequential(M.Linear(3, 3), M.ReLU())
        self.scale = Parameter(np.ones(3, np.float32))
        self.steps = tensor(np.ones(3, np.float32))

    def forward(self, x):
        return F.matmul(self.part(self.part(x)) * self.scale + self.steps, np.ones((3, 5), np.float32))


def test_a_part_that_is_used_twice_costs_twice_and_is_stored_once():
    found = trace_module(Shared().eval(), tensor(np.zeros((2, 3), np.float32))).summary()
    assert found.parameters == 3 * 3 + 3 + 3 and found.macs == 2 * (2 * 3 * 3) + 2 * 3 * 5
    parts = [row for row in found.rows if row.module == "part"]
    assert [(row.parameters, row.macs) for row in parts] == [(12, 18), (12, 18)]


@wrap
def needs_values(x):
    return x * float(x.numpy().sum())


class Peeking(M.Module):
    def forward(self, x):
        return needs_values(x) + 1


def test_costs_that_need_real_values_are_unknown():
    found = TracedModule(trace_module(Peeking(), tensor(np.ones(3, np.float32))).graph).summary()
    assert [row.macs for row in found.rows] == [None, 0] and found.macs == 0 and found.unknown == ("needs_values_out",)
    assert str(found).endswith("without 1 call whose multiply-accumulates need real values: needs_values_out")


def test_the_table_is_aligned_and_harmless():
    g = InternalGraph("net\x1b[2J\u202e")
    x = add_input(g, "x", TensorSpec((1, 4), np.dtype(np.float32)))
    y = g.apply("relu", x, name="a", meta={"module": "bad\x1b]0;x\x07\nname" + "z" * 500})
    set_outputs(g, [g.apply("sigmoid", y, name="b")])
    text = str(TracedModule(g).summary())
    assert all(c == "\n" or c.isprintable() for c in text)
    lines = text.splitlines()
    assert len(lines) == 6 and max(map(len, lines)) < 200
    assert lines[2].index("1x4") == lines[3].index("1x4") == lines[0].index("shape")


def test_refusals():
    module = trace_module(Shared().eval(), tensor(np.zeros((2, 3), np.float32)))
    for depth in (-1, "all"):
        with pytest.raises(GraphError, match=r"summary: depth is .*; expected None or a count of levels"):
            module.summary(depth)  # pyright: ignore[reportArgumentType]
    with pytest.raises(GraphError, match="0 graphs; expected one"):
        TracedModule().summary()
    assert all(not isinstance(e, Input) for e in summarize(module.graph).rows)


def test_the_table_is_as_wide_as_is_asked_for(monkeypatch):
    found = trace_module(resnet50().eval(), tensor(np.zeros((1, 3, 32, 32), np.float32))).summary()
    whole = found.to_text()
    assert max(map(len, whole.splitlines())) > 80 and f"({2 * found.macs:,} FLOPs)" in whole
    for width in (80, 100, 120):
        lines = found.to_text(width).splitlines()
        assert max(map(len, lines)) <= width and len(lines) >= len(found.rows) + 4
        assert all(
            f"{row.parameters:,}" in line for row, line in zip(found.rows, lines[2:], strict=False) if row.parameters
        )
    assert max(map(len, found.to_text(1).splitlines())) < 70  # numbers are never cut
    assert repr(found) == whole  # not a terminal
    monkeypatch.setattr("sys.stdout", type("Terminal", (), {"isatty": lambda self: True, "fileno": lambda self: 1})())
    monkeypatch.setenv("COLUMNS", "90")
    text = repr(found)
    monkeypatch.undo()
    assert text == found.to_text(90)
    for width in (0, -1, True, 2.5, "9"):
        with pytest.raises(GraphError, match=f"summary: width is {width!r}; expected None or a count"):
            found.to_text(width)  # pyright: ignore[reportArgumentType]
