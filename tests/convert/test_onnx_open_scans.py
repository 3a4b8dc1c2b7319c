"""Scan and Loop over axes that are open: as many rounds as these are long, and results that say so."""

import numpy as np
import pytest
from onnx import helper

from megengine import plan
from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from tests.helpers.onnx_runtime import answers, session_of

RNG = np.random.default_rng(0)
info, node = helper.make_tensor_value_info, helper.make_node
ATTRS = {
    "forward": {"scan_input_axes": [0, 1]},
    "backward": {"scan_input_directions": [1, 0], "scan_input_axes": [0, 1], "scan_output_directions": [0, 1]},
    "other axes": {"scan_input_axes": [0, -2], "scan_output_axes": [1, -1], "scan_output_directions": [1, 0]},
}


def wrapped(nodes, inputs, outputs):
    graph = helper.make_graph(
        nodes, "net", [info(name, kind, shape) for name, kind, shape in inputs], [info(n, 1, None) for n in outputs]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def scan(**attrs):
    step = [
        node("Mul", ["s", "k"], ["less"]),
        node("Add", ["less", "e"], ["after"]),
        node("Tanh", ["after"], ["y"]),
        node("Add", ["y", "f"], ["z"]),
    ]
    half = [helper.make_tensor("k", 1, (), [0.5])]
    body = helper.make_graph(
        step, "step", [info(n, 1, None) for n in "sef"], [info(n, 1, None) for n in ("after", "y", "z")], half
    )
    made = node("Scan", ["h", "x", "w"], ["last", "ys", "zs"], body=body, num_scan_inputs=2, **attrs)
    inputs = ("h", 1, ["b", 4]), ("x", 1, ["t", "b", 4]), ("w", 1, ["b", "t", 4])
    return wrapped([made], inputs, ("last", "ys", "zs"))


def check(model, calls):
    net = load(model)
    written = to_model(net)
    runtime, of_written, again, compiled = session_of(model), session_of(written), load(written), plan.compile(net)
    for arrays in calls:
        wanted = answers(runtime, arrays)
        for got in (net(*arrays), compiled(*arrays), answers(of_written, arrays), again(*arrays)):
            got = got if isinstance(got, (tuple, list)) else (got,)
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_allclose(a if isinstance(a, np.ndarray) else a.numpy(), b, rtol=1e-5, atol=1e-6)
    return net


@pytest.mark.parametrize("name", ATTRS)
def test_a_scan_over_an_open_axis(name):
    calls = [
        [RNG.standard_normal(s).astype(np.float32) for s in ((b, 4), (t, b, 4), (b, t, 4))]
        for b, t in ((1, 5), (2, 3), (3, 1))
    ]
    net = check(scan(**ATTRS[name]), calls)
    assert "t" in str(net.graph.outputs[1].spec) and "rounds" not in str(net.graph.outputs[1].spec)


def test_rounds_of_a_loop_that_nothing_ends_are_a_length():
    """Rows of a loop stand beside others of the same open axis, as bags of embeddings in the middle of a network do."""
    row = [node("Gather", ["x", "i"], ["r"]), node("Neg", ["r"], ["o"]), node("Identity", ["on"], ["more"])]
    body = helper.make_graph(
        row, "row", [info("i", 7, ()), info("on", 9, ())], [info("more", 9, ()), info("o", 1, None)]
    )
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("Squeeze", ["s"], ["n"]),
        node("Loop", ["n", ""], ["rows"], body=body),
        node("Concat", ["x", "rows"], ["y"], axis=1),
    ]
    calls = [[RNG.standard_normal((b, 3)).astype(np.float32)] for b in (1, 4)]
    net = check(wrapped(nodes, [("x", 1, ["b", 3])], ["y"]), calls)
    assert str(net.graph.outputs[0].spec) == "float32[b, 6]"


@pytest.mark.parametrize(("step", "limit", "rows"), [(1, "", "b"), (2, "", "(b + 1)//2"), (1, "two", "least")])
def test_rounds_of_a_loop_whose_condition_counts_to_a_length(step, limit, rows):
    """torch.onnx.export(dynamo=True) of EmbeddingBag: while index < bags: index += 1."""
    turn = [
        node("Gather", ["x", "at"], ["r"]),
        node("Neg", ["r"], ["o"]),
        node("Constant", [], ["step"], value_int=step),
        node("Add", ["at", "step"], ["then"]),
        node("Less", ["then", "n"], ["more"]),
    ]
    body = helper.make_graph(
        turn, "turn", [info("i", 7, ()), info("on", 9, ()), info("at", 7, ())],
        [info("more", 9, ()), info("then", 7, ()), info("o", 1, None)],
    )  # fmt: skip
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("Squeeze", ["s"], ["n"]),
        node("Constant", [], ["zero"], value_int=0),
        node("Constant", [], ["two"], value_int=2),
        node("Less", ["zero", "n"], ["any"]),
        node("Loop", [limit, "any", "zero"], ["last", "y"], body=body),
    ]
    calls = [[RNG.standard_normal((b, 3)).astype(np.float32)] for b in (1, 4, 5)]
    net = check(wrapped(nodes, [("x", 1, ["b", 3])], ["y"]), calls)
    assert rows in str(net.graph.outputs[0].spec)
