"""Functions whose number of results depends on values, inserted into graphs: MegEngine takes them without values."""

import io

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.sizes import name_of
from megengine.traced_module import trace_module


class Boxes(M.Module):
    def forward(self, x):
        return x * 2


BOXES = np.array([[0, 0, 4, 4], [1, 1, 5, 5], [10, 10, 12, 12], [0, 0, 4.1, 4]], np.float32)
CALLS = {
    "cond_take": lambda o: F.cond_take(o > 3, o)[0],
    "mask": lambda o: o[o > 3] + 1,
    "mask of rows": lambda o: o[o[:, 0] > 1],
    "nms": lambda o: F.vision.nms(o, o[:, 3], 0.5),
    "kept boxes": lambda o: o[F.vision.nms(o, o[:, 3], 0.5)] * 2,
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_inserted_computes_as_outside(name):
    traced = trace_module(Boxes(), mge.tensor(BOXES))
    graph = traced.graph
    with graph.insert_exprs():
        node = CALLS[name](graph.outputs[0])
    graph.reset_outputs(node)
    graph.compile()
    file = io.BytesIO()
    mge.save(traced, file)
    file.seek(0)
    for values in (BOXES, BOXES[::-1].copy(), BOXES * 0.1):
        want = CALLS[name](mge.tensor(values * 2))
        for run in (traced, traced.flatten(), mge.load(io.BytesIO(file.getvalue()))):
            got = run(mge.tensor(values))
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_each_call_has_a_length_of_its_own():
    graph = trace_module(Boxes(), mge.tensor(BOXES)).graph
    with graph.insert_exprs():
        first, second = (F.cond_take(graph.outputs[0] > bound, graph.outputs[0])[0] for bound in (1, 2))
        doubled = first * 2
    names = [name_of(node.shape[0]) for node in (first, second, doubled)]
    assert names[0] == names[2] != names[1] and None not in names
