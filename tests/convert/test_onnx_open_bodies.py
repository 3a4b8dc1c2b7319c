"""Graphs that nodes run know the open sizes of the graph around them."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from megengine import plan
from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
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
