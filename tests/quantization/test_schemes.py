"""Schemes: 4-bit weights, 16-bit results, weights alone, groups; rules and their preview; profiles."""

import importlib
import json
import zipfile

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.convert.onnx import export_qdq, load
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import GraphError, OptionError
from megengine.quantization import PROFILES, LayerRule, Precision, QuantConfig, preview, quantize_model, verify
from megengine.quantization.checks.verify import specification
from megengine.quantization.pipeline.fold import fold
from megengine.quantization.pipeline.integerize import integerize
from megengine.quantization.ranges import SCHEMES
from megengine.random import seed
from megengine.tensor import Tensor
from megengine.traced_module import lower, trace_module
from megengine.traced_module.formats import native
from megengine.traced_module.ir.expr import Apply, Constant
from tests.helpers.onnx_runtime import session_of

VERIFY = importlib.import_module("megengine.quantization.checks.verify")


class Net(M.Module):
    """A residual block with a gate, a concatenation, both poolings, a function of one value and a linear layer."""

    def __init__(self):
        super().__init__()
        self.a = M.Conv2d(3, 8, 3, padding=1)
        self.b = M.Conv2d(8, 8, 3, padding=1, groups=8)
        self.c = M.Conv2d(8, 8, 1)
        self.up = M.ConvTranspose2d(8, 4, 2, stride=2)
        self.fc = M.Linear(12, 10)

    def forward(self, x):
        x = F.relu6(self.a(x))
        y = F.relu(self.c(F.silu(self.b(x)))) + x
        y = y * F.sigmoid(F.mean(y, axis=(2, 3), keepdims=True))
        pooled = F.avg_pool2d(self.up(F.max_pool2d(y, 2)), 2)
        y = F.concat([F.max_pool2d(y, 2), pooled], axis=1)
        return self.fc(F.mean(y, axis=(2, 3)))


class Encoder(M.Module):
    """Attention and a normalization, as in a transformer."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (M.Linear(16, 16) for _ in range(4))
        self.norm = M.LayerNorm((16,))

    def forward(self, x):
        scores = F.matmul(self.q(x), self.k(x).transpose(0, 2, 1)) / 4.0
        y = self.norm(x + F.matmul(F.softmax(scores, axis=-1), self.v(x)))
        return self.out(F.gelu(self.out(y)))


def batches(*shape, count=4):
    return [(np.random.default_rng(i).normal(size=shape).astype(np.float32),) for i in range(count)]


def traced(module, data):
    seed(7)
    module = module()
    module.eval()
    return trace_module(module, Tensor(data[0][0]))


@pytest.fixture(scope="module")
def pictures():
    return batches(1, 3, 12, 12)


@pytest.fixture(scope="module")
def net(pictures):
    return traced(Net, pictures)


INTEGERS = ("w7a8", "w4a8", "w8a16", "w4a16")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("precision", INTEGERS)
def test_every_precision_is_exact_for_every_profile(net, pictures, precision, profile):
    made = quantize_model(net, pictures, QuantConfig(precision=precision, profile=profile))
    assert verify(made, pictures[:1]).exact
    assert not made.report.floating


@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_weights_of_7_bits_fit_sums_of_two_products_in_16_bits(net, pictures, rounding, tmp_path):
    made = quantize_model(net, pictures, QuantConfig(precision="w7a8", weight_method="mse", rounding=rounding))
    export_qdq(made, tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    stored = [numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8]
    stored = [w.astype(int) for w in stored if w.ndim > 1]
    assert stored and all(30 < abs(w).max() <= 64 and 2 * 255 * abs(w).max() < 2**15 for w in stored)
    assert model.opset_import[0].version == 17


@pytest.mark.parametrize("precision", INTEGERS)
@pytest.mark.parametrize("weights", ["per_channel", "per_tensor"])
def test_attention_in_every_precision_is_exact(precision, weights):
    data = batches(1, 5, 16)
    made = quantize_model(traced(Encoder, data), data, QuantConfig(precision=precision, weights=weights))
    assert verify(made, data[:1]).exact


def test_sixteen_bits_bring_less_noise(net, pictures):
    noise = {p: quantize_model(net, pictures, QuantConfig(precision=p)).analyze(pictures) for p in ("w8a8", "w8a16")}
    assert noise["w8a16"].output_sqnr_db > noise["w8a8"].output_sqnr_db + 2


def test_a_profile_takes_its_own_types_alone(net, pictures):
    for profile in PROFILES.values():
        made = quantize_model(net, pictures, QuantConfig(profile=profile.name))
        wanted = {SCHEMES[profile.non_negative].dtype, SCHEMES[profile.signed].dtype}
        assert {d.name for d in made.frozen.edges.values()} <= wanted, profile.name
        assert profile.source


def test_tflite_average_keeps_its_scale(net, pictures):
    made = quantize_model(net, pictures, QuantConfig(profile="tflite"))
    (pool,) = [e for e in made.float_graph.exprs() if isinstance(e, Apply) and e.op == "avg_pool2d"]
    assert made.frozen.edges[pool.output.name] == made.frozen.edges[pool.inputs[0].name]
    assert "avg_pool2d moves" in made.annotation.explain(pool.output.name)


def stored_bits(graph):
    """Bits of the quantized constants of a graph, by name."""
    values = {e.name: e.value.dtype for e in graph.exprs() if isinstance(e, Constant)}
    return {name: dtype.bits for name, dtype in values.items() if isinstance(dtype, QuantizedDType)}


@pytest.mark.parametrize(("precision", "group"), [("w8", 0), ("w4", 0), ("w4", 4), ("w8", 2)])
def test_weights_alone(net, pictures, precision, group):
    made = quantize_model(net, pictures, QuantConfig(precision=precision, group=group))
    bits = stored_bits(made.integer_graph)
    assert len(bits) == 5
    assert set(bits.values()) == {8 if precision == "w8" else 4}
    assert made.analyze(pictures).output_sqnr_db > 10
    (x,) = pictures[0]
    wanted = made(Tensor(x)).numpy()
    np.testing.assert_allclose(plan.compile(made.integer_graph)(x)[0], wanted, rtol=1e-4, atol=1e-6)
    checked = verify(made, pictures[:2])
    assert checked.exact and checked.weights == 5 and checked.batches == 2 and checked.results < 1e-5
    assert [one.run for one in checked.runs] == ["eager", "plan, 1 thread", "plan, 2 threads"]
    assert "only real values of 5 weights are compared so" in str(checked)


def test_a_wrong_weight_is_named(net, pictures, monkeypatch):
    made = quantize_model(net, pictures, QuantConfig(precision="w8"))
    node = next(e.outputs[0] for e in made.integer_graph.exprs() if isinstance(e, Apply) and e.record.dequantizes)

    def planted(graph, inputs):
        values = specification(graph, inputs)
        values[node.name] = values[node.name].copy()
        values[node.name].flat[0] += np.float32(1e-6)
        return values

    monkeypatch.setattr(VERIFY, "specification", planted)
    checked = verify(made, pictures[:1], threads=(1,))
    assert not checked.exact and {one.node for one in checked.runs} == {node.name}


def test_float_results_far_away_are_wrong(net, pictures, monkeypatch):
    made = quantize_model(net, pictures, QuantConfig(precision="w8"))

    def planted(graph, inputs):
        values = specification(graph, inputs)
        return {k: v * np.float32(1.01) if k == graph.outputs[0].name else v for k, v in values.items()}

    monkeypatch.setattr(VERIFY, "specification", planted)
    checked = verify(made, pictures[:1], threads=(1,))
    assert not checked.exact and checked.runs[1].node == made.integer_graph.outputs[0].name


@pytest.mark.parametrize("profile", PROFILES)
def test_a_channel_that_is_almost_dead_keeps_its_bias(profile):
    """Its bias was 6e12 steps of its sums, more than profiles with a bias of 32 bits hold."""
    layer = M.Conv2d(3, 8, 3)
    w, b = layer.weight.numpy().copy(), np.linspace(-1, 1, 8, dtype=np.float32)
    w[2] *= 1e-12
    w[5] *= 1e-7
    layer.weight._reset(Tensor(w))
    layer.bias._reset(Tensor(b.reshape(1, 8, 1, 1)))
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype(np.float32)
    made = quantize_model(trace_module(layer, Tensor(x)), [x], QuantConfig(profile=profile, bias_correction=False))
    assert verify(made, [x]).exact
    exact, rounded = layer(Tensor(x)).numpy(), made(Tensor(x)).numpy()
    assert np.abs(rounded - exact).max() < 0.05 * np.abs(exact).max()
    np.testing.assert_allclose(rounded[:, 2], b[2], atol=0.02)


def test_groups_bring_less_noise(net, pictures):
    def sqnr(group):
        config = QuantConfig(precision="w4", group=group, bias_correction=False)
        return quantize_model(net, pictures, config).analyze(pictures).output_sqnr_db

    assert sqnr(2) > sqnr(0)


def test_a_layer_without_such_groups_says_so(net):
    weights = {x.name: x.weights for x in preview(net, QuantConfig(precision="w4", group=8)).layers if x.weights}
    assert any("sums of 27 have no groups of 8" in text for text in weights.values())
    assert any(text == "int4 per channel, 8 a group" for text in weights.values())


@pytest.mark.parametrize("precision", ["w4a8", "w4"])
def test_four_bits_are_stored_two_to_a_byte(net, pictures, precision, tmp_path):
    made = quantize_model(net, pictures, QuantConfig(precision=precision))
    native.save(made.traced(), tmp_path / "net.mgt")
    (x,) = pictures[0]
    again = native.load(tmp_path / "net.mgt")
    np.testing.assert_array_equal(again(Tensor(x)).numpy(), made(Tensor(x)).numpy())
    with zipfile.ZipFile(tmp_path / "net.mgt") as file:
        text = file.read("weights.safetensors")
    four = [name for name, bits in stored_bits(made.integer_graph).items() if bits == 4]
    assert four
    header = json.loads(text[8 : 8 + int.from_bytes(text[:8], "little")])
    shapes = {e.name: e.value.shape for e in made.integer_graph.exprs() if isinstance(e, Constant)}
    assert all(header[n]["shape"] == [-(-int(np.prod(shapes[n])) // 2)] and header[n]["dtype"] == "U8" for n in four)


RULES = ("c=w8a16", "fc=w4a8,per_tensor", "op:sigmoid=float")


def test_rules_and_their_preview(net, pictures):
    config = QuantConfig(rules=RULES, exclude=("up",))
    shown = preview(net, config)
    assert [(option, text) for option, text, _ in shown.rules] == [("rule", r) for r in RULES] + [("exclude", "up")]
    made = quantize_model(net, pictures, config)
    layers = {x.name: x for x in shown.layers}
    (fc,) = [x for x in shown.layers if x.module.endswith("fc") and x.weights]
    assert fc.weights == "int4 per tensor"
    assert made.frozen.weights[fc.name].dtype.bits == 4
    assert made.frozen.weights[fc.name].dtype.axis is None
    wide = [n for n, d in made.frozen.edges.items() if d.name == "qint16"]
    assert len(wide) == 1
    assert layers[wide[0]].result == "s16"
    assert layers[wide[0]].op == "relu", "the result of layer c is rounded behind its activation"
    explained = {x.op: made.annotation.explain(x.name) for x in shown.layers}
    assert "rule 'op:sigmoid=float'" in explained["sigmoid"]
    assert "excluded by 'up'" in explained["conv_transpose2d"]


def test_a_later_rule_stands_above_an_earlier_one(net):
    rows = preview(net, QuantConfig(rules=("op:conv2d=w4a8", "b=w8a8"))).layers
    assert {x.module.split(".")[-1]: x.weights for x in rows if x.op == "conv2d"} == {
        "a": "int4 per channel",
        "b": "int8 per channel",
        "c": "int4 per channel",
    }


def test_include_leaves_the_other_layers_in_float(net):
    rows = preview(net, QuantConfig(include=("c", "fc"))).layers
    assert {x.module.split(".")[-1] for x in rows if x.weights} == {"c", "fc"}
    assert "not among 'c', 'fc'" in next(x.reason for x in rows if x.module.endswith("a"))


def test_between_two_nodes(net):
    conv = {x.module.split(".")[-1]: x.name for x in preview(net).layers if x.op == "conv2d"}
    rows = preview(net, QuantConfig(rules=(f"{conv['b']}..{conv['c']}=w4a8",)))
    ((_, _, names),) = rows.rules
    assert names[0] == conv["b"]
    assert names[-1] == conv["c"]
    assert len(names) == 3, "the function between both too"


def test_explain_follows_shared_scales(net, pictures):
    annotation = quantize_model(net, pictures, QuantConfig(rules=("op:max_pool2d=w8a8",))).annotation
    pools = [n for n in annotation.precision if n.startswith("max_pool2d")]
    assert pools
    assert all("moves the integers of" in annotation.explain(n) for n in pools)
    assert all("; mul" in annotation.explain(n) for n in pools), "the chain goes on at the source"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "w4a4"}, "precision: expected one of w8a8, .* got 'w4a4'"),
        ({"group": 32}, "groups are for weights alone"),
        ({"group": -1}, "group: expected a number of weights"),
        ({"rules": ("fc=w4a4",)}, "rule 'fc=w4a4': expected .* got 'w4a4'"),
        ({"rules": ("w4a8",)}, r"expected LAYERS=WORD\[,WORD\], such as"),
        ({"rules": "fc=w4a8"}, "rules: expected a tuple of rules, got the string"),
    ],
)
def test_wrong_words(settings, message):
    with pytest.raises(OptionError, match=message):
        QuantConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rules": ("fcc=w4a8",)}, "rule: 'fcc' selects no layer; nearest: "),
        ({"include": ("conv",)}, "include: 'conv' selects no layer"),
        ({"rules": ("re:(=w4a8",)}, r"rule: 're:\(' is not a regular expression"),
        ({"rules": ("a..zz=w4a8",)}, r"rule: 'a\.\.zz' selects no layer"),
    ],
)
def test_a_rule_that_hits_nothing(net, settings, message):
    with pytest.raises(OptionError, match=message):
        preview(net, QuantConfig(**settings))


def test_a_rule_as_text():
    rule = LayerRule("classifier", precision="w4", group=32)
    assert LayerRule.parse(str(rule)) == rule
    assert rule.changed(Precision()) == Precision("w4", group=32, reason="rule 'classifier=w4,group:32'")


@pytest.mark.parametrize(("precision", "opset"), [("w8a8", 17), ("w4a8", 21), ("w8a16", 21), ("w4a16", 21), ("w4", 21)])
def test_qdq_files_hold_the_integers_and_give_them_back(net, pictures, precision, opset, tmp_path):
    onnx, _ = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    made = quantize_model(net, pictures, QuantConfig(precision=precision))
    export_qdq(made, tmp_path / "net.onnx")
    proto = onnx.load(tmp_path / "net.onnx")
    assert proto.opset_import[0].version == opset
    kinds = {t.data_type for t in proto.graph.initializer}
    assert (onnx.TensorProto.INT4 in kinds) == precision.startswith("w4")
    assert (onnx.TensorProto.INT16 in kinds) == precision.endswith("a16")
    (x,) = pictures[0]
    again = integerize(fold(lower(load(tmp_path / "net.onnx")).graph))
    (wanted,), (got,) = plan.compile(made.integer_graph)(x), plan.compile(again)(x)
    np.testing.assert_array_equal(got, wanted)
    (theirs,) = session_of(tmp_path / "net.onnx").run(None, {"x": x})
    np.testing.assert_allclose(theirs, wanted, atol=0.1 * np.abs(wanted).max())


def test_four_bits_need_opset_21(net, pictures, tmp_path):
    made = quantize_model(net, pictures, QuantConfig(precision="w4a8"))
    with pytest.raises(GraphError, match="give another opset"):
        export_qdq(made, tmp_path / "net.onnx", opset=17)
