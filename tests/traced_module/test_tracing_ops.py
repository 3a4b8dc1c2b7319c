"""Graphs of ops that are traced, alone or as parts: graphs of calls that hold the ops and take calls."""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, MegEngineError
from megengine.tensor import tensor
from megengine.traced_module import lower, optimize, trace_module
from tests.helpers.written_source import written


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.Linear(16, 5)

    def forward(self, image, mask):
        y = F.relu(self.norm(self.conv(image))) * mask
        low, high = F.split(y, 2, axis=1)
        return {"sum": self.fc(F.flatten(low + high, 1)), "parts": [low, high]}


RNG = np.random.default_rng(0)
GIVEN = [RNG.standard_normal((2, 3, 4, 6)).astype(np.float32), RNG.random((2, 4, 2, 4)).astype(np.float32)]
OTHER = [RNG.standard_normal((2, 3, 4, 6)).astype(np.float32), RNG.random((2, 4, 2, 4)).astype(np.float32)]
OPS = lower(trace_module(Net().eval(), *map(tensor, GIVEN)))


class Around(M.Module):
    """A network of ops between calls."""

    def __init__(self):
        super().__init__()
        self.body = OPS

    def forward(self, image, mask):
        return F.softmax(self.body(image * 0.5, mask)["sum"], axis=1)


def results(model, values):
    found = model(*map(tensor, values))
    return [found] if isinstance(found, mge.Tensor) else [found["sum"], *found["parts"]]


@pytest.mark.parametrize("make", [lambda: OPS, Around], ids=["alone", "as a part"])
def test_a_graph_of_ops_is_traced_as_its_ops(make, tmp_path):
    model = make()
    traced = trace_module(model, *map(tensor, GIVEN))
    traced.graph.lint()
    assert [n.name for n in traced.graph.inputs] == ["self", "image", "mask"]
    assert {"conv_weight", "fc_bias"} <= {n.name for n in traced.graph.nodes()}
    mge.save(traced, tmp_path / "net.mgt")
    forms = [traced, traced.flatten(), lower(traced), optimize(traced), mge.load(tmp_path / "net.mgt")]
    forms += [trace_module(traced, *map(tensor, GIVEN)), written(traced, tmp_path / "net.py")]
    for values in (GIVEN, OTHER):  # it is no constant
        want = results(model, values)
        for form in forms:
            for a, b in zip(results(form, values), want, strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


def test_functions_and_layers_are_inserted_into_traced_ops():
    traced = trace_module(OPS, *map(tensor, GIVEN))
    graph, head = traced.graph, M.Linear(5, 3)
    node = graph.node("fc_add_out")
    with graph.insert_exprs():
        relu = next(e for e in graph.exprs() if e.kind == "Apply" and e.op == "relu")
        graph.replace_node({relu.output: F.clip(relu.output, 0, 0.5)})
        graph.inputs[0].head = head
        graph.reset_outputs(F.softmax(graph.inputs[0].head(node), axis=1))
    graph.compile()
    graph.lint()
    expected = OPS.clone()
    ops = expected.graph
    relu = next(e for e in ops.exprs() if e.kind == "Apply" and e.op == "relu").output
    made = ops.apply("clip", relu, attrs={"lo": 0.0, "hi": 0.5})
    with pytest.raises(GraphError, match="nothing is left that could use"):
        ops.replace_node({relu: made})  # it stands at the end
    ops.replace_node({relu: ops.apply("clip", relu, attrs={"lo": 0.0, "hi": 0.5}, after=relu.expr)})
    for values in (GIVEN, OTHER):
        want = F.softmax(head(results(expected, values)[0]), axis=1)
        np.testing.assert_allclose(traced(*map(tensor, values)).numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


def test_insertion_into_a_graph_of_ops_says_how():
    with pytest.raises(GraphError, match=r"graph of ops; graph\.apply adds ops, .* trace_module\(model, \*inputs\) ma"):
        OPS.graph.insert_exprs()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: setattr(m, "fc", M.Linear(16, 3)), "'fc' cannot be set: 'Net' is a graph of ops, .*trace_module"),
        (lambda m: m.graph.get_function_by_type(F.relu).as_unique(), r"graph of ops \(add, .*expr\.op is the name"),
        (lambda m: m.graph.get_module_by_type(M.Conv2d).as_unique(), r"graph of ops \(add, .*expr\.op is the name"),
        (lambda m: m.graph.apply("mul", m.graph.outputs[0], 2.0), r"is a float, .*graph\.constant\(value\) makes one"),
        (lambda m: conv(m).set_arg("strid", (2, 2)), "has no attribute 'strid'; did you mean 'stride'"),
        (lambda m: conv(m).set_arg("stride", (1, 2, 3)), "expected 2 integers each"),
    ],
)
def test_what_graphs_of_ops_do_not_take_is_told(edit, message):
    model = OPS.clone()
    before = repr(model)
    with pytest.raises(MegEngineError, match=message):
        edit(model)
    assert repr(model) == before


def conv(model):
    return next(e for e in model.graph.exprs() if e.kind == "Apply" and e.op == "conv2d")


@pytest.mark.parametrize("traced", [False, True])
def test_an_attribute_of_an_op_changes_what_is_behind_it(traced):
    model = trace_module(OPS, *map(tensor, GIVEN)) if traced else OPS.clone()
    graph = model.graph
    graph.keep_edits()
    start = repr(model)
    relu = next(e for e in graph.exprs() if e.kind == "Apply" and e.op == "relu").output
    graph.reset_outputs(relu)
    graph.compile()
    conv(model).set_arg("stride", (1, 2))
    assert relu.spec.shape == (2, 4, 2, 2)
    full = next(e for e in OPS.graph.exprs() if e.kind == "Apply" and e.op == "relu").output
    other = OPS.clone()
    other.graph.reset_outputs(other.graph.node(full.name))
    want = other(*map(tensor, OTHER)).numpy()[..., ::2]
    np.testing.assert_allclose(model(*map(tensor, OTHER)).numpy(), want, rtol=1e-6)
    log, again = model.edit_log, trace_module(OPS, *map(tensor, GIVEN)) if traced else OPS.clone()
    again.graph.keep_edits()
    log.replay(again)
    assert repr(again) == repr(model)
    assert graph.undo() and graph.undo() and graph.undo() and repr(model) == start
