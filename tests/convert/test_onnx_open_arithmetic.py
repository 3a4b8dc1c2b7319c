"""Arithmetic of files on open sizes: at each size it gives what ONNX Runtime gives."""

import numpy as np
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from megengine import plan
from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import FileFormatError, ShapeError
from tests.helpers.onnx_runtime import answers, same, session_of

RNG = np.random.default_rng(0)
info = helper.make_tensor_value_info
SIZES = [(1, 8, 6), (2, 12, 10), (3, 5, 17), (1, 7, 7)]
CONSTANTS = {
    **{f"i{n}": np.array([n], np.int64) for n in (0, 1, 2, 3, 4, 6, 7, 11)},
    **{"minus": np.array([-2], np.int64), "f7": np.float32(0.7), "f1": np.float32(0.1), "d7": np.float64(0.7)},
    **{"half": np.float32(-0.5), "lo": np.float32(6), "hi": np.float32(11), "f13": np.float32(1.3)},
}


def node(kind, inputs, outputs, **attrs):
    return helper.make_node(kind, inputs.split(" "), outputs.split(), **attrs)


SHAPE = [
    node("Shape", "x", "s"),
    *(node("Gather", f"s i{axis}", name) for axis, name in ((0, "b"), (2, "h"), (3, "w"))),
    *(node("Cast", "h", "hf", to=1), node("Cast", "h", "hd", to=11), node("Sub", "w h", "d")),
]


def model(nodes, shape=("b", 3, "h", "w")):
    stored = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    graph = helper.make_graph([*SHAPE, *nodes], "net", [info("x", 1, shape)], [info("y", 1, None)], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(made, sizes):
    net = load(made)
    written = to_model(net)
    runtime, of_written, again, compiled = session_of(made), session_of(written), load(written), plan.compile(net)
    for b, h, w in sizes:
        x = RNG.standard_normal((b, 3, h, w)).astype(np.float32)
        wanted = np.asarray(answers(runtime, [x])[0])
        for got in (net(x), again(x), compiled(x)[0], answers(of_written, [x])[0]):
            np.testing.assert_array_equal(np.asarray(got), wanted)


NUMBERS = {
    "the largest of three": [node("Max", "h w b", "n")],
    "the least of three": [node("Min", "h w i7", "n")],
    "the largest of an axis": [node("ReduceMax", "s", "n", keepdims=1)],
    "a batch of one": [node("Equal", "b i1", "is"), node("Where", "is h w", "n")],
    "equal axes": [node("Equal", "h w", "is"), node("Where", "is h b", "n")],
    "an axis of no length": [node("Equal", "h i0", "is"), node("Where", "is b h", "n")],
    "a difference as a truth": [node("Cast", "d", "is", to=9), node("Where", "is h b", "n")],
    "a quotient below zero": [node("Sub", "i3 h", "m"), node("Div", "m i2", "n")],
    "a quotient of a negative number": [node("Div", "h minus", "n")],
    "a quotient on both sides of zero": [node("Div", "d i4", "n")],
    "a rest": [node("Mod", "d i4", "n")],
    "a rest as C has it": [node("Mod", "d i4", "n", fmod=1)],
    "a distance": [node("Abs", "d", "n")],
    "a sign": [node("Sign", "d", "n")],
    "at most a number": [node("Clip", "hf  hi", "n")],
    "nothing below zero": [node("Cast", "d", "df", to=1), node("Relu", "df", "n")],
    "a factor, cut off": [node("Mul", "hf half", "m"), node("Cast", "m", "n", to=7)],
}
NUMBERS["between two numbers"] = [
    *(node("Squeeze", name, f"{name}s") for name in ("h", "i6", "i11")),
    node("Clip", "hs i6s i11s", "n"),
]
LENGTHS = {
    "0.7 of it": [node("Mul", "hf f7", "m"), node("Cast", "m", "n", to=7)],
    "a tenth, rounded up": [node("Mul", "hf f1", "m"), node("Ceil", "m", "c"), node("Cast", "c", "n", to=7)],
    "over a tenth": [node("Div", "hf f1", "m"), node("Floor", "m", "c"), node("Cast", "c", "n", to=7)],
    "0.7 in float64": [node("Mul", "hd d7", "m"), node("Floor", "m", "c"), node("Cast", "c", "n", to=7)],
    "1.3 of it, on which rounding decides": [node("Mul", "hf f13", "m"), node("Cast", "m", "n", to=7)],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_follow_from_sizes(name):
    check(
        model([*NUMBERS[name], node("Cast", "n", "nf", to=1), node("Sub", "x x", "z"), node("Add", "z nf", "y")]), SIZES
    )


def test_a_table_of_places_makes_each_size_once():
    """Funnel's positions: 2 * length + i for hundreds of i. Each was a sum of ones of its own (157 s to quantize)."""
    parts = (node("Sub", "h places", "left"), node("Div", "d i2", "middle"), node("Add", "middle places", "right"))
    joined = (node("Concat", "left right places s", "n", axis=0), node("Cast", "n", "nf", to=1))
    zero = (node("Sub", "x x", "xs"), node("ReduceSum", "xs", "z", keepdims=0))
    made = model([*parts, *joined, *zero, node("Add", "z nf", "y")])
    made.graph.initializer.append(numpy_helper.from_array(np.arange(-20, 20), "places"))
    check(made, SIZES)
    ones = [e for e in load(made).graph.exprs() if getattr(e, "op", "") == "broadcast_to"]
    assert len(ones) < 10


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_that_floats_give(name):
    """Float32 rounds 10 * 0.7 to 7, which is below 7 in exact numbers."""
    check(
        model([*LENGTHS[name], node("Slice", "x i0 n i2", "y")]), [(1, h, 2) for h in (*range(3, 12), 20, 30, 50, 70)]
    )


def test_what_a_batch_of_one_decides_is_no_fact_of_the_example():
    """`squeeze` of a program that torch.jit.script read."""
    drop = helper.make_graph([node("Squeeze", "x i0", "o")], "one", [], [info("o", 1, None)])
    keep = helper.make_graph([node("Identity", "x", "p")], "more", [], [info("p", 1, None)])
    nodes = [node("Equal", "b i1", "is"), node("If", "is", "y", then_branch=drop, else_branch=keep)]
    with pytest.raises(FileFormatError, match="expected one dtype and number of axes") as caught:
        load(model(nodes))
    assert "input_shapes" in str(caught.value.__notes__)
    x = RNG.standard_normal((1, 3, 4, 5)).astype(np.float32)
    assert load(model(nodes), input_shapes=(1, 3, None, None))(x).shape == (3, 4, 5)


WAYS = [
    (m, c) for m in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil") for c in ("asymmetric", "half_pixel")
]


@pytest.mark.parametrize(("rounding", "where"), WAYS)
@pytest.mark.parametrize("factors", [(0.5, 1.5), (0.7, 0.3)])
def test_ties_of_the_nearest_element(rounding, where, factors):
    scales = numpy_helper.from_array(np.array([1, 1, *factors], np.float32), "")
    ways = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": where}
    nodes = [node("Constant", "", "scales", value=scales), node("Resize", "x  scales", "y", **ways)]
    nodes[0].input[:] = []
    check(model(nodes), [(1, 14, 26), (2, 21, 13), (1, 10, 20), (1, 50, 39)])


@pytest.mark.parametrize(("rounding", "where"), [*WAYS[::3], ("floor", "align_corners")])
def test_ties_between_lengths_of_two_axes(rounding, where):
    ways = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": where}
    nodes = [
        *(node("Mul", "h i2", "twice"), node("Sub", "twice i1", "less"), node("Slice", "s i0 i2", "nc")),
        *(node("Concat", "nc less h", "sizes", axis=0), node("Resize", "x   sizes", "y", **ways)),
    ]
    check(model(nodes), [(1, 14, 26), (2, 21, 13), (1, 28, 6), (1, 4, 14)])


def test_a_factor_whose_rounding_decides_is_refused():
    scales = numpy_helper.from_array(np.array([1, 1, 1.3, 1.3], np.float32), "scales")
    nodes = [
        helper.make_node("Constant", [], ["scales"], value=scales),
        node("Resize", "x  scales", "y", mode="linear"),
    ]
    with pytest.raises(
        FileFormatError, match=r"rounding of float32 decides on the length of h times 1\.3; .*input_shapes"
    ):
        load(model(nodes))


def test_words_added_up_to_a_multiple_are_written_where_the_example_needs_none():
    """Longformer's encoder: their number is 0 at the example's 16 words, and the file had no words for others."""
    source = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (int64[b, t] words) => (float[b, u, 2] y)
        <float[3, 2] table = {1, 2, 3, 4, 5, 6}, int64[1] four = {4}, int64[1] three = {3}, int64[1] last = {1},
         int64[1] first = {0}>
        {
            sizes = Shape(words)
            t = Gather(sizes, last)
            b = Gather(sizes, first)
            more = Add(t, three)
            blocks = Div(more, four)
            whole = Mul(blocks, four)
            rest = Sub(whole, t)
            shape = Concat <axis = 0> (b, rest)
            added = ConstantOfShape <value = int64[1] {2}> (shape)
            left = Gather(table, words)
            right = Gather(table, added)
            y = Concat <axis = 1> (left, right)
        }""")
    session, again = session_of(source), session_of(to_model(load(source)))
    for shape in ((2, 9), (1, 16), (3, 2)):
        words = np.random.default_rng(0).integers(0, 3, shape)
        same(answers(again, [words]), answers(session, [words]))


BLOCKS = {
    "blocks of pixels": "y = SpaceToDepth <blocksize = 2> (x)",
    "exclusive sum": "y = CumSum <exclusive = 1> (x, two)",
    "exclusive sum from the end": "y = CumSum <exclusive = 1, reverse = 1> (x, two)",
    "middle": "y = CenterCropPad <axes = [2, 3]> (x, middle)",
    "wide filter along closed axes": 'y = Resize <mode = "linear", antialias = 1, axes = [1]> (x, , , three)',
}


@pytest.mark.parametrize("name", BLOCKS)
def test_operators_of_which_an_open_axis_is_only_a_part(name):
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N,5,H,W] x) => (float[N,c,h,w] y) '
        f"<int64 two = {{2}}, int64[1] three = {{3}}, int64[2] middle = {{5, 7}}> {{ {BLOCKS[name]} }}"
    )
    net, reference = load(proto), session_of(proto)
    exported, compiled = session_of(to_model(net)), plan.compile(net)
    for shape in ((1, 5, 8, 6), (3, 5, 4, 10)):
        x = RNG.normal(size=shape).astype(np.float32)
        wanted = answers(reference, [x])
        for got in ([net(x).numpy()], compiled(x), answers(exported, [x])):
            same(got, wanted)
    if name == "blocks of pixels":
        with pytest.raises(ShapeError, match="does not take inputs with N = 1, H = 7, W = 8"):
            net(np.zeros((1, 5, 7, 8), np.float32))
