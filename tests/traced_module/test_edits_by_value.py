"""Random edits of nested and shared graphs give the values that they mean, whatever is done to the graph then."""

from __future__ import annotations

import copy
import importlib
import pickle
import random
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saved_content import content
from tapped_nets import Meaning, Stage, TappedNet, expected, tap

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.traced_module as tm
from megengine import Tensor
from megengine.core.errors import MegEngineError
from megengine.traced_module.ir.queries import graphs_of
from megengine.traced_module.source import save_source

RNG = np.random.default_rng(0)
X, Z = RNG.standard_normal((2, 3, 4, 4)).astype(np.float32), RNG.standard_normal((2, 4, 4, 4)).astype(np.float32)
mge.random.seed(0)
NET = TappedNet().eval()
TRACED = tm.trace_module(NET, Tensor(X), Tensor(Z))


def assigned(x):
    y = x + 0
    y[:, 0] = y[:, 1] * 2
    y[y > 1] = 1
    return y


def swapped(x):
    low, high = F.split(x, 2, axis=1)
    return F.concat([high, low], axis=1)


FUNCTIONS = {  # on nodes, and on arrays
    "relu": (F.relu, lambda a: np.maximum(a, 0)),
    "arithmetic": (lambda a: 1 - a * 0.75, lambda a: 1 - a * np.float32(0.75)),
    "clip": (lambda a: F.clip(a, -1, 1), lambda a: np.clip(a, -1, 1)),
    "flip": (lambda a: a[:, ::-1], lambda a: a[:, ::-1]),
    "shapes": (lambda a: a.reshape(a.shape[0], -1).reshape(a.shape), lambda a: a),
    "swap": (swapped, lambda a: np.concatenate(np.split(a, 2, 1)[::-1], 1)),
    "half": (lambda a: a.astype("float16").astype("float32"), lambda a: a.astype(np.float16).astype(np.float32)),
    "items": (assigned, assigned),
    "sum": (lambda a, b: a + b, np.add),
    "largest": (F.maximum, np.maximum),
    "choice": (lambda a, b: F.where(a > b, a + b, b * 2), lambda a, b: np.where(a > b, a + b, b * 2)),
}
NAMES = [
    "größe",
    "relu_out",
    "None",
    "x",
    "self",
    "F",
    "forward",
    "__init__",
    "tap",
    "名",
    "match",
    "ﬁ",
    "a" * 300,
    "conv",
]


class Editor:
    """A traced network, what its edits mean, and the nodes of all values that have a name in the meaning."""

    def __init__(self, seed: int) -> None:
        self.rng, self.model, self.meaning, self.count = random.Random(seed), TRACED.clone(), Meaning(), 0
        self.nodes: dict[str, list[Any]] = {}  # in several graphs where a module has several
        for call in self.model.graph.get_function_by_type(tap):
            self.nodes.setdefault(call.named_args["name"], []).append(call.outputs[0])
        self.compiled = False
        self.past: list[tuple[Meaning, dict[str, list[Any]]]] = [self.state()]
        self.future: list[tuple[Meaning, dict[str, list[Any]]]] = []

    def state(self) -> tuple[Meaning, dict[str, list[Any]]]:
        return self.meaning, dict(self.nodes)

    def take(self, state: tuple[Meaning, dict[str, list[Any]]]) -> None:
        self.meaning, self.nodes = state[0], dict(state[1])

    def fresh(self) -> str:
        self.count += 1
        return f"#{self.count}"

    def value(self) -> str:
        return self.rng.choice(list(self.nodes))

    def before(self, value: str) -> list[str]:
        """Values of the same graphs and shape that are made before."""
        here = self.nodes[value]
        found = []
        for name, nodes in self.nodes.items():
            pairs = list(zip(nodes, here, strict=False))
            if len(nodes) == len(here) and all(a.top_graph is b.top_graph and a.shape == b.shape for a, b in pairs):
                found += [name] * all(a.expr.position < b.expr.position for a, b in pairs)
        return found


def insert(e: Editor) -> None:
    old, name = e.value(), e.rng.choice(list(FUNCTIONS))
    on_nodes, on_arrays = FUNCTIONS[name]
    operands = (old, e.rng.choice([old, *e.before(old)])) if name in ("sum", "largest", "choice") else (old,)
    made = []
    with e.model.graph.transaction():
        for i, node in enumerate(e.nodes[old]):
            graph = node.top_graph
            with graph.inserting_after(node):
                new = on_nodes(*(e.nodes[o][i] for o in operands))
                graph.replace_node({node: new})
            made.append(graph.assignments.latest(new))
    new = e.fresh()
    e.meaning, e.nodes[new] = e.meaning.with_stage(old, Stage(new, on_arrays, operands)), made


def replace_by_earlier(e: Editor) -> None:
    old = e.value()
    new = e.rng.choice(e.before(old) or [old])
    with e.model.graph.transaction():
        for node, other in zip(e.nodes[old], e.nodes[new], strict=True):
            node.replace_all_uses_with(other)
    e.meaning = e.meaning.redirected(old, new)


def constant(e: Editor) -> None:
    old = e.value()
    array = np.random.default_rng(e.rng.randrange(99)).standard_normal(e.nodes[old][0].shape).astype(np.float32)
    with e.model.graph.transaction():
        for node in e.nodes[old]:
            node.replace_all_uses_with(node.top_graph.constant(array, before=node.expr))
    e.meaning = e.meaning.with_stage(old, Stage(e.fresh(), lambda: array, ()))


def add_output(e: Editor) -> None:
    value = e.value()
    if e.compiled and e.nodes[value][0].top_graph is not e.model.graph:
        return  # the call that was the first may be gone, and with it the value of the first call
    e.model.graph.add_output_node(e.nodes[value][0])
    e.meaning = replace(e.meaning, extra=(*e.meaning.extra, value))


def reset_outputs(e: Editor) -> None:
    graph = e.model.graph
    values = [name for name, nodes in e.nodes.items() if nodes[0].top_graph is graph]
    values = e.rng.choices(values, k=e.rng.randint(1, 4))
    nodes = [e.nodes[v][0] for v in values]
    graph.reset_outputs(e.rng.choice([nodes, {"b": nodes[0], "a": nodes[1:]}, (nodes[0], [tuple(nodes)])]))
    names = {id(node): value for value, node in zip(values, nodes, strict=True)}
    e.meaning = replace(e.meaning, results=tuple(names[id(node)] for node in graph.outputs), extra=())


def rename(e: Editor) -> None:
    node = e.nodes[e.value()][0]
    node.top_graph.rename(node, e.rng.choice(NAMES))


def add_input(e: Editor) -> None:
    name, array = f"input_{len(e.meaning.inputs)}", np.random.default_rng(e.count).standard_normal(Z.shape)
    e.nodes[name] = [e.model.graph.add_input_node(Z.shape, "float32", name)]
    e.meaning = replace(e.meaning, inputs=(*e.meaning.inputs, (name, array.astype(np.float32))))


def layer(e: Editor) -> None:
    path = e.rng.choice(["stem", "middle.inner.conv", "inner.conv", "other.inner.conv"])
    *way, name = path.split(".")
    new, at = M.Conv2d(3 if path == "stem" else 4, 4, 1, bias=e.rng.random() < 0.5), e.model
    for part in way:
        at = getattr(at, part)
    setattr(at, name, new)
    e.meaning = replace(e.meaning, layers={**e.meaning.layers, path: new})


def compile_graph(e: Editor) -> None:
    e.compiled = True
    e.model.graph.compile()
    e.nodes = {value: nodes for value, nodes in e.nodes.items() if all(node.expr.in_graph for node in nodes)}


EDITS = [*[insert] * 5, *[replace_by_earlier] * 2, constant, *[add_output] * 2, reset_outputs, *[rename] * 2, add_input]
EDITS += [layer, compile_graph]


def edit(e: Editor) -> None:
    """One edit: a step of the history, or refused without a trace."""
    before, state, steps = content(e.model), e.state(), len(e.model.edit_log)
    try:
        e.rng.choice(EDITS)(e)
    except MegEngineError:
        assert content(e.model) == before
        e.take(state)
        return
    made = len(e.model.edit_log) - steps
    assert made in (0, 1)
    if made:
        e.past, e.future = [*e.past, e.state()], []


def undo(e: Editor) -> None:
    assert e.model.graph.undo() == (len(e.past) > 1)
    if len(e.past) > 1:
        e.future.append(e.past.pop())
        e.take(e.past[-1])


def redo(e: Editor) -> None:
    assert e.model.graph.redo() == bool(e.future)
    if e.future:
        e.past.append(e.future.pop())
        e.take(e.past[-1])


def abort(e: Editor) -> None:
    before, state = content(e.model), e.state()
    with pytest.raises(ZeroDivisionError), e.model.graph.transaction():
        for _ in range(e.rng.randint(1, 3)):
            try:
                e.rng.choice(EDITS)(e)
            except MegEngineError:
                continue
        raise ZeroDivisionError
    e.take(state)
    assert content(e.model) == before


def through_a_file(e: Editor) -> None:
    """Later edits are made in the loaded model, whose history begins anew."""
    loaded, same = saved(e.model, ".mgt"), {}
    for old, new in zip(graphs_of(e.model), graphs_of(loaded), strict=True):
        same.update(zip(map(id, old.nodes(recursive=False)), new.nodes(recursive=False), strict=True))
    e.nodes = {value: [same[id(node)] for node in nodes] for value, nodes in e.nodes.items() if id(nodes[0]) in same}
    e.model, e.past, e.future = loaded, [], []
    e.past.append(e.state())


def saved(model: Any, suffix: str) -> Any:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what MegEngine 1.13 lacks
        mge.save(model, Path(folder) / f"net{suffix}")
        return mge.load(Path(folder) / f"net{suffix}")


def from_source(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as patch:
        name = f"written_{Path(folder).name}"
        save_source(model, Path(folder) / f"{name}.py")
        patch.syspath_prepend(folder)
        return importlib.import_module(name).load()


FORMS = {
    "clone": lambda model: model.clone(),
    "flat": lambda model: model.flatten(),
    "ops": tm.lower,
    "optimized": tm.optimize,
    "mgt": lambda model: saved(model, ".mgt"),
    "tm": lambda model: saved(model, ".tm"),
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "deepcopy": copy.deepcopy,
}


def leaves(result: Any) -> list[np.ndarray]:
    if isinstance(result, dict):
        return [leaf for key in sorted(result) for leaf in leaves(result[key])]
    return [leaf for part in result for leaf in leaves(part)] if isinstance(result, (list, tuple)) else [result.numpy()]


def session(seed: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    e = Editor(seed)
    for _ in range(length):
        e.rng.choice([*[edit] * 14, undo, redo, abort, through_a_file])(e)
        e.model.graph.lint()
    want = expected(NET, (X, Z), e.meaning)
    inputs = [Tensor(array) for array in (X, Z, *(array for _, array in e.meaning.inputs))]

    def check(got: list[np.ndarray], form: str) -> None:
        assert len(got) == len(want), form
        for a, b in zip(got, want, strict=True):
            scale = max(1, float(np.abs(b).max()))
            np.testing.assert_allclose(
                a, b, rtol=1e-3, atol=1e-3 * scale, err_msg=f"{form} {seed} {length}", strict=True
            )

    check(leaves(e.model(*inputs)), "model")
    for form, function in FORMS.items():
        check([t.numpy() for t in function(e.model).graph.interpret(*inputs)], form)
    check(leaves(from_source(e.model, monkeypatch)(*inputs)), "source")
    e.model._repr_svg_()


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(1, 14))
def test_edits_give_the_values_that_they_mean(seed, length):
    with pytest.MonkeyPatch.context() as monkeypatch:
        session(seed, length, monkeypatch)


@pytest.mark.slow
def test_many_edits_give_the_values_that_they_mean(monkeypatch):
    for seed in range(120):
        session(seed, 14, monkeypatch)
