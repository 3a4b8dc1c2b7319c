"""Traced networks in which the number of results of an op depends on values: at both levels, in files, plans, ONNX."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.convert.onnx import export, load
from megengine.core.errors import GraphError
from megengine.plan import compile as compile_plan
from megengine.quantization import quantize_model, verify
from megengine.traced_module import lower, trace_module
from megengine.traced_module.bodies import Body
from megengine.traced_module.formats import native as files
from megengine.traced_module.ir.lint import findings
from tests.helpers.onnx_runtime import session_of

runtime = pytest.importorskip("onnxruntime")


class Kept(M.Module):
    """Boxes that are kept, best first."""

    def __init__(self):
        super().__init__()
        self.scale = M.Linear(4, 4)

    def forward(self, x):
        x = F.relu(self.scale(x))
        boxes, scores = F.concat([x[:, :2], x[:, :2] + x[:, 2:] + 0.5], axis=1), x.sum(axis=1)
        keep = F.vision.nms(boxes, scores, 0.3, 4)
        return boxes[keep] * 2, keep, F.expand_dims(scores[keep], 1)


class Masked(M.Module):
    def forward(self, x):
        chosen, places = F.cond_take(x > 0, x)
        rows = x[x.sum(axis=1) > 0]
        return chosen * 2 + 1, places, rows, x[x > 1], x[1:, x[0] > 0]


class Twice(M.Module):
    """What is counted behind another count, and put together with it."""

    def forward(self, x):
        a = x[x[:, 0] > 0]
        y = F.softmax(a, axis=1) + 1
        b = y[y[:, 1] > 1.2]
        first = x[x > 0][:3]
        return F.concat([a, b]), y.reshape(-1), F.stack([first, first + 1], axis=1), F.expand_dims(first, 0) * 2


NETS = {"kept": Kept, "masked": Masked, "twice": Twice}


def inputs():
    rng = np.random.default_rng(3)
    yield from (rng.standard_normal((6, 4)).astype(np.float32) for _ in range(3))
    yield np.full((6, 4), -1, np.float32)  # nothing is left


def same(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        a, b = np.asarray(a), b.numpy()
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.fixture(params=NETS)
def net(request):
    module = NETS[request.param]()
    module.eval()
    return module


@pytest.fixture
def ops(net):
    return lower(trace_module(net, tensor(next(inputs()))))


def test_both_levels_and_plans_follow_the_values(net, ops, tmp_path):
    traced, plan = trace_module(net, tensor(next(inputs()))), compile_plan(ops)
    assert traced.specializations == ()
    for model, name in ((traced, "a.mgt"), (ops, "b.mgt")):
        files.save(model, tmp_path / name)
    read = [files.load(tmp_path / name) for name in ("a.mgt", "b.mgt")]
    for x in inputs():
        wanted = net(tensor(x))
        for model in (traced, ops, *read):
            same(model(tensor(x)), wanted)
        same(plan(x), wanted)


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_exported_networks_run_and_are_read_again(net, ops, opset, tmp_path):
    path = tmp_path / "net.onnx"
    export(ops, path, opset=opset)
    session, back = session_of(path), load(path)
    for x in inputs():
        wanted = net(tensor(x))
        same(session.run(None, {session.get_inputs()[0].name: x}), wanted)
        same(back(tensor(x)), wanted)


def test_lengths_that_values_tell_are_shown_by_name(ops):
    text = str([node.spec for node in ops.graph.outputs])
    assert "_out" in text
    assert "840" not in text


def test_graphs_can_be_checked_copied_and_changed(ops):
    assert findings(ops) == []
    copy = ops.graph.clone()
    copy.lint()
    copy.replace_node({copy.outputs[0]: copy.apply("abs", copy.outputs[0])})
    copy.lint()
    x = next(inputs())
    before, after = ops.graph.interpret(tensor(x)), copy.interpret(tensor(x))
    np.testing.assert_array_equal(np.abs(before[0].numpy()), after[0].numpy())


def test_a_graph_that_an_op_runs_is_one_of_ops():
    calls = trace_module(M.Sequential(M.ReLU()), tensor(np.ones(3, np.float32))).graph
    with pytest.raises(GraphError, match="that an op runs holds calls of modules; expected ops; lower it"):
        Body(calls)


def test_two_ops_of_one_graph_have_lengths_of_their_own():
    ops = lower(trace_module(Twice(), tensor(next(inputs()))))
    names = [e.attrs["count"] for e in ops.graph.exprs() if getattr(e, "op", "") == "nonzero"]
    assert len(names) == len(set(names)) == 3


class Head(M.Module):
    """A detector: integers up to the boxes, which are chosen in float."""

    def __init__(self):
        super().__init__()
        self.first, self.second = M.Conv2d(3, 8, 3, stride=2, padding=1), M.Conv2d(8, 5, 3, padding=1)

    def forward(self, x):
        y = self.second(F.relu(self.first(x)))
        y = F.transpose(y, (0, 2, 3, 1)).reshape(-1, 5)
        low = y[:, :2]
        boxes, scores = F.concat([low, low + F.relu(y[:, 2:4]) + 0.1], axis=1), F.sigmoid(y[:, 4])
        keep = F.vision.nms(boxes, scores, 0.4, 20)
        return F.concat([boxes[keep], F.expand_dims(scores[keep], 1)], axis=1), keep


def test_a_quantized_detector_keeps_its_choice_in_float_and_is_exact(tmp_path):
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((1, 3, 12, 12)).astype(np.float32) for _ in range(4)]
    head = Head()
    head.eval()
    made = quantize_model(trace_module(head, tensor(batches[0])), batches)
    assert verify(made, batches).exact
    assert {"nms", "qconv2d"} <= {getattr(e, "op", "") for e in made.integer_graph.exprs()}
    export(made.qdq_graph, tmp_path / "qdq.onnx")
    level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = session_of(tmp_path / "qdq.onnx", graph_optimization_level=level)
    plan = compile_plan(made.integer_graph)
    for x in batches:
        same(session.run(None, {session.get_inputs()[0].name: x}), made.qdq_graph.interpret(tensor(x)))
        same(plan(x), made.integer_graph.interpret(tensor(x)))
    assert made.analyze(batches).batches == 4


class Sized(M.Module):
    def forward(self, x):
        y = x[x > 0]
        return y.reshape(y.shape[0], 1)


def test_a_shape_that_values_tell_has_formulas_while_ops_are_recorded():
    traced = trace_module(Sized(), tensor(next(inputs())))
    low = lower(traced)
    for values in (np.ones((6, 4), np.float32), *inputs()):
        np.testing.assert_array_equal(low(tensor(values)).numpy(), traced(tensor(values)).numpy())
