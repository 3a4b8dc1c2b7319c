"""Values that integers cannot hold or pass on as they stand: parts without elements, readers with several results."""

from megengine.quantization import quantize_model, verify
from tests.helpers.quant_nets import Builder, checked, ops, run, sqnr

PLAIN = {"transpose_a": False, "transpose_b": False}


def test_a_part_without_elements_stays_in_float():
    """Exporters leave concatenations with nothing, as of a cache that is empty at first; nothing has a range."""
    b = Builder((2, 4, 8))
    empty = b.op("slice", b.x, starts=(0, 2, 0), stops=(2, 2, 8), steps=(1, 1, 1))
    whole = b.op("concat", empty, b.x, axis=1)
    y = b.op("matmul", b.op("matmul", whole, b.constant((8, 6)), **PLAIN), b.constant((6, 5)), **PLAIN)
    model = checked(b, b.done(y), least=25)
    assert any("has no elements, so no range" in one.reason for one in model.report.floating)
    assert model.report.integer_layers == 2


def test_a_product_whose_only_reader_has_two_results():
    """No constant is added behind it, so it has no bias there."""
    b = Builder((2, 6, 8))
    y = b.op("matmul", b.x, b.constant((8, 6)), **PLAIN)
    graph = b.done(b.op("topk", y, k=2, descending=True)[0])
    model = quantize_model(graph, b.data())
    x = b.data(1, seed=9)[0]
    assert model.report.integer_layers == 1 and verify(model, [x]).exact
    assert sqnr(run(graph, x)[0], model(x).numpy()) > 25


def test_products_of_values_that_vanish():
    """A dead branch: the product of its two scales is no float32 number."""
    b = Builder((2, 6, 8))
    tiny = b.op("matmul", b.x, b.constant((8, 6), 1e-25), **PLAIN, label="dead")
    product = b.op("matmul", tiny, tiny, transpose_a=False, transpose_b=True, label="scores")
    gate = b.op("matmul", b.x, b.constant((8, 6), 1e-25), **PLAIN, label="gate")
    y = b.op("add", b.op("mul", product, gate, label="gated"), b.op("matmul", b.x, b.constant((8, 6)), **PLAIN))
    model = checked(b, b.done(b.op("matmul", y, b.constant((6, 5)), **PLAIN)), least=25)
    assert {"qmatmul", "qmul"} <= set(ops(model.integer_graph)) and not model.report.floating
