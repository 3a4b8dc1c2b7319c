"""Operators whose number of results depends on values: read, run, planned, stored and written as the runtime has it."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_runtime import answers, same, session_of

from megengine.convert.onnx import export, load_graph
from megengine.core.errors import FileFormatError
from megengine.plan import compile as compile_plan
from megengine.traced_module import interpret
from megengine.traced_module.formats import native as files

runtime = pytest.importorskip("onnxruntime")

MODELS = {
    "places": "g (float[3,4] x) => (int64[2,n] y) { y = NonZero (x) }",
    "chosen_entries": """g (float[3,4] x) => (float[3,n] y, float[m] z) {
        zero = Constant <value = float {0}> ()
        two = Constant <value = int64[1] {2}> ()
        row = ReduceMax <axes = [0], keepdims = 0> (x)
        c = Greater (row, zero)
        y = Compress <axis = -1> (x, c)
        z = Compress (x, c)
    }""",
    "different": """g (float[3,4] x) => (float[n] y, int64[n] first, int64[12] inverse, int64[n] counts, float[m] z) {
        r = Round (x)
        y, first, inverse, counts = Unique (r)
        z = Unique <sorted = 0> (r)
    }""",
    "different_rows": """g (float[3,4] x) => (float[n,4] y, float[3,m] z) {
        s = Sign (x)
        y = Unique <axis = 0> (s)
        z = Unique <axis = -1, sorted = 0> (s)
    }""",
    "between_computed_bounds": """g (float[3,4] x) => (float[n,m] y, float[3,k] z, float[n] sums) {
        one = Constant <value = int64[1] {1}> ()
        both = Constant <value = int64[2] {0, 1}> ()
        t = ReduceMin <keepdims = 0> (x)
        w = ReduceMax <keepdims = 0> (x)
        two = Constant <value = float {2}> ()
        u = Mul (t, two)
        low = Cast <to = 7> (u)
        high = Cast <to = 7> (w)
        line = Constant <value = int64[1] {-1}> ()
        a = Reshape (low, line)
        b = Reshape (high, line)
        starts = Concat <axis = 0> (a, b)
        far = Constant <value = int64[1] {9223372036854775807}> ()
        stops = Concat <axis = 0> (b, far)
        y = Slice (x, starts, stops, both)
        z = Slice (x, b, far, one)
        sums = ReduceSum <keepdims = 0> (y, one)
    }""",
    "shapes_behind": """g (float[3,4] x) 
        => (float[n,2] y, float[m] z, int64[1] count, int64[k] numbers, float[n] ones) {
        places = NonZero (x)
        turned = Transpose (places)
        v = GatherND (x, turned)
        pair = Constant <value = int64[2] {-1, 2}> ()
        whole = Concat <axis = 0> (v, v)
        y = Reshape (whole, pair)
        start = Constant <value = int64[1] {1}> ()
        stop = Constant <value = int64[1] {5}> ()
        z = Slice (v, start, stop)
        count = Shape (v)
        zero = Constant <value = int64 {0}> ()
        one = Constant <value = int64 {1}> ()
        c = Gather (count, zero)
        numbers = Range (zero, c, one)
        ones = ConstantOfShape (count)
    }""",
    "as_many_as_are_true": """g (float[3,4] x) => (float[n,4] y, int64[n] numbers, float[n] ones) {
        zero = Constant <value = float {0}> ()
        true = Greater (x, zero)
        each = Cast <to = 7> (true)
        count = ReduceSum <keepdims = 0> (each)
        line = Constant <value = int64[1] {1}> ()
        four = Constant <value = int64[1] {4}> ()
        n = Reshape (count, line)
        shape = Concat <axis = 0> (n, four)
        row = ReduceMax <axes = [0]> (x)
        y = Expand (row, shape)
        start = Constant <value = int64 {0}> ()
        step = Constant <value = int64 {1}> ()
        numbers = Range (start, count, step)
        ones = ConstantOfShape (n)
    }""",
}


def parsed(text):
    return onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text)


def every_way(graph, folder):
    """Functions that run the graph: eagerly, as a plan, from a file, exported, exported and read again."""
    export(graph, folder / "net.onnx")
    files.save(graph, folder / "net.mgt")
    written, read = session_of(str(folder / "net.onnx")), load_graph(folder / "net.onnx")
    stored = files.load(folder / "net.mgt").graph
    for each in (graph, stored, read):
        each.lint()
    plan = compile_plan(graph)
    return {
        "eager": lambda arrays: [y.numpy() for y in interpret(graph, arrays)],
        "plan": lambda arrays: plan(*arrays),
        "stored": lambda arrays: [y.numpy() for y in interpret(stored, arrays)],
        "written": lambda arrays: answers(written, arrays),
        "read again": lambda arrays: [y.numpy() for y in interpret(read, arrays)],
    }


@pytest.mark.parametrize("name", MODELS)
def test_every_way_gives_what_the_runtime_gives(name, tmp_path):
    model = parsed(MODELS[name])
    session, ways = session_of(model), every_way(load_graph(model), tmp_path)
    rng = np.random.default_rng(1)
    for k in range(4):
        x = np.maximum(rng.standard_normal((3, 4)).astype(np.float32) * 2, 0 if name == "shapes_behind" else -9)
        x = np.zeros_like(x) if k == 3 else x
        wanted = answers(session, [x])
        for way in ways.values():
            same(way([x]), wanted)


SUPPRESSION = """g (float[2,9,4] boxes, float[2,3,9] scores, int64[1] limit, float[1] overlap, float[1] least)
    => (int64[n,3] kept) {{ kept = NonMaxSuppression <center_point_box = {center}> (boxes, scores{inputs}) }}"""


@pytest.mark.parametrize("options", ["axes, twos", "no_axes"])
def test_a_slice_of_computed_bounds_takes_steps_of_one(options):
    body = "twos = Constant <value = int64[1] {2}> () axes = Constant <value = int64[1] {0}> ()"
    body += f" no_axes = Constant <value = int64[2] {{0, 1}}> () y = Slice (x, a, b, {options})"
    model = parsed(f"g (float[3,4] x, int64[1] a, int64[1] b) => (float[n,4] y) {{ {body} }}")
    with pytest.raises(FileFormatError, match=r"Slice node 'y': its bounds .* run time, .*; expected steps of 1 and"):
        load_graph(model)


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("given_inputs", [2, 3, 4, 5])
def test_suppression_with_bounds_given_while_running(center, given_inputs, tmp_path):
    names = ("limit", "overlap", "least")[: given_inputs - 2]
    model = parsed(SUPPRESSION.format(center=center, inputs="".join(f", {n}" for n in names)))
    session, ways = session_of(model), every_way(load_graph(model), tmp_path)
    rng = np.random.default_rng(2)
    for limit, overlap, least in ((3, 0.3, 0.2), (0, 0.5, 0.0), (50, 0.0, 0.6), (9, 1.0, -1.0)):
        arrays = [rng.uniform(0, 3, (2, 9, 4)).astype(np.float32), rng.random((2, 3, 9)).astype(np.float32)]
        arrays += [np.array([limit]), np.array([overlap], np.float32), np.array([least], np.float32)]
        wanted = answers(session, arrays)
        for way in ways.values():
            same(way(arrays), wanted)


BOXES = SUPPRESSION.replace("[2,9,4]", "[{b},{n},4]").replace("[2,3,9]", "[{b},{c},{n}]")


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 12)),
    center=st.integers(0, 1),
    limit=st.integers(0, 6),
    bounds=st.tuples(st.floats(0, 1, width=32), st.floats(-0.5, 1, width=32)),
    steps=st.integers(1, 8),
    seed=st.integers(0, 999),
)
def test_suppression_of_any_boxes_is_that_of_the_runtime(sizes, center, limit, bounds, steps, seed):
    """Scores have few values, so many are equal; corners lie on a grid, so boxes touch, are empty or turned."""
    (b, c, n), rng = sizes, np.random.default_rng(seed)
    model = parsed(BOXES.format(b=b, c=c, n=n, center=center, inputs=", limit, overlap, least"))
    boxes = np.round(rng.uniform(0, 4, (b, n, 4)) * steps).astype(np.float32) / np.float32(steps)
    scores = np.round(rng.random((b, c, n)) * 4).astype(np.float32) / 4
    arrays = [boxes, scores, np.array([limit]), *(np.array([v], np.float32) for v in bounds)]
    same([y.numpy() for y in interpret(load_graph(model), arrays)], answers(session_of(model), arrays))
