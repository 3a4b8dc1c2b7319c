"""Models with open axes are read at odd sizes too; what differs is refused, or decided in the run."""

import numpy as np
import onnx
import pytest

from megengine.convert.onnx import export, importer, load, shape_rules
from megengine.convert.onnx.rereading import check_every_size
from megengine.core.errors import FileFormatError, ShapeError
from megengine.core.sizes import named
from megengine.core.spec import TensorSpec
from megengine.plan import compile as compile_plan
from megengine.traced_module import InternalGraph
from megengine.traced_module.editing.expressions import add_input, set_outputs
from tests.helpers.onnx_runtime import session_of

runtime = pytest.importorskip("onnxruntime")


def _graph(sizes, constant):
    """A number that was computed from a length, added to an input of this open length."""
    length = sizes.get("n", 16)
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec((named("n", length),), np.dtype(np.float32)))
    set_outputs(graph, [graph.apply("add", x, graph.constant(np.float32(constant(length))), name="y")])
    return graph


@pytest.mark.parametrize(
    ("constant", "taken"),
    [
        (lambda n: n, lambda n: True),
        (lambda n: n % 16, lambda n: True),  # of all multiples of the example the same
        (lambda n: n % 16, lambda n: n > 34),  # the first lengths are refused by the network
    ],
)
def test_numbers_of_one_length_are_found(constant, taken):
    def read(sizes):
        if not taken(sizes["n"]):
            raise FileFormatError("too short")
        return _graph(sizes, constant)

    with pytest.raises(FileFormatError, match=r"node 'y' \(add\) cannot be read for open axes: a constant is"):
        check_every_size(_graph({}, constant), read)


def test_numbers_of_every_length_pass():
    check_every_size(_graph({}, lambda n: 3), lambda sizes: _graph(sizes, lambda n: 3))


_EVEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b,n] x) => (float[b,n] y) {
    s = Shape (x)
    one = Constant <value = int64 {1}> ()
    two = Constant <value = int64 {2}> ()
    zero = Constant <value = int64 {0}> ()
    n = Gather (s, one)
    rest = Mod (n, two)
    even = Equal (rest, zero)
    y = If (even) <then_branch = a () => (float[b,n] p) { p = Relu (x) },
                   else_branch = e () => (float[b,n] q) { q = Neg (x) }>
}"""


def test_a_remainder_that_is_zero_at_some_lengths_decides_in_the_run():
    model = onnx.parser.parse_model(_EVEN)
    net, session = load(model), session_of(model)
    for n in (4, 5, 16):
        x = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
        np.testing.assert_array_equal(compile_plan(net)(x)[0], session.run(None, {"x": x})[0])


# tokens of so many rounds, until all are 3: the length of `out` inside is the loop's own
_GREEDY = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,4] x, float[4,6] w, float[6,4] e) => (int64[batch,k] y, float[batch,4] last) {
    s = Shape (x)
    zero = Constant <value = int64[1] {0}> ()
    b = Gather (s, zero)
    first = ConstantOfShape <value = int64[1] {0}> (b)
    none = Concat <axis = 0> (b, zero)
    empty = ConstantOfShape <value = int64[1] {0}> (none)
    n = Constant <value = int64 {7}> ()
    t = Constant <value = bool {1}> ()
    last, token, y = Loop (n, t, x, first, empty) <body = body
        (int64 i, bool go, float[p,4] h, int64[q] tok, int64[r,l] out)
        => (bool further, float[p,4] h_out, int64[q] tok_out, int64[r,m] out_out) {
            row = Gather (e, tok)
            sum = Add (h, row)
            h_out = Tanh (sum)
            z = MatMul (h_out, w)
            tok_out = ArgMax <axis = 1, keepdims = 0> (z)
            one = Constant <value = int64[1] {1}> ()
            column = Unsqueeze (tok_out, one)
            out_out = Concat <axis = 1> (out, column)
            three = Constant <value = int64 {3}> ()
            ends = Equal (tok_out, three)
            bits = Cast <to = 6> (ends)
            all = ReduceMin <keepdims = 0> (bits)
            over = Cast <to = 9> (all)
            further = Not (over) }>
}"""

# sums of the rows between offsets, as torch writes EmbeddingBag: bounds of bounds
_BAGS = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[batch,n] x, float[9,4] w) => (float[k,4] y) {
    s = Shape <start = 0, end = 1> (x)
    b = Squeeze (s)
    t = Shape <start = 1, end = 2> (x)
    n = Squeeze (t)
    bn = Mul (b, n)
    zero = Constant <value = int64 {0}> ()
    begins = Range (zero, bn, n)
    flat = Constant <value = int64[1] {-1}> ()
    places = Reshape (x, flat)
    total = Shape (places)
    offsets = Concat <axis = 0> (begins, total)
    rows = Gather (w, places)
    first = SequenceEmpty ()
    more = Less (zero, b)
    last, list = Loop (, more, zero, first) <body = body (int64 i, bool go, seq(float[4]) before)
        => (bool further, int64 i_out, seq(float[4]) after) {
            one = Constant <value = int64 {1}> ()
            two = Constant <value = int64 {2}> ()
            axes = Constant <value = int64[1] {0}> ()
            own = Reshape (j, flat)
            next = Add (own, one)
            behind = Add (own, two)
            start = Slice (offsets, own, next)
            end = Slice (offsets, next, behind)
            bag = Slice (rows, start, end)
            row = ReduceSum <keepdims = 1> (bag, axes)
            after = SequenceInsert (before, row)
            i_out = Add (j, one)
            further = Less (i_out, b) }>
    y = ConcatFromSequence <axis = 0> (list)
}""".replace("(int64 i, bool go, seq", "(int64 i, bool go, int64 j, seq")


@pytest.mark.parametrize("text", [_GREEDY, _BAGS], ids=["greedy", "bags"])
def test_loops_over_an_open_batch(text):
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    net, session = load(model), session_of(model)
    w, e = (rng.standard_normal(n).astype(np.float32) for n in ((4, 6), (6, 4)))
    for batch, n in ((1, 3), (3, 5), (4, 2)):
        if text is _GREEDY:
            given = {"x": rng.standard_normal((batch, 4)).astype(np.float32), "w": w, "e": e}
        else:
            given = {"x": rng.integers(0, 9, (batch, n)), "w": rng.standard_normal((9, 4)).astype(np.float32)}
        for got, want in zip(compile_plan(net)(*given.values()), session.run(None, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", [1, 2])
def test_all_places_of_an_open_shape_follow_from_the_sizes(axes):
    """What exporters write for a range of places: NonZero of ones in the shape of a value."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[b,n,3] x) => (int64[{axes},k] places) {{
        s = Shape <end = {axes}> (x)
        ones = ConstantOfShape <value = float[1] {{1}}> (s)
        places = NonZero (ones)
    }}"""
    model = onnx.parser.parse_model(text)
    net, session = load(model), session_of(model)
    assert "nonzero" not in {getattr(e, "op", "") for e in net.graph.exprs()}
    for b, n in ((1, 4), (3, 5), (4, 1)):
        x = np.random.default_rng(0).standard_normal((b, n, 3)).astype(np.float32)
        np.testing.assert_array_equal(compile_plan(net)(x)[0], session.run(["places"], {"x": x})[0])


# as many places as the longest row of durations says (speech: a length regulator)
_LENGTHS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b,n] x) => (float[b,k] y, float[m] z) {
    up = Ceil (x)
    axis = Constant <value = int64[1] {1}> ()
    totals = ReduceSum <keepdims = 0> (up, axis)
    ends = Cast <to = 7> (totals)
    most = ReduceMax <keepdims = 0> (ends)
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    places = Range (zero, most, one)
    last = Unsqueeze (ends, axis)
    inside = Less (places, last)
    y = Cast <to = 1> (inside)
    longest = ReduceMax <keepdims = 0> (totals)
    quarter = Constant <value = float {0.75}> ()
    start = Constant <value = float {-1}> ()
    z = Range (start, longest, quarter)
}"""


def test_ranges_up_to_a_computed_limit(tmp_path):
    model = onnx.parser.parse_model(_LENGTHS)
    net, session = load(model), session_of(model)
    export(net, tmp_path / "again.onnx")
    again = session_of(tmp_path / "again.onnx")
    for shape in ((1, 4), (3, 5)):
        x = np.random.default_rng(1).uniform(0, 3, shape).astype(np.float32)
        for got, there, want in zip(
            compile_plan(net)(x), again.run(None, {"x": x}), session.run(None, {"x": x}), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-6)
            np.testing.assert_allclose(there, want, rtol=1e-6)


_UNNAMED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[M,8] x, float[N,8] state) => (float[K,16] y) { y = Concat <axis = 1> (x, state) }"""


def test_axes_of_one_name_are_equal():
    model = onnx.parser.parse_model(_UNNAMED)
    for one in model.graph.input:
        one.type.tensor_type.shape.dim[0].ClearField("dim_param")
    net = load(model, input_shapes={"x": ("batch", 8), "state": ("batch", None)})
    assert str(net.graph.outputs[0].spec) == "float32[batch, 16]"
    with pytest.raises(ShapeError, match="does not fit the model's"):
        load(model, input_shapes={"x": ("batch", "eight"), "state": ("batch", 8)})


def test_a_reading_at_other_sizes_ends_where_it_is_refused(monkeypatch):
    """Only whether it is refused counts: nothing behind is looked at. Blocks of 4 take no odd length."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[L,3] x) => (float[m,12] y) <int64[2] blocks = {-1, 12}> '
        "{ b = Reshape (x, blocks) y = Relu (b) }"
    )
    monkeypatch.setattr(importer._Importer, "_stand_in", lambda *_: pytest.fail("looked behind a refused node"))
    net = load(model, example_sizes={"L": 8})
    assert net(np.ones((12, 3), np.float32)).shape == (3, 12)


def test_slices_of_known_bounds_do_not_walk_the_graph(monkeypatch):
    """Each would take as long as the graph before it: a document encoder has a hundred a layer."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[L,3] x) => (float[m,3] y) '
        "<int64[1] one = {1}, int64[1] zero = {0}> "
        "{ h = Shape (x) t = Slice (h, zero, one) a = Add (x, x) y = Slice (a, one, t, zero) }"
    )
    monkeypatch.setattr(shape_rules, "_WINDOWS", None)  # a walk would ask for them
    net = load(model, example_sizes={"L": 8})
    assert net(np.ones((12, 3), np.float32)).shape == (11, 3)
