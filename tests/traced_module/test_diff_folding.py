"""Batch norms and scales that a layer took over are one change of it, in text, JSON and picture."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine.core.spec import TensorSpec
from megengine.tensor import Parameter, tensor
from megengine.traced_module import diff, lower, optimize, record, trace_module
from megengine.traced_module.ir.queries import applied
from megengine.traced_module.passes import fold_batch_norm


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = M.Conv2d(3, 4, 3, bias=False), M.BatchNorm2d(4)
        self.first, self.last = M.BatchNorm2d(4), M.Conv2d(4, 2, 1)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x))) * 1
        return F.relu(self.last(self.first(y)) * 3)


def model():
    net = Net()
    rng = np.random.default_rng(0)
    for name, t in net.named_tensors():
        t._reset(tensor(np.abs(rng.standard_normal(t.shape)).astype(np.float32) + 0.1))
        assert name
    return trace_module(net.eval(), tensor(rng.standard_normal((1, 3, 6, 6)).astype(np.float32)))


MODEL = model()


def told(a, b):
    return [(c.kind, c.what, c.old, c.new, c.before, c.after, c.parts) for c in diff(a, b).changes]


AFTER = ("changed", "folded", "conv_out", "conv_out", "Conv2d conv_out, BatchNorm2d norm_out", "Conv2d conv_out")
BEFORE = ("changed", "folded", "last_out", "last_out", "BatchNorm2d first_out, Conv2d last_out", "Conv2d last_out")


def test_a_batch_norm_behind_a_layer():
    fused = optimize(MODEL, passes="FuseConvBn")
    assert told(MODEL, fused) == [(*AFTER, ("norm_out",))]
    assert told(fused, MODEL) == [(*AFTER[:4], AFTER[5], AFTER[4], ("norm_out",))]


def test_a_batch_norm_before_a_layer_and_a_scale():
    assert told(MODEL, optimize(MODEL, passes="FuseBnConv")) == [(*BEFORE, ("first_out",))]
    (change,) = diff(MODEL, optimize(MODEL, passes="BackwardFoldScale")).changes
    assert (change.what, change.parts, change.path) == ("folded", ("mul_out_1",), "last_out")


def test_both_in_one_layer():
    both = told(MODEL, optimize(MODEL, passes=["FuseBnConv", "BackwardFoldScale"]))
    assert [(one[1], sorted(one[6])) for one in both] == [("folded", ["first_out", "mul_out_1"])]


def test_numbers_are_those_of_the_weights():
    fused = optimize(MODEL, passes="FuseConvBn")
    (change,) = diff(MODEL, fused).changes
    delta = fused.conv.weight.numpy().astype(np.float64) - MODEL.conv.weight.numpy()
    largest = max(np.abs(m.conv.weight.numpy()).max() for m in (MODEL, fused))
    assert change.norm == pytest.approx(np.linalg.norm(delta), rel=1e-5)
    assert change.distance == pytest.approx(np.abs(delta).max(), rel=1e-5)
    assert change.relative == pytest.approx(np.abs(delta).max() / largest, rel=1e-5)
    found = change.to_json()
    assert found["norm"] == change.norm and found["parts"] == ["norm_out"]
    line = f"conv_out: {AFTER[4]} -> {AFTER[5]}; weights differ by at most"
    assert line in str(diff(MODEL, fused)) and f"norm {change.norm:.6g}" in str(diff(MODEL, fused))


def test_renames_are_told_beside_it():
    fused = optimize(MODEL, passes="FuseConvBn")
    fused.graph.rename(fused.graph.node("conv_out"), "stem")
    fused.graph.rename(fused.graph.node("relu_out"), "act")
    found = diff(MODEL, fused)
    assert [(c.old, c.new, c.what) for c in found.of_kind("changed")] == [("conv_out", "stem", "folded")]
    assert [(c.old, c.new) for c in found.of_kind("renamed")] == [("conv_out", "stem"), ("relu_out", "act")]
    assert len(found.changes) == 3


def test_graphs_of_ops():
    ops = lower(MODEL)
    fused = optimize(ops, passes="fold_batch_norm")
    found = diff(ops, fused)
    (change,) = found.of_kind("changed")
    assert (change.what, change.parts) == ("folded", ("norm_batch_norm_out",))
    weights = [applied(m.graph, "conv2d")[0].inputs[1].expr.value.numpy() for m in (fused, ops)]
    assert change.norm == pytest.approx(np.linalg.norm(weights[0].astype(np.float64) - weights[1]), rel=1e-5)
    assert set(found.counts()) == {"changed"}


def test_ops_that_are_folded_keep_their_names():
    """What users call `conv_conv2d_out` is called so afterwards; a weight that another op uses keeps its own."""
    ops = lower(MODEL)
    names = [e.name for e in ops.graph.exprs()]
    fused = optimize(ops, passes=["fold_batch_norm", "fold_constants"])
    left = [e.name for e in fused.graph.exprs()]
    assert [name for name in left if name not in names] == ["conv_conv2d_out_bias"]

    w = np.ones((4, 3, 3, 3), np.float32)

    def shared(x):
        weight, one, none = tensor(w), *(tensor(np.full((1, 4, 1, 1), v, np.float32)) for v in (2, 0))
        y = F.batch_norm(F.conv2d(x, weight), none, one, one, none, training=False)
        return y + F.conv2d(x, weight)

    graph = record(shared, [TensorSpec((1, 3, 5, 5), np.dtype(np.float32))], name="net")
    old, other = (expr.name for expr in applied(graph, "conv2d"))
    kept = applied(graph, "conv2d")[0].inputs[1].name
    assert fold_batch_norm(graph)
    graph.lint()
    convs = applied(graph, "conv2d")
    assert [expr.name for expr in convs] == [old, other]
    assert convs[1].inputs[1].name == kept != convs[0].inputs[1].name


def test_what_only_goes_is_told_as_it_is():
    gone = MODEL.clone()
    node = gone.graph.node("norm_out")
    gone.graph.replace_node({node: gone.graph.node("conv_out")})
    gone.graph.compile()
    assert {c.kind for c in diff(MODEL, gone).changes} == {"removed", "rewired"}
    relu = MODEL.clone()  # no scale, whatever weights do
    layer = M.Conv2d(3, 4, 3, bias=False)
    layer.weight = Parameter(MODEL.conv.weight.numpy() * 2)
    relu.graph.replace_module(relu.graph.get_calls_of(M.Conv2d)[0].inputs[0], layer)
    relu.graph.replace_node({relu.graph.node("relu_out"): relu.graph.node("norm_out")})
    relu.graph.compile()
    assert diff(MODEL, relu).of_kind("removed") and all(c.what != "folded" for c in diff(MODEL, relu).changes)


def test_pictures_show_the_parts_and_a_legend():
    picture = diff(MODEL, optimize(MODEL, passes="FuseConvBn")).to_svg()
    for word in ("added", "removed", "changed, rewired", "renamed, moved", "kept", "new", "gone", "BatchNorm2d"):
        assert f">{word}" in picture
    assert picture.count("changed: conv_out: Conv2d conv_out, BatchNorm2d norm_out") == 2
    assert ">added" not in diff(MODEL, MODEL.clone()).to_svg()
