"""Masks of attention that are computed: their ranges, near float, exact, and right in ONNX Runtime too."""

import numpy as np
import pytest

from megengine.autodiff import GradManager
from megengine.convert.onnx.exporter import to_model
from megengine.core.spec import TensorSpec
from megengine.quantization import prepare_qat, quantize_model, verify
from megengine.quantization.pipeline.spec import Masked
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.editing.expressions import add_input
from tests.helpers.onnx_runtime import answers, session_of
from tests.helpers.quant_nets import Builder, checked, sqnr

TURNED = {"transpose_a": False, "transpose_b": True}
CAUSAL = np.tri(8, dtype=bool)


def added(b, scores, mask):
    """A mask that is added to a bias by position first."""
    return b.op("add", scores, b.op("add", b.constant((8, 8)), mask))


def moved(b, scores, mask):
    """Scores in another shape, with a bias."""
    biased = b.op("add", b.constant((8,)), b.op("reshape", scores, shape=(2, 1, 8, 8)))
    return b.op("add", b.op("reshape", biased, shape=(2, 8, 8)), mask)


def subtracted(b, scores, mask):
    """As `scores - 1e30 * mask`."""
    kept = b.op("div", mask, b.g.constant(np.float32(-3.4e38)))
    return b.op("sub", scores, b.op("mul", kept, b.g.constant(np.float32(1e30))))


def chosen(b, scores, mask):
    """Two masks: where both are, the sum is -infinity."""
    return b.op("add", b.op("where", b.g.constant(CAUSAL), scores, b.g.constant(np.float32(-3.4e38))), mask)


def infinite(b, scores, mask):
    """A choice between 0 and -infinity that is added."""
    near = b.op("greater", mask, b.g.constant(np.float32(-1)))
    far = b.op("where", near, b.g.constant(np.float32(0)), b.g.constant(np.float32(-np.inf)))
    return b.op("add", scores, far)


def picked(b, scores, mask):
    """A choice between two constants whose condition is picked by number, as exporters write the mask of T5."""
    near = b.op("greater", mask, b.g.constant(np.float32(-1)))
    whole = ((None, None, None),) * 2
    near = b.op("index", near, b.g.constant(np.arange(2, dtype=np.int32)), pattern=("i", *whole))
    return b.op("add", scores, b.op("where", near, b.constant((8, 8)), b.g.constant(np.float32(-3.4e38))))


def repeated(b, scores, mask):
    """One mask that is added twice, as Swin V2 of transformers does, and another."""
    far = b.g.constant(np.where(CAUSAL, 0, -100).astype(np.float32))
    return b.op("add", b.op("add", b.op("add", scores, far), far), mask)


def masked_net(form):
    """Attention in two layers with one mask from an input, 0 and -3.4e38."""
    b = Builder((2, 8, 16))
    kept = add_input(b.g, "kept", TensorSpec((2, 1, 8), np.dtype(np.float32)))
    mask = b.op("mul", b.op("sub", kept, b.g.constant(np.float32(1))), b.g.constant(np.float32(3.4e38)), label="mask")
    x = b.x
    for i in range(2):
        scores = b.op("matmul", b.op("matmul", x, b.constant((16, 16), 0.2), **TURNED), x, **TURNED)
        weights = b.op("softmax", form(b, scores, mask), axis=-1, label=f"weights{i}")
        x = b.op("matmul", weights, x, transpose_a=False, transpose_b=False, label=f"mixed{i}")
    return b.done(b.op("matmul", x, b.constant((4, 16)), label="end", **TURNED))


@pytest.mark.parametrize("form", [added, moved, subtracted, chosen, infinite, picked, repeated])
def test_a_computed_mask_has_the_range_that_its_sums_need(form):
    pytest.importorskip("onnxruntime")
    graph, rng = masked_net(form), np.random.default_rng(0)
    data = [(rng.normal(size=(2, 8, 16)).astype(np.float32), np.ones((2, 1, 8), np.float32)) for _ in range(3)]
    for _, kept in data:
        kept[1, :, 5:] = 0
    (want,) = (t.numpy() for t in interpret(graph, [Tensor(x) for x in data[0]]))
    model = quantize_model(graph, data)
    assert all(dtype.qmax * dtype.only_scale < 100 for dtype in model.frozen.edges.values())
    (there,) = answers(session_of(to_model(model.exchange_graph())), data[0])
    for got in (there, model(*data[0]).numpy()):
        assert sqnr(want, got) > 20
    assert verify(model, data[:1]).exact


@pytest.mark.parametrize("wide", [False, True])
def test_a_bias_from_a_table_is_no_score_alone_and_no_mask(wide):
    """As in T5: rows of a table, or -1e9 where a place lies behind, are added to products; both span little or much."""
    b, rng = Builder((2, 8, 16)), np.random.default_rng(0)
    places = add_input(b.g, "places", TensorSpec((8, 8), np.dtype(np.int32)))
    bias = b.op("index", b.constant((4,), 0.1), places, pattern=("i",))
    far = b.op("greater", places, b.g.constant(np.int32(2)))
    bias = b.op("where", far, b.g.constant(np.float32(-1e9)), bias)
    products = b.op("matmul", b.op("matmul", b.x, b.constant((16, 16), 0.1 + 0.3 * wide), **TURNED), b.x, **TURNED)
    weights = b.op("softmax", b.op("add", products, bias, label="sum"), axis=-1)
    x = b.op("matmul", weights, b.x, transpose_a=False, transpose_b=False)
    graph = b.done(b.op("matmul", x, b.constant((4, 16)), **TURNED))
    data = [(rng.normal(size=(2, 8, 16)).astype(np.float32), rng.integers(0, 4, (8, 8), np.int32)) for _ in range(4)]
    model = quantize_model(graph, data)
    products = model.stats[products.name]
    (dtype,) = (model.frozen.edges[n] for n, spec in model.annotation.edges.items() if isinstance(spec, Masked))
    low = -dtype.zero_point * dtype.only_scale
    assert 2 * products.minimum - 12 < low < products.minimum
    (want,) = (t.numpy() for t in interpret(graph, [Tensor(x) for x in data[0]]))
    assert sqnr(want, model(*data[0]).numpy()) > 20
    assert verify(model, data[:1]).exact


def sinks(b, scores, far):
    """Attention with a sink: a column of constants beside the masked scores."""
    masked = b.op("where", b.g.constant(CAUSAL), scores, b.g.constant(np.float32(far)))
    weights = b.op("softmax", b.op("concat", masked, b.constant((2, 8, 1)), axis=2, label="joined"), axis=-1)
    return b.op("slice", weights, starts=(0, 0, 0), stops=(2, 8, 8), steps=(1, 1, 1))


def shifted(b, scores, far):
    """The same, less its largest element in each row."""
    masked = b.op("where", b.g.constant(CAUSAL), scores, b.g.constant(np.float32(far)))
    joined = b.op("concat", masked, b.constant((2, 8, 1)), axis=2, label="joined")
    weights = b.op("softmax", b.op("sub", joined, b.op("max", joined, axis=(2,), keepdims=True)), axis=-1)
    return b.op("slice", weights, starts=(0, 0, 0), stops=(2, 8, 8), steps=(1, 1, 1))


@pytest.mark.parametrize("form", [sinks, shifted])
@pytest.mark.parametrize("far", [-np.inf, -3.4e38, -1e9])
def test_masked_scores_joined_with_others(form, far):
    b = Builder((2, 8, 16))
    scores = b.op("matmul", b.op("matmul", b.x, b.constant((16, 16), 0.2), **TURNED), b.x, **TURNED)
    x = b.op("matmul", form(b, scores, far), b.x, transpose_a=False, transpose_b=False)
    checked(b, b.done(b.op("matmul", x, b.constant((4, 16)), **TURNED)), least=18)


def chosen_places(b, x, far):
    return b.op("where", b.g.constant(CAUSAL), x, b.g.constant(np.float32(far)))


def summed_places(b, x, far):
    near = b.op("greater", b.op("mean", b.x, axis=(2,), keepdims=True), b.g.constant(np.float32(-0.2)))
    gone = b.op("sub", b.g.constant(np.float32(1)), b.op("cast", near, dtype=np.dtype(np.float32)))
    return b.op("add", x, b.op("mul", gone, b.g.constant(np.float32(max(far, -3e38)))))


@pytest.mark.parametrize("form", [chosen_places, summed_places])
@pytest.mark.parametrize("far", [-np.inf, -1e9])
def test_the_largest_of_the_places_that_a_mask_leaves(form, far):
    """-1e9 was part of the range, so all else was 0; infinity was refused."""
    b = Builder((2, 8, 16))
    places = b.op("matmul", b.x, b.constant((8, 16)), **TURNED)
    most = b.op("max", form(b, places, far), axis=(1,), keepdims=False)
    checked(b, b.done(b.op("matmul", most, b.constant((4, 8)), **TURNED)), least=18)


def test_a_mask_is_not_trained():
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(2, 8, 16)).astype(np.float32), np.ones((2, 1, 8), np.float32))
    module = prepare_qat(masked_net(chosen), calibration=[data]).train()
    assert all(parameter.shape != () for parameter in module.parameters())
    module(*map(Tensor, data))


def test_a_single_number_that_integers_stand_for_is_trained():
    b = Builder((2, 8))
    near = b.op("greater", b.x, b.g.constant(np.float32(0)))
    y = b.op("where", near, b.op("matmul", b.x, b.constant((8, 8)), **TURNED), b.g.constant(np.float32(-2)))
    x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    module = prepare_qat(b.done(b.op("matmul", y, b.constant((4, 8)), **TURNED)), calibration=[x]).train()
    (number,) = [parameter for parameter in module.parameters() if parameter.shape == ()]
    manager = GradManager().attach([number])
    with manager:
        manager.backward((module(Tensor(x)) ** 2).sum())
    assert number.grad.shape == () and number.grad.numpy()
