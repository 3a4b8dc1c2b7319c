"""If, Loop and Scan whose course is known, sequences and optional values: what ONNX Runtime computes."""

import numpy as np
import onnx
import pytest

from megengine.convert.onnx import load_graph
from megengine.core.errors import FileFormatError, OptionError, ShapeError
from megengine.traced_module import interpret

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
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
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


@pytest.mark.parametrize(
    ("text", "options", "error", "match"),
    [
        (CHOICE, {}, FileFormatError, "If node .* its condition depends on the network's input; give .* input_values"),
        (CHOICE, {"input_values": {"speed": 1}}, OptionError, "input_values: no input 'speed'"),
        (CHOICE, {"input_values": {"x": np.ones(3)}}, ShapeError, r"input 'x': shape \(3,\) does not fit"),
        (ROUNDS, {}, FileFormatError, "its number of rounds depends on the network's input"),
        (ROUNDS, {"input_values": {"n": 2000}}, FileFormatError, "it takes more than 1000 rounds"),
        (
            ROUNDS.replace("Identity (go)", "Less (m, h0)").replace(
                "{ go_out", "{ h0 = ReduceMax <keepdims = 0> (h)\n m = ReduceMin <keepdims = 0> (h)\n go_out"
            ),
            {"input_values": {"n": 5}},
            FileFormatError,
            "whether it goes on depends on the network's input",
        ),
        (POSITION, {}, FileFormatError, "position 2 does not exist in a sequence of 1 value"),
        (POSITION.replace("SequenceAt (s, at)", "SequenceAt (x, at)"), {}, FileFormatError, "is no sequence"),
        (MODELS["branch_by_shape"].replace("Relu", "Unknown"), {}, FileFormatError, "not supported: 'Unknown'"),
        (
            "g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct (x) }",
            {},
            FileFormatError,
            "the output 'y' is a sequence or an optional value",
        ),
    ],
)
def test_what_is_refused(text, options, error, match):
    with pytest.raises(error, match=match):
        load_graph(onnx.parser.parse_model(HEAD + text).SerializeToString(), **options)
