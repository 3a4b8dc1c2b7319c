"""Where expressions go that are inserted after others were taken out in the same body."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine.tensor import tensor
from megengine.traced_module import trace_module


@pytest.mark.parametrize("way", ["erase", "compile"])
@pytest.mark.parametrize("place", ["in front of it", "behind the one before", "at the end"])
def test_the_place_of_insertion_is_taken_out_meanwhile(way, place):
    """What is inserted later stands where it would have stood."""
    x = np.array([[-1.0, 2.0]], np.float32)
    traced = trace_module(M.Sequential(M.ReLU(), M.Sigmoid()), tensor(x))
    graph = traced.graph
    first, last = graph.node("_0_out"), graph.outputs[0]
    with graph.inserting_after(first):
        gone = F.exp(first)
    opened = {
        "in front of it": lambda: graph.inserting_before(gone),
        "behind the one before": lambda: graph.inserting_after(first),
        "at the end": lambda: graph.insert_exprs(last.expr),
    }[place]()
    with opened:
        if place == "at the end":
            made = last * 2
            graph.reset_outputs([made])
        if way == "erase":
            graph.erase(gone.expr)
        else:
            graph.compile()
        if place == "at the end":
            graph.replace_node({made: made + 1})
        else:
            graph.replace_node({first: first * 2})
    graph.lint()
    y = np.maximum(x, 0)
    want = 2 / (1 + np.exp(-y)) + 1 if place == "at the end" else 1 / (1 + np.exp(-2 * y))
    result = traced(tensor(x))
    np.testing.assert_allclose((result[0] if isinstance(result, list) else result).numpy(), want, rtol=1e-6)
    assert graph.undo()
    graph.lint()
