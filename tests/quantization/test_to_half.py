"""`to_half`: which values become halves, the ends, and constants at the limits; `likeness` of the results."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.core.dtype import bfloat16
from megengine.core.errors import OptionError, QuantizationError
from megengine.quantization import likeness, quantize_model, to_half, verify
from megengine.tensor import tensor
from megengine.traced_module import lower, trace_module
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.passes.retyping import widen
from tests.helpers.onnx_runtime import answers, session_of

X = np.random.default_rng(0).normal(0, 1, (2, 3, 6, 6)).astype(np.float32)


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = M.Conv2d(3, 8, 3), M.BatchNorm2d(8), M.Linear(8, 5)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).mean(axis=(2, 3)))


def traced(module=None, *arguments):
    return trace_module((module or Net()).eval(), *map(tensor, arguments or (X,)))


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", bfloat16), ("bfloat16", bfloat16), ("fp16", np.float16), (np.float16, np.float16)]
)
def test_weights_and_values_between_ops(name, dtype):
    net = traced()
    half = to_half(net, name)
    constants = [e.outputs[0].dtype for e in half.graph.exprs() if isinstance(e, Constant)]
    assert constants and set(constants) == {np.dtype(dtype)}
    ops = [e for e in half.graph.exprs() if isinstance(e, Apply) and e.op != "cast"]
    assert {n.dtype for e in ops for n in e.outputs} == {np.dtype(dtype)}
    assert {e.op for e in ops} == {"conv2d", "relu", "mean", "matmul", "add"}  # the batch norm was folded in float32


def test_ends_stay_float32_under_their_names():
    before = lower(traced()).graph
    graph = to_half(traced()).graph
    assert [(n.name, n.spec) for n in graph.outputs] == [(n.name, n.spec) for n in before.outputs]
    assert [(n.name, n.spec) for n in graph.inputs] == [(n.name, n.spec) for n in before.inputs]


def test_ends_may_be_halves_too():
    graph = to_half(traced(), float_ends=False).graph
    assert [n.dtype for n in (*graph.inputs, *graph.outputs)] == [bfloat16, bfloat16]
    assert all(e.op != "cast" for e in graph.exprs() if isinstance(e, Apply))


class Classes(M.Module):
    def forward(self, x):
        return F.argmax(x * 3, axis=1), F.topk(x, 2, descending=True)[1]


def test_integer_results_come_from_halves():
    graph = to_half(traced(Classes(), X[:, :, 0, 0]), float_ends=False).graph
    assert {n.dtype for n in graph.outputs} == {np.dtype(np.int32)}
    assert [e.output.dtype for e in graph.exprs() if isinstance(e, Apply) and e.op == "mul"] == [bfloat16]


class Neighbours(M.Module):
    """Places of inputs, from a product of two of them too, beside what layers compute."""

    def __init__(self):
        super().__init__()
        self.fc = M.Linear(3, 4)

    def forward(self, points, keys):
        apart = (points * points).sum(axis=-1, keepdims=True) - 2 * F.matmul(points, points, transpose_b=True)
        near, order = F.topk(apart, 3)[1], F.argsort(keys)[1]
        cells = F.floor(points * 4 + 0.1).astype("int32")
        return F.relu(self.fc(points)), near, order, cells, F.argmax(self.fc(points), axis=1)


def test_choices_from_inputs_stay_those_of_float32():
    rng = np.random.default_rng(0)
    given = rng.normal(0, 1, (200, 3)).astype(np.float32), rng.uniform(0, 1, (2, 400)).astype(np.float32)
    net = traced(Neighbours(), *given)
    half = to_half(net)
    want = [t.numpy() for t in net(*map(tensor, given))]
    for run in (half, plan.compile(half)):
        got = [np.asarray(t) for t in run(*given)]
        np.testing.assert_allclose(got[0], want[0], rtol=0, atol=0.05)
        for mine, theirs in zip(got[1:4], want[1:4], strict=True):
            np.testing.assert_array_equal(mine, theirs)
    layers = {e.output.dtype for e in half.graph.exprs() if isinstance(e, Apply) and e.op in ("relu", "argmax")}
    assert layers == {bfloat16, np.dtype(np.int32)}
    halves = [e for e in half.graph.exprs() if isinstance(e, Apply) and e.op == "argmax"]
    assert halves[0].inputs[0].dtype == bfloat16  # a layer stands before this choice


def test_the_network_that_was_given_stays():
    net = traced()
    want = net(tensor(X)).numpy()
    to_half(net)
    np.testing.assert_array_equal(net(tensor(X)).numpy(), want)


class Positions(M.Module):
    def forward(self, x, k):
        return x * (k.astype("float32") * 0.5 + 1000.25)


def test_what_comes_from_integers_stays_exact():
    k = np.array([301, 302], np.int32)
    graph = to_half(traced(Positions(), X[:1, :1, 0, :2], k)).graph
    kept = [e.op for e in graph.exprs() if isinstance(e, Apply) and e.output.dtype == np.float32]
    assert kept == ["cast", "mul", "add", "cast"]


class Limits(M.Module):
    def forward(self, x):
        return (x - tensor([[-3e38, 1.0]])) / (F.sqrt(x * x) + 1e-12)


def test_constants_keep_within_the_type():
    graph = to_half(traced(Limits(), X[:1, 0, 0, :2]), "fp16").graph
    values = [e.value.numpy().astype(np.float32).ravel().tolist() for e in graph.exprs() if isinstance(e, Constant)]
    assert [-65504.0, 1.0] in values and [2.0**-24] in values


def test_refusals():
    with pytest.raises(OptionError, match=r"to_half: dtype is 'bf17'; expected one of \['bf16', .*did you mean"):
        to_half(traced(), "bf17")
    with pytest.raises(OptionError, match="to_half: dtype is int8; expected bfloat16 or float16"):
        to_half(traced(), np.int8)
    integer = quantize_model(traced(), [X]).traced()
    with pytest.raises(QuantizationError, match="is quantized already"):
        to_half(integer)
    with pytest.raises(QuantizationError, match="has no float32 value; give a float32 network"):
        to_half(to_half(traced(), float_ends=False))


def test_likeness():
    net = traced()
    assert likeness(net, net, [X]).to_json()["sqnr_db"] is None
    seen = []
    result = likeness(net, to_half(net), [X, 2 * X], progress=lambda *counts: seen.append(counts))
    assert 30 < result.sqnr_db < 70 and result.agreement == 1 and result.batches == 2
    assert seen == [("compare", 1, None), ("compare", 2, None)]
    assert likeness(net, to_half(net, "fp16"), [X]).sqnr_db > result.sqnr_db


@pytest.mark.parametrize("float_ends", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_networks_of_halves_are_quantized(dtype, float_ends):
    half = to_half(traced(), dtype, float_ends=float_ends)
    data = [X if float_ends else X.astype(half.graph.inputs[0].dtype)]
    made, plain = quantize_model(half, data), quantize_model(traced(), [X])
    assert made.report.integer_layers == plain.report.integer_layers == 2
    assert {one.op for one in made.report.floating} <= {"cast"}
    assert verify(made.traced(), data).exact
    assert made.analyze(data).output_sqnr_db > 25


class Chosen(M.Module):
    """Integers and truth values of floats, read by ops that take no floats."""

    def forward(self, x):
        flat = x.reshape(2, -1)
        places = F.topk(flat, 4, descending=True)[1]
        near = F.logical_and(flat > 0, flat < 1)
        return F.gather(flat, 1, (places * 2) // 2), F.logical_not(near), near.astype("float32") * flat


@pytest.mark.parametrize("widened", [False, True])
def test_places_and_truths_come_from_the_changed_values(widened):
    graph = to_half(traced(Chosen()), "fp16", float_ends=False).graph
    if widened:
        widen(graph)
    kinds = {n.dtype for e in graph.exprs() if isinstance(e, Apply) and e.op != "cast" for n in e.outputs}
    assert kinds - {np.dtype(np.int32), np.dtype(bool)} == {np.dtype(np.float32 if widened else np.float16)}


class Kept(M.Module):
    """Boxes that stay of those that overlap, and values that are large: lengths that values give."""

    def forward(self, boxes, scores):
        kept = F.vision.nms(boxes * 1.0, scores * 1.0, 0.5)
        large, places = F.cond_take(scores > 0.5, scores + 1)
        return boxes[kept] * 2, F.concat([scores[kept], large]), places


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_lengths_that_depend_on_values_come_from_the_changed_ops(kind):
    corners = np.random.default_rng(0).uniform(0, 8, (40, 2)).astype(np.float32)
    boxes, scores = np.concatenate([corners, corners + 4], 1), np.linspace(0, 1, 40, dtype=np.float32)
    net = traced(Kept(), boxes, scores)
    half = to_half(net, kind)
    assert [sum(e.op == op for e in half.graph.exprs() if isinstance(e, Apply)) for op in ("nms", "nonzero")] == [1, 1]
    assert [n.spec for n in half.graph.outputs] == [n.spec for n in lower(net).graph.outputs]
    want = half(boxes, scores)
    assert len(want[0]) not in (0, 40)
    for got, one in zip(plan.compile(half)(boxes, scores), want, strict=True):
        np.testing.assert_array_equal(got, one.numpy())


def test_boxes_of_halves_are_exported():
    """ONNX's operator takes boxes and scores of float32 alone."""
    x = np.array([[0, 0, 4, 4], [0, 0, 4, 3], [5, 5, 8, 8]], np.float32)
    node = helper.make_node("NonMaxSuppression", ["b", "s", "most", "overlap", "least"], ["y"])
    ends = [("b", [1, 3, 4]), ("s", [1, 1, 3])]
    numbers = {"most": np.array([3]), "overlap": np.float32([0.5]), "least": np.float32([0])}
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in ends],
        [helper.make_tensor_value_info("y", 7, None)],
        [numpy_helper.from_array(value, name) for name, value in numbers.items()],
    )
    net = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    given = [x[None], np.float32([[[0.5, 0.75, 0.25]]])]
    (got,) = answers(session_of(to_model(to_half(net, "float16"))), given)
    np.testing.assert_array_equal(got, [[0, 0, 1], [0, 0, 2]])
    traced_boxes = trace_module(Boxes(), tensor(x), tensor(given[1][0, 0]))
    (got,) = answers(session_of(to_model(to_half(lower(traced_boxes), "float16"))), [x, given[1][0, 0]])
    np.testing.assert_array_equal(got, [1, 2])


class Boxes(M.Module):
    def forward(self, boxes, scores):
        return F.vision.nms(boxes, scores, 0.5)
