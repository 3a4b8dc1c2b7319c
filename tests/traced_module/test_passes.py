"""Passes on traced modules, and the manager that runs and checks them."""

import re

import numpy as np
import pytest
from megengine_graphs import NETS, inputs_of, leaves, listing, traced, wanted

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, OptionError
from megengine.core.spec import TensorSpec
from megengine.tensor import Parameter, tensor
from megengine.traced_module import files, interpret, lower, record, trace_module, wrap
from megengine.traced_module.passes import (
    Pass,
    PassManager,
    get_registered_pass,
    optimize,
    register_pass,
    registered_passes,
)


def without_ids(lines: list[str]) -> list[str]:
    return [re.sub(r"%\d+:|(?<=expr\t)\d+|(?<=node\t)\d+|(?<=input\t)\d+", "", line).rstrip() for line in lines]


def test_fused_batch_norms_leave_the_nodes_that_megengine_leaves():
    module = traced("res_plain")
    before = listing(module)
    fused = optimize(module, ["FuseConvBn"])
    fused.graph.lint()
    assert without_ids(listing(fused)) == without_ids(wanted("res_plain_opt"))
    assert listing(module) == before
    x = tensor(inputs_of("res_plain")[0])
    np.testing.assert_allclose(fused(x).numpy(), module(x).numpy(), rtol=0, atol=1e-5)
    assert fused.stem.graph.undo()
    assert listing(fused) == before


@pytest.mark.parametrize("name", NETS)
def test_all_passes_keep_the_outputs(name):
    module = traced(name)
    given = [tensor(x) for x in inputs_of(name)]
    made = optimize(module, "all", check_with=given)
    again = optimize(made, "all")
    assert listing(again) == listing(made)
    for a, b in zip(leaves(made(*given)), leaves(module(*given)), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-5 * max(np.abs(b.numpy()).max(), 1))


def randomized(layer: M.Module) -> M.Module:
    rng = np.random.default_rng(0)
    for name, t in layer.named_tensors():
        value = rng.standard_normal(t.shape).astype(np.float32)
        t._reset(tensor(np.abs(value) + 0.5 if "var" in name else value))
    return layer


class Pair(M.Module):
    def __init__(self, layer, norm):
        super().__init__()
        self.layer, self.norm = layer, norm

    def forward(self, x):
        return self.norm(self.layer(x))


@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        (M.Conv2d(4, 6, 3), M.BatchNorm2d(6), (2, 4, 7, 7)),
        (M.Conv2d(4, 6, 3, bias=False), M.BatchNorm2d(6, affine=False), (2, 4, 7, 7)),
        (M.Conv2d(4, 6, 1, groups=2), M.BatchNorm2d(6), (2, 4, 7, 7)),
        (M.ConvTranspose2d(4, 6, 3, stride=2), M.BatchNorm2d(6), (2, 4, 5, 5)),
        (M.ConvTranspose2d(4, 6, 3, groups=2), M.BatchNorm2d(6), (2, 4, 5, 5)),
        (M.Linear(5, 3), M.BatchNorm1d(3), (4, 5)),
    ],
)
def test_a_batch_norm_becomes_part_of_each_kind_of_layer(layer, norm, shape):
    net = randomized(Pair(layer, norm)).eval()
    x = tensor(np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    weight = layer.weight.numpy().copy()
    fused = optimize(trace_module(net, x))
    assert len(fused.graph.get_module_by_type(type(norm))) == 0
    want = net(x).numpy()
    np.testing.assert_allclose(fused(x).numpy(), want, rtol=0, atol=2e-5 * np.abs(want).max())
    np.testing.assert_array_equal(layer.weight.numpy(), weight)
    fused.graph.undo()
    np.testing.assert_array_equal(fused(x).numpy(), want)


class Twice(M.Module):
    """One convolution in two places: its batch norms cannot be folded into it."""

    def __init__(self):
        super().__init__()
        self.conv, self.a, self.b = M.Conv2d(3, 3, 1), M.BatchNorm2d(3), M.BatchNorm2d(3)

    def forward(self, x):
        return self.b(self.conv(self.a(self.conv(x))))


class Peeked(M.Module):
    """What stands between convolution and batch norm is used elsewhere too."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = M.Conv2d(3, 3, 1), M.BatchNorm2d(3)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


@pytest.mark.parametrize("kind", [Twice, Peeked])
def test_shared_layers_and_values_are_left_alone(kind):
    x = tensor(np.random.default_rng(1).standard_normal((1, 3, 4, 4)).astype(np.float32))
    net = randomized(kind()).eval()
    module = trace_module(net, x)
    assert listing(optimize(module)) == listing(module)
    training = trace_module(net.train(), x)
    assert listing(optimize(training)) == listing(training)


class Chains(M.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.same = M.Dropout(0.5), M.Identity()

    def forward(self, x):
        y = self.same(self.drop(x)) * 2 * 3 * 4 + 1 + 2
        return F.relu(x) + F.relu(x) + y * F.exp(x)


def test_chains_identities_and_common_calls():
    x = tensor(np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32))
    net = Chains().eval()
    made = optimize(trace_module(net, x), "all", check_with=[x])
    assert made.graph.get_method_by_type("__mul__")[0]._body().endswith("__mul__(24, )")
    assert len(made.graph.get_function_by_type(F.relu)) == 1
    assert len(made.graph.get_module_by_type(M.Module)) == 1
    np.testing.assert_allclose(made(x).numpy(), net(x).numpy(), rtol=1e-6)


class Draws(M.Module):
    def forward(self, x):
        drawn = mge.random.normal(size=(3,)) - mge.random.normal(size=(3,))
        dropped = F.dropout(x, 0.5) - F.dropout(x, 0.5)
        return drawn, dropped, counted(x) + counted(x), F.exp(x) + F.exp(x)


@wrap
def counted(x):
    return x + 1


def test_calls_that_may_differ_are_not_merged():
    made = optimize(trace_module(Draws(), tensor(np.ones(3, np.float32))), ["EliminateCommon"])
    functions = (mge.random.normal, F.dropout, counted, F.exp)
    assert [len(made.graph.get_function_by_type(f)) for f in functions] == [2, 2, 2, 1]


def planted(graph):
    """A pass with a mistake: it makes of every relu a negation."""
    for expr in graph.get_apply_by_type("relu"):
        graph.replace_all_uses(expr.output, graph.apply("neg", expr.inputs[0], name="wrong", after=expr))
    return bool(graph.remove_dead())


def test_the_guilty_pass_is_named_and_reproduced(tmp_path):
    spec = TensorSpec((4,), np.dtype(np.float32))
    graph = record(lambda a: F.exp(F.relu(F.sin(a) * 2)) + 1, [spec])
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    harmless = Pass("harmless", lambda g: False)
    manager = PassManager([harmless, Pass("planted", planted)], [x], reproducer=tmp_path / "found")
    with pytest.raises(
        GraphError, match=r"pass 'planted' changes the result by .* first value that differs is 'exp_out'"
    ):
        manager.run(graph)
    before, after = (files.load(tmp_path / "found" / f"{n}.mgt").graph for n in ("before", "after"))
    assert len(before.get_apply_by_type("relu")) == 1 and len(after.get_apply_by_type("neg")) == 1
    assert not before.get_apply_by_type("sin") and not after.get_apply_by_type("sin")
    with np.load(tmp_path / "found" / "inputs.npz") as stored:
        given = [stored[n.name.removesuffix("_value")] for n in before.inputs if n.name.endswith("_value")]
    outputs = [interpret(g, [x, *given])[0].numpy() for g in (before, after)]
    assert not np.allclose(*outputs)


def test_registered_passes():
    assert get_registered_pass("FuseConvBn") in registered_passes()
    with pytest.raises(OptionError, match="unknown pass 'FuseConvBm'; did you mean 'FuseConvBn'"):
        optimize(traced("res_plain"), ["FuseConvBm"])
    with pytest.raises(OptionError, match="'FuseConvBn' is registered already"):
        register_pass(Pass("FuseConvBn", lambda g: False))


def test_a_layer_is_replaced_by_another_and_impossible_ones_are_refused():
    x = tensor(np.random.default_rng(1).standard_normal((1, 3, 4, 4)).astype(np.float32))
    module = trace_module(Peeked().eval(), x)
    node = module.graph.get_module_by_type(M.Conv2d).as_unique()
    wide = M.Conv2d(3, 3, 3, padding=1)
    module.graph.replace_module(node, wide)
    y = wide(x)
    np.testing.assert_allclose(module(x).numpy(), (module.norm(y) + y).numpy(), rtol=1e-6)
    before = listing(module)
    with pytest.raises(Exception, match="conv2d: x has 3 channels"):
        module.graph.replace_module(node, M.Conv2d(5, 3, 1))
    assert module.conv is wide and listing(module) == before
    with pytest.raises(GraphError, match="expected a Module, got int"):
        module.graph.replace_module(node, 3)
    with pytest.raises(GraphError, match="a Peeked is not a layer; trace it first"):
        module.graph.replace_module(node, Peeked())
    assert isinstance(lower(module).graph.get_apply_by_type("conv2d")[0].inputs[1].spec, TensorSpec)
    assert isinstance(wide.weight, Parameter)
