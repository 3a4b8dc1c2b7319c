"""If, Loop and Scan, sequences and optional values: what ONNX Runtime computes."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_runtime import answers, same, session_of

from megengine.autodiff import GradManager
from megengine.convert.onnx import export, load_graph
from megengine.core.errors import DTypeError, FileFormatError, MegEngineError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply
from megengine.plan import compile as compile_plan
from megengine.tensor import Tensor
from megengine.traced_module import InternalGraph, interpret
from megengine.traced_module.bodies import Body
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.formats import native as files

runtime = pytest.importorskip("onnxruntime")

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
MODELS = {
    "branch_by_shape": """g (float[2,3] x) => (float[2,3] y) {
        shape = Shape (x)
        two = Constant <value = int64[2] {2, 3}> ()
        same = Equal (shape, two)
        first = Constant <value = int64 {0}> ()
        c = Gather (same, first)
        y = If (c) <then_branch = a () => (float[2,3] p) { p = Relu (x) },
                    else_branch = b () => (float[2,3] q) { q = Unknown (x) }>
    }""",
    "branch_in_a_branch": """g (float[2,3] x) => (float[2,3] y) {
        c = Constant <value = bool {0}> ()
        y = If (c) <then_branch = a () => (float[2,3] p) { p = Relu (x) },
                    else_branch = b () => (float[2,3] q) {
                        s = Abs (x)
                        d = Constant <value = bool {1}> ()
                        q = If (d) <then_branch = e () => (float[2,3] r) { r = Sqrt (s) },
                                    else_branch = f () => (float[2,3] t) { t = Neg (s) }>
                    }>
    }""",
    "rounds": """g (float[2,3] x) => (float[2,3] last, float[4,2,3] all) {
        n = Constant <value = int64 {4}> ()
        t = Constant <value = bool {1}> ()
        last, all = Loop (n, t, x) <body = b (int64 i, bool go, float[2,3] h)
            => (bool go_out, float[2,3] h_out, float[2,3] o)
            { go_out = Identity (go)
              f = Cast <to = 1> (i)
              h_out = Add (h, f)
              o = Mul (h_out, x) }>
    }""",
    "rounds_until": """g (float[2] x) => (float[2] last) {
        t = Constant <value = bool {1}> ()
        last = Loop (, t, x) <body = b (int64 i, bool go, float[2] h) => (bool go_out, float[2] h_out)
            { most = Constant <value = int64 {2}> ()
              go_out = Less (i, most)
              h_out = Add (h, x) }>
    }""",
    "scan": """g (float[2] h0, float[3,5] x) => (float[2] h, float[2,5] ys) {
        h, ys = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                      scan_output_axes = [1], scan_output_directions = [1],
                      body = b (float[2] s, float[3] e) => (float[2] s_out, float[2] o)
            { m = ReduceMax <keepdims = 0> (e)
              s_out = Add (s, m)
              o = Tanh (s_out) }> (h0, x)
    }""",
    "sequences": """g (float[5,4] x) => (float[9,4] y, float[2,5,2] z, int64 n) {
        parts = SplitToSequence <axis = 0, keepdims = 1> (x)
        at = Constant <value = int64 {1}> ()
        second = SequenceAt (parts, at)
        short = SequenceErase (parts)
        long = SequenceInsert (short, second, at)
        n = SequenceLength (long)
        two = SequenceConstruct (x, x)
        other = Identity (x)
        last = Constant <value = int64 {-1}> ()
        shorter = SequenceErase (two, last)
        empty = SequenceEmpty <dtype = 1> ()
        halves = Constant <value = int64 {2}> ()
        columns = SplitToSequence <axis = 1> (x, halves)
        z = ConcatFromSequence <axis = 0, new_axis = 1> (columns)
        joined = ConcatFromSequence <axis = 0> (long)
        whole = ConcatFromSequence <axis = 0> (shorter)
        four = Constant <value = int64[1] {4}> ()
        zero = Constant <value = int64[1] {0}> ()
        cut = Slice (whole, zero, four)
        y = Concat <axis = 0> (joined, cut)
    }""",
}


def run(text, arrays, **options):
    model = onnx.parser.parse_model(HEAD + text)
    graph = load_graph(model.SerializeToString(), **options)
    graph.lint()
    return [y.numpy() for y in interpret(graph, arrays)]


def inputs_of(text):
    rng = np.random.default_rng(5)
    infos = onnx.parser.parse_model(HEAD + text).graph.input
    return [rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32) for i in infos]


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_the_runtime(name):
    text, arrays = MODELS[name], inputs_of(MODELS[name])
    model = onnx.parser.parse_model(HEAD + text.replace("Unknown", "Neg"))
    session = session_of(model)
    wanted = session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True)))
    for got, want in zip(run(text, arrays), wanted, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6)


CHOICE = """g (float[2] x, int64 rate, float other) => (float[2] y) {
    wide = Constant <value = int64 {16}> ()
    c = Equal (rate, wide)
    y = If (c) <then_branch = a () => (float[2] p) { p = Neg (x) },
                else_branch = b () => (float[2] q) { q = Abs (x) }>
}"""


@pytest.mark.parametrize(("rate", "factor"), [(16, -1), (8, 1)])
def test_a_fixed_input_decides_and_is_gone(rate, factor):
    x = np.array([1.0, 2.0], np.float32)
    (y,) = run(CHOICE, [x, np.zeros((), np.float32)], input_values={"rate": rate})
    np.testing.assert_array_equal(y, factor * x)


ROUNDS = """g (float[2] x, int64 n) => (float[2] y) {
    t = Constant <value = bool {1}> ()
    y = Loop (n, t, x) <body = b (int64 i, bool go, float[2] h) => (bool go_out, float[2] h_out)
        { go_out = Identity (go)
          h_out = Add (h, x) }>
}"""
POSITION = """g (float[2] x) => (float[2] y) {
    s = SequenceConstruct (x)
    at = Constant <value = int64 {2}> ()
    y = SequenceAt (s, at)
}"""


SEQUENCE = """g (float[2] x, seq(float[2]) parts, optional(float[2]) mask) => (float[a] y, seq(float[2]) z) {
    at = Constant <value = int64 {0}> ()
    z = SequenceInsert (parts, x, at)
    y = ConcatFromSequence <axis = 0> (z)
}"""
BATCH = """g (float[2,3] h0, float[2,4,3] x) => (float[2,3] h, float[2,4,3] ys) {
    h, ys = Scan <num_scan_inputs = 1, directions = [1], body = b (float[3] s, float[3] e)
        => (float[3] s_out, float[3] o) { s_out = Add (s, e)
                                          o = Mul (s_out, e) }> (, h0, x)
}"""


def test_sequences_are_given_as_lists_and_returned_value_by_value():
    x, parts = np.array([1.0, 2.0], np.float32), [np.array([3.0, 4.0]), np.array([5.0, 6.0])]
    results = run(SEQUENCE, [x], input_values={"parts": parts, "mask": None})
    wanted = [np.arange(1.0, 7.0), x, *parts]
    assert [y.tolist() for y in results] == [w.tolist() for w in wanted]
    assert {y.dtype for y in results} == {np.dtype(np.float32)}


@pytest.mark.parametrize("back", [0, 1])
def test_scan_of_opset_8_runs_each_entry_of_a_batch(back):
    h, x = inputs_of(BATCH)
    model = onnx.parser.parse_model(HEAD.replace("17", "8") + BATCH.replace("[1], body", f"[{back}], body"))
    last, ys = (y.numpy() for y in interpret(load_graph(model.SerializeToString()), [h, x]))
    turned = x[:, ::-1] if back else x
    sums = h[:, None] + np.cumsum(turned, axis=1)
    np.testing.assert_allclose(last, sums[:, -1], rtol=1e-5)
    np.testing.assert_allclose(ys, sums * turned, rtol=1e-5)


def test_scan_of_opset_8_with_lengths_is_refused():
    text = BATCH.replace("(, h0, x)", "(h0, h0, x)")
    with pytest.raises(FileFormatError, match="lengths of the sequences are not supported"):
        load_graph(onnx.parser.parse_model(HEAD.replace("17", "8") + text).SerializeToString())
    uneven = BATCH.replace("float[2,3] h0", "float[5,3] h0")
    with pytest.raises(FileFormatError, match=r"its batch axes have the lengths \[2, 5\]; expected one"):
        load_graph(onnx.parser.parse_model(HEAD.replace("17", "8") + uneven).SerializeToString())


@pytest.mark.parametrize(
    ("text", "options", "error", "match"),
    [
        (CHOICE, {"input_values": {"speed": 1}}, OptionError, "input_values: no input 'speed'"),
        (CHOICE, {"input_values": {"x": np.ones(3)}}, ShapeError, r"input 'x': shape \(3,\) does not fit"),
        (POSITION, {}, FileFormatError, "position 2 does not exist in a sequence of 1 value"),
        (POSITION.replace("SequenceAt (s, at)", "SequenceAt (x, at)"), {}, FileFormatError, "is no sequence"),
        (MODELS["branch_by_shape"].replace("Relu", "Unknown"), {}, FileFormatError, "not supported: 'Unknown'"),
        (
            "g (float[2] x) => (seq(float[2]) y) { y = SequenceEmpty <dtype = 1> () }",
            {},
            FileFormatError,
            "the output 'y' is a sequence; expected a tensor",
        ),
        (
            "g (float[2] x) => (optional(float[2]) y) { y = Optional () }",
            {},
            FileFormatError,
            "the output 'y' is an optional value that is not there",
        ),
        (SEQUENCE, {}, FileFormatError, r"the input 'parts' is a sequence .* give what it is with input_values"),
        (SEQUENCE, {"input_values": {"parts": 3}}, OptionError, "'parts' is a sequence; expected a list, got a int"),
        (
            ROUNDS.replace("int64 i, bool go", "int64 i"),
            {"input_values": {"n": 2}},
            FileFormatError,
            "graph 'b' has 2 inputs for 3 values; the file is damaged",
        ),
        (ROUNDS.replace("int64 i, bool go", "int64 i"), {}, FileFormatError, "has 2 inputs for 3 values"),
        (ROUNDS.replace("<body = b", "<other = b"), {}, FileFormatError, "its graph 'body' is missing"),
        (CHOICE.replace("else_branch", "other"), {}, FileFormatError, "its graph 'else_branch' is missing"),
    ],
)
def test_what_is_refused(text, options, error, match):
    with pytest.raises(error, match=match):
        load_graph(onnx.parser.parse_model(HEAD + text).SerializeToString(), **options)


# graphs whose course depends on the input `x` and the number `n`
COMPUTED = {
    "branches": """g (float[2,3] x, int64 n) => (float[2,3] y, float[a,3] z) {
        s = ReduceSum <keepdims = 0> (x)
        zero = Constant <value = float {0}> ()
        c = Greater (s, zero)
        w = Exp (x)
        y, z = If (c) <then_branch = a () => (float[2,3] p, float[2,3] p2) { p = Relu (w)
                                                                             p2 = Neg (x) },
                       else_branch = b () => (float[2,3] q, float[1,3] q2) { q = Sub (w, x)
                            i = Constant <value = int64[1] {1}> ()
                            q2 = Gather (x, i) }>
    }""",
    "branch_in_a_branch": """g (float[2,3] x, int64 n) => (float[2,3] y) {
        s = ReduceSum <keepdims = 0> (x)
        zero = Constant <value = float {0}> ()
        c = Greater (s, zero)
        y = If (c) <then_branch = a () => (float[2,3] p) { p = Identity (x) },
                    else_branch = b () => (float[2,3] q) {
                        two = Constant <value = int64 {2}> ()
                        d = Greater (n, two)
                        w = Exp (x)
                        q = If (d) <then_branch = e () => (float[2,3] r) { r = Sub (x, w) },
                                    else_branch = f () => (float[2,3] t)
                                        { t = Constant <value = float[2,3] {1, 2, 3, 4, 5, 6}> () }>
                    }>
    }""",
    "rounds": """g (float[2,3] x, int64 n) => (float[2,3] y, float[k,2,3] all) {
        t = Constant <value = bool {1}> ()
        y, all = Loop (n, t, x) <body = b (int64 i, bool go, float[2,3] h)
            => (bool go_out, float[2,3] h_out, float[2,3] o)
            { m = ReduceMax <keepdims = 0> (h)
              most = Constant <value = float {6}> ()
              go_out = Less (m, most)
              f = Cast <to = 1> (i)
              g = Add (h, f)
              h_out = Add (g, x)
              o = Mul (h_out, x) }>
    }""",
    "rounds_while": """g (float[2,3] x, int64 n) => (float[2,3] y) {
        s = ReduceSum <keepdims = 0> (x)
        zero = Constant <value = float {0}> ()
        c = Greater (s, zero)
        y = Loop (, c, x) <body = b (int64 i, bool go, float[2,3] h) => (bool go_out, float[2,3] h_out)
            { go_out = Less (i, n)
              h_out = Add (h, x) }>
    }""",
    "a_longer_state": """g (float[2,3] x, int64 n) => (float[k,3] y) {
        y = Loop (n, , x) <body = b (int64 i, bool go, float[m,3] h) => (bool go_out, float[l,3] h_out)
            { go_out = Identity (go)
              zero = Constant <value = int64[1] {0}> ()
              first = Gather (h, zero)
              h_out = Concat <axis = 0> (h, first) }>
    }""",
    "many_rounds": """g (float[2,3] x, int64 n) => (float[2,3] y) {
        most = Constant <value = int64 {1500}> ()
        y = Loop (most, , x) <body = b (int64 i, bool go, float[2,3] h) => (bool go_out, float[2,3] h_out)
            { go_out = Less (i, n)
              h_out = Add (h, x) }>
    }""",
    "counts_in_a_branch": """g (float[2,3] x, int64 n) => (float[k] y) {
        two = Constant <value = int64 {2}> ()
        c = Greater (n, two)
        zero = Constant <value = float {0}> ()
        positive = Greater (x, zero)
        row = Constant <value = int64[1] {-1}> ()
        mask = Reshape (positive, row)
        y = If (c) <then_branch = a () => (float[k1] p) { p = Compress (x, mask) },
                    else_branch = b () => (float[k2] q) { q = Reshape (x, row) }>
    }""",
}


@pytest.mark.parametrize("name", COMPUTED)
def test_what_depends_on_values_is_kept_and_runs_in_every_form(name, tmp_path):
    model = onnx.parser.parse_model(HEAD + COMPUTED[name])
    graph, session = load_graph(model), session_of(model)
    assert {e.op for e in graph.exprs() if hasattr(e, "op")} & {"if", "loop"}
    files.save(graph, tmp_path / "net.mgt")
    stored = files.load(tmp_path / "net.mgt").graph
    export(stored, tmp_path / "net.onnx")
    written, read = session_of(str(tmp_path / "net.onnx")), load_graph(tmp_path / "net.onnx")
    plan = compile_plan(graph)
    for each in (graph, stored, read, graph.clone()):
        each.lint()
    rng = np.random.default_rng(4)
    for n in range(5):
        arrays = [rng.standard_normal((2, 3)).astype(np.float32) + n / 4 - 0.5, np.array(n, np.int64)]
        wanted = answers(session, arrays)
        same(plan(*arrays), wanted)
        same(answers(written, arrays), wanted)
        for each in (graph, stored, read):
            same([y.numpy() for y in interpret(each, arrays)], wanted)


def test_a_loop_over_an_open_axis_makes_as_many_rounds_as_it_is_long():
    """Its rounds were those of the example, which is one length only."""
    model = onnx.parser.parse_model(
        HEAD
        + """g (float[batch,time] x) => (float[batch] y, float[time,batch] all) {
        one = Constant <value = int64 {1}> ()
        zero = Constant <value = int64 {0}> ()
        s = Shape (x)
        n = Gather (s, one)
        h0 = Gather <axis = 1> (x, zero)
        y, all = Loop (n, , h0) <body = b (int64 i, bool go, float[batch] h)
            => (bool go_out, float[batch] o, float[batch] c)
            { go_out = Identity (go)
              t = Gather <axis = 1> (x, i)
              d = Sub (t, h)
              o = Tanh (d)
              c = Identity (o) }>
    }"""
    )
    graph, session = load_graph(model), session_of(model)
    plan = compile_plan(graph)
    for shape in ((1, 16), (2, 5), (3, 1), (2, 40)):
        x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
        wanted = answers(session, [x])
        same([y.numpy() for y in interpret(graph, [x])], wanted)
        same(plan(x), wanted)


LISTED = """g (float[batch,time] x) => ({result}) {{
    one = Constant <value = int64 {{1}}> ()
    zero = Constant <value = int64 {{0}}> ()
    s = Shape (x)
    n = Gather (s, one)
    h0 = Gather <axis = 1> (x, zero)
    none = SequenceEmpty ()
    h, all = Loop (n, , h0, none) <body = b (int64 i, bool go, float[batch] h, seq(float[batch]) kept)
        => (bool go_out, float[batch] o, seq(float[batch]) more)
        {{ go_out = Identity (go)
          t = Gather <axis = 1> (x, i)
          d = Sub (t, h)
          o = Tanh (d)
          {round} }}>
    {after}
}}"""
APPENDED = "more = SequenceInsert (kept, o)"


@pytest.mark.parametrize("options", ["axis = 1, new_axis = 1", "axis = 0, new_axis = 1", "axis = 0"])
def test_a_list_that_a_loop_over_an_open_axis_fills(options):
    after = f"y = ConcatFromSequence <{options}> (all) k = SequenceLength (all)"
    result = "float[q] y, int64 k" if "new" not in options else "float[q,r] y, int64 k"
    text = LISTED.format(result=result, round=APPENDED, after=after)
    model = onnx.parser.parse_model(HEAD + text)
    graph, session = load_graph(model), session_of(model)
    for shape in ((1, 16), (3, 5)):
        x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
        same([y.numpy() for y in interpret(graph, [x])], answers(session, [x]))


@pytest.mark.parametrize(
    ("inside", "after", "match"),
    [
        ("more = SequenceInsert (kept, o, i)", "y = ConcatFromSequence <axis = 0> (all)", "puts a value at a position"),
        ("z = SequenceInsert (kept, o) more = SequenceInsert (z, o)", "", "adds 2 values to the sequence 'more'"),
        (APPENDED, "y = SequenceAt (all, one)", "only ConcatFromSequence and SequenceLength take such"),
    ],
)
def test_lists_of_open_loops_that_are_refused(inside, after, match):
    """A list that is not empty in front of the loop is refused, whatever the rounds do."""
    full = LISTED.replace("SequenceEmpty ()", "SequenceConstruct (h0)")
    with pytest.raises(FileFormatError, match="a sequence with values is carried through rounds"):
        load_graph(
            onnx.parser.parse_model(HEAD + full.format(result="float[q] y", round=APPENDED, after="y = Relu (h)"))
        )
    text = LISTED.format(result="float[q] y", round=inside, after=after or "y = Relu (h)")
    with pytest.raises(FileFormatError, match=match):
        load_graph(onnx.parser.parse_model(HEAD + text))


BODY = """g (float[3] x, int64 n, float bound) => (float[3] y, float[k,3] all) {{
    t = Constant <value = bool {{1}}> ()
    y, all = Loop ({limit}, {first}, x) <body = b (int64 i, bool go, float[3] h)
        => (bool go_out, float[3] h_out, float[3] o)
        {{ m = Reduce{kind} <keepdims = 0> (h)
          small = {compare} (m, bound)
          below = Less (i, n)
          go_out = And (small, below)
          h_out = {step} (h, x)
          o = If (small) <then_branch = a () => (float[3] p) {{ p = {then} (h_out) }},
                          else_branch = c () => (float[3] q) {{ q = Mul (h, bound) }}> }}>
}}"""


@settings(max_examples=30, deadline=None)
@given(
    limit=st.sampled_from(["n", ""]),
    first=st.sampled_from(["t", ""]),
    kind=st.sampled_from(["Max", "Min", "Sum"]),
    compare=st.sampled_from(["Less", "Greater"]),
    step=st.sampled_from(["Add", "Sub"]),
    then=st.sampled_from(["Neg", "Exp", "Abs"]),
    n=st.integers(0, 6),
    values=st.tuples(*[st.integers(-8, 8)] * 4),
)
def test_loops_with_branches_are_those_of_the_runtime(limit, first, kind, compare, step, then, n, values):
    model = BODY.format(limit=limit, first=first, kind=kind, compare=compare, step=step, then=then)
    model = onnx.parser.parse_model(HEAD + model)
    *x, bound = (v / 4 for v in values)
    arrays = [np.array(x, np.float32), np.array(n, np.int64), np.array(bound, np.float32)]
    same([y.numpy() for y in interpret(load_graph(model), arrays)], answers(session_of(model), arrays))


def test_a_rate_chooses_the_front_of_a_recurrent_network(tmp_path):
    """As networks of voice activity have it: a branch for each rate of samples, then one LSTM."""
    rng = np.random.default_rng(0)
    shapes = {"wa": (4, 1, 8), "wb": (4, 1, 4), "w": (1, 12, 4), "r": (1, 12, 3)}
    text = """g (float[1,1,64] x, float[1,1,3] h, int64 rate) => (float[t,1,1,3] y, float[1,1,3] last)
    <float[4,1,8] wa = {1}, float[4,1,4] wb = {1}, float[1,12,4] w = {1}, float[1,12,3] r = {1}> {
        wide = Constant <value = int64 {16000}> ()
        c = Equal (rate, wide)
        f = If (c) <then_branch = a () => (float[1,4,8] p) { p = Conv <strides = [8]> (x, wa) },
                    else_branch = b () => (float[1,4,16] q) { q = Conv <strides = [4]> (x, wb) }>
        s = Transpose <perm = [2, 0, 1]> (f)
        y, last = LSTM <hidden_size = 3> (s, w, r, , , h)
    }"""
    model = onnx.parser.parse_model(HEAD + text)
    for tensor in model.graph.initializer:
        values = rng.standard_normal(shapes[tensor.name]).astype(np.float32) / 2
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    graph, session = load_graph(model), session_of(model)
    export(graph, tmp_path / "net.onnx")
    plan, written = compile_plan(graph), session_of(str(tmp_path / "net.onnx"))
    for rate in (8000, 16000, 8000):
        arrays = [rng.standard_normal((1, 1, 64)).astype(np.float32), np.zeros((1, 1, 3), np.float32), np.array(rate)]
        wanted = answers(session, arrays)
        same(plan(*arrays), wanted)
        same(answers(written, arrays), wanted)


def body(shape=(2,), dtype=np.float32, op="exp", results=1, *, state=False):
    """A graph of one op; with `state` one of a loop that gives nothing but whether it goes on."""
    graph = InternalGraph("body")
    if state:
        _, go = (
            add_input(graph, name, TensorSpec((), np.dtype(kind))) for name, kind in (("i", "int64"), ("go", "bool"))
        )
    x = add_input(graph, "x", TensorSpec(shape, np.dtype(dtype)))
    set_outputs(graph, [go] if state else [graph.apply(op, x)] * results)
    return Body(graph)


def ones(*shape, dtype=np.float32):
    return Tensor._wrap(np.ones(shape, dtype))


YES = Tensor._wrap(np.array(True))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: apply("if", ones(), ones(2), then=body(), otherwise=body()),
            DTypeError,
            "if: the condition is float32",
        ),
        (
            lambda: apply("if", YES, ones(3), then=body(), otherwise=body()),
            ShapeError,
            "input 'x' of graph 'body' is float32",
        ),
        (lambda: apply("if", YES, then=body(), otherwise=body()), ShapeError, "graph 'body' takes 1 input, got 0"),
        (
            lambda: apply("if", YES, ones(2, dtype=np.int32), then=body(), otherwise=body()),
            DTypeError,
            "input 'x' of graph 'body' is float32",
        ),
        (
            lambda: apply("if", YES, ones(2, 1), then=body((2, 1)), otherwise=body((2, 1), op="GetVarShape")),
            ShapeError,
            "if: result 0 is float32.* or int32.*; expected one dtype",
        ),
        (
            lambda: apply("if", YES, ones(2), then=body(), otherwise=body(results=2)),
            ShapeError,
            "if: its branches give 1 result and 2 results; expected as many of both",
        ),
        (
            lambda: apply("loop", ones(2), body=body(state=True), states=1, limited=False, asked=False),
            ShapeError,
            "loop: its body gives 0 values; expected 1 state first",
        ),
        (
            lambda: apply("loop", YES, body=body(state=True), states=0, limited=False, asked=True),
            ShapeError,
            "graph 'body' takes 3 inputs, got 2",
        ),
        (
            lambda: apply("loop", ones(), ones(2), body=body(), states=1, limited=True, asked=False),
            DTypeError,
            "loop: the number of rounds is float32",
        ),
    ],
)
def test_graphs_that_do_not_fit_are_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_no_gradient_passes_a_branch():
    x = ones(2)
    with GradManager().attach([x]) as gm, pytest.raises(MegEngineError, match="which of its graphs run"):
        gm.backward(apply("if", YES, x, then=body(), otherwise=body()).sum())


ONE_BRANCH_FITS = """g (float[1,4] x, bool flag, float[4,3] w, float[5,3] v) => (float[1,3] y) {
    y = If (flag) <then_branch = a () => (float[1,3] p) { p = MatMul (x, w) },
                   else_branch = b () => (float[1,3] q) { q = MatMul (x, v) }>
}"""


def test_a_branch_that_does_not_fit_is_left_out_by_the_value_that_chooses():
    """As in a detector of speech with a branch for each sampling rate."""
    model = onnx.parser.parse_model(HEAD + ONE_BRANCH_FITS)
    with pytest.raises(FileFormatError) as caught:
        load_graph(model.SerializeToString())
    assert "in else_branch of 'b'" in caught.value.__notes__[0]
    advice = "depends on 'flag'; where it is always the other, say so: input_values={'flag': ...}"
    assert advice in caught.value.__notes__[1]
    x, w, v = (np.ones(shape, np.float32) for shape in ((1, 4), (4, 3), (5, 3)))
    (y,) = run(ONE_BRANCH_FITS, [x, w, v], input_values={"flag": True})
    np.testing.assert_array_equal(y, np.full((1, 3), 4))


def test_nodes_behind_a_refused_one_are_not_called_damaged():
    """A graph that a node runs reads what a refused node would have made."""
    text = """g (float[1,4] x, float[5,3] v, bool flag) => (float[1,3] y) {
        wrong = MatMul (x, v)
        y = If (flag) <then_branch = a () => (float[1,3] p) { p = Relu (wrong) },
                       else_branch = b () => (float[1,3] q) { q = Neg (wrong) }>
    }"""
    with pytest.raises(FileFormatError, match="MatMul node") as caught:
        load_graph(onnx.parser.parse_model(HEAD + text).SerializeToString())
    assert "damaged" not in str(caught.value)
