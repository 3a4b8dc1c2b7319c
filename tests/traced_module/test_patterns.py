"""Patterns and rules, on graphs of ops and of calls."""

import contextlib
import re

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, MegEngineError
from megengine.core.spec import TensorSpec
from megengine.dispatch import registry
from megengine.dispatch.public import public_functions
from megengine.tensor import tensor
from megengine.traced_module import InternalGraph, interpret, lower, record, register_as_builtin, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.ir.queries import applied
from megengine.traced_module.passes.activations import ACTIVATIONS
from megengine.traced_module.passes.drop_identities import RULES
from megengine.traced_module.passes.rewriting import Rule, find, rewrite
from megengine.traced_module.pattern_targets import OTHER_ORDER, Target
from megengine.traced_module.patterns import any_, call, const, match, optional, repeated, rest

SPEC = TensorSpec((2, 3), np.dtype(np.float32))


def label(value):
    """Names of cases hold no addresses: processes that share the tests must agree on them."""
    return re.sub(r" at 0x\w+", "", str(value))


def values() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(SPEC.shape).astype(np.float32)


def graph_of(function, inputs: int = 1) -> InternalGraph:
    return record(function, [SPEC] * inputs)


def test_bindings_and_one_pattern_for_one_node():
    graph = graph_of(lambda x, y: F.relu(x * y + x), 2)
    x, y = any_(), any_()
    product = call("mul", x, y)
    found = match(call("relu", call("add", product, x)), graph.outputs[0])
    assert [found[x].name, found[y].name] == ["input_0", "input_1"]
    assert found.expr(product).op == "mul"
    assert [e.op for e in found.exprs] == ["relu", "add", "mul"]
    same = any_()
    assert match(call("relu", call("add", call("mul", same, same), same)), graph.outputs[0]) is None


def test_operands_of_commutative_ops_come_in_either_order():
    graph = graph_of(lambda x: 3 * F.exp(x))
    x = any_()
    assert match(call("mul", call("exp", x), const()), graph.outputs[0])[x] is graph.inputs[0]
    assert match(call("mul", call("exp", x), const(), commutative=False), graph.outputs[0]) is None
    assert match(call("mul", const(3.0), call("exp", x)), graph.outputs[0])
    assert match(call("mul", const(4.0), call("exp", x)), graph.outputs[0]) is None


def test_optional_repeated_variadic_and_attributes():
    graph = graph_of(lambda x: F.concat([F.relu(F.relu(F.relu(x))), x, F.exp(x)], axis=1))
    x, others = any_(), rest()
    found = match(call("concat", repeated("relu", x), others, axis=1), graph.outputs[0])
    assert found[x] is graph.inputs[0]
    assert [n.expr.kind for n in found[others]] == ["Input", "Apply"]
    assert match(call("concat", repeated("relu", x, least=4), others), graph.outputs[0]) is None
    assert match(call("concat", rest(), axis=0), graph.outputs[0]) is None
    assert match(call("concat", rest(), axis=lambda a: a > 0), graph.outputs[0])
    inner = any_()
    maybe = optional("exp", inner)
    assert match(maybe, graph.outputs[0].expr.inputs[2])[inner] is graph.inputs[0]
    assert match(maybe, graph.inputs[0])[inner] is graph.inputs[0]


def test_results_of_an_expression_with_several():
    graph = graph_of(lambda x: F.exp(F.split(x, 3, axis=1)[1]))
    x = any_()
    assert match(call("exp", call("split", x).output(1)), graph.outputs[0])
    assert match(call("exp", call("split", x).output(0)), graph.outputs[0]) is None


def test_rules_rewrite_ops():
    x = any_()
    rule = Rule("relu_once", call("relu", call("relu", x)), lambda m: m.apply("relu", m[x]))
    graph = graph_of(lambda a: F.relu(F.relu(F.relu(a))) + F.relu(F.relu(a)))
    expected = interpret(graph, [values()])[0].numpy()
    while rewrite(graph, [rule]):
        graph.lint()
    assert [e.op for e in applied(graph, "relu")] == ["relu", "relu"]
    np.testing.assert_array_equal(interpret(graph, [values()])[0].numpy(), expected)
    assert all(e.meta["passes"][0] == "relu_once" for e in applied(graph, "relu"))


def test_values_that_others_use_are_not_taken_away():
    x = any_()
    pattern = call("exp", call("neg", x))
    graph = graph_of(lambda a: (lambda n: F.exp(n) + n)(-a))
    assert len(find(graph, pattern)) == 1
    assert rewrite(graph, [Rule("r", pattern, lambda m: m.apply("exp", m[x]))]) == 0
    assert rewrite(graph, [Rule("r", pattern, lambda m: m.apply("abs", m[x]), shared=True)]) == 1
    np.testing.assert_allclose(interpret(graph, [values()])[0].numpy(), np.abs(values()) - values(), rtol=1e-6)


class Block(M.Module):
    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(3, 4, 1)
        self.act = M.ReLU()

    def forward(self, x):
        return self.act(self.conv(x)) * 2


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [Block()]
        self.last = M.Conv2d(4, 4, 1, stride=2)

    def forward(self, x):
        return F.relu(F.relu(self.last(self.blocks[0](x))))


def test_rules_rewrite_calls_also_in_submodules():
    net, x = Net().eval(), tensor(np.random.default_rng(1).standard_normal((1, 3, 6, 6)).astype(np.float32))
    traced = trace_module(net, x)
    inner, conv = any_(), call(M.Conv2d, any_())
    rules = [
        Rule("once", call(F.relu, call(F.relu, inner)), lambda m: F.relu(m[inner])),
        Rule("elu", call(M.ReLU, conv), lambda m: F.maximum(m[conv], m[conv] * 0.5)),
    ]
    assert rewrite(traced.graph, rules) == 2
    traced.graph.lint()
    y = net.blocks[0].conv(x)
    y = net.last(F.maximum(y, y * 0.5) * 2)
    np.testing.assert_allclose(traced(x).numpy(), F.relu(y).numpy(), rtol=1e-6)
    assert traced.graph.undo() and traced.graph.undo()
    np.testing.assert_array_equal(traced(x).numpy(), net(x).numpy())


def test_attributes_of_modules_are_seen():
    traced = trace_module(Net().eval(), tensor(np.zeros((1, 3, 6, 6), np.float32)))
    assert len(find(traced.graph, call(M.Conv2d))) == 2
    assert len(find(traced.graph, call(M.Conv2d), recursive=False)) == 1
    assert len(find(traced.graph, call(M.Conv2d, stride=(2, 2)))) == 1
    assert len(find(traced.graph, call(".__mul__", any_()))) == 1


def test_what_cannot_be_called():
    with pytest.raises(GraphError, match="3 cannot be called; expected an op's name"):
        call(3)


def test_a_long_chain_takes_linear_time():
    graph = InternalGraph()
    node = add_input(graph, "x", SPEC)
    for _ in range(5000):
        node = graph.apply("relu", node)
    set_outputs(graph, [node])
    x = any_()
    assert rewrite(graph, [Rule("abs", call("relu", x), lambda m: m.apply("abs", m[x]))]) == 5000
    assert len(applied(graph, "abs")) == 5000
    chain = repeated("abs", any_(), least=5000)
    assert match(chain, graph.outputs[0]) is not None


def test_a_condition_is_asked_of_nodes_that_match():
    graph = graph_of(lambda a: F.clip(a, 0, 6) + F.relu(a))
    asked = []
    pattern = call(
        "add", call("clip", any_()).where(lambda n: asked.append(n.expr.op) or n.expr.attrs["hi"] == 6), any_()
    )
    assert match(pattern, graph.outputs[0]) is not None
    assert asked == ["clip"]


WRONG_PATTERNS = {
    "an unknown op": (lambda: call("conv2"), "unknown op 'conv2'; did you mean 'conv2d'"),
    "an unknown method": (lambda: call(".reshap"), "no method '.reshap'; did you mean '.reshape'"),
    "a method without its dot": (lambda: repeated("reshape_", any_()), "methods are written '.name'"),
    "a misspelt attribute of a layer": (
        lambda: call(M.Conv2d, kernal_size=3),
        "Conv2d has no attribute 'kernal_size'; did you mean 'kernel_size'",
    ),
    "a misspelt attribute of an op": (lambda: call("conv2d", strides=2), "'conv2d' has no attribute 'strides'; did .*"),
    "a misspelt argument": (lambda: call(F.concat, axes=1), "concat has no attribute 'axes'; did you mean 'axis'"),
    "a misspelt argument of a method": (lambda: call(".flatten", start=1), "'.flatten' has no attribute 'start'"),
    "an attribute of another op": (lambda: optional("relu", any_(), stride=2), "'relu' has no attribute 'stride'; it"),
    "an attribute of no operator": (lambda: call("+", value=2), r"'\+' has no attribute 'value'; it has x, y"),
    "a number as an input": (
        lambda: call(F.relu, 3),
        r"an input of .* is 3, a int; expected a pattern: any_\(\), const\(3\), call",
    ),
    "a function as an input": (lambda: optional(F.relu, F.exp), r"expected a pattern: any_\(\)"),
    "nothing to call": (lambda: call(3), "3 cannot be called; expected an op's name"),
    "a rule of a number": (lambda: Rule("r", 3, lambda m: None), "rule 'r': pattern is 3; expected a pattern"),
    "a rule that builds nothing": (lambda: Rule("r", any_(), 5), "build is 5; expected a function of the match"),
    "a rule with a wrong condition": (lambda: Rule("r", any_(), len, when=3), "when is 3; expected a function of the"),
    "no rules": (lambda: rewrite(InternalGraph("g"), [3]), r"rewrite: got a int; expected a graph \(traced.graph\)"),
    "no graph": (lambda: rewrite(3, []), "rewrite: got a int; expected a graph"),
}


@pytest.mark.parametrize("name", WRONG_PATTERNS)
def test_what_is_no_pattern_or_rule_is_refused_where_it_is_made(name):
    make, message = WRONG_PATTERNS[name]
    with pytest.raises(GraphError, match=message):
        make()


class Tanh(M.Module):
    def forward(self, x):
        return F.tanh(x * 2)


def test_rules_that_fail_are_named_and_change_nothing():
    model = trace_module(Tanh(), tensor(np.ones((2, 3), np.float32)))
    before, x, other = repr(model), any_(), any_()
    pattern = call(F.tanh, x)
    for build, message in (
        (lambda m: m[other], "has no part in this match: .* ask `part in m`"),
        (lambda m: F.reshape(m[x], (7,)), "reshape: shape"),
        (
            lambda m: m.apply("quantize_away", m[x]),
            "apply: no function has the name of op 'quantize_away'; expected one",
        ),
        (lambda m: 3, "what rule 'halves' builds: node 3 does not belong to graph 'Tanh'; it is a int"),
    ):
        with pytest.raises(MegEngineError, match=message) as caught:
            rewrite(model.graph, [Rule("halves", pattern, build)])
        assert caught.value.__notes__[-1].startswith("in rule 'halves' at %")
        assert repr(model) == before
    with pytest.raises(KeyError):
        match(pattern, model.graph.outputs[0])[other]


# ---------------------------------------------------------------- attributes and operators


class Padded(M.Module):
    def __init__(self):
        super().__init__()
        self.a = M.Conv2d(3, 4, 3, stride=2, padding=1)
        self.b = M.Conv2d(4, 4, 1, bias=False)

    def forward(self, x):
        return F.concat([self.b(self.a(x))] * 2, axis=1).astype("float32")


@pytest.mark.parametrize(
    ("attributes", "layers", "ops"),
    [
        ({"stride": 2}, 1, 1),
        ({"stride": (2, 2)}, 1, 1),
        ({"stride": lambda s: s[0] == 1}, 1, 1),
        ({"padding": 1}, 1, 1),
        ({"padding": (1, 1)}, 1, 1),
        ({"dilation": 1, "groups": 1}, 2, 2),
        ({"stride": (2, 1)}, 0, 0),
        ({"stride": ()}, 0, 0),
        ({"kernel_size": 3}, 1, None),
        ({"bias": True}, 1, None),
        ({"bias": None}, 1, None),
        ({"training": False}, 2, None),
    ],
    ids=label,
)
def test_values_of_attributes_are_compared_as_the_op_reads_them(attributes, layers, ops):
    traced = trace_module(Padded().eval(), tensor(np.zeros((1, 3, 8, 8), np.float32)))
    assert len(find(traced.graph, call(M.Conv2d, **attributes))) == layers
    if ops is not None:
        assert len(find(lower(traced).graph, call("conv2d", **attributes))) == ops


def test_axes_count_from_either_end_and_dtypes_are_written_in_any_way():
    traced = trace_module(Padded().eval(), tensor(np.zeros((1, 3, 8, 8), np.float32)))
    for axis, count in ((1, 1), (-3, 1), (3, 0), (-1, 0)):
        assert len(find(traced.graph, call(F.concat, axis=axis))) == count
    for dtype, count in ((np.float32, 1), ("float32", 1), (np.dtype("float32"), 1), (np.int32, 0)):
        assert len(find(traced.graph, call(".astype", dtype=dtype))) == count


class Own(M.Module):
    """A layer of the user's: attributes of a derived class, of the class, by a property, by computed names."""

    kind = "own"

    @property
    def twice(self):
        return self.width * 2

    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, x):
        return x + self.width


class Derived(Own):
    def __init__(self):
        super().__init__(3)
        self.depth = 2


class Freely(M.Module):
    def __init__(self):
        super().__init__()
        setattr(self, "a" + "b", 3)

    def forward(self, x):
        return x * 2


def test_attributes_of_layers_of_the_users():
    for kind in (Own, Derived, Freely):
        register_as_builtin(kind)
    net = M.Sequential(Own(1), Derived(), Freely())
    graph = trace_module(net, tensor(np.ones((2, 3), np.float32))).graph
    counts = {"kind": ("own", 2), "twice": (6, 1), "width": (1, 1), "depth": (2, 1)}
    for name, (value, count) in counts.items():
        assert len(find(graph, call(Own, **{name: value}))) == count
    assert len(find(graph, call(Freely, ab=3))) == 1
    with pytest.raises(GraphError, match="Derived has no attribute 'widht'; did you mean 'width'"):
        call(Derived, widht=3)


OPERATORS = {
    "add": (["+", "__add__", "add", "elemwise.add", F.add], lambda x, y: [x + y, F.add(x, y)]),
    "subtract": (["-", "__sub__", "sub", F.sub], lambda x, y: [x - y, F.sub(x, y)]),
    "divide": (["/", "__truediv__", "div", F.div], lambda x, y: [x / y, F.div(x, y)]),
    "power": (["**", "pow", "__pow__"], lambda x, y: [x**y]),
    "compare": (["<", "__lt__", "less", F.less], lambda x, y: [x < y]),
    "negate": (["neg", "__neg__", F.neg], lambda x, y: [-x, -y]),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_found_however_it_is_spelt_and_written(name):
    spellings, forward = OPERATORS[name]

    class Both(M.Module):
        def forward(self, x, y):
            return forward(x, y)

    x = tensor(np.ones((2, 3), np.float32))
    traced = trace_module(Both(), x, x)
    for graph in (traced.graph, lower(traced).graph):
        for spelling in spellings:
            assert len(find(graph, call(spelling))) == len(graph.outputs)
            assert not find(graph, call("%"))


@pytest.mark.parametrize("callee", ["add", "+", "__add__", ".__add__", ".__radd__", "elemwise.add", F.add], ids=label)
def test_a_target_is_the_op_the_function_the_method_and_the_operator(callee):
    class Sums(M.Module):
        def forward(self, x):
            y = x + x
            y += x
            return F.add(1 + y, 2)

    traced = trace_module(Sums(), tensor(np.ones((2, 3), np.float32)))
    for graph in (traced.graph, lower(traced).graph):
        exprs = [e for e in graph.exprs() if e.kind in ("Apply", "CallFunction", "CallMethod")]
        assert len(exprs) == 4 and all(Target(callee).matches(e) for e in exprs)
    assert not any(Target("mul").matches(e) for e in exprs)


@pytest.mark.parametrize("callee", ["sum", ".sum", F.sum, "reshape", ".view", F.reshape, "relu", F.relu], ids=label)
def test_a_target_without_an_operator_is_the_op_the_function_and_the_methods(callee):
    class Calls(M.Module):
        def forward(self, x):
            y = F.relu(x)
            return F.reshape(y, (3, 2)), y.reshape(6), y.view(6), F.sum(y, axis=1), y.sum(axis=1)

    traced = trace_module(Calls(), tensor(np.ones((2, 3), np.float32)))
    count = {"sum": 2, "view": 3, "reshape": 3, "relu": 1}[getattr(callee, "__name__", callee).strip(".")]
    assert len(find(traced.graph, call(callee))) == len(find(lower(traced).graph, call(callee))) == count
    if "sum" in str(callee):
        for graph in (traced.graph, lower(traced).graph):
            assert len(find(graph, call(callee, axis=-1))) == len(find(graph, call(callee, keepdims=False))) == 2


def sources(expr):
    """Of each input, which input of the graph it comes from; constants are left out."""
    for node in expr.inputs:
        while node.expr.inputs:
            node = node.expr.inputs[0]
        if node.expr.kind == "Input":
            yield node.graph.inputs.index(node)


def test_functions_and_ops_of_one_target_take_their_tensors_in_one_order():
    """A pattern names operands by place, so those of a function and of its op must be the same."""
    tried = 0
    for function in public_functions.values():
        if function.name not in registry or function.methods or function.name in OTHER_ORDER:
            continue
        sample = next(iter(registry[function.name].samples()))
        with contextlib.suppress(MegEngineError, TypeError):  # it needs more arguments than the tensors
            graph = record(function.function, [TensorSpec(x.shape, x.dtype) for x in sample.inputs])
            for order in (list(sources(e)) for e in graph.exprs() if getattr(e, "op", "") == function.name):
                tried += 1
                assert order == sorted(order), function.qualified
    assert tried > 40


class Numbers(M.Module):
    def forward(self, x):
        y = 2 - x
        y += 3
        return y - 2, 3 + F.exp(x) * 4


def test_numbers_beside_operators_are_attributes_or_constants():
    traced = trace_module(Numbers(), tensor(np.ones((2, 3), np.float32)))
    for graph in (traced.graph, lower(traced).graph):
        x = any_()
        (found,) = find(graph, call("-", const(2), x))
        assert found[x] is next(n for n in graph.inputs if n.name == "x")
        assert len(find(graph, call("-", x, const(2)))) == len(find(graph, call("-", y=2))) == 1
        assert len(find(graph, call("-", x=2))) == 1
        assert len(find(graph, call("+", any_(), const(3)))) == len(find(graph, call("+", y=3))) == 2
        assert not find(graph, call("+", any_(), const(4)))
    calls = traced.graph
    assert len(find(calls, call("+", call("*", call(F.exp, any_()), y=4), x=3))) == 1
    by = const()
    rule = Rule("halve", call("*", x := call(F.exp, any_()), by), lambda m: m[x] * (m[by] / 2))
    assert rewrite(calls, [rule]) == 1 and len(find(calls, call("*", y=2))) == 1


def test_a_derived_class_that_computes_names_takes_no_check_away():
    class Free(Padded):
        def __init__(self):
            super().__init__()
            setattr(self, "c" + "d", 3)

    with pytest.raises(GraphError, match="Padded has no attribute 'aa'"):
        call(Padded, aa=3)
    assert call(Free, cd=3)


class Spelt(M.Module):
    """Activations in elementary operations, and arithmetic that does nothing."""

    def forward(self, x):
        y = x * F.sigmoid(x) + 0
        return y / 1, (x + 3).clip(0, 6) / 6, F.relu6(3 + x) * x / 6


def test_rules_are_written_once_for_graphs_of_calls_and_of_ops():
    x = tensor(values())
    traced = trace_module(Spelt(), x)
    want = [y.numpy() for y in traced(x)]
    for model in (traced, lower(traced)):
        assert rewrite(model.graph, [*ACTIVATIONS, *RULES])
        model.graph.lint()
        left = [e for e in model.graph.exprs() if e.kind in ("Apply", "CallFunction", "CallMethod")]
        assert [sum(Target(op).matches(e) for e in left) for op in ("silu", "hsigmoid", "hswish")] == [1, 1, 1]
        assert len(left) == 3
        for got, expected in zip(model(x), want, strict=True):
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_sweep_from_the_end_finds_the_longest_match():
    x = any_()
    either_of = call("exp", call("neg", x)) | call("neg", x)
    rule = Rule("abs", either_of, lambda m: m.apply("abs", m[x]))
    for last_first, left in ((False, ["abs", "exp"]), (True, ["abs"])):
        graph = graph_of(lambda a: F.exp(-a))
        assert rewrite(graph, [rule], last_first=last_first) == 1
        assert [e.op for e in graph.exprs() if e.kind == "Apply"] == left
