"""Networks after random edits: the values that the edits mean, in every form, and quantized exactly.

What an edit means is told by a replay in NumPy of the network before it, with the changed value put in.
"""

import copy
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import MegEngineError
from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.traced_module import lower, optimize, trace_module
from megengine.traced_module.ir.node import TensorNode
from tests.helpers.numpy_replay import convolution, replay
from tests.helpers.onnx_runtime import answers, session_of

RNG = np.random.default_rng(0)
X, *DATA = RNG.standard_normal((4, 2, 3, 8, 8)).astype(np.float32)


class Block(M.Module):
    def __init__(self, n):
        super().__init__()
        self.conv, self.norm, self.act = M.Conv2d(n, n, 3, padding=1), M.BatchNorm2d(n), M.ReLU()

    def forward(self, x):
        return self.act(self.norm(self.conv(x))) + x


class Pair(M.Module):
    """Two inputs, two results, a module inside."""

    def __init__(self, n):
        super().__init__()
        self.left, self.right, self.inner = M.Conv2d(n, n, 1), M.Conv2d(n, n, 3, padding=1, groups=n), Block(n)

    def forward(self, x, y):
        p = F.relu(self.left(x))
        return self.inner(p), F.sigmoid(self.right(y)) + p


class Net(M.Module):
    """Modules in modules, two of them called twice."""

    def __init__(self):
        super().__init__()
        self.stem, self.block, self.pair = M.Conv2d(3, 4, 3, stride=2, padding=1), Block(4), Pair(4)
        self.layers = [Block(4), M.Sequential(M.Conv2d(4, 4, 1), M.ReLU())]
        self.pool, self.fc = M.MaxPool2d(2, 2), M.Linear(4, 5)

    def forward(self, x):
        x = self.block(self.block(F.relu(self.stem(x))))
        p, q = self.pair(x, x)
        p, q = self.pair(p, q)
        for layer in self.layers:
            q = layer(q)
        low, high = F.split(q + p, 2, axis=1)
        return self.fc(F.mean(self.pool(F.concat([high, low], axis=1)), (2, 3))), F.sum(low, (2, 3))


def traced():
    mge.random.seed(3)
    net = Net()
    for module in net.modules():
        if isinstance(module, M.BatchNorm2d):
            for buffer, (low, high) in ((module.running_mean, (-0.2, 0.2)), (module.running_var, (0.5, 2))):
                buffer[...] = np.linspace(low, high, module.num_features, dtype=np.float32).reshape(buffer.shape)
    return trace_module(net.eval(), mge.tensor(X))


MODEL = traced()


class Editor:
    """Random edits of a network. Each returns what it means, {(graph, name of a node): function}; None if unknown."""

    def __init__(self, seed):
        self.rng, self.model = random.Random(seed), MODEL.clone()
        mge.random.seed(seed % 1000)  # of new layers

    def graph(self):
        return self.rng.choice(graphs(self.model))

    def node(self, graph, axes=None):
        found = [n for n in graph.nodes(recursive=False) if isinstance(n, TensorNode) and axes in (None, n.ndim)]
        return self.rng.choice([n for n in found if n.ndim > 1])


def graphs(model):
    """The graph of a model and those that it calls, in the order of calls."""
    found = [model.graph]
    for graph in found:
        called = (e.graph for e in graph.exprs(recursive=False) if e.kind == "CallMethod")
        found += [g for g in dict.fromkeys(called) if g is not None and g not in found]
    return found


FUNCTIONS = [
    (F.relu, lambda x: np.maximum(x, 0)),
    (F.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    (lambda x: x * 0.5, lambda x: x * 0.5),
    (lambda x: 1 - x, lambda x: 1 - x),
    (lambda x: F.maximum(x, 0.1) + x, lambda x: np.maximum(x, 0.1) + x),
    (lambda x: F.concat([x, -x], 1)[:, : x.spec.shape[1]], lambda x: x),
]


def function(e):
    graph = e.graph()
    node, (ours, numpys) = e.node(graph), e.rng.choice(FUNCTIONS)
    with graph.insert_exprs(e.rng.choice([None, node.expr])):
        graph.replace_node({node: ours(node)})
    return {(graph, node.name): numpys}


def layer(e):
    graph = e.graph()
    node = e.node(graph, axes=4)
    made = M.Conv2d(node.shape[1], node.shape[1], 3, padding=1, groups=e.rng.choice([1, node.shape[1]]))
    with graph.insert_exprs():
        graph.inputs[0].conv = made
        graph.replace_node({node: graph.inputs[0].conv(node)})
    return {(graph, node.name): lambda x: convolution(made, x)}


def left_out(e):
    graph = e.graph()
    acts = [expr for act in (F.relu, F.sigmoid) for expr in graph.get_function_by_type(act, recursive=False)]
    expr = e.rng.choice(acts)
    graph.replace_node({expr.output: expr.inputs[0]})
    if e.rng.random() < 0.5:
        graph.compile()
    return {(graph, expr.output.name): expr.inputs[0].name}


def everywhere(e):
    """An edit while the expressions are iterated."""
    meant = {}
    for expr in e.model.graph.exprs():
        if expr.kind == "CallFunction" and expr.func is F.relu:
            graph = expr.top_graph
            with graph.insert_exprs(expr):
                graph.replace_node({expr.output: expr.output + 0.25})
            meant[graph, expr.output.name] = lambda x: x + 0.25
    return meant


def swapped(e):
    """Another layer of the same kind is assigned; the replay reads the new one."""
    owners = [m for m in (e.model, *e.model.modules()) if isinstance(getattr(m, "conv", None), M.Conv2d)]
    owner = e.rng.choice(owners)
    old = owner.conv
    owner.conv = M.Conv2d(old.in_channels, old.out_channels, 3, padding=1, groups=old.groups)


def renamed(e):
    graph = e.graph()
    graph.rename(e.node(graph), f"named_{e.rng.randrange(1000)}")
    return {}


def undone(e):
    if e.model.graph.undo():
        e.model.graph.redo()
    return {}


def saved(model, path):
    mge.save(model, path)
    return mge.load(path)


FORMS = {
    "flat": lambda m, folder: m.flatten(),
    "optimized": lambda m, folder: optimize(m, passes="all"),
    "copy": lambda m, folder: copy.deepcopy(m),
    "pickle": lambda m, folder: pickle.loads(pickle.dumps(m)),
    ".mgt": lambda m, folder: saved(m, folder / "net.mgt"),
    ".tm": lambda m, folder: saved(m, folder / "net.tm"),
    "traced again": lambda m, folder: trace_module(m, mge.tensor(X)),
    "ops": lambda m, folder: lower(m),
}
EDITS = [function, function, layer, left_out, everywhere, swapped, renamed, undone]


def near(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * max(np.abs(b).max(), 1))


def values(model, x=X):
    return [t.numpy() for t in model(mge.tensor(x))]


def session(seed, length, folder):
    """Edits, each of which does what it means; after some of them the network takes another form."""
    e = Editor(seed)
    for _ in range(length):
        before, known = e.model.clone(), graphs(e.model)
        try:
            meant = e.rng.choice(EDITS)(e)
        except (MegEngineError, IndexError):
            continue
        e.model.graph.lint()
        got = replay(e.model, [X])
        near(values(e.model), got)
        if meant is not None:
            places = {id(graph): id(copied) for graph, copied in zip(known, graphs(before), strict=True)}
            near(got, replay(before, [X], {(places[id(g)], name): f for (g, name), f in meant.items()}))
        if e.rng.random() < 0.3:
            e.model = FORMS[e.rng.choice(list(FORMS)[:-1])](e.model, folder)
            near(values(e.model), got)
    return e.model


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_edits_do_what_they_mean(tmp_path_factory, seed, length):
    session(seed, length, tmp_path_factory.mktemp("nets"))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_edited_network_has_its_values(form, tmp_path: Path):
    model = session(len(form), 4, tmp_path)
    near(values(FORMS[form](model, tmp_path)), replay(model, [X]))
    assert model.summary() and model.to_graphviz().source


@pytest.mark.parametrize("weights", ["per_tensor", "per_channel"])
@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
def test_edited_networks_are_quantized_exactly(precision, weights, tmp_path: Path):
    model = session(len(weights + precision), 4, tmp_path)
    quantized = quantize_model(model, DATA, QuantConfig(precision=precision, weights=weights))
    assert verify(quantized, [X], threads=(1,)).exact
    integers, real = values(quantized), replay(model, [X])
    for got, wanted in zip(integers, real, strict=True):
        assert np.abs(got - wanted).max() < (0.2 if precision == "w8a8" else 0.1) * np.abs(wanted).max()
    pytest.importorskip("onnxruntime")
    for got, wanted in zip(answers(session_of(to_model(quantized.integer_graph)), [X]), integers, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
    for got, wanted in zip(answers(session_of(to_model(quantized.qdq_graph)), [X]), integers, strict=True):
        assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.slow
def test_hundreds_of_edited_networks(tmp_path: Path):
    for seed in range(100):
        session(seed, 8, tmp_path)
