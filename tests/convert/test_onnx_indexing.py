"""Reading and setting elements: what is exported gives the same numbers in ONNX Runtime, and when it is read back."""

import random

import numpy as np
import onnx
import onnx.parser
import pytest
from index_keys import checked, drawn
from onnx import TensorProto, helper

from megengine import Tensor, plan
from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import FileFormatError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.traced_module import InternalGraph, TracedModule
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.ir.expr import Apply
from tests.helpers.onnx_runtime import session_of


def part(*ends):
    return {"slice": list(ends)}


WHOLE, BACK = part(None, None, None), part(None, None, -1)
KEYS = {
    "last axis backwards": ([1, 2, 5], [WHOLE, WHOLE, BACK]),
    "backwards down to a bound": ([1, 2, 5], [WHOLE, WHOLE, part(None, 2, -1)]),
    "two axes backwards in steps": ([4, 5], [part(None, None, -2), BACK]),
    "backwards from before the start": ([4], [part(-9, None, -1)]),
    "backwards to before the start": ([4], [part(2, -9, -1)]),
    "backwards by more than the length": ([4], [part(None, None, -9)]),
    "a step beyond 64 bits": ([4], [part(None, None, -(1 << 70))]),
    "nothing": ([4, 2], [part(3, 1, None)]),
    "of nothing": ([0, 2], [BACK]),
    "new axes and dots": ([2, 3, 4], [None, "...", None, BACK]),
    "a place and a place of one dimension": ([2, 3], [-1, {"index": [2], "shape": [], "dtype": "uint8"}]),
    "a mask": ([2, 3], [{"mask": [True, False], "shape": [2]}, BACK]),
    "places apart": (
        [3, 2, 4],
        [*({"index": [2, 0], "shape": [2], "dtype": "int8"}, BACK), {"index": [1], "shape": [1], "dtype": "int64"}],
    ),
}


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("how", [{}, {"set": [0.0, 0.0, 0.0]}], ids=["read", "set"])
@pytest.mark.parametrize("case", KEYS)
def test_keys(case, how, opset):
    shape, key = KEYS[case]
    found = checked({"shape": shape, "dtype": "float32", "opset": opset, "form": "brackets", "key": key, **how})
    assert found == "equal"


def compare(seeds):
    found = {}
    for seed in seeds:
        outcome = checked(drawn(random.Random(seed))).partition(":")[0]
        found[outcome] = found.get(outcome, 0) + 1
    assert set(found) <= {"equal", "refused", "no such key"} and found["equal"] > 0.8 * sum(found.values())


def test_random_keys():
    compare(range(60))


@pytest.mark.slow
def test_many_random_keys():
    compare(range(1000, 3000))


def places_model(op, indices, **attrs):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])
    stored = [onnx.numpy_helper.from_array(np.array(indices, np.int64), "i")]
    names = ["x", "i"]
    if op == "ScatterND":
        shape = [*np.shape(indices)[:-1], *(2, 3, 4)[np.shape(indices)[-1] :]]
        stored.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), "v"))
        names.append("v")
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(op, names, ["y"], "places", **attrs)], "net", [x], [out], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("op", ["GatherND", "ScatterND"])
@pytest.mark.parametrize("indices", [[[1]], [[[0, -1], [1, 2]]], [[0, 2, 3], [1, 0, -4]], [0, 1]])
def test_places_of_leading_axes_are_read_as_onnx_has_them(op, indices):
    pytest.importorskip("onnxruntime")
    content = places_model(op, indices).SerializeToString()
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    (wanted,) = session_of(content).run(None, {"x": x})
    np.testing.assert_array_equal(load(content)(Tensor(x)).numpy(), wanted)


def test_places_that_do_not_fit_are_refused():
    with pytest.raises(FileFormatError, match=r"indices of shape \(1, 4\) do not fit shape \(2, 3, 4\)"):
        load(places_model("GatherND", [[0, 0, 0, 0]]).SerializeToString())
    with pytest.raises(FileFormatError, match=r"the same first 1 and \[..., 1 to 2\]"):
        load(places_model("GatherND", [[0]], batch_dims=1).SerializeToString())
    with pytest.raises(FileFormatError, match=r"ScatterND node 'places': .*reduction is 'mean'"):
        load(places_model("ScatterND", [[0]], reduction="mean").SerializeToString())


def test_a_number_stays_a_number():
    """A stored value without axes gets none when it is read."""
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec((), np.dtype(np.float32)))
    set_outputs(graph, [graph.apply("add", x, graph.constant(np.float32(2)), name="out")])
    back = load(to_model(TracedModule.from_graph(graph)).SerializeToString())
    assert back.graph.outputs[0].shape == ()


def test_narrow_places_are_written_wide():
    """ScatterND takes int64 alone; places of int32 are constant and computed here."""
    runtime = pytest.importorskip("onnxruntime")
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec((4, 2), np.dtype(np.float32)))
    at = add_input(graph, "at", TensorSpec((3, 1), np.dtype(np.int32)))
    rows = graph.constant(np.arange(6, dtype=np.float32).reshape(3, 2))
    y = graph.apply(
        "scatter_nd", x, graph.constant(np.array([[1], [0], [3]], np.int32)), rows, attrs={"reduction": "none"}
    )
    set_outputs(graph, [graph.apply("scatter_nd", y, at, rows, attrs={"reduction": "none"})])
    given = np.ones((4, 2), np.float32), np.array([[2], [3], [0]], np.int32)
    session = runtime.InferenceSession(
        to_model(TracedModule(graph)).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (made,) = session.run(None, dict(zip(("x", "at"), given, strict=True)))
    np.testing.assert_array_equal(made, [[4, 5], [0, 1], [0, 1], [2, 3]])


@pytest.mark.parametrize("covered", [1, 2])
def test_a_number_at_the_places_of_a_mask_is_a_choice(covered):
    """As torch writes `x[mask] = 0.5`: nothing has a length of its own, so that a batch stays open."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float[batch,3] x) => (float[batch,3] y) {{
        zero = Constant <value = float {{0.0}}> ()
        number = Constant <value = float {{0.5}}> ()
        last = Constant <value = int64[1] {{1}}> ()
        first = {"ReduceMax <keepdims = 0> (x, last)" if covered == 1 else "Identity (x)"}
        mask = Less (first, zero)
        found = NonZero (mask)
        places = Transpose <perm = [1, 0]> (found)
        count = Shape <start = 0, end = 1> (places)
        rest = Shape <start = {covered}> (x)
        shape = Concat <axis = 0> (count, rest)
        spread = Expand (number, shape)
        y = ScatterND (x, places, spread)
    }}"""
    net = load(onnx.parser.parse_model(text))
    ops = [e.op for e in net.graph.exprs() if isinstance(e, Apply)]
    assert "where" in ops and not {"nonzero", "scatter_nd"} & set(ops)
    for batch in (1, 6):
        x = np.random.default_rng(batch).standard_normal((batch, 3)).astype(np.float32)
        mask = x.max(1) < 0 if covered == 1 else x < 0
        wanted = x.copy()
        wanted[mask] = 0.5
        np.testing.assert_array_equal(net(x).numpy(), wanted)


COUNTED = """
<ir_version: 8, opset_import: ["" : 16]>
masked (float[3,4] x, float[3,4] v, bool[3,4] m, bool[12] k) => (float[3,4] y) {
    n = NonZero(m)
    at = Transpose<perm = [1, 0]>(n)
    updates = Compress(v, k)
    y = ScatterND(x, at, updates)
}
"""


def test_updates_and_places_that_are_counted_apart():
    """As torch writes `x[m] = layer(v[m])`: at run time their numbers are the same, or it is an error."""
    x, v, m = np.zeros((3, 4), np.float32), np.arange(12, dtype=np.float32).reshape(3, 4), np.eye(3, 4, dtype=bool)
    model = onnx.parser.parse_model(COUNTED)
    net = load(model)
    run = plan.compile(net)
    for mask in (m, ~m, m & False):
        (wanted,) = session_of(model).run(None, {"x": x, "v": v, "m": mask, "k": mask.ravel()})
        np.testing.assert_array_equal(net(x, v, mask, mask.ravel()).numpy(), wanted)
        np.testing.assert_array_equal(run(x, v, mask, mask.ravel())[0], wanted)
    for call in (net, run):
        with pytest.raises(ShapeError, match=r"updates have shape \(3,\); expected \(9,\)"):
            call(x, v, ~m, m.ravel())
