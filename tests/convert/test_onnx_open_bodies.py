"""Graphs that nodes run know the open sizes of the graph around them."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from megengine import plan
from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import ShapeError
from megengine.quantization import quantize_model, verify
from megengine.traced_module.formats import native
from tests.helpers.onnx_runtime import answers, session_of

RNG = np.random.default_rng(0)
info, node = helper.make_tensor_value_info, helper.make_node
X = ("x", 1, ["b", 3, "h", "w"])
PICTURES = [RNG.standard_normal(shape).astype(np.float32) for shape in ((1, 3, 8, 6), (2, 3, 12, 10), (3, 3, 4, 16))]


def stored(name, value):
    return node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), name))


AROUND = [
    node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
    node("Shape", ["x"], ["s"]),
    node("Shape", ["p"], ["ps"]),
    node("Slice", ["s", "zero", "one"], ["batch"]),
    node("Slice", ["s", "two", "three"], ["rows"]),
    node("Squeeze", ["rows"], ["n"]),
]
NUMBERS = [stored(name, [value]) for name, value in zip(("zero", "one", "two", "three"), range(4), strict=True)]
THEN = {
    "a shape of sizes around": [
        stored("rest", [-1]),
        node("Concat", ["batch", "rest"], ["flat"], axis=0),
        node("Reshape", ["p", "flat"], ["r"]),
        node("Reshape", ["r", "ps"], ["o"]),
    ],
    "a number of places": [
        *(stored("first", 0), stored("step", 1), node("Range", ["first", "n", "step"], ["places"])),
        *(node("ReduceSum", ["places"], ["sum"], keepdims=0), node("Cast", ["sum"], ["factor"], to=1)),
        node("Mul", ["p", "factor"], ["o"]),
    ],
    "the shape of a value": [
        *(node("Shape", ["p"], ["own"]), node("Cast", ["own"], ["lengths"], to=1)),
        *(node("ReduceProd", ["lengths"], ["factor"], keepdims=0), node("Mul", ["p", "factor"], ["o"])),
    ],
    "nothing but sizes": [node("ConstantOfShape", ["ps"], ["o"])],
    "how many places hold something": [
        *(node("NonZero", ["p"], ["held"]), node("Shape", ["held"], ["hs"]), node("Cast", ["hs"], ["hf"], to=1)),
        *(node("ReduceProd", ["hf"], ["factor"], keepdims=0), node("Mul", ["p", "factor"], ["o"])),
    ],
}


ENDS = [info("z", 1, None), info("e", 1, None)]


def branch(name, nodes, result):
    return helper.make_graph(nodes, name, [], [info(result, 1, None)])


def model(nodes, inputs):
    graph = helper.make_graph([*NUMBERS, *AROUND, *nodes], "net", [info(*one) for one in inputs], [info("y", 1, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(made, calls, path):
    net = load(made)
    native.save(net, path)
    kept = native.load(path)
    written = to_model(net)
    runtime, of_written, again, compiled = session_of(made), session_of(written), load(written), plan.compile(net)
    for arrays in calls:
        wanted = np.asarray(answers(runtime, arrays)[0])
        for got in (net(*arrays), kept(*arrays), again(*arrays), compiled(*arrays)[0], answers(of_written, arrays)[0]):
            np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5, atol=1e-6)


def calls(first):
    return [[np.array(one), picture] for one, picture in zip(first, PICTURES, strict=True)]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", THEN)
def test_a_branch_computes_with_sizes_around_it(name, depth, tmp_path):
    then = branch("then", THEN[name], "o")
    for level in range(1, depth):
        other = branch("less", [node("Abs", ["p"], ["a"])], "a")
        then = branch("inside", [node("If", ["t"], [f"i{level}"], then_branch=then, else_branch=other)], f"i{level}")
    otherwise = branch("otherwise", [node("Neg", ["p"], ["q"])], "q")
    made = model(
        [node("If", ["t"], ["y"], then_branch=then, else_branch=otherwise)],
        [("t", 9, []), ("x", 1, ["b", 3, "h", "w"])],
    )
    check(made, calls((True, False, True)), tmp_path / "net.mgt")


def test_a_round_computes_with_sizes_of_its_state_and_of_what_is_around(tmp_path):
    step = [
        *(node("Shape", ["state"], ["own"]), node("Cast", ["own"], ["lengths"], to=1)),
        *(node("ReduceSum", ["lengths"], ["sum"], keepdims=0), node("Cast", ["n"], ["high"], to=1)),
        *(node("Mul", ["sum", "high"], ["more"]), node("Add", ["state", "more"], ["after"])),
        node("Identity", ["on"], ["still"]),
    ]
    body = helper.make_graph(
        step,
        "step",
        [info("i", 7, ()), info("on", 9, ()), info("state", 1, None)],
        [info("still", 9, ()), info("after", 1, None)],
    )
    made = model([node("Loop", ["k", "", "p"], ["y"], body=body)], [("k", 7, []), X])
    check(made, calls((3, 2, 1)), tmp_path / "net.mgt")


def squeezing():
    """What PyTorch writes for `squeeze(-1)`, behind windows of 8 steps, and a batch that two inputs share."""
    weight = numpy_helper.from_array(RNG.normal(0, 0.3, (4, 3)).astype(np.float32), "weight")
    nodes = [
        node("AveragePool", ["x"], ["p"], kernel_shape=[8], strides=[8]),
        *(node("Shape", ["p"], ["ps"]), stored("last", -1), stored("single", 1), stored("axes", [-1])),
        *(node("Gather", ["ps", "last"], ["windows"]), node("Equal", ["windows", "single"], ["t"])),
        node(
            "If",
            ["t"],
            ["r"],
            then_branch=branch("then", [node("Squeeze", ["p", "axes"], ["o"])], "o"),
            else_branch=branch("otherwise", [node("Identity", ["p"], ["q"])], "q"),
        ),
        *(node("Gemm", ["r", "weight"], ["g"], transB=1), stored("zero", 0), node("Gather", ["state", "zero"], ["h"])),
        node("Concat", ["g", "h"], ["y"], axis=1),
    ]
    inputs = [info("x", 1, [None, 3, None]), info("state", 1, [2, None, 2])]
    graph = helper.make_graph(nodes, "net", inputs, [info("y", 1, None)], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_an_axis_that_goes_where_it_is_one_stays_open_at_the_lengths_that_give_one(tmp_path):
    """Axes without names that have to be equal are: concat is refused for any others."""
    made = squeezing()
    assert [str(one.spec) for one in load(made).graph.inputs] == ["float32[x_0, 3, x_2]", "float32[2, x_0, 2]"]
    arrays = [
        [RNG.standard_normal(shape).astype(np.float32) for shape in ((b, 3, n), (2, b, 2))]
        for b, n in ((1, 8), (2, 12), (3, 15))
    ]
    check(made, arrays, tmp_path / "net.mgt")
    with pytest.raises(ShapeError, match=r"holds 6 elements, the input has 12"):
        load(made)(RNG.standard_normal((2, 3, 16)).astype(np.float32), arrays[1][1])


def test_axes_without_names_stay_apart_where_the_network_takes_them_so():
    inputs = [info(name, 1, [None, 2]) for name in "ab"]
    graph = helper.make_graph([node("Concat", ["a", "b"], ["y"], axis=0)], "net", inputs, [info("y", 1, None)])
    net = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert str(net.graph.outputs[0].spec) == "float32[a_0 + b_0, 2]"


def test_a_network_at_fixed_sizes_fixes_those_in_graphs_that_it_runs():
    """`verify` makes one: lengths of what a loop and a branch give are those of the inputs, not unknown ones."""
    add = [node("Tanh", ["v"], ["t"]), node("Add", ["t", "k"], ["z"]), node("Identity", ["c"], ["d"])]
    inputs = [info("i", 7, []), info("c", 9, []), info("v", 1, None)]
    body = helper.make_graph([*add, node("Neg", ["z"], ["e"])], "rounds", inputs, [info("d", 9, []), *ENDS])
    then = branch("then", [node("Neg", ["k"], ["m"])], "m")
    otherwise = branch("otherwise", [node("Abs", ["k"], ["q"])], "q")
    nodes = [
        *(node("Conv", ["x", "w"], ["k"]), node("ReduceMax", ["x"], ["most"], keepdims=0)),
        *(node("Greater", ["most", "most_allowed"], ["over"]), node("Shape", ["x"], ["s"])),
        node("Gather", ["s", "third"], ["count"]),
        node("Loop", ["count", "", "k"], ["last", "all"], body=body),
        node("If", ["over"], ["chosen"], then_branch=then, else_branch=otherwise),
        *(node("Unsqueeze", ["all", "one"], ["y"]), node("Unsqueeze", ["chosen", "one"], ["u"])),
    ]
    constants = {"w": RNG.standard_normal((2, 3, 1, 1)).astype(np.float32), "third": 2, "one": [1]}
    constants["most_allowed"] = np.float32(1)
    graph = helper.make_graph(
        nodes,
        "net",
        [info(*X)],
        [info("y", 1, None), info("u", 1, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = quantize_model(load(proto), PICTURES[:2])
    assert verify(model, PICTURES[2:]).exact
    for got, want in zip(model(PICTURES[2]), answers(session_of(proto), PICTURES[2:]), strict=True):
        assert got.shape == want.shape
