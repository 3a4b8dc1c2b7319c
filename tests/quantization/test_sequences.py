"""Recurrent layers in integers: near float, exact in every run, and what files of other runtimes hold of them."""

import numpy as np
import pytest

from megengine.convert import onnx
from megengine.convert.onnx.exporter import to_model
from megengine.core.sizes import named
from megengine.kernels import isa
from megengine.kernels.reference import functions, integer
from megengine.ops.recurrent import DIRECTIONS, recurrent_attrs
from megengine.plan import compile as compile_plan
from megengine.quantization import QuantConfig, integer_network, quantize_model, verify
from megengine.quantization.checks.verify import specification
from megengine.quantization.pipeline.graph_qat import prepare_qat
from megengine.tensor import Tensor
from megengine.traced_module.formats import native
from megengine.traced_module.ir.expr import Apply
from tests.helpers import quant_nets
from tests.helpers.onnx_runtime import session_of
from tests.helpers.quant_nets import Builder, ops, run, sqnr

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


class Steps(Builder):
    """Adds recurrent layers on [T, N, C]."""

    def __init__(self, shape=(9, 3, 12), seed=0):
        super().__init__(shape, seed)

    def layer(self, x, hidden, cell="lstm", direction="forward", given=("bias",), label="layer", **attrs):
        d, gates, (t, n, _) = DIRECTIONS[direction], GATES[cell] * hidden, x.shape
        shapes = {"bias": (d, 2 * gates), "h": (d, n, hidden), "c": (d, n, hidden), "peepholes": (d, 3 * hidden)}
        w, r = self.constant((d, gates, x.shape[2])), self.constant((d, gates, hidden), 0.4)
        lengths = self.g.constant(np.array([t, t // 2, 1], np.int32)[:n])
        more = [lengths if name == "lengths" else self.constant(shapes[name]) for name in given]
        return self.op("recurrent", x, w, r, *more, label=label, **recurrent_attrs(cell, direction, given, **attrs))

    def rows(self, y):
        """[T, D, N, H] as [T, N, D * H]."""
        turned = self.op("transpose", y, perm=(0, 2, 1, 3))
        return self.op("reshape", turned, shape=(*turned.shape[:2], turned.shape[2] * turned.shape[3]))

    def head(self, x, features=5):
        y = self.op("matmul", x, self.constant((features, x.shape[-1])), transpose_a=False, transpose_b=True)
        return self.op("add", y, self.constant((features,)), label="head")


def tagger(cell="lstm", direction="forward", given=("bias",), hidden=10, **attrs):
    b = Steps()
    y, *_ = b.layer(b.x, hidden, cell, direction, given, **attrs)
    return b, b.done(b.head(b.rows(y)))


def quantized(net, config=None, **settings):
    b, graph = net
    return quantize_model(graph, b.data(), config or QuantConfig(**settings))


def checked(net, *, least=20.0, config=None):
    return quant_nets.checked(*net, least=least, config=config)


CASES = [
    ("lstm", "forward", ("bias",), {}),
    ("lstm", "bidirectional", ("bias", "lengths", "h", "c", "peepholes"), {"clip": 2.0}),
    ("lstm", "reverse", (), {"input_forget": True}),
    ("gru", "bidirectional", ("bias", "lengths", "h"), {}),
    ("gru", "forward", ("bias",), {"linear_before_reset": True}),
    ("gru", "reverse", (), {"linear_before_reset": True}),
    ("rnn", "bidirectional", ("bias", "h"), {}),
    ("rnn", "forward", ("bias",), {"activations": ("Relu",), "clip": 3.0}),
]


@pytest.mark.parametrize(("cell", "direction", "given", "attrs"), CASES)
def test_all_products_of_a_layer_are_integer_ones(cell, direction, given, attrs):
    model = checked(tagger(cell, direction, given, **attrs))
    assert "recurrent" not in ops(model.integer_graph)
    assert {"qlinear", "qrecurrent"} <= set(ops(model.integer_graph))
    assert not model.report.floating


@pytest.mark.parametrize("profile", ["x86", "x86-symmetric", "onnx-qlinear", "megengine"])
@pytest.mark.parametrize("weights", ["per_channel", "per_tensor"])
def test_every_profile(profile, weights):
    checked(tagger("gru", "bidirectional"), config=QuantConfig(profile=profile, weights=weights), least=18)


@pytest.mark.parametrize("precision", ["w4a8", "w8a16", "w8"])
def test_other_precisions(precision):
    model = quantized(tagger(), precision=precision)
    held = ops(model.integer_graph)
    assert ("qrecurrent" in held) == (precision != "w8")
    assert ("recurrent" in held) == (precision == "w8")
    x = tagger()[0].data(1, seed=9)[0]
    assert precision == "w8" or verify(model, [x]).exact
    least = {"w4a8": 9, "w8a16": 30, "w8": 30}[precision]
    assert sqnr(run(model.float_graph, x)[0], run(model.integer_graph, x)[0]) > least


def test_layers_behind_each_other_last_states_and_a_state_that_starts_another():
    b = Steps()
    y, h, c = b.layer(b.x, 10, label="encoder")
    z, last, _ = b.layer(b.rows(y), 10, given=("bias",), label="second")
    shape = {"direction": "forward", "given": ("h", "c")}
    w, r = b.constant((1, 40, 12)), b.constant((1, 40, 10), 0.4)
    out, _, cell = b.op("recurrent", b.x, w, r, h, c, label="decoder", **recurrent_attrs("lstm", **shape))
    flat = b.op("reshape", last, shape=(3, 10))
    model = checked((b, b.done(b.head(b.rows(out)), b.head(flat), cell, z)))
    assert ops(model.integer_graph).count("qrecurrent") == 3


def test_a_layer_of_which_only_the_last_state_is_read():
    b = Steps()
    _, h, _ = b.layer(b.x, 10)
    checked((b, b.done(b.head(b.op("reshape", h, shape=(3, 10))))))


def test_results_that_a_function_or_a_concatenation_reads_keep_their_own_range():
    b = Steps()
    y = b.rows(b.layer(b.x, 10)[0])
    wide = b.op("mul", b.head(b.x, 6), b.g.constant(np.full((), 40, np.float32)))
    both = b.op("concat", b.op("relu", y), wide, y, axis=2)
    model = checked((b, b.done(b.head(both))))
    (layer,) = [e for e in model.integer_graph.exprs() if isinstance(e, Apply) and e.op == "qrecurrent"]
    assert layer.attrs["dtype"].only_scale < 0.02


def test_the_layer_is_what_the_page_says():
    """One direction of an LSTM, written down once more from docs/integer-arithmetic.md."""
    net = tagger(given=("bias",), hidden=7)
    model, x = quantized(net), net[0].data(1, seed=4)[0]
    graph = model.integer_graph
    (layer,) = [e for e in graph.exprs() if isinstance(e, Apply) and e.op == "qrecurrent"]
    values = specification(graph, [x])
    sums, r, m = (values[n.name] for n in layer.inputs[:3])
    dtype, f32 = layer.attrs["dtype"], np.float32
    h, c, results = np.zeros((3, 7), f32), np.zeros((3, 7), f32), []
    for t in range(len(sums)):
        q = integer.quantize(h, dtype.scale, dtype.zero_point, dtype.qmin, dtype.qmax)
        acc = (q.astype(np.int64) - dtype.zero_point) @ r.astype(np.int64).T
        i, o, f, g = np.split(sums[t] + acc.astype(f32) * m, 4, axis=1)
        c = functions.sigmoid(f) * c + functions.sigmoid(i) * functions.tanh(g)
        h = functions.sigmoid(o) * functions.tanh(c)
        results.append(integer.quantize(h, dtype.scale, dtype.zero_point, dtype.qmin, dtype.qmax, dtype.storage))
    np.testing.assert_array_equal(values[layer.outputs[0].name][:, 0], np.stack(results))
    np.testing.assert_array_equal(values[layer.outputs[2].name][0], c)


@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
@pytest.mark.parametrize(("cell", "direction", "given", "attrs"), CASES)
def test_files_with_integer_operators_compute_the_same_steps(cell, direction, given, attrs, precision):
    net = tagger(cell, direction, given, **attrs)
    model = quantized(net, precision=precision)
    file = session_of(to_model(model.integer_graph))
    for x in net[0].data(3, seed=5):
        wanted = compile_plan(model.integer_graph)(x)[0]
        got = file.run(None, {"x": x})[0]
        assert sqnr(wanted, got) > 40  # its tanh and sigmoid are not ours: a state may round to the next integer


@pytest.mark.parametrize(("cell", "direction", "given", "attrs"), CASES)
def test_qdq_files_hold_the_float_layer_with_integer_weights_and_are_read_as_integers(
    tmp_path, cell, direction, given, attrs
):
    net = tagger(cell, direction, given, **attrs)
    model = quantized(net)
    onnx.export_qdq(model, tmp_path / "qdq.onnx")
    file = session_of(to_model(model.exchange_graph()))
    again = integer_network(onnx.load_graph(tmp_path / "qdq.onnx")).graph
    assert ops(again).count("qrecurrent") == 1
    for x in net[0].data(2, seed=5):
        wanted = run(model.integer_graph, x)[0]
        np.testing.assert_allclose(run(again, x)[0], wanted, atol=1e-5)  # a step would be 5e-3
        assert sqnr(wanted, file.run(None, {"x": x})[0]) > 20


def test_files_keep_the_integer_layer(tmp_path):
    net = tagger("gru", "bidirectional", ("bias", "lengths"), linear_before_reset=True)
    model, x = quantized(net), net[0].data(1, seed=2)[0]
    native.save(model.traced(), tmp_path / "net.mgt")
    again = native.load(tmp_path / "net.mgt")
    np.testing.assert_array_equal(run(again.graph, x)[0], run(model.integer_graph, x)[0])


def test_numbers_of_steps_and_samples_stay_open():
    b = Steps((named("steps", 6), named("batch", 2), 12))
    y, *_ = b.layer(b.x, 10, "lstm", "bidirectional")
    graph = b.done(b.head(b.rows(y)))
    rng = np.random.default_rng(1)
    shapes = [(6, 2, 12), (3, 1, 12), (11, 4, 12)]
    model = quantize_model(graph, [rng.normal(size=s).astype(np.float32) for s in shapes])
    data = [rng.normal(size=s).astype(np.float32) for s in (*shapes, (1, 5, 12))]
    assert verify(model, data).exact
    file, plan = session_of(to_model(model.integer_graph)), compile_plan(model.integer_graph)
    for x in data:
        assert sqnr(plan(x)[0], file.run(None, {"x": x})[0]) > 40


def test_layers_that_stay_in_float_say_why():
    b = Steps()
    y = b.rows(b.layer(b.x, 6, label="excluded")[0])
    w = b.op("mul", b.constant((1, 24, 6)), b.g.constant(np.float32(2)))
    total = b.op("sum", b.x, axis=(0, 1, 2), keepdims=True)
    attrs = recurrent_attrs("lstm", "forward")
    z, *_ = b.op("recurrent", y, b.op("add", total, w), b.constant((1, 24, 6)), label="moving", **attrs)
    model = quantized((b, b.done(b.head(b.rows(z)))), exclude=("excluded",))
    assert "exclude" in model.annotation.floating["excluded"]
    assert model.annotation.floating["moving"] == "recurrent has no constant weights, or no computed input"
    assert ops(model.integer_graph).count("recurrent") == 2


def test_training_computes_with_the_integer_layer():
    b, graph = tagger("gru", "bidirectional")
    network = prepare_qat(graph, calibration=b.data())
    x = b.data(1, seed=3)[0]
    network.eval()
    values = network(Tensor(x)).numpy()
    np.testing.assert_array_equal(values, run(network.convert().graph, x)[0])
    assert any(p.shape == (2, 30, 12) for p in network.parameters())


def test_every_level_gives_the_same_plan():
    net = tagger("lstm", "bidirectional", ("bias", "lengths"), hidden=33)
    model, x = quantized(net), net[0].data(1)[0]
    results = []
    for level in isa.available():
        with isa.capped(level):
            results += [compile_plan(model.integer_graph, threads=n)(x)[0] for n in (1, 3)]
    assert all(np.array_equal(one, results[0]) for one in results)
