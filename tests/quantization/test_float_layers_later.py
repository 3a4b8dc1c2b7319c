"""Float layers that come into an integer network by other ways than excluding them: named by verify, then exact."""

import itertools

import numpy as np
import onnx
import pytest

import megengine.functional as F
import megengine.module as M
import megengine.quantization as Q
from megengine import random
from megengine.convert.onnx import load
from megengine.core.errors import QuantizationError
from megengine.kernels import isa
from megengine.ops.ordered import ORDERED
from megengine.plan import compile as compile_plan
from megengine.quantization import integer_network, quantize_model, verify
from megengine.tensor import Tensor
from megengine.traced_module import lower, trace_module
from megengine.traced_module.bodies import bodies_of
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.editing.rewiring import set_attrs

RNG = np.random.default_rng(0)
DATA = [RNG.standard_normal((1, 8, 6, 7)).astype(np.float32) for _ in range(3)]


class Beside(M.Module):
    """Two layers for integers, and one between them that MegEngine's `quantize` leaves as it is."""

    def __init__(self):
        super().__init__()
        self.quant, self.again, self.dequant = M.QuantStub(), M.QuantStub(), M.DequantStub()
        self.a, self.b = M.ConvRelu2d(8, 16, 3, padding=1), M.ConvRelu2d(40, 8, 1)
        self.between = M.Conv2d(16, 40, 3, padding=1)
        self.between.disable_quantize()

    def forward(self, x):
        x = self.between(self.dequant(self.a(self.quant(x))))
        return self.dequant(self.b(self.again(x)))


def modules():
    net = Q.quantize_qat(Beside(), qconfig=Q.min_max_fakequant_qconfig)
    Q.enable_observer(net)
    for x in DATA:
        net(Tensor(x))
    return trace_module(Q.quantize(net).eval(), Tensor(DATA[0])), "between_conv2d_out"


def edited():
    graph = quantize_model(trace_module(M.Conv2d(8, 8, 3, padding=1), Tensor(DATA[0])), DATA).integer_graph
    w = graph.constant(RNG.standard_normal((7, 300)).astype(np.float32))
    wide = graph.constant(RNG.standard_normal((300, 5)).astype(np.float32))
    x = graph.apply("matmul", graph.outputs[0], w, attrs={"transpose_a": False, "transpose_b": False}, name="added")
    x = graph.apply("matmul", x, wide, attrs={"transpose_a": False, "transpose_b": False}, name="added_too")
    set_outputs(graph, [x])
    return graph, "added, added_too"


HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
BRANCHES = """g (float[1,8,6,7] x, bool c) => (float[1,8,6,7] y) {
    h = Conv <pads = [1,1,1,1]> (x, a)
    y = If (c) <then_branch = t () => (float[1,8,6,7] p) { p = Conv <pads = [1,1,1,1]> (h, b) },
                else_branch = e () => (float[1,8,6,7] q) { q = Conv <pads = [1,1,1,1]> (x, b) }> }"""
ROUNDS = """g (float[1,8,6,7] x, bool c) => (float[1,8,6,7] y) {
    h = Conv <pads = [1,1,1,1]> (x, a)
    n = Constant <value = int64 {3}> ()
    y = Loop (n, c, h) <body = r (int64 i, bool go, float[1,8,6,7] s) => (bool go_out, float[1,8,6,7] s_out) {
        go_out = Identity (go)
        two = Constant <value = int64 {2}> ()
        early = Less (i, two)
        s_out = If (early) <then_branch = t () => (float[1,8,6,7] p) { p = Conv <pads = [1,1,1,1]> (s, b) },
                            else_branch = e () => (float[1,8,6,7] q) { q = Neg (s) }> }> }"""


def with_bodies(text):
    model = onnx.parser.parse_model(HEAD + text)
    for name in "ab":
        w = np.random.default_rng(ord(name)).standard_normal((8, 8, 3, 3)).astype(np.float32) / 8
        model.graph.initializer.append(onnx.numpy_helper.from_array(w, name))
    return load(model.SerializeToString())


def ops(graph):
    for expr in graph.exprs():
        yield getattr(expr, "op", "")
        for _, body in bodies_of(expr):
            yield from ops(body.graph)


def check_exact(model, data):
    """Verified, and with the same results, at every level."""
    results, graph = [], lower(model).graph
    for level in isa.available():
        with isa.capped(level):
            found = verify(model, data, threads=(1, 2), with_float=False)
            assert found.exact, f"{level}\n{found}"
            results.append([compile_plan(graph)(*(x if isinstance(x, tuple) else (x,)))[0] for x in data])
    assert not found.unordered
    for one, first in itertools.product(results[1:], results[:1]):
        np.testing.assert_array_equal(one, first)


@pytest.mark.parametrize("make", [modules, edited])
def test_verify_names_layers_that_came_later_and_an_order_makes_them_exact(make):
    random.seed(0)
    model, names = make()
    found = verify(model, DATA, threads=(1,))
    assert ", ".join(found.unordered) == names
    assert f"float sums of {names} have no defined order; verify and run integer_network(network)" in str(found)
    check_exact(integer_network(model), DATA)


@pytest.mark.parametrize("text", [BRANCHES, ROUNDS])
def test_layers_in_graphs_that_ops_run_have_an_order(text):
    data = [(x, np.array(i % 2 == 0)) for i, x in enumerate(DATA)]
    model = quantize_model(with_bodies(text), data)
    found = set(ops(model.integer_graph))
    assert "ordered_conv2d" in found
    assert not found & set(ORDERED)
    check_exact(model.integer_graph, data)


def test_layers_in_such_graphs_are_named_too():
    data = [(DATA[0], np.array(True))]
    graph = quantize_model(with_bodies(ROUNDS), data).integer_graph
    plain, own = ([e for e in g.exprs() if getattr(e, "op", "") == "loop"] for g in (with_bodies(ROUNDS).graph, graph))
    set_attrs(graph, own[0], {"body": plain[0].attrs["body"]})
    assert verify(graph, data, threads=(1,)).unordered == ("y.body.s_out.then.p",)
    assert verify(integer_network(graph), data, threads=(1,)).unordered == ()


class Computed(M.Module):
    """Weights that follow from the input, too wide for integers: of a convolution, a transposed and a depthwise one."""

    def __init__(self):
        super().__init__()
        self.first, self.weights = M.Conv2d(8, 8, 3, padding=1), M.Linear(8, 4 * 4 * 81)
        self.last = M.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.first(x))
        w = F.reshape(self.weights(F.mean(x, axis=(2, 3))), (4, 4, 9, 9))
        y = F.concat([F.conv2d(x[:, :4], w, padding=4), F.conv2d(x[:, 4:], w[:, :1], padding=4, groups=4)], axis=1)
        return self.last(y), F.conv_transpose2d(y[:, :4], w, stride=2)


def test_layers_whose_weights_are_computed_are_exact():
    random.seed(0)
    model = quantize_model(trace_module(Computed(), Tensor(DATA[0])), DATA)
    assert {"ordered_conv2d", "ordered_conv_transpose2d"} <= set(ops(model.integer_graph))
    check_exact(model.integer_graph, DATA)


def test_a_network_of_weights_alone_keeps_its_kernels():
    model = quantize_model(trace_module(M.Conv2d(8, 8, 3), Tensor(DATA[0])), DATA, Q.QuantConfig(precision="w8"))
    assert verify(model, DATA, threads=(1,)).unordered == ()
    with pytest.raises(
        QuantizationError, match="integers in its weights alone: .*quantize the float network that it was made from"
    ):
        integer_network(model.integer_graph)
