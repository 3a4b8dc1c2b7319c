"""Networks with a fixed batch made to take any: results of each sample are those of the fixed network."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.convert.onnx import export, load
from megengine.core.errors import ShapeError
from megengine.core.spec import TensorSpec
from megengine.ops.recurrent import recurrent_attrs
from megengine.ops.shape import reshaped
from megengine.quantization import quantize_model, verify
from megengine.tensor import Parameter, tensor
from megengine.traced_module import InternalGraph, interpret, lower, open_batch, trace_module
from megengine.traced_module.editing.expressions import add_input
from megengine.traced_module.opening import resizing, takes_rows
from tests.helpers.quant_nets import Builder

ROWS = np.random.default_rng(0).standard_normal((5, 3, 8, 8)).astype(np.float32)


class Net(M.Module):
    """A convolution, and a tail that a test gives."""

    def __init__(self, tail):
        super().__init__()
        self.conv = M.Conv2d(3, 8, 3, padding=1)
        self.token = Parameter(np.random.default_rng(1).standard_normal((1, 1, 8)).astype(np.float32))
        self.slopes = Parameter(np.random.default_rng(2).standard_normal((2, 64, 64)).astype(np.float32))
        self.square = Parameter(np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32))
        self.tail = tail

    def forward(self, x):
        return self.tail(self, F.relu(self.conv(x)))


def _words(x):
    return F.transpose(x.reshape(1, 8, 64), (0, 2, 1))


def _windows(net, x):
    x = F.transpose(x.reshape(1, 8, 2, 4, 2, 4), (0, 2, 4, 3, 5, 1)).reshape(4, 16, 8)
    x = F.softmax(F.matmul(x, F.transpose(x, (0, 2, 1))), axis=2)
    return x.reshape(1, 2, 2, 16, 16).sum(axis=(1, 2))


def _heads(net, x):
    """Attention whose heads are a part of the batch, with a bias for each head."""
    q = F.transpose(_words(x).reshape(1, 64, 2, 4), (0, 2, 1, 3)).reshape(2, 64, 4)
    weights = F.softmax(F.matmul(q, F.transpose(q, (0, 2, 1))) + net.slopes, axis=2)
    return F.transpose(F.matmul(weights, q).reshape(1, 2, 64, 4), (0, 2, 1, 3)).reshape(1, 64, 8)


def _sequence_first(net, x):
    x = F.transpose(_words(x), (1, 0, 2)).reshape(64, 8) * 2
    return F.transpose(x.reshape(64, 1, 8), (1, 0, 2))


def _rows_of_words(net, x):
    """Linear layers of a sequence with the batch behind it, as of XLNet."""
    words = F.transpose(_words(x), (1, 0, 2))
    heads = F.linear(words.reshape(64, 8), net.square).reshape(64, 1, 2, 4)
    return F.transpose(heads, (1, 2, 0, 3)).reshape(1, 2, -1)


TAILS = {
    "rows of words": _rows_of_words,
    "flatten": lambda net, x: x.reshape(1, -1),
    "sizes": lambda net, x: F.avg_pool2d(x, 8).reshape(x.shape[0], x.shape[1]),
    "squeeze": lambda net, x: F.avg_pool2d(x, 8).reshape(8).reshape(1, 8),
    "token": lambda net, x: F.concat([net.token, _words(x)], axis=1),
    "first": lambda net, x: F.concat([net.token, _words(x)], axis=1)[:, 0],
    "whole slice": lambda net, x: x[0:1, 2:5],
    "sequence first": _sequence_first,
    "windows": _windows,
    "heads": _heads,
    "shuffle": lambda net, x: F.transpose(x.reshape(1, 2, 2, 2, 8, 8), (0, 1, 4, 2, 5, 3)).reshape(1, 2, 16, 16),
    "broadcast": lambda net, x: F.broadcast_to(x.mean(axis=(2, 3), keepdims=True), (1, 8, 8, 8)) + x,
}  # fmt: skip


@pytest.mark.parametrize("of_calls", [True, False])
@pytest.mark.parametrize("name", TAILS)
def test_each_sample_keeps_its_results(name, of_calls):
    net = Net(TAILS[name]).eval()
    traced = trace_module(net, tensor(ROWS[:1]))
    opened = open_batch(traced if of_calls else lower(traced))
    assert str(opened.graph.inputs[0].spec) == "float32[batch, 3, 8, 8]"
    assert str(opened.graph.outputs[0].spec.shape[0]) == "batch"
    wanted = np.concatenate([net(tensor(ROWS[i : i + 1])).numpy() for i in range(5)])
    for size in (5, 1):
        np.testing.assert_allclose(opened(tensor(ROWS[:size])).numpy(), wanted[:size], rtol=1e-4, atol=1e-5)
    opened.graph.lint()


def _places(b, *columns):
    return b.g.constant(np.stack(np.broadcast_arrays(*columns), -1).astype(np.int64))


def _assigned(b):
    """As exporters write `x[:, 2] = x[:, 1]` and `x[..., -1] = 0`, for a batch of one."""
    channel = b.op("slice", b.x, starts=(0, 1, 0, 0), stops=(1, 2, 8, 8), steps=(1, 1, 1, 1))
    rows, columns = np.arange(8)[None, None, :, None], np.arange(8)
    x = b.op("scatter_nd", b.x, _places(b, 0, 2, rows, columns), channel, reduction="none")
    last = _places(b, 0, np.arange(3)[None, :, None], columns, 7)
    return b.op("scatter_nd", x, last, b.g.constant(np.zeros((1, 3, 8), np.float32)), reduction="none")


def _chosen_rows(b):
    """One row of each channel, by the number of the sample, and counted through all samples."""
    x, at = b.op("reshape", b.x, shape=(1, 24, 8)), b.op("argmax", b.x, axis=3, keepdims=False)
    at = b.op("reshape", at, shape=(1, 24))
    first = b.g.constant(np.zeros((1, 1), np.int32))
    one = b.op("index", x, first, at, pattern=("i", "i", (None, None, None)))
    rows = b.op("reshape", x, shape=(24, 8))
    other = b.op("index", rows, at, pattern=("i", (None, None, None)))
    return b.op("concat", one, other, axis=1)


def _gathered(b):
    """Places that are constants, in heads that are a part of the batch."""
    order = np.broadcast_to(np.arange(31, -1, -1), (2, 3, 32))
    parts = b.op("reshape", b.x, shape=(2, 3, 32))
    parts = b.op("gather_elements", parts, b.g.constant(order.astype(np.int64)), axis=2)
    return b.op("reshape", parts, shape=(1, 6, 32))


def _sampled(b):
    """Elements of heads that are a part of the batch, by the number of the head."""
    heads = b.op("reshape", b.x, shape=(2, 12, 8))
    at = b.op("argmax", heads, axis=2, keepdims=False)
    numbers = b.g.constant(np.arange(2, dtype=np.int32)[:, None])
    return b.op("reshape", b.op("index", heads, numbers, at, pattern=("i", "i", (None, None, None))), shape=(1, 24, 8))


def _weighed(b):
    """Results of several heads, stacked in front of the batch and weighed."""
    parts = [b.op("reshape", b.op("max", b.x, axis=axes, keepdims=False), shape=(1, 1, 3)) for axes in [(2, 3)] * 2]
    joined = b.op("mul", b.op("concat", *parts, axis=0), b.constant((2, 1, 1)))
    return b.op("sum", joined, axis=(0,), keepdims=False)


def _first_states(b):
    """A recurrent layer with the states that it starts from, as exporters write it for a batch of one; then rows."""
    rng = np.random.default_rng(4)
    steps = b.op("transpose", b.op("reshape", b.x, shape=(1, 24, 8)), perm=(1, 0, 2))
    w, r, bias = (b.constant(shape) for shape in ((1, 16, 8), (1, 16, 4), (1, 32)))
    state = b.g.constant(rng.standard_normal((1, 1, 4)).astype(np.float32))
    attrs = recurrent_attrs("lstm", given=("bias", "h", "c"))
    y = b.g.apply("recurrent", steps, w, r, bias, state, state, attrs=attrs)[0]
    y = b.op("reshape", b.op("transpose", y, perm=(0, 2, 1, 3)), shape=(24, 1, 4))
    again = b.g.apply("recurrent", y, b.constant((1, 16, 4)), r, bias, state, state, attrs=attrs)[0]
    return b.op("transpose", b.op("reshape", again, shape=(24, 1, 4)), perm=(1, 0, 2))


def _neighbours(b):
    """Rows of all samples in one axis, by places of one sample side by side (graphs of nearest neighbours)."""
    rows = b.op("reshape", b.x, shape=(24, 8))
    at = b.op("reshape", b.op("argmax", b.x, axis=3, keepdims=False), shape=(24,))
    return b.op("reshape", b.op("index", rows, at, pattern=("i", (None, None, None))), shape=(1, 24, 8))


def _columns(b):
    """As exporters write `x[..., 2:5:2] = 0`: the batch is the last axis, beside places of length 1."""
    moved = b.op("transpose", b.op("reshape", b.x, shape=(1, 24, 8)), perm=(2, 1, 0))
    places, zeros = np.array([[2], [4]], np.int64), np.zeros((2, 24, 1), np.float32)
    made = b.op("scatter_nd", moved, b.g.constant(places), b.g.constant(zeros), reduction="none")
    return b.op("transpose", made, perm=(2, 1, 0))


def _unpooled(b):
    """Values at computed places of an empty plane (SegNet), and rows at the places of the sample (Informer)."""
    plane, at = b.g.constant(np.zeros(32, np.float32)), b.op("argmax", b.x, axis=3, keepdims=False)
    at = b.op("add", at, b.g.constant(np.array([0, 8, 16])[:, None].astype(np.int32)))
    values = b.op("reshape", b.op("max", b.x, axis=(3,), keepdims=False), shape=(24,))
    put = b.op("scatter_nd", plane, b.op("reshape", at, shape=(24, 1)), values, reduction="add")
    most = b.op("reshape", b.op("argmax", b.x, axis=2, keepdims=False), shape=(1, 24, 1))
    places = b.op("concat", b.g.constant(np.zeros((1, 24, 1), np.int32)), most, axis=2)
    line = b.op("scatter_nd", b.constant((1, 8)), places, b.op("reshape", values, shape=(1, 24)), reduction="add")
    return b.op("concat", b.op("reshape", put, shape=(1, 32)), line, axis=1)


FORMS = [_assigned, _chosen_rows, _gathered, _sampled, _weighed, _first_states, _neighbours, _columns, _unpooled]


@pytest.mark.parametrize("form", FORMS)
def test_places_that_name_the_sample(form):
    b = Builder((1, 3, 8, 8))
    fixed = b.done(form(b))
    opened = open_batch(fixed)
    wanted = np.concatenate([interpret(fixed, [tensor(ROWS[i : i + 1])])[0].numpy() for i in range(5)])
    for size in (5, 1):
        np.testing.assert_array_equal(opened(tensor(ROWS[:size])).numpy(), wanted[:size])
        np.testing.assert_array_equal(plan.compile(opened)(ROWS[:size])[0], wanted[:size])


def test_results_with_time_in_front():
    """As of a recogniser of lines: steps, then the batch, then classes."""
    net = Net(lambda net, x: F.linear(F.transpose(_words(x), (1, 0, 2)).reshape(64, 8), net.square).reshape(64, 1, 8))
    fixed = trace_module(net.eval(), tensor(ROWS[:1]))
    opened = open_batch(lower(fixed))
    assert str(opened.graph.outputs[0].spec) == "float32[64, batch, 8]"
    wanted = np.concatenate([net(tensor(ROWS[i : i + 1])).numpy() for i in range(5)], axis=1)
    np.testing.assert_allclose(opened(tensor(ROWS)).numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert not takes_rows(opened.graph)  # their readers take samples along the first axis


def test_a_first_state_that_every_sample_has():
    """Steps of a sequence beside a constant (ConvLSTM): the batch is in front, not among the channels."""
    b = Builder((1, 3, 8, 8))
    steps = b.op("reshape", b.x, shape=(1, 3, 1, 8, 8))
    step = b.op("slice", steps, starts=(0, 0, 0, 0, 0), stops=(1, 1, 1, 8, 8), steps=(1, 1, 1, 1, 1))
    joined = b.op("concat", b.op("reshape", step, shape=(1, 1, 8, 8)), b.constant((1, 2, 8, 8)), axis=1)
    fixed = b.done(b.conv(joined, 4))
    wanted = np.concatenate([interpret(fixed, [tensor(ROWS[i : i + 1])])[0].numpy() for i in range(5)])
    np.testing.assert_allclose(open_batch(fixed)(tensor(ROWS)).numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_samples_that_differ_in_integers_alone():
    """Words 0 and 1, which stand for all in a first trial, have one row of the table here."""
    b = Builder((1, 4))
    words = add_input(b.g, "words", TensorSpec((1, 3), np.dtype(np.int32)))
    table = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    table[1] = table[0]
    rows = b.op("index", b.g.constant(table), words, pattern=("i", (None, None, None)))
    first = b.op("slice", rows, starts=(0, 0, 0), stops=(1, 1, 4), steps=(1, 1, 1))
    one = b.op(
        "index", b.op("reshape", first, shape=(1, 4)), b.g.constant(np.int32(0)), pattern=("i", (None, None, None))
    )
    graph = b.done(b.op("add", b.x, one))
    with pytest.raises(ShapeError, match="other results for two samples"):
        open_batch(graph)


def test_a_batch_of_several():
    net = Net(lambda net, x: F.transpose(x.reshape(2, 8, 64), (0, 2, 1)).reshape(128, 8).reshape(2, -1)).eval()
    opened = open_batch(lower(trace_module(net, tensor(ROWS[:2]))), name="n")
    assert str(opened.graph.outputs[0].spec) == "float32[n, 512]"
    wanted = np.concatenate([net(tensor(ROWS[i : i + 2])).numpy() for i in (0, 2)])
    np.testing.assert_allclose(opened(tensor(ROWS[:4])).numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert open_batch(opened).graph.outputs[0].spec == opened.graph.outputs[0].spec


def test_integers_and_what_follows(tmp_path):
    traced = trace_module(Net(TAILS["heads"]).eval(), tensor(ROWS[:1]))
    fixed = quantize_model(traced, [ROWS[i : i + 1] for i in range(5)])
    opened = open_batch(fixed.traced())
    rows = [plan.compile(fixed.traced())(ROWS[i : i + 1])[0] for i in range(5)]
    np.testing.assert_array_equal(plan.compile(opened)(ROWS)[0], np.concatenate(rows))
    assert verify(quantize_model(open_batch(traced), ROWS), [ROWS]).exact
    export(open_batch(traced), tmp_path / "net.onnx")
    assert str(load(tmp_path / "net.onnx").graph.inputs[0].spec) == "float32[batch, 3, 8, 8]"


REFUSED = {
    "mean of the batch": (lambda net, x: x - x.mean(axis=0, keepdims=True), (ROWS[:2],), "other results for two"),
    "one result": (lambda net, x: x.sum(), (ROWS[:2],), "other results for two"),
    "number of samples": (lambda net, x: x.reshape(128, 8)[1:3], (ROWS[:2],), "for two samples at once"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    tail, inputs, message = REFUSED[name]
    with pytest.raises(ShapeError, match=f"open_batch: .*{message}.*batch that it shall take"):
        open_batch(trace_module(Net(tail).eval(), *map(tensor, inputs)))


def test_inputs_without_a_batch():
    traced = trace_module(M.Elemwise("add"), tensor(ROWS[:1]), tensor(np.ones((3, 1, 1), np.float32)))
    with pytest.raises(ShapeError, match=r"different first lengths: .*float32\[1, 3, 8, 8\].*float32\[3, 1, 1\]"):
        open_batch(traced)


@given(st.data())
def test_reshapes_of_one_sample(data):
    """A target found for a larger batch gives each sample what the target of one gives it."""
    sizes = data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=4))
    cuts = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    target = [1]
    for size, cut in zip(sizes, cuts, strict=True):  # cut: an axis of its own, else a factor of the one before
        target = [*target, size] if cut else [*target[:-1], target[-1] * size]
    old = (1, *sizes)
    found = reshaped({"shape": tuple(target)}, old, (3, *sizes))[0]["shape"]
    x = np.arange(3 * np.prod(sizes)).reshape(3, *sizes)
    wanted = np.concatenate([x[i : i + 1].reshape(target) for i in range(3)])
    np.testing.assert_array_equal(x.reshape(found), wanted)
    assert reshaped({"shape": old}, tuple(target), found)[0] == {"shape": (3, *sizes)}


def test_what_a_batch_of_one_leaves_open_is_said():
    """A kernel that is cut from the sample itself: ops hold numbers, of which 1 is the length of many axes."""
    b = Builder((1, 3, 8, 8))
    kernel = b.op(
        "transpose", b.op("slice", b.x, starts=(0, 0, 0, 0), stops=(1, 3, 3, 3), steps=(1,) * 4), perm=(1, 0, 2, 3)
    )
    window = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 3}
    graph = b.done(b.op("conv2d", b.x, kernel, **window))
    with pytest.raises(ShapeError, match="does not take another batch") as caught:
        open_batch(graph)
    assert "with a batch of two or more" in str(caught.value.__notes__)


@pytest.mark.parametrize(("constants", "tried"), [(2, 3), (4, 15), (5, 1), (30, 1)])
def test_subsets_of_repeated_operands_are_tried_where_they_are_few(constants, tried, monkeypatch):
    """Thirty have 2**30 subsets."""
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec((2, 3), np.float32))
    stored = [graph.constant(np.zeros((2, 1), np.float32)) for _ in range(constants)]
    expr = graph.apply("concat", x, *stored, attrs={"axis": 1}).expr
    old = [node.shape for node in expr.inputs]
    asked = []

    def refuse(*given):
        asked.append(given)
        raise ShapeError("no operands fit")

    monkeypatch.setattr(resizing, "infer", refuse)
    assert resizing._repeats(expr, [TensorSpec((6, 3), np.float32), *(node.spec for node in stored)], old) == {}
    assert len(asked) == tried
