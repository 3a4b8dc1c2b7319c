"""Sums of residuals in 16 bits: which sums have them, how near float the networks are, and exact in every run."""

import numpy as np
import pytest

from megengine.convert import onnx
from megengine.core.dtype import QuantizedDType
from megengine.quantization import QuantConfig, collect, integer_network, quantize_model, requantize
from megengine.quantization.pipeline import advice
from megengine.traced_module.ir.expr import Apply
from tests.helpers import quant_nets
from tests.quantization.test_transformers import Rows, checked

WIDE = QuantConfig(wide_sums=True)


def block(b, x):
    """A pre-norm block, whose sums only norms and sums read; three sums in all."""
    x = b.op("add", b.linear(x, 16, "first"), b.constant((6, 16)), label="placed")
    x = b.op("add", x, b.attention(b.norm(x)), label="total")
    return b.op("add", x, b.linear(b.gelu(b.linear(b.norm(x), 32, "wide")), 16, "narrow"), label="block")


def types(model):
    found = {n.name: n.spec.dtype for e in model.integer_graph.exprs() if isinstance(e, Apply) for n in e.outputs}
    return {name.removesuffix("_int"): dtype.name for name, dtype in found.items() if isinstance(dtype, QuantizedDType)}


def test_sums_that_norms_and_sums_read_have_16_bits_and_layers_read_8():
    b = Rows()
    model = checked(b, b.linear(b.norm(block(b, b.x)), 4, "head"), config=WIDE)
    found = types(model)
    assert {name for name, dtype in found.items() if dtype == "qint16"} == {"first", "placed", "total", "block"}
    layers = [e for e in model.integer_graph.exprs() if isinstance(e, Apply) and e.op in ("qlinear", "qmatmul")]
    assert len(layers) == 10
    assert {e.inputs[0].spec.dtype.name for e in layers} == {"quint8"}
    assert not model.report.floating
    assert "a sum that norms and further sums alone read" in model.annotation.explain("total")
    assert "a sum that norms" in model.report.edges["block"]


def test_post_norm_blocks_add_16_bits_and_layers_read_8():
    b = Rows()
    x = b.norm(b.op("add", b.x, b.linear(b.x, 16, "first"), label="placed"), label="placed_norm")
    x = b.norm(b.op("add", x, b.attention(x), label="total"), label="total_norm")
    x = b.norm(b.op("add", x, b.linear(b.gelu(b.linear(x, 32, "up")), 16, "down"), label="block"), label="block_norm")
    model = checked(b, b.linear(x, 4, "head"), config=WIDE)
    found = types(model)
    norms = {"placed_norm", "total_norm"}  # sums read these, and layers
    assert {name for name, dtype in found.items() if dtype == "qint16"} == {"placed", "total", "block"} | norms
    layers = [e for e in model.integer_graph.exprs() if isinstance(e, Apply) and e.op in ("qlinear", "qmatmul")]
    assert {e.inputs[0].spec.dtype.name for e in layers} == {"quint8"}
    assert [e.op for e in model.integer_graph.exprs() if isinstance(e, Apply)].count("requantize") == 2
    assert not model.report.floating


def test_rounding_does_not_add_up_from_block_to_block():
    b = Rows()
    x = b.norm(b.op("add", b.x, b.linear(b.x, 16, "first")))
    for _ in range(6):
        small = b.g.constant(b.rng.normal(size=(16, 16)).astype(np.float32) * 0.02)
        x = b.norm(b.op("add", x, b.op("matmul", x, small, transpose_a=False, transpose_b=False)))
    graph = b.done(x)
    narrow = quantize_model(graph, b.data())
    wide, x = quantize_model(graph, b.data(), WIDE), b.data(1, seed=9)[0]
    noise = [
        quant_nets.sqnr(quant_nets.run(graph, x)[0], quant_nets.run(one.integer_graph, x)[0])
        for one in (wide, narrow, requantize(narrow, WIDE), requantize(wide, QuantConfig()))
    ]
    assert noise[0] > noise[1] + 6
    assert noise[2:] == noise[:2]


def test_statistics_of_the_network_serve_norms_that_are_parted():
    b = Rows()
    x = b.norm(b.op("add", b.x, b.linear(b.x, 16, "first")))
    graph = b.done(b.linear(b.norm(b.op("add", x, b.attention(x))), 4, "head"))
    direct = quantize_model(graph, b.data(), WIDE)
    kept = quantize_model(graph, statistics=collect(graph, b.data()), config=WIDE)
    assert "qint16" in types(direct).values()
    assert str(kept.integer_graph) == str(direct.integer_graph)


def test_a_file_with_parted_norms_is_read_as_the_same_integers(tmp_path):
    b = Rows()
    x = b.norm(b.op("add", b.x, b.linear(b.x, 16, "first")))
    graph = b.done(b.linear(b.norm(b.op("add", x, b.attention(x))), 4, "head"))
    model, x = quantize_model(graph, b.data(), WIDE), b.data(1, seed=9)[0]
    onnx.export_qdq(model, tmp_path / "qdq.onnx")
    read = integer_network(onnx.load(tmp_path / "qdq.onnx"))
    np.testing.assert_array_equal(read(x).numpy(), quant_nets.run(model.integer_graph, x)[0])


def test_a_small_token_beside_those_of_a_picture_keeps_its_steps():
    b = Rows()
    token = b.g.constant(np.full((2, 1, 16), 0.002, np.float32) * b.rng.normal(size=16).astype(np.float32))
    x = b.op("concat", token, b.linear(b.x, 16, "patches"), axis=1, label="joined")
    x = b.op("add", x, b.g.constant(b.rng.normal(size=(7, 16)).astype(np.float32) * 0.002), label="placed")
    x = b.norm(b.op("add", x, b.attention(b.norm(x)), label="total"))
    first = b.op("slice", x, starts=(0, 0, 0), stops=(2, 1, 16), steps=(1, 1, 1))
    graph = b.done(b.linear(first, 4, "head"))
    model, x = quantize_model(graph, b.data(), WIDE), b.data(1, seed=9)[0]
    assert {n for n, dtype in types(model).items() if dtype == "qint16"} == {"patches", "joined", "placed", "total"}
    noise = [
        quant_nets.sqnr(quant_nets.run(graph, x)[0], quant_nets.run(one.integer_graph, x)[0])
        for one in (model, quantize_model(graph, b.data(), WIDE.changed(rules=("joined=w8a8",))))
    ]
    assert noise[0] > noise[1] + 6


def test_a_last_norm_in_float_reads_float():
    b = Rows()
    x = b.op("add", b.linear(b.x, 16, "first"), b.linear(b.x, 16, "second"), label="total")
    model = checked(b, b.norm(x), config=WIDE)
    assert not {"first", "second", "total"} & types(model).keys()


def test_a_sum_with_a_large_channel_keeps_the_others():
    b = Rows()
    places = b.rng.normal(size=(6, 16)).astype(np.float32)
    places[:, 0] += 200
    x = b.op("add", b.linear(b.x, 16, "first"), b.g.constant(places), label="total")
    gain = b.g.constant(np.r_[0.001, np.full(15, 20.0)].astype(np.float32))
    graph = b.done(b.linear(b.op("mul", b.norm(x, affine=False), gain), 4, "head"))
    noise = []
    for config in (QuantConfig(), WIDE):
        model, x = quantize_model(graph, b.data(), config), b.data(1, seed=9)[0]
        noise.append(quant_nets.sqnr(quant_nets.run(graph, x)[0], quant_nets.run(model.integer_graph, x)[0]))
    assert noise[1] > noise[0] + 3


@pytest.mark.parametrize("config", [WIDE, QuantConfig(precision="w8a16")])
@pytest.mark.parametrize(("length", "name"), [(32768, "qint16"), (32769, "quint8")])
def test_norms_of_longer_rows_than_16_bits_allow_read_8(config, length, name):
    b = Rows((1, 2, length))
    total = b.op("add", b.x, b.linear(b.linear(b.x, 2, "down"), length, "up"), label="total")
    graph = b.done(b.linear(b.norm(total), 2, "head"))
    assert types(quantize_model(graph, b.data(2), config))["total"] == name


def test_wide_sums_are_advised_where_there_are_some():
    wide, plain = Rows(), Rows()
    graphs = (
        wide.done(wide.linear(wide.norm(block(wide, wide.x)), 4, "head")),
        plain.done(plain.linear(plain.gelu(plain.linear(plain.x, 16, "first")), 4, "second")),
    )
    tried = []
    for graph, b in zip(graphs, (wide, plain), strict=True):
        model = quantize_model(graph, b.data())
        found = advice._proposals(model.config, [], reads=False, streams=advice._has_streams(model))
        tried.append("--wide-sums" in [text for text, _ in found])
    assert tried == [True, False]


@pytest.mark.parametrize("reader", ["layer", "function", "output"])
def test_a_sum_that_something_else_reads_stays_as_it_is(reader):
    b = Rows()
    x = b.op("add", b.linear(b.x, 16, "a"), b.linear(b.x, 16, "b"), label="total")
    y = b.linear(b.norm(x), 16, "c")
    if reader == "output":
        graph = b.done(b.linear(y, 4, "head"), x)
    else:
        graph = b.done(b.linear(b.op("add", y, b.linear(x, 16, "d") if reader == "layer" else b.gelu(x)), 4, "head"))
    assert "qint16" not in types(quantize_model(graph, b.data(), WIDE)).values()


def test_sums_of_convolutional_networks_stay_as_they_are():
    b = quant_nets.Builder()
    x = b.conv(b.x, 8, label="stem")
    for i in range(2):
        x = b.op("relu", b.op("add", x, b.conv(x, 8, label=f"c{i}"), label=f"sum{i}"))
    graph = b.done(b.conv(x, 4, label="head"))
    narrow, wide = (quantize_model(graph, b.data(), one) for one in (QuantConfig(), WIDE))
    assert types(narrow) == types(wide)


def test_a_rule_stands_above():
    b = Rows()
    graph = b.done(b.linear(b.norm(block(b, b.x)), 4, "head"))
    model = quantize_model(graph, b.data(), WIDE.changed(rules=("total=w8a8",)))
    assert {name for name, dtype in types(model).items() if dtype == "qint16"} == {"first", "placed", "block"}
