"""Networks that are modules in modules: quantized as they are, they give the integers of their flat graphs."""

import copy

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.quantization as Q
from megengine import plan
from megengine.quantization import LayerRule, QuantConfig, prepare_qat, quantize_model, verify
from megengine.quantization.modules.int_modules import QuantizedModule
from megengine.tensor import tensor
from megengine.traced_module import lower, trace_module

DATA = np.random.default_rng(0).standard_normal((4, 2, 3, 8, 8)).astype(np.float32)
X = tensor(DATA[0])


class Branches(M.Module):
    """Takes two values, gives a tuple."""

    def __init__(self):
        super().__init__()
        self.a, self.b = M.ConvBnRelu2d(8, 8, 3, padding=1), M.ConvBn2d(8, 8, 1)
        self.add = M.Elemwise("ADD")

    def forward(self, x, y):
        return self.add(self.a(x), self.b(y)), self.b(y)


class Named(M.Module):
    """Takes a dict, gives a dict with a list."""

    def __init__(self):
        super().__init__()
        self.branches, self.last, self.cat = Branches(), M.ConvRelu2d(8, 8, 1), M.Concat()

    def forward(self, named):
        p, q = self.branches(named["x"], named["y"])
        return {"sum": self.last(p), "list": [q, self.cat([p, q], 1)]}


class Block(M.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = M.ConvBnRelu2d(8, 8, 3, padding=1), M.ConvBn2d(8, 8, 3, padding=1)
        self.add = M.Elemwise("FUSE_ADD_RELU")

    def forward(self, x):
        return self.add(self.conv2(self.conv1(x)), x)


class Backbone(M.Module):
    """Blocks in a sequence and in a list, and one that is called with two shapes."""

    def __init__(self):
        super().__init__()
        self.stem, self.layer1, self.layer2 = M.ConvBnRelu2d(3, 8, 3, padding=1), M.Sequential(Block(), Block()), []
        self.layer2 = [Block(), Block()]
        self.shared, self.pool = Block(), M.MaxPool2d(2)

    def forward(self, x):
        x = self.layer1(self.stem(x))
        for block in self.layer2:
            x = block(x)
        first = self.shared(x)
        return first, self.shared(self.pool(first))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant, self.add = M.QuantStub(), M.DequantStub(), M.Elemwise("ADD")
        self.backbone, self.named, self.fc = Backbone(), Named(), M.Linear(8, 5)

    def forward(self, x):
        first, second = self.backbone(self.quant(x))
        out = self.named({"x": F.max_pool2d(first, 2), "y": second})
        features = F.flatten(F.avg_pool2d(self.add(out["sum"], out["list"][0]), 4), 1)
        return self.dequant(self.fc(features)), self.dequant(out["list"][1])


@pytest.fixture(scope="module")
def net():
    mge.random.seed(3)
    net = Net().train()
    for x in DATA:
        net(tensor(x))  # batch norms have statistics
    return net.eval()


def _edited(traced):
    """A layer inside a module that is called twice is another one, and gives half of what it gave."""
    block = traced.backbone.shared
    mge.random.seed(5)
    block.conv1 = M.ConvRelu2d(8, 8, 1)
    out = block.graph.get_module_by_type(M.Elemwise).as_unique().users[0].output
    with block.graph.insert_exprs():
        block.graph.replace_node({out: F.relu(out)})
    return traced


def _doubled(traced):
    """Every submodule is called with two batches at once."""
    graph = traced.graph
    with graph.insert_exprs():
        graph.replace_node({graph.inputs[1]: F.concat([graph.inputs[1]] * 2, 0)})
    return traced


def _unedited(traced):
    return traced


EDITS = pytest.mark.parametrize("edit", [_unedited, _edited, _doubled])


def _by_modules(net, qconfig=Q.ema_fakequant_qconfig):
    """(network in integers, results of its simulation) by MegEngine's calls."""
    Q.quantize_qat(net, qconfig=qconfig).eval()
    Q.enable_observer(net)
    Q.disable_fake_quant(net)
    for x in DATA:
        net(tensor(x))
    Q.disable_observer(net)
    Q.enable_fake_quant(net)
    simulated = _values(net(X))
    return Q.quantize(net).eval(), simulated


def _values(results):
    return [t.numpy() for t in results]


def _equal(a, b):
    return len(a) == len(b) and all(map(np.array_equal, a, b))


@EDITS
def test_by_modules_nested_flat_and_untraced_agree(net, edit, tmp_path, caplog):
    traced = edit(trace_module(net, X))
    flat, before = _by_modules(traced.flatten()), repr(traced)
    nested, simulated = _by_modules(traced)
    assert not caplog.records  # asking for shapes warns of nothing
    results = _values(nested(X))
    assert _equal(results, simulated)
    assert _equal(results, _values(flat[0](X)))
    if edit is _unedited:
        assert _equal(results, _values(_by_modules(copy.deepcopy(net))[0](X)))
    shared = nested.backbone.shared
    assert isinstance(shared.conv1, QuantizedModule)
    dtype = shared.graph.inputs[1].dtype  # what its first call gives it
    assert dtype == getattr(nested.backbone.layer2, "1").graph.outputs[0].dtype != shared.graph.outputs[0].dtype
    nested.graph.lint()
    for form in (nested.flatten(), lower(nested), plan.compile(nested)):
        assert _equal(results, [np.asarray(t) for t in form(X)])
    assert verify(nested, DATA).exact
    for suffix in (".tm", ".mgt"):
        mge.save(nested, str(tmp_path / f"net{suffix}"))
        assert _equal(results, _values(mge.load(str(tmp_path / f"net{suffix}"))(X)))
    while any(step.what.startswith("quantize") for step in nested.edit_log.steps):
        nested.graph.undo()
    nested.graph.lint()
    assert repr(nested) == before


RULES = ("backbone.shared.conv1=w4a8", LayerRule("named.branches", precision="w8a16"))


@pytest.mark.parametrize(
    ("edit", "settings"),
    [
        (_edited, {}),
        (_doubled, {"exclude": ("backbone.layer1.*",)}),
        (_unedited, {"rules": RULES, "include": ("backbone.layer2", "re:.*shared.*")}),
    ],
)
def test_by_graphs_nested_and_flat_agree(net, edit, settings):
    traced = edit(trace_module(net, X))
    data = [tensor(x) for x in DATA]
    nested, flat = (quantize_model(form, data, QuantConfig(**settings)) for form in (traced, traced.flatten()))
    assert _equal(_values(nested(X)), _values(flat(X)))
    names = [[n.qualname for e in q.integer_graph.exprs() for n in e.outputs] for q in (nested, flat)]
    assert names[0] == names[1]


def _layers(quantized):
    """Op and weight's dtype of the layers, by their qualnames without the role."""
    exprs = [e for e in quantized.integer_graph.exprs() if "conv2d" in getattr(e, "op", "")]
    found: dict[str, list] = {}
    for e in exprs:
        found.setdefault(e.outputs[0].qualname.rpartition(".")[0], []).append((e.op, e.inputs[1].dtype))
    return found


def test_rules_hit_modules_by_their_paths_and_results_keep_them(net):
    data = [tensor(x) for x in DATA]
    rules = ("backbone.shared.conv1=w4a8",)
    layers = _layers(quantize_model(trace_module(net, X), data, QuantConfig(rules=rules, exclude=("*.layer1.*",))))
    paths = [f"Net.backbone.{p}" for p in ("layer1.0", "layer1.1", "layer2.0", "layer2.1", "shared")]
    wanted = {f"{p}.{c}" for p in paths for c in ("conv1", "conv2")}
    wanted |= {"Net.backbone.stem", "Net.named.branches.a", "Net.named.branches.b", "Net.named.last"}
    found = {next((w for w in wanted if path == w or path.startswith(f"{w}.")), path) for path in layers}
    assert found >= wanted - {f"{p}.conv2" for p in paths}  # a layer with a residual is named after the sum
    for path, calls in layers.items():
        for op, dtype in calls:
            in_float = "layer1" in path
            assert (op == "ordered_conv2d") == in_float, (path, op)
            assert in_float or ("4" in str(dtype)) == (path.startswith("Net.backbone.shared.conv1")), (path, dtype)


@pytest.mark.parametrize("edit", [_edited, _doubled])
def test_training_aware_of_quantization_of_graphs(net, edit):
    traced = edit(trace_module(net, X))
    data = [tensor(x) for x in DATA]
    results = []
    for form in (traced, traced.flatten()):
        qat = prepare_qat(form, calibration=data).eval()
        simulated = _values(qat(X))
        quantized = qat.convert()
        assert _equal(simulated, _values(quantized(X)))
        results.append(simulated)
    assert _equal(*results)
