"""Passes on traced modules, and the manager that runs and checks them."""

import re

import numpy as np
import pytest
from megengine_graphs import NETS, inputs_of, leaves, listing, traced, wanted, without_ids

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, OptionError
from megengine.core.spec import TensorSpec
from megengine.kernels import _core
from megengine.tensor import Parameter, tensor
from megengine.traced_module import InternalGraph, TracedModule, interpret, lower, record, trace_module, wrap
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.editing.rewiring import replace_all_uses
from megengine.traced_module.formats import native as files
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.ir.queries import applied
from megengine.traced_module.passes import (
    Pass,
    PassManager,
    get_registered_pass,
    optimize,
    register_pass,
    registered_passes,
)


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
    assert made.graph.get_method_by_type("__mul__")[0].described().endswith("__mul__(24, )")
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
    for expr in applied(graph, "relu"):
        replace_all_uses(graph, expr.output, graph.apply("neg", expr.inputs[0], name="wrong", after=expr))
    return bool(remove_dead(graph))


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
    assert len(applied(before, "relu")) == 1 and len(applied(after, "neg")) == 1
    assert not applied(before, "sin") and not applied(after, "sin")
    with np.load(tmp_path / "found" / "inputs.npz") as stored:
        given = [stored[n.name.removesuffix("_value")] for n in before.inputs if n.name.endswith("_value")]
    outputs = [interpret(g, [x, *given])[0].numpy() for g in (before, after)]
    assert not np.allclose(*outputs)


def test_a_pass_that_drops_a_result_is_named():
    graph = record(lambda a: (F.exp(a), F.sin(a)), [TensorSpec((4,), np.dtype(np.float32))])
    drops = Pass("drops", lambda g: set_outputs(g, g.outputs[:1]) is None)
    with pytest.raises(GraphError, match="pass 'drops' leaves 1 result; expected 2"):
        PassManager([drops], [np.ones(4, np.float32)]).run(graph)


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
    assert isinstance(applied(lower(module).graph, "conv2d")[0].inputs[1].spec, TensorSpec)
    assert isinstance(wide.weight, Parameter)


# ---------------------------------------------------------------- scales and batch norms in front


class Scaled(M.Module):
    """Layers, and a value that a number is multiplied with."""

    def __init__(self, value):
        super().__init__()
        self.a, self.b, self.value = M.Conv2d(3, 3, 1), M.Conv2d(3, 3, 3, groups=3, padding=1), value
        self.t, self.relu, self.pool = M.ConvTranspose2d(3, 3, 1), M.ReLU(), M.MaxPool2d(2, 2, 1)

    def forward(self, x):
        return self.value(self, x)


# a value -> whether the weights before it can be multiplied instead, by 2 and by -2
SCALED = {
    "conv": (lambda s, x: s.a(x), True, True),
    "transposed": (lambda s, x: s.t(x), True, True),
    "relu": (lambda s, x: F.relu(s.a(x)), True, False),
    "leaky": (lambda s, x: F.leaky_relu(s.b(x), 0.1), True, False),
    "layers": (lambda s, x: s.pool(s.relu(s.b(x))), True, False),
    "shape": (lambda s, x: F.flatten(s.a(x).transpose(0, 2, 3, 1), 1)[:, 1:].reshape(2, -1), True, True),
    "average": (lambda s, x: F.mean(F.avg_pool2d(s.a(x), 2), axis=2), True, True),
    "sum": (lambda s, x: s.a(x) + F.relu(s.b(x)), True, False),
    "twice": (lambda s, x: (lambda y: y - y)(s.a(x)), True, True),
    "concat": (lambda s, x: F.concat([s.a(x), -s.b(x)], axis=1), True, True),
    "one side only": (lambda s, x: s.a(x) + x, False, False),
    "a number added": (lambda s, x: s.a(x) + 1, False, False),
    "not linear": (lambda s, x: F.sigmoid(s.a(x)), False, False),
    "a border at six": (lambda s, x: F.relu6(s.a(x)), False, False),
    "called twice": (lambda s, x: s.a(s.a(x)), False, False),
    "weight read": (lambda s, x: s.a(x) + F.conv2d(x, s.a.weight), False, False),
    "the input": (lambda s, x: x.reshape(-1), False, False),
}


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("by", [2, -2, "/4"])
def test_scales_move_into_weights(name, by):
    value, positive, negative = SCALED[name]
    times = (lambda y: y / 4) if by == "/4" else (lambda y: y * by)
    net = randomized(Scaled(lambda s, x: times(value(s, x)))).eval()
    x = tensor(np.random.default_rng(1).standard_normal((2, 3, 4, 4)).astype(np.float32))
    traced = trace_module(net, x)
    weights = net.a.weight.numpy().copy()
    made = optimize(traced, "BackwardFoldScale", check_with=[x])
    left = [e for e in made.graph.exprs() if getattr(e, "method", "") in ("__mul__", "__truediv__")]
    assert (not left) == (negative if by == -2 else positive)
    want = net(x).numpy()
    np.testing.assert_allclose(made(x).numpy(), want, rtol=0, atol=2e-5 * np.abs(want).max())
    np.testing.assert_array_equal(net.a.weight.numpy(), weights)
    before = listing(traced)
    assert listing(made) == before or (made.graph.undo() and listing(made) == before)
    np.testing.assert_array_equal(made(x).numpy(), want)


@pytest.mark.parametrize(
    ("norm", "layer", "shape", "folds"),
    [
        (M.BatchNorm2d(4), M.Conv2d(4, 6, 3), (2, 4, 7, 7), True),
        (M.BatchNorm2d(4, affine=False), M.Conv2d(4, 6, 1, bias=False), (2, 4, 7, 7), True),
        (M.BatchNorm2d(4), M.Conv2d(4, 6, 3, groups=2), (2, 4, 7, 7), True),
        (M.BatchNorm2d(4), M.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 7, 7), True),
        (M.BatchNorm2d(4), M.Conv2d(4, 6, 3, padding=(0, 1)), (2, 4, 7, 7), False),
        (M.BatchNorm2d(4), M.ConvTranspose2d(4, 6, 3), (2, 4, 5, 5), False),
        (M.BatchNorm1d(5), M.Linear(5, 3), (4, 5), True),
        (M.BatchNorm1d(5), M.Linear(5, 3), (4, 5, 5), False),
    ],
)
def test_a_batch_norm_in_front_becomes_part_of_the_layer(norm, layer, shape, folds):
    net = randomized(Pair(norm, layer)).eval()
    x = tensor(np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    fused = optimize(trace_module(net, x), "FuseBnConv")
    assert len(fused.graph.get_module_by_type(type(norm))) == (not folds)
    want = net(x).numpy()
    np.testing.assert_allclose(fused(x).numpy(), want, rtol=0, atol=2e-5 * np.abs(want).max())


# ---------------------------------------------------------------- numbers and constants


class Value(M.Module):
    def __init__(self, value):
        super().__init__()
        self.value, self.w = value, Parameter(np.full((3, 1, 1), 2, np.float32))

    def forward(self, x):
        return self.value(self, x)


def body_after(value, names, dtype="float32"):
    """The calls that passes leave, of a function of the module and x; what they compute is compared."""
    net = Value(value)
    x = tensor((np.arange(24).reshape(2, 3, 2, 2) - 7).astype(dtype))
    made = optimize(trace_module(net, x), names, check_with=[x])
    want = net(x).numpy()
    got = made(x).numpy()
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-6)
    return [re.sub(r"_\d+", "", e.described()) for e in made.graph._exprs]


# what MegEngine 1.13 leaves of them is the same, where it gives the same numbers
@pytest.mark.parametrize(
    ("value", "calls"),
    [
        (lambda s, x: x - 1, ["x.__add__(-1, )"]),
        (lambda s, x: 1 - x, ["elemwise.neg(x, )", "neg_out.__add__(1, )"]),
        (lambda s, x: x / 2, ["x.__mul__(0.5, )"]),
        (lambda s, x: F.sub(x, 1), ["x.__add__(-1, )"]),
        (lambda s, x: F.sub(1, x), ["elemwise.neg(x, )", "neg_out.__add__(1, )"]),
        (lambda s, x: F.mul(2, x), ["x.__mul__(2, )"]),
        (lambda s, x: 2 + x, ["x.__add__(2, )"]),
        (lambda s, x: -x, ["x.__neg__(, )"]),
        (lambda s, x: x // 2, ["x.__floordiv__(2, )"]),
        (lambda s, x: 24.5 / (x + 24), ["x.__add__(24, )", "add_out.__rtruediv__(24.5, )"]),
        (lambda s, x: x * True, ["x.__mul__(True, )"]),
    ],
)
def test_arithmetic_in_one_form(value, calls):
    assert body_after(value, "NormElemWise") == calls


@pytest.mark.parametrize(
    ("value", "calls"),
    [
        (lambda s, x: x * 2 * 3, ["x.__mul__(6, )"]),
        (lambda s, x: x - 1 - 2, ["x.__add__(-3, )"]),
        (lambda s, x: 3 - (2 - x), ["x.__add__(1, )"]),
        (lambda s, x: 3 - (x + 2), ["x.__rsub__(1, )"]),
        (lambda s, x: F.neg(-x), []),
        (lambda s, x: -(x - 1), ["x.__rsub__(1, )"]),
        (lambda s, x: 2 * (-x) / 4, ["x.__mul__(-0.5, )"]),
        (lambda s, x: (x**2) ** 3, ["x.__pow__(6, )"]),
        (lambda s, x: F.abs(x**2) ** 0.5, ["x.__pow__(2, )", "elemwise.abs(pow_out, )", "abs_out.__pow__(0.5, )"]),
        (lambda s, x: (x + 1) * 2, ["x.__add__(1, )", "add_out.__mul__(2, )"]),
        (lambda s, x: x + 8388608.0 - 8388608.0, ["x.__add__(8388608.0, )", "add_out.__sub__(8388608.0, )"]),
        (lambda s, x: (lambda y: y * 3 + y)(x * 2), None),
    ],
)
def test_chains_become_one_call(value, calls):
    found = body_after(value, "FuseAddMul")
    assert found == calls if calls is not None else len(found) == 3


def test_chains_of_integers():
    assert body_after(lambda s, x: x * 2 * 3 + 1 - 5, "FuseAddMul", "int32") == [
        "x.__mul__(6, )",
        "mul_out.__add__(-4, )",
    ]
    assert len(body_after(lambda s, x: x * 65536 * 65536, "FuseAddMul", "int32")) == 2
    assert len(body_after(lambda s, x: x * 2 * 0.5, "FuseAddMul", "int32")) == 2
    assert len(body_after(lambda s, x: x + 60 + 60, "FuseAddMul", "int8")) == 2


@pytest.mark.parametrize(
    ("value", "names", "calls"),
    [
        (lambda s, x: x * (s.w * s.w + 1), "FoldConstants", ["Constant() -> (Tensor)", "x.__mul__(add_out, )"]),
        (lambda s, x: x * s.w, "FoldConstants", ['getattr(self, "w") -> (Tensor)', "x.__mul__(w, )"]),
        (lambda s, x: x * s.w, "AttrToConstant", ["Constant() -> (Tensor)", "x.__mul__(w, )"]),
        (lambda s, x: x * F.exp(s.w), "FlodConstant", ["Constant() -> (Tensor)", "x.__mul__(exp_out, )"]),
        (
            lambda s, x: x * F.split(s.w, 3, axis=0)[1],
            "FoldConstants",
            ["Constant() -> (Tensor)", "x.__mul__(split_out, )"],
        ),
        (
            lambda s, x: x.reshape(x.shape[0], -1),
            ["FixInputShape", "FoldConstants"],
            ["Constant() -> (Tensor)", "x.reshape(getitem_out, -1, )"],
        ),
    ],
)
def test_constants_are_computed_before(value, names, calls):
    assert body_after(value, names) == calls


def test_parts_of_a_constant_are_constants():
    """At op level an op with several results gives a constant for each."""
    x = add_input(graph := InternalGraph("net"), "x", TensorSpec((3,), np.dtype(np.float32)))
    parts = {"sections": (3, 3), "axis": 0}
    first, last = graph.apply("split", graph.constant(np.arange(6, dtype=np.float32)), attrs=parts)
    set_outputs(graph, [graph.apply("sub", graph.apply("mul", x, first), last)])
    made = optimize(TracedModule.from_graph(graph), "fold_constants")
    assert [e.op for e in applied(made.graph)] == ["mul", "sub"]
    np.testing.assert_array_equal(made(tensor(np.full(3, 2, np.float32))).numpy(), [-3, -2, -1])


def test_draws_are_no_constants():
    found = body_after(lambda s, x: x + F.dropout(s.w, 0.5) * 0, "FlodConstant")
    assert any("dropout" in line for line in found)


class Shapes(M.Module):
    """A submodule that is called with two shapes: neither is the shape."""

    def __init__(self):
        super().__init__()
        self.inner = Value(lambda s, x: x.reshape(x.shape[0], -1))

    def forward(self, x):
        return self.inner(x), self.inner(x[:1])


def test_shapes_of_a_part_that_is_called_with_several_stay():
    x = tensor(np.ones((2, 3, 2), np.float32))
    made = optimize(trace_module(Shapes(), x), ["FixInputShape", "FoldConstants"], check_with=[x])
    assert [t.shape for t in made(x)] == [(2, 6), (1, 6)]


def test_names_of_megengines_passes_are_known():
    theirs = ("FuseConvBn", "FuseAddMul", "BackwardFoldScale", "FlodConstant", "FixInputShape", "NormElemWise")
    for name in (*theirs, "AttrToConstant"):
        assert get_registered_pass(name).name == name
    everyone = optimize(traced("res_plain"), "all")
    assert not set(registered_passes()).isdisjoint(p for p in registered_passes() if p.by_name_only)
    assert everyone.graph.get_module_by_type(M.Module) and not [
        e for e in everyone.graph.exprs() if e.kind == "Constant"
    ]


def test_the_reproducer_of_a_planted_pass_has_at_most_five_nodes(tmp_path):
    module = traced("res_plain")
    given = [tensor(x) for x in inputs_of("res_plain")]

    def wrong(graph):
        """The third ReLU of the model gets half of its value."""
        expr = graph.get_calls_of(M.ReLU)[2]
        with expr.top_graph.insert_exprs():
            expr.top_graph.replace_node({expr.inputs[1]: expr.inputs[1] * 0.5})
        return True

    ops = lower(module).graph

    def wrong_op(graph):
        expr = applied(graph, "relu")[2]
        replace_all_uses(graph, expr.output, graph.apply("sigmoid", expr.inputs[0], after=expr))
        return bool(remove_dead(graph))

    for graph, one in ((module.clone().graph, wrong), (ops, wrong_op)):
        with pytest.raises(GraphError, match=f"pass '{one.__name__}' changes the result"):
            PassManager([Pass(one.__name__, one)], given, reproducer=tmp_path / one.__name__).run(graph)
        for part in ("before", "after"):
            small = files.load(tmp_path / one.__name__ / f"{part}.mgt").graph
            assert len([n for n in small.nodes() if n.users or n in small.outputs]) <= 5


def test_results_that_are_dropped_leave_their_memory_to_the_next() -> None:
    net = Pair(M.Linear(1024, 1024), M.BatchNorm1d(1024)).eval()
    made = trace_module(net, tensor(np.zeros((2, 1024), np.float32)))
    before, most = _core.live_bytes(), 0
    for _ in range(12):
        optimize(made)
        most = max(most, _core.live_bytes() - before)
    assert 4 << 20 <= most <= 4 * (4 << 20)  # of twelve weights; a collection of all garbage is rare


def test_the_manager_takes_modules_and_names_of_passes():
    net, x = randomized(Pair(M.Conv2d(4, 6, 3), M.BatchNorm2d(6))).eval(), tensor(np.ones((1, 4, 5, 5), np.float32))
    traced = trace_module(net, x)
    assert PassManager(["FuseConvBn", "DropIdentities"], check_with=x).run(traced) == ["FuseConvBn"]
    assert len(traced.graph.get_module_by_type(M.BatchNorm2d)) == 0
    for given, message in (
        (net, "got Pair; expected a graph or a TracedModule; trace the module"),
        (3, "got int; exp"),
    ):
        with pytest.raises(GraphError, match=f"PassManager: {message}"):
            PassManager(["FuseConvBn"]).run(given)
