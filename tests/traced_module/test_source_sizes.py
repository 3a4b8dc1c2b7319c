"""Graphs with open axes as Python source: the file takes the lengths from its values."""

import math

import numpy as np
import pytest
from written_source import written

from megengine.core.errors import GraphError
from megengine.core.formulas import evaluated
from megengine.core.sizes import OpenRatio, OpenSize, largest, named
from megengine.core.spec import TensorSpec
from megengine.tensor import Tensor
from megengine.traced_module import InternalGraph, TracedModule
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.source import to_source
from megengine.traced_module.source.sizes import size_text

N, H, W = named("batch", 2), named("p2o.1", 6), named("largest", 4)


def graph_of(shape, build):
    g = InternalGraph("net")
    x = add_input(g, "x", TensorSpec(shape, np.dtype("float32")))
    set_outputs(g, [build(g, x)])
    return TracedModule.from_graph(g)


def folded(g, x):
    """Rows in pairs, as numbers of another kind."""
    y = g.apply("reshape", x, attrs={"shape": (N, H // 2, 2 * W)}, name="y")
    return g.apply("cast", y, attrs={"dtype": np.dtype("int32")}, name="z")


def test_a_file_takes_lengths_from_its_inputs(tmp_path):
    net = graph_of((N, H, W), folded)
    text = to_source(net)
    assert "batch = x.shape[0]" in text and "p2o_1 = x.shape[1]" in text
    made = written(net, tmp_path / "net.py")
    for shape in ((2, 6, 4), (3, 8, 5), (1, 2, 1)):
        x = Tensor(np.random.default_rng(0).normal(0, 9, shape).astype(np.float32))
        got, want = made(x), net(x)
        assert got.dtype == want.dtype == np.int32
        np.testing.assert_array_equal(got.numpy(), want.numpy())


SIZES = {"batch": 3, "p2o.1": 20, "largest": 7}


@pytest.mark.parametrize(
    "size",
    [
        N,
        H // 2,
        (H + 3) // 4 - 1,
        N * (N + 1) // 2,
        H * W - N,
        (H + 1) / 2,
        H / W,
        2 * N / 3 + H / W,
        largest(N, H - W),
        math.floor(H * W / (2 * (H // 3))),
    ],
    ids=str,
)
def test_the_text_of_a_size_gives_the_size(size):
    assert isinstance(size, (OpenSize, OpenRatio))
    known = {"a": SIZES["batch"], "b": SIZES["p2o.1"], "c": SIZES["largest"]}
    locals_of = dict(zip(SIZES, known, strict=True))
    got = eval(size_text(size, locals_of.__getitem__), {"max": max, "min": min}, known)
    wanted = evaluated(size.formula, SIZES)
    assert isinstance(got, int if isinstance(size, OpenSize) else (int, float))
    assert got == (float(wanted) if isinstance(got, float) else wanted)


def test_a_length_that_no_value_has_is_named():
    net = graph_of((2 * N, 3), lambda g, x: g.apply("reshape", x, attrs={"shape": (N, 6)}, name="y"))
    with pytest.raises(GraphError, match=r"no value before this call has an axis of the open length 'batch'"):
        to_source(net)
