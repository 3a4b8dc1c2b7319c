"""Folding of pictures: acyclic whatever the order, nothing lost, no sheet too large, deep and long graphs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megengine.core.spec import TensorSpec
from megengine.tensor import tensor
from megengine.traced_module import InternalGraph, lower, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.pictures.hierarchy import DEEPEST, FEWEST, MOST, cells, results, sheet_of, shown

SPEC = TensorSpec((1, 4), np.dtype(np.float32))


def graph_of(paths, operands=None):
    """A graph of additions; each has a module path and the indices of its two operands."""
    g = InternalGraph("net")
    made = [add_input(g, "x", SPEC)]
    for i, path in enumerate(paths):
        a, b = (i, i) if operands is None else operands[i]
        made.append(g.apply("add", made[a % len(made)], made[b % len(made)], name=f"n{i}", meta={"module": path}))
    set_outputs(g, [made[-1]])
    return g


def all_sheets(sheet, found=None):
    found = [] if found is None else found
    found.append(sheet)
    for item in sheet.items:
        if item.inside is not None and not any(item.inside is one for one in found):
            all_sheets(item.inside, found)
    return found


def held(sheet):
    """Expressions of a sheet and of its folds, calls of submodules not opened."""
    return [e for i in sheet.items for e in (held(i.inside) if i.expr is None and i.inside else i.made)]


def outline(sheet):
    return [
        i.expr.name if i.expr else f"<{i.source.name}>" if i.source else (i.title, outline(i.inside))
        for i in sheet.items
    ]


def test_runs_of_a_module_fold_with_what_comes_from_outside():
    g = graph_of(["", "a.x", "a.x", "a.y", "a.y", "a.y", "b", "b", "a.x"])
    inside = [("a.y", ["<n2>", "n3", "n4", "n5"])]
    assert outline(sheet_of(g)) == ["x", "n0", ("a", ["<n0>", "n1", "n2", *inside]), "n6", "n7", "n8"]
    fold = sheet_of(g).items[2]
    assert [n.name for n in results(fold)] == ["n5"] and [e.name for e in fold.made] == ["n1", "n2", "n3", "n4", "n5"]


def test_a_fold_of_one_module_only_is_titled_by_all_that_is_common():
    g = graph_of(["a.b.c", "a.b.d", "a.b.d"])
    assert outline(sheet_of(g)) == ["x", ("a.b", ["<x>", "n0", "n1", "n2"])]


@given(
    st.lists(st.sampled_from(["", "a", "b", "a.x", "a.x.y", "a.y", "b.x"]), max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=40, max_size=40),
)
@settings(max_examples=150, deadline=None)
def test_whatever_the_order_nothing_is_lost_and_operands_stand_above(paths, operands):
    g = graph_of(paths, operands)
    sheet = sheet_of(g)
    assert list(map(id, held(sheet))) == list(map(id, shown(g)))
    for one in all_sheets(sheet):
        items = one.items
        assert all(items[a].row < items[b].row and a < b for a, b in one.edges)
        assert len({(i.row, i.column) for i in items}) == len(items)
        producers = {id(e): n for n, i in enumerate(items) for e in (i.made or (i.source,))}
        wanted = {
            (producers[id(v.expr)], n)
            for n, i in enumerate(items)
            for e in i.made
            for v in e.inputs
            if producers[id(v.expr)] != n
        }
        assert set(one.edges) == wanted and len(one.edges) == len(wanted)
    assert all(len(i.made) >= FEWEST for one in all_sheets(sheet) for i in one.items if i.expr is None and i.made)


@pytest.mark.parametrize("count", [MOST - 2, MOST - 1, MOST, 1000, 20_000])
def test_no_sheet_is_too_large(count):
    g = graph_of([""] * count)
    sheet = sheet_of(g)
    assert len(held(sheet)) == count + 1
    # a part has at most as many boxes, and what it takes from outside
    assert max(len([i for i in one.items if i.source is None]) for one in all_sheets(sheet)) <= MOST


def test_paths_from_hostile_files_do_not_nest_without_end():
    g = graph_of([".".join(["m"] * n) for n in range(1, 2000)])
    assert len(all_sheets(sheet_of(g))) < DEEPEST + 2000 // 90


def test_submodules_open_into_their_graphs_and_ops_into_module_paths():
    from megengine.models import resnet18

    net = trace_module(resnet18().eval(), tensor(np.zeros((1, 3, 32, 32), np.float32)))
    calls, ops = sheet_of(net.graph), sheet_of(lower(net).graph)
    folds = {i.title: i for i in ops.items if i.expr is None}
    assert list(folds) == ["layer1", "layer2", "layer3", "layer4"]
    assert [i.title for i in folds["layer2"].inside.items] == ["", "layer2.0", "layer2.1"]
    opened = [i for i in calls.items if i.inside is not None]
    assert [i.inside.name for i in opened] == [f"ResNet.layer{n}" for n in (1, 2, 3, 4)]
    flat = sheet_of(net.flatten().graph)
    assert [i.title for i in flat.items if i.expr is None] == list(folds)


def test_cells_go_right_where_the_place_below_is_taken():
    found = cells([("x", []), ("a", ["x"]), ("b", ["x"]), ("c", ["x"]), ("d", ["b", "a"]), ("y", [])])
    assert found == {"x": (0, 0), "a": (1, 0), "b": (1, 1), "c": (1, 2), "d": (2, 1), "y": (0, 1)}
