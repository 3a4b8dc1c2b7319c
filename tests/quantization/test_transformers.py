"""Transformers, gates and constants in integers: which ops they become, near float, and exact in every run."""

import numpy as np
import pytest

from megengine.core.spec import TensorSpec
from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.traced_module.editing.expressions import add_input
from megengine.traced_module.ir.expr import Apply
from tests.helpers import quant_nets
from tests.helpers.quant_nets import Builder, ops

PLAIN = {"transpose_a": False, "transpose_b": False}


class Rows(Builder):
    """Adds layers on rows [N, L, C]."""

    def __init__(self, shape=(2, 6, 16), seed=0):
        super().__init__(shape, seed)

    def linear(self, x, features, label="fc"):
        y = self.op("matmul", x, self.constant((x.shape[-1], features)), label=f"{label}_product", **PLAIN)
        return self.op("add", y, self.constant((features,)), label=label)

    def number(self, value):
        return self.g.constant(np.full((), value, np.float32))

    def norm(self, x, *, centred=True, affine=True, label="norm"):
        c = self.op("sub", x, self.op("mean", x, axis=(2,), keepdims=True)) if centred else x
        power = self.op("mean", self.op("square", c), axis=(2,), keepdims=True)
        y = self.op("div", c, self.op("sqrt", self.op("add", power, self.number(1e-5))))
        if affine:
            y = self.op("add", self.op("mul", y, self.constant(x.shape[2:])), self.constant(x.shape[2:]), label=label)
        return y

    def heads(self, x, count):
        n, length, width = x.shape
        split = self.op("reshape", x, shape=(n, length, count, width // count))
        return self.op("transpose", split, perm=(0, 2, 1, 3))

    def attention(self, x, count=2):
        q, k, v = (self.heads(self.linear(x, x.shape[-1], label), count) for label in "qkv")
        scores = self.op("matmul", q, k, transpose_a=False, transpose_b=True, label="scores")
        scores = self.op("div", scores, self.number(2.0), label="scaled")
        y = self.op("matmul", self.op("softmax", scores, axis=-1, label="weights"), v, label="mixed", **PLAIN)
        y = self.op("reshape", self.op("transpose", y, perm=(0, 2, 1, 3)), shape=x.shape)
        return self.linear(y, x.shape[-1], "out")

    def gelu(self, x):
        y = self.op("add", self.op("erf", self.op("div", x, self.number(np.sqrt(2)))), self.number(1.0))
        return self.op("mul", self.op("mul", x, y), self.number(0.5), label="gelu")


def checked(b, output, *, least=14.0, config=None):
    return quant_nets.checked(b, b.done(output), least=least, config=config)


def test_attention_computes_in_integers_with_its_scale_in_the_product():
    b = Rows()
    model = checked(b, b.linear(b.attention(b.x), 4, "head"))
    found = ops(model.integer_graph)
    assert found.count("qmatmul") == 2
    assert found.count("qsoftmax") == 1
    assert not {"matmul", "softmax", "div", "qtable"} & set(found)
    assert not model.report.floating


@pytest.mark.parametrize("profile", ["x86", "x86-symmetric", "onnx-qlinear", "megengine"])
def test_a_whole_block_in_every_profile(profile):
    b = Rows()
    y = b.norm(b.op("add", b.x, b.attention(b.x), label="sum"))
    y = b.op("add", y, b.linear(b.gelu(b.linear(y, 32, "wide")), 16, "narrow"), label="block")
    y = b.linear(b.op("mean", b.norm(y), axis=(1,), keepdims=False), 4, "head")
    model = checked(b, y, config=QuantConfig(profile=profile))
    assert not model.report.floating
    found = ops(model.integer_graph)
    assert [found.count(op) for op in ("qnorm", "qtable", "qmean")] == [2, 1, 1]


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_and_rms_norm_are_one_op(centred, affine):
    b = Rows()
    y = b.norm(b.linear(b.x, 16), centred=centred, affine=affine)
    model = checked(b, b.linear(y, 4, "head"))
    assert ops(model.integer_graph).count("qnorm") == 1
    assert not model.report.floating


def test_a_norm_whose_mean_is_read_elsewhere_begins_behind_the_difference():
    b = Rows()
    x = b.linear(b.x, 16)
    mean = b.op("mean", x, axis=(2,), keepdims=True, label="mean")
    c = b.op("sub", x, mean)
    power = b.op("mean", b.op("square", c), axis=(2,), keepdims=True)
    y = b.op("div", c, b.op("sqrt", b.op("add", power, b.number(1e-5))))
    graph = b.done(b.linear(y, 4, "head"), mean)
    found = [e for e in quantize_model(graph, b.data()).integer_graph.exprs() if e.outputs[0].name.startswith("div")]
    assert [e.attrs["centred"] for e in found if isinstance(e, Apply) and e.op == "qnorm"] == [False]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "maximum", "minimum"])
@pytest.mark.parametrize("shape", [(6, 16), (16,), (2, 1, 1)])
@pytest.mark.parametrize("first", [False, True])
def test_constants_of_any_shape_are_operands(op, shape, first):
    b = Rows()
    pair = [b.linear(b.x, 16), b.constant(shape)]
    y = b.op(op, *(pair[::-1] if first else pair), label="pair")
    model = checked(b, b.linear(y, 4, "head"))
    found = {"add": "qadd", "sub": "qadd", "mul": "qmul"}.get(op, f"q{op}")
    absorbed = op in ("add", "sub", "mul") and shape == (16,)  # by the layer
    assert (found in ops(model.integer_graph)) != absorbed
    assert not model.report.floating


@pytest.mark.parametrize("op", ["add", "sub", "mul", "maximum", "minimum"])
def test_computed_operands_broadcast(op):
    b = Rows()
    y = b.op(op, b.linear(b.x, 16, "a"), b.linear(b.op("mean", b.x, axis=(1,), keepdims=True), 16, "b"), label="pair")
    model = checked(b, b.linear(y, 4, "head"))
    assert not model.report.floating


def test_rows_of_an_embedding_are_gathered_as_integers():
    b = Rows()
    places = add_input(b.g, "places", TensorSpec((2, 6), np.dtype(np.int32)))
    rows = b.op("index", b.constant((10, 16)), places, pattern=("i", (None, None, None)), label="rows")
    y = b.op("add", rows, b.constant((6, 16)), label="placed")
    graph = b.done(b.linear(b.op("add", y, b.x), 4, "head"))
    data = [(x, np.random.default_rng(i).integers(0, 10, (2, 6)).astype(np.int32)) for i, x in enumerate(b.data())]
    model = quantize_model(graph, data)
    assert not model.report.floating
    assert verify(model, data[:1]).exact


def test_a_class_token_is_joined_as_integers():
    b = Rows()
    y = b.op("concat", b.constant((2, 1, 16)), b.linear(b.x, 16), axis=1, label="joined")
    model = checked(b, b.linear(y, 4, "head"))
    assert not model.report.floating


def test_a_constant_that_is_not_finite_stays_in_float():
    b = Rows()
    mask = b.g.constant(np.where(np.eye(6, 16) > 0, -np.inf, 0).astype(np.float32))
    y = b.op("maximum", b.op("add", b.linear(b.x, 16), mask, label="masked"), b.constant((16,)), label="kept")
    graph = b.done(b.linear(y, 4, "head"))
    reasons = {one.name: one.reason for one in quantize_model(graph, b.data()).report.floating}
    assert reasons["masked"] == "a constant of add holds NaN or infinity"


def test_a_chain_of_functions_is_one_table():
    b = Rows()
    x = b.linear(b.x, 16)
    y = b.op("mul", x, b.op("tanh", b.op("softplus", x)), label="mish")
    y = b.op("add", b.op("neg", y), b.number(1.0))
    model = checked(b, b.linear(y, 4, "head"))
    assert ops(model.integer_graph).count("qtable") == 1
    assert not model.report.floating


def test_results_of_the_last_softmax_and_norm_stay_float():
    b = Rows()
    x = b.linear(b.x, 16)
    model = checked(b, b.op("softmax", x, axis=-1, label="last"))
    assert {one.name: one.reason for one in model.report.floating}["last"] == "no integer layer stands after it"


def test_excluding_one_op_of_a_function_leaves_all_of_it_in_float():
    b = Rows()
    graph = b.done(b.linear(b.gelu(b.linear(b.x, 16)), 4, "head"))
    model = quantize_model(graph, b.data(), QuantConfig(exclude=("op:erf",)))
    assert {one.op for one in model.report.floating} >= {"erf", "mul"}
    assert {one.reason for one in model.report.floating} == {"excluded by 'op:erf'"}


def spread(b, x, axes):
    c = b.op("sub", x, b.op("mean", x, axis=axes, keepdims=True))
    power = b.op("mean", b.op("square", c), axis=axes, keepdims=True)
    return b.op("div", c, b.op("sqrt", b.op("add", power, b.g.constant(np.full((), 1e-5, np.float32)))))


def test_instance_norm_is_a_norm_and_a_layer_by_channels():
    b = Builder()
    y = spread(b, b.conv(b.x, 4, label="first"), (2, 3))
    y = b.op("add", b.op("mul", y, b.constant((1, 4, 1, 1))), b.constant((4, 1, 1)))
    model = checked(b, b.conv(b.op("add", y, b.conv(y, 4, label="last")), 4, label="end"))
    assert ops(model.integer_graph)[:5] == ["quantize", "qconv2d", "qnorm", "qconv2d", "qconv2d"]


def test_group_norm_is_a_norm_of_rows_and_a_layer_by_channels():
    b = Builder()
    x = b.conv(b.x, 4, label="first")
    y = spread(b, b.op("reshape", x, shape=(2, 2, 128)), (2,))
    y = b.op("mul", y, b.g.constant(np.ones((1, 2, 1), np.float32)))  # as exporters write it
    y = b.op("mul", b.op("reshape", y, shape=(2, 4, 8, 8)), b.constant((1, 4, 1, 1)))
    model = checked(b, b.conv(y, 4, label="last"))
    assert ops(model.integer_graph).count("qnorm") == 1
    assert not model.report.floating


def test_factors_that_differ_by_row_are_no_part_of_a_norm():
    b = Rows((2, 6, 6))
    y = b.op("mul", b.norm(b.linear(b.x, 6), affine=False), b.constant((1, 6, 1)))
    model = checked(b, b.linear(y, 4, "head"))
    assert {"qnorm", "qmul"} <= set(ops(model.integer_graph))


def test_pixels_repeated_by_broadcasting_stay_integers():
    b = Builder()
    y = b.op("reshape", b.conv(b.x, 4, label="first"), shape=(2, 4, 8, 1, 8, 1))
    y = b.op("reshape", b.op("broadcast_to", y, shape=(2, 4, 8, 2, 8, 2)), shape=(2, 4, 16, 16))
    model = checked(b, b.conv(y, 4, label="last"))
    assert not model.report.floating
