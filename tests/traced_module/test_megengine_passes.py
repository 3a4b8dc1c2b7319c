"""Passes and patterns in MegEngine's words. What matches was tried on MegEngine 1.13 with the same graphs."""

# patterns take part in operators as MegEngine's do, and wrong arguments are given on purpose:
# pyright: reportOperatorIssue=false, reportArgumentType=false

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, OptionError, PatternError
from megengine.tensor import Parameter, Tensor
from megengine.traced_module import optimize as optimize_of_the_package
from megengine.traced_module import trace_module
from megengine.traced_module._passes import optimize, pass_base
from megengine.traced_module._passes.matcher import PatternMatcher
from megengine.traced_module._passes.pass_base import (
    BackwardPass,
    ForwardPass,
    PassContext,
    get_default_pass_context,
    get_registered_pass,
    register_pass,
)
from megengine.traced_module._passes.pattern import any_node, is_const, is_op, is_var
from megengine.traced_module._passes.utils import get_const_value
from megengine.traced_module.passes import pass_manager


def values(*shape):
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


class Layers(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = M.Conv2d(3, 4, 3), M.BatchNorm2d(4)
        self.w = Parameter(np.ones((1, 4, 1, 1), np.float32))

    def forward(self, x):
        y = F.relu(self.bn(self.conv(x)))
        z = (y + self.w) * 2
        q = F.concat([z, y], axis=1).sum(axis=1)
        return q + 1.0, z


class Shared(M.Module):
    def forward(self, x, y):
        a = F.relu(x)
        b = a + a
        c = F.sigmoid(b) + b
        return c * y + x


@pytest.fixture(scope="module")
def layers():
    return {e.outputs[0].name: e for e in trace_module(Layers().eval(), values(1, 3, 8, 8)).graph._exprs}


@pytest.fixture(scope="module")
def shared():
    return {e.outputs[0].name: e for e in trace_module(Shared(), values(1, 3), values(1, 3)).graph._exprs}


def found(pattern, expr):
    """Texts of the matched parts, or False."""
    matcher = PatternMatcher()
    if not matcher.match(pattern, expr):
        assert matcher.matched_patterns == [] and not matcher.matched_exprs
        return False
    assert matcher.matched_exprs[pattern] is expr
    return [repr(p) for p in matcher.matched_patterns]


conv, bn, relu = (lambda: is_op(M.Conv2d)), (lambda: is_op(M.BatchNorm2d)), (lambda: is_op(F.relu))
v, c, a = is_var, is_const, any_node
IN_LAYERS = [
    (lambda: conv(), "conv_out", ["Conv2d"]),
    (lambda: conv()(v()), "conv_out", ["Conv2d", "var", "Conv2d(var)"]),
    (lambda: conv()(v(), v()), "conv_out", False),
    (lambda: relu()(bn()(conv())), "relu_out", None),
    (lambda: relu()(bn()), "relu_out", ["relu", "BatchNorm2d", "relu(BatchNorm2d)"]),
    (lambda: relu()(v()), "relu_out", ["relu", "var", "relu(var)"]),
    (lambda: conv(), "relu_out", False),
    (lambda: relu() | conv(), "relu_out", ["relu", "(relu|Conv2d)"]),
    (lambda: is_op("__add__"), "add_out", ["__add__"]),
    (lambda: v() + v(), "add_out", False),  # the relu is used by the concat too
    (lambda: relu().check_users(False) + a(), "add_out", ["__add__", "relu", "any", "__add__(relu,any)"]),
    (lambda: a() + relu().check_users(False), "add_out", False),  # operands come in their order
    (lambda: is_op(F.add), "add_out", False),
    (lambda: is_op("__mul__")(v()), "mul_out", ["__mul__", "var", "__mul__(var)"]),
    (lambda: v() * v(), "mul_out", False),  # the 2 is no input
    (lambda: is_op(F.concat), "concat_out", ["concat"]),
    (lambda: is_op(F.concat)(a(), a()), "concat_out", False),
    (lambda: is_op("sum")(v()), "sum_out", ["sum", "var", "sum(var)"]),
    (lambda: conv().has_attr(stride=(1, 1)), "conv_out", ["Conv2d"]),
    (lambda: conv().has_attr(stride=(2, 2)), "conv_out", False),
    (lambda: conv().has_attr(stride=1, kernel_size=3), "conv_out", ["Conv2d"]),  # as the op reads them
    (lambda: is_op(F.concat).has_params(axis=1), "concat_out", ["concat"]),
    (lambda: is_op(F.concat).has_params(axis=2), "concat_out", False),
    (lambda: is_op(F.concat).has_param(axis=-3), "concat_out", ["concat"]),  # from either end
    (lambda: v(), "w", ["var"]),
    (lambda: a(), "conv", ["any"]),
    (lambda: c(), "w", False),
    (lambda: c(), "relu_out", False),
]
IN_SHARED = [
    (lambda: v() + v(), "add_out", False),
    (lambda: (lambda s: s + s)(v()), "add_out", ["__add__", "var", "__add__(var,var)"]),
    (lambda: (lambda s: s + s)(relu()), "add_out", ["__add__", "relu", "__add__(relu,relu)"]),
    (lambda: relu() + v(), "add_out", False),
    (lambda: is_op(F.sigmoid)(v()) + v(), "add_out_1", False),
    (
        lambda: (lambda s: is_op(F.sigmoid)(s) + s)(v()),
        "add_out_1",
        ["__add__", "sigmoid", "var", "sigmoid(var)", "__add__(sigmoid(var),var)"],
    ),
    (lambda: v() * v(), "mul_out", ["__mul__", "var", "var", "__mul__(var,var)"]),
    (lambda: v() + v(), "add_out_2", False),
    (lambda: is_op(F.sigmoid)(v()).check_users(False), "sigmoid_out", False),
    (lambda: is_op(F.sigmoid)(v().check_users(False)), "sigmoid_out", ["sigmoid", "var", "sigmoid(var)"]),
    (lambda: (is_op("__mul__") | is_op("__add__"))(v(), v()), "mul_out", None),
    (lambda: is_op("__add__")(v()).not_all_args(), "add_out_2", ["__add__", "var", "__add__(var)"]),
    (lambda: is_op("__add__")(v()), "add_out_2", False),
]


@pytest.mark.parametrize("case", range(len(IN_LAYERS)))
def test_what_matches(layers, case):
    make, name, want = IN_LAYERS[case]
    got = found(make(), layers[name])
    assert bool(got) if want is None else got == want


@pytest.mark.parametrize("case", range(len(IN_SHARED)))
def test_what_matches_where_values_are_shared(shared, case):
    make, name, want = IN_SHARED[case]
    got = found(make(), shared[name])
    assert bool(got) if want is None else got == want


def test_wrong_patterns():
    with pytest.raises(GraphError, match="is_op: 3; expected a class of modules, a function, or the name"):
        is_op(3)
    with pytest.raises(GraphError, match="__add__ with a int; expected a pattern"):
        is_var() + 2
    with pytest.raises(GraphError, match="5 is a int; expected a pattern"):
        is_op(F.relu)(5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: conv().has_attr(kernal_size=3),
            r"Conv2d has no attribute 'kernal_size'; did you mean 'kernel_size'\?",
        ),
        (lambda: conv().has_attr(nosuch=1), "Conv2d has no attribute 'nosuch'"),
        (lambda: is_op(F.concat).has_params(dim=1), "concat has no attribute 'dim'"),
        (lambda: is_op("reshap"), r"tensors have no method '\.reshap'; did you mean '\.reshape'\?"),
    ],
    ids=["attribute", "unlike_any", "parameter", "method"],
)
def test_misspelt_names_in_patterns_are_errors(make, message):
    with pytest.raises(GraphError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: is_op(F.concat).has_attr(axis=1), r"pattern concat: has_attr\('axis',\): .*use has_params for"),
        (lambda: is_op(M.Conv2d).has_params(stride=1), r"pattern Conv2d: has_params\('stride',\): .*use has_attr for"),
        (lambda: is_op(M.Conv2d).has_param(stride=1), "pattern Conv2d: has_params"),
        (lambda: conv()(is_var()).has_attr(stride=1), r"pattern Conv2d\(var\): has_attr.*before its inputs are given"),
        (
            lambda: is_op(F.concat)(is_var()).has_params(axis=1),
            r"concat\(var\): has_params.*before its inputs are given",
        ),
        (lambda: is_op("sum").has_params(axis=1), "pattern sum: has_params.*expected the pattern of a function"),
        (lambda: (relu() | conv()).has_attr(stride=1), r"pattern \(relu\|Conv2d\): has_attr"),
        (lambda: is_const().has_attr(shape=1), "pattern const: has_attr.*expected the pattern of a module"),
    ],
)
def test_conditions_on_patterns_of_other_kinds_are_errors(make, message):
    with pytest.raises(PatternError, match=message):
        make()


# ---------------------------------------------------------------- passes


class Inner(M.Module):
    def __init__(self):
        super().__init__()
        self.fc = M.Linear(3, 3)

    def forward(self, x):
        return F.relu(F.relu(self.fc(x)))


class Outer(M.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Inner(), Inner()

    def forward(self, x):
        return F.relu(self.b(F.sigmoid(self.a(x))) + 1)


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(pass_base, "_pass_dict", dict(pass_base._pass_dict))
    monkeypatch.setattr(pass_manager, "_registered", dict(pass_manager._registered))


def watching(base, seen):
    class Watch(base):
        name = "Watch"

        def before_visit_graph(self, graph):
            seen.append(graph.name)

        def run_transform(self, expr):
            seen.append(expr.outputs[0].name)
            return expr

    return Watch


INNER = ["fc", "fc_out", "relu_out", "relu_out_1"]
BACK = INNER[::-1]
FORWARD = ["Outer", "a_out", "Outer_a", *INNER, "sigmoid_out", "b_out", "Outer_b", *INNER, "add_out", "relu_out"]
BACKWARD = ["Outer", "relu_out", "add_out", "b_out", "Outer_b", *BACK, "sigmoid_out", "a_out", "Outer_a", *BACK]


@pytest.mark.parametrize(("base", "order"), [(ForwardPass, FORWARD), (BackwardPass, BACKWARD)])
def test_the_order_in_which_expressions_are_seen(base, order):
    seen = []
    traced = trace_module(Outer(), values(1, 3))
    assert watching(base, seen)()(traced) is traced
    assert [name for name in seen if name not in ("a", "b")] == order  # where modules are read is ours
    assert sorted(seen) == sorted(["a", "b", *order])


def test_a_pass_of_the_users_rewrites_through_submodules(registry):
    @register_pass("OnceRelu")
    class OnceRelu(BackwardPass):
        name, run_once = "OnceRelu", False

        def __init__(self):
            super().__init__()
            self.first = is_op(F.relu)
            self.pattern = is_op(F.relu)(self.first)

        def run_transform(self, expr):
            matcher = PatternMatcher()
            if not matcher.match(self.pattern, expr):
                return expr
            first = matcher.matched_exprs[self.first]
            expr.top_graph.replace_node({expr.outputs[0]: first.outputs[0]})
            expr.top_graph.compile()
            return first

    x = values(2, 3)
    traced = trace_module(Outer(), x)
    optimized = optimize(traced, ["OnceRelu"])
    assert len(traced.graph.get_function_by_type(F.relu).as_list()) == 5
    assert len(optimized.graph.get_function_by_type(F.relu).as_list()) == 3
    np.testing.assert_array_equal(optimized(x).numpy(), traced(x).numpy())
    OnceRelu()(traced)  # in place
    assert len(traced.graph.get_function_by_type(F.relu).as_list()) == 3
    assert traced.graph.undo()


def test_required_and_disabled_passes(registry):
    seen = []
    register_pass(["First", "Also"])(watching(ForwardPass, seen))

    class Second(ForwardPass):
        name, required_pass = "Second", ["First"]

        def run_transform(self, expr):
            return expr

    register_pass("Second")(Second)
    traced = trace_module(Inner(), values(1, 3))
    Second()(traced)
    optimize(traced, "Second")
    assert seen == 2 * ["Inner", *INNER]
    optimize_of_the_package(traced, enabled_pass=["Also"])
    assert seen == 3 * ["Inner", *INNER]
    context = PassContext(disabled_pass=["First"], pass_config={"level": 1})
    context.add_diabled_pass("Third")
    assert not context.pass_enabled("Third") and context.pass_enabled(Second()) and context._config == {"level": 1}
    Second()(traced, context)
    assert len(seen) == 15
    assert get_default_pass_context().pass_enabled("First")
    assert get_registered_pass("Also") is get_registered_pass("First")


def test_our_passes_have_classes_too():
    net = Layers().eval()
    x = values(1, 3, 8, 8)
    traced = trace_module(net, x)
    fuse = get_registered_pass("FuseConvBn")
    assert fuse()(traced) is traced
    assert traced.graph.get_calls_of(M.BatchNorm2d).as_list() == []
    np.testing.assert_allclose(traced(x)[0].numpy(), net(x)[0].numpy(), rtol=1e-4, atol=1e-4)
    assert optimize(trace_module(net, x)).graph.get_calls_of(M.BatchNorm2d).as_list() == []


def test_wrong_passes(registry):
    traced = trace_module(Inner(), values(1, 3))

    class Endless(ForwardPass):
        name, run_once = "Endless", False

        def run_transform(self, expr):
            return traced.graph._exprs[0 if expr is not traced.graph._exprs[0] else 1]

    with pytest.raises(GraphError, match="'Endless' still changes 'Inner' after 100 sweeps"):
        Endless()(traced)

    class Nothing(ForwardPass):
        name = "Nothing"

        def run_transform(self, expr):
            return None

    with pytest.raises(OptionError, match="run_transform of .* returned NoneType; expected the expression"):
        Nothing()(traced)
    with pytest.raises(OptionError, match="unknown pass 'FuseConvBm'; did you mean 'FuseConvBn'"):
        optimize(traced, ["FuseConvBm"])
    with pytest.raises(OptionError, match="expected a traced module, got Inner"):
        Nothing()(Inner())
    with pytest.raises(NotImplementedError, match="has no run_transform"):
        ForwardPass()(traced)


def test_values_of_constants(layers):
    assert get_const_value(layers["w"]).shape == (1, 4, 1, 1)
    assert get_const_value(layers["relu_out"], 7) == 7
    assert get_const_value(layers["conv"]) is None
