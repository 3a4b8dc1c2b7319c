"""Patterns of well-known parts, found in every order of operands, and the number of nodes looked at."""

import itertools

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine.core.spec import TensorSpec
from megengine.tensor import tensor
from megengine.traced_module import InternalGraph, interpret, patterns, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.editing.rewiring import replace_all_uses
from megengine.traced_module.passes.rewriting import Rule, find, rewrite
from megengine.traced_module.patterns import any_, call, const, match, optional, repeated, rest

X = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)


class Part(M.Module):
    """A forward made of a function; commutative calls take their operands in the orders of `flips`."""

    def __init__(self, function, flips):
        super().__init__()
        self.function, self.flips = function, flips
        self.down, self.up = M.Conv2d(4, 2, 1), M.Conv2d(2, 4, 1)
        self.gain = tensor(np.linspace(0.5, 2, 6).astype(np.float32))
        self.shift = tensor(np.linspace(-1, 1, 6).astype(np.float32))

    def forward(self, x):
        flips = iter(self.flips)

        def both(function, a, b):
            return function(b, a) if next(flips) else function(a, b)

        return self.function(self, x, lambda a, b: both(F.add, a, b), lambda a, b: both(F.mul, a, b)) + 1


def gelu(s, x, add, mul):
    return mul(mul(x, 0.5), add(F.erf(x / 1.4142135), 1))


def gelu_tanh(s, x, add, mul):
    cube = mul(mul(x, x), x)
    return mul(mul(x, 0.5), add(F.tanh(mul(add(mul(cube, 0.044715), x), 0.7978846)), 1))


def layer_norm(s, x, add, mul):
    apart = x - F.mean(x, axis=-1, keepdims=True)
    spread = F.sqrt(add(F.mean(mul(apart, apart), axis=-1, keepdims=True), 1e-5))
    return add(mul(apart / spread, s.gain), s.shift)


def squeeze_excite(s, x, add, mul):
    mean = F.mean(F.mean(x, axis=3, keepdims=True), axis=2, keepdims=True)
    return mul(F.sigmoid(s.up(F.relu(s.down(mean)))), x)


def hard_squeeze_excite(s, x, add, mul):
    mean = F.adaptive_avg_pool2d(x, 1)
    gate = F.relu6(add(s.up(F.relu(s.down(mean))), 3)) / 6
    return mul(gate, x)


def _calls(name, *inputs, **attributes):
    return call(getattr(F, name), *inputs, **attributes)


def gelu_pattern():
    x = any_()
    half = _calls("mul", x, y=0.5) | _calls("mul", x, x=0.5)
    inner = _calls("erf", call(".__truediv__", x, y=1.4142135))
    one = _calls("add", inner, y=1) | _calls("add", inner, x=1)
    return x, _calls("mul", half, one)


def either(name, node, number):
    """`node op number`, in either order."""
    return _calls(name, node, y=number) | _calls(name, node, x=number)


def gelu_tanh_pattern():
    x = any_()
    cube = _calls("mul", _calls("mul", x, x), x)
    inner = either("mul", _calls("add", either("mul", cube, 0.044715), x), 0.7978846)
    return x, _calls("mul", either("mul", x, 0.5), either("add", _calls("tanh", inner), 1))


def layer_norm_pattern():
    x = any_()
    apart = call(".__sub__", x, _calls("mean", x, keepdims=True))
    spread = _calls("sqrt", either("add", _calls("mean", _calls("mul", apart, apart)), 1e-5))
    return x, _calls("add", _calls("mul", call(".__truediv__", apart, spread), const()), const())


def squeeze_excite_pattern():
    x = any_()
    pooled = repeated(F.mean, x, least=1) | _calls("adaptive_avg_pool2d", x)
    up = call(M.Conv2d, _calls("relu", call(M.Conv2d, pooled)))
    gate = _calls("sigmoid", up) | call(".__truediv__", _calls("relu6", either("add", up, 3)), y=6)
    return x, _calls("mul", gate, x)


# the part, its pattern, commutative calls in it
PARTS = [
    (gelu, gelu_pattern, 3),
    (gelu_tanh, gelu_tanh_pattern, 8),
    (layer_norm, layer_norm_pattern, 4),
    (squeeze_excite, squeeze_excite_pattern, 1),
    (hard_squeeze_excite, squeeze_excite_pattern, 2),
]


@pytest.mark.parametrize(("part", "make", "count"), PARTS, ids=lambda p: getattr(p, "__name__", None))
def test_a_part_is_found_in_every_order_of_operands(part, make, count):
    for flips in itertools.product((False, True), repeat=count):
        traced = trace_module(Part(part, flips), tensor(X))
        x, pattern = make()
        (found,) = find(traced.graph, pattern)
        assert found[x] is traced.graph.inputs[1]
        for _, other, _ in PARTS:
            if other is not make:
                assert not find(traced.graph, other()[1])


def test_a_part_of_other_numbers_or_other_wires_is_none():
    def three_quarters(s, x, add, mul):
        return mul(mul(x, 0.75), add(F.erf(x / 1.4142135), 1))

    def other_value(s, x, add, mul):
        return mul(mul(x, 0.5), add(F.erf(F.exp(x) / 1.4142135), 1))

    for function in (three_quarters, other_value):
        assert not find(trace_module(Part(function, (0, 0, 0)), tensor(X)).graph, gelu_pattern()[1])


def test_a_part_is_replaced_and_gives_the_same():
    traced = trace_module(Part(gelu, (True, False, True)), tensor(X))
    want = traced(tensor(X)).numpy()
    x, pattern = gelu_pattern()
    assert rewrite(traced.graph, [Rule("gelu", pattern, lambda m: F.gelu(m[x]))]) == 1
    assert [e.qualified for e in traced.graph.get_function_by_type()] == ["megengine.functional.nn.gelu"]
    np.testing.assert_allclose(traced(tensor(X)).numpy(), want, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- how much is looked at


def looked_at(monkeypatch, graph, pattern) -> tuple[int, int]:
    """(matches, nodes that were held against a part of the pattern)."""
    seen = []
    for kind in patterns.Pattern.__subclasses__():
        fit = kind.fit
        monkeypatch.setattr(kind, "fit", lambda p, n, *rest, fit=fit: seen.append(n) or fit(p, n, *rest))
    found = len(find(graph, pattern))
    monkeypatch.undo()
    return found, len(seen)


def tower(levels: int, *, op: str = "add") -> InternalGraph:
    """x op (x op (x op ...)): every node is used in two places."""
    graph = InternalGraph()
    x = add_input(graph, "x", TensorSpec((2, 3), np.dtype(np.float32)))
    node = graph.apply("relu", x)
    for i in range(levels):
        node = graph.apply(op, node, node) if i % 2 else graph.apply(op, x, graph.apply("relu", node))
    set_outputs(graph, [node])
    return graph


def test_the_work_grows_as_the_graph(monkeypatch):
    x, y, z = any_(), any_(), any_()
    shapes = [
        call("add", call("add", x, y), call("add", z, any_())),
        call("add", call("relu", call("add", x, x)), y),
        call("add", repeated("relu", call("add", any_(), any_())), rest()),
        call("relu", optional("relu", call("add", x, call("relu", y)) | call("mul", x, y))),
        call("add", call("add", call("add", call("mul", x, y), z), x), y),
    ]
    for pattern in shapes:
        found = [looked_at(monkeypatch, tower(n), pattern) for n in (100, 200, 400)]
        steps = [found[1][1] - found[0][1], found[2][1] - found[1][1]]
        assert steps[1] <= 2.05 * steps[0]
        assert found[2][1] <= 40 * 600  # nodes of the graph times those of the pattern, in both orders


def test_a_pattern_of_many_commutative_calls_is_not_expanded(monkeypatch):
    """Twenty of them have a million orders; a mismatch at the bottom must not try them all."""
    inner = any_()
    pattern = call("exp", inner)
    for _ in range(20):
        pattern = call("add", pattern, const())
    graph = InternalGraph()
    x = add_input(graph, "x", TensorSpec((2, 3), np.dtype(np.float32)))
    node = graph.apply("neg", x)
    for i in range(20):
        c = graph.constant(np.full((2, 3), i, np.float32))
        node = graph.apply("add", c, node) if i % 3 else graph.apply("add", node, c)
    set_outputs(graph, [node])
    matches, looked = looked_at(monkeypatch, graph, pattern)
    assert matches == 0 and looked <= 20 * 20 * 4
    graph = graph.clone()
    replace_all_uses(graph, graph.node("neg_out"), graph.apply("exp", graph.inputs[0], after=graph.inputs[0].expr))
    matches, looked = looked_at(monkeypatch, graph, pattern)
    assert matches == 1 and looked <= 20 * 20 * 4
    assert match(pattern, graph.outputs[0])[inner] is graph.inputs[0]


def test_several_results_and_a_value_bound_twice():
    """Halves of a split that are exchanged: the parts of one expression, bound by number."""

    class Swap(M.Module):
        def forward(self, x):
            a, b = F.split(x, 2, axis=1)
            c, d = F.split(x * 2, 2, axis=1)
            return F.concat([b, a], axis=1), F.concat([a, d], axis=1), F.concat([c, d], axis=1)

    traced = trace_module(Swap(), tensor(X))
    x = any_()
    halves = call(F.split, x, axis=1)
    swapped = call(F.concat, halves.output(1), halves.output(0))
    kept = call(F.concat, halves.output(0), halves.output(1))
    found = [[match(p, n) is not None for n in traced.graph.outputs] for p in (swapped, kept)]
    assert found == [[True, False, False], [False, False, True]]
    assert rewrite(traced.graph, [Rule("kept", kept, lambda m: m[x], shared=True)]) == 1
    traced.graph.lint()
    np.testing.assert_array_equal(interpret(traced.graph, [X])[2].numpy(), X * 2)
