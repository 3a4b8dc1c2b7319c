"""Random edits of random networks give the values that they mean, and files, copies and Python of them do too.

Each edit comes with a `Meaning`: what the graph before it is to compute then. The graph after it has to give that.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_meaning import Meaning, leaves
from hypothesis import given, settings
from hypothesis import strategies as st
from random_trees import Kept, Own
from saved_content import content
from tree_edits import EDITS, Editor, ImpossibleError, key

import megengine as mge
import megengine.functional as F
import megengine.traced_module as tm
from megengine.core.errors import MegEngineError
from megengine.traced_module.editing.extracting import extract
from megengine.traced_module.ir.node import ModuleNode
from megengine.traced_module.ir.queries import graphs_of
from megengine.traced_module.source import save_source


def close(got: Sequence[Any], want: Sequence[Any], what: str) -> None:
    assert len(got) == len(want), f"{what}: {len(got)} results, not {len(want)}"
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, f"{what}: {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        scale = max(float(np.abs(b).max(initial=0)), 1.0)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * scale, err_msg=what)


def sound(model: Any) -> None:
    """Every graph passes lint, names are unique, and queries say what the graphs hold."""
    for graph in graphs_of(model):
        if graph.top is model.graph.top:
            graph.lint()
            nodes = graph.nodes(recursive=False).as_list()
            assert len({n.name for n in nodes}) == len(nodes)
            for node in nodes:
                assert graph.node(node.name) is node
                assert graph.get_node_by_id(node._id, recursive=False).as_unique() is node
                uses = sum(n is node for x in graph.exprs(recursive=False) for n in x.inputs)
                assert sum(node._users.values()) == uses
    every = model.graph.exprs().as_list()
    assert len({x.id for x in every}) == len(every)
    assert model.graph.get_function_by_type(F.relu).as_count() == sum(
        x.kind == "CallFunction" and x.func is F.relu for x in every
    )


def imported(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        return module.load()
    finally:
        del sys.modules[name]


def as_mgt(e, folder):
    mge.save(e.model, folder / "net.mgt")
    again = mge.load(folder / "net.mgt", allow=[Kept, Own])
    mge.save(again, folder / "again.mgt")
    assert (folder / "net.mgt").read_bytes() == (folder / "again.mgt").read_bytes()
    assert not tm.diff(e.model, again)
    return again


def as_tm(e, folder):
    mge.save(e.model, folder / "net.tm")
    return mge.load(folder / "net.tm", allow=[Kept, Own])


def as_python(e, folder):
    """Python has no parameters for what is no tensor."""
    save_source(e.model, folder / "net.py")
    net = imported(folder / "net.py", "net_of_tests")
    return lambda *args, scale=None, **kwargs: net(*args, **kwargs)


def retraced(e, folder):
    return tm.trace_module(e.model, *e.args, **e.kwargs)


def retraced_flat(e, folder):
    return tm.trace_module(e.model.flatten(), *e.args, **e.kwargs)


def as_ops(e, folder):
    lowered = tm.lower(e.model)
    got = tm.interpret(lowered.graph, e.of_call(e.args, e.kwargs))
    close([t.numpy() for t in got], e.want, "ops")
    return e.model


FORMS = [
    *(as_mgt, as_tm, as_python, retraced, retraced_flat, as_ops),
    lambda e, _: e.model.flatten(),
    lambda e, _: copy.deepcopy(e.model),
    lambda e, _: pickle.loads(pickle.dumps(e.model)),
    lambda e, _: e.model.clone(),
    lambda e, _: tm.optimize(e.model, passes="all"),
]


def check_forms(e: Editor, forms: Sequence[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for form in forms:
            close(e.run(form(e, Path(folder))), e.want, getattr(form, "__name__", str(form)))


def check_points(e: Editor) -> None:
    """Values at watch and end points are those of our own interpreter."""
    meaning = Meaning()
    e.mean(meaning)
    node = e.rng.choice([n for g in e.graphs() for n in g.nodes(recursive=False) if key(n) in meaning.seen])
    if isinstance(node, ModuleNode):
        return
    model = e.model
    model.set_watch_points(node)
    e.run()
    close([model.watch_node_value[node].numpy()], [meaning.seen[key(node)][-1].numpy()], "watch point")
    model.clear_watch_points()
    model.set_end_points(node)
    close(e.run(), [meaning.seen[key(node)][0].numpy()], "end point")
    model.clear_end_points()


def check_failed_transaction(e: Editor) -> None:
    before, state = content(e.model), e.state()
    with pytest.raises(KeyError), e.model.graph.transaction("fails"):
        for _ in range(2):
            with contextlib.suppress(ImpossibleError, MegEngineError):
                e.rng.choice(EDITS)(e)
        raise KeyError("planned")
    assert content(e.model) == before
    e.take(state)


def check_cut(e: Editor) -> None:
    """The part between a value and a result gives, for that value, what the whole gives."""
    graph = e.model.graph
    node, meaning = e.node(graph), Meaning()
    e.mean(meaning)
    model = e.model.clone()
    try:
        extract(model.graph, [model.graph.node(node.name)], [model.graph.outputs[-1]])
    except MegEngineError:
        return
    sound(model)
    if len(model.graph.inputs) == 2:
        close(leaves(model(meaning.seen[key(node)][0])), e.want[-1:], "cut")


def session(seed: int, length: int, made: dict[str, int] | None = None, forms: int = 2) -> None:
    """Random edits of one network, each compared with its meaning; then all forms of the result, and all undone."""
    e = Editor(seed)
    close(e.run(), e.want, "trace")
    first, state = content(e.model), e.state()
    for _ in range(length):
        name = step(e, e.rng.choice(EDITS))
        if made is not None and name:
            made[name] = made.get(name, 0) + 1
    check_forms(e, e.rng.sample(FORMS, forms))
    check_points(e)
    check_cut(e)
    check_failed_transaction(e)
    last, again = content(e.model), e.start.clone()
    e.model.edit_log.replay(again, allow=[Kept, Own])
    assert content(again) == last
    while e.model.graph.undo():
        pass
    assert content(e.model) == first
    e.take(state)
    close(e.run(), e.want, "all undone")


def step(e: Editor, edit: Callable[[Editor], list[Any]]) -> str | None:
    """One edit: its name if it was made. One that is refused leaves nothing."""
    state, before, done = e.state(), content(e.model), e.model.graph.journal.done
    steps = len(done)
    try:
        e.want = edit(e)
    except (ImpossibleError, MegEngineError) as error:
        e.take(state)
        while len(done) > steps:  # what an edit of several parts did before
            e.model.graph.undo()
        assert content(e.model) == before, (edit.__name__, error)
        return None if isinstance(error, ImpossibleError) else f"refused {edit.__name__}: {error}"
    close(e.run(), e.want, edit.__name__)
    close(e.mean(), e.want, f"{edit.__name__} by the interpreter of the tests")
    sound(e.model)
    if e.rng.random() < 0.3:
        check_undo(e, state, before, len(done) - steps)
    return edit.__name__


def check_undo(e: Editor, state: Any, before: Any, steps: int) -> None:
    after, now = content(e.model), e.state()
    for _ in range(steps):
        assert e.model.graph.undo()
    assert content(e.model) == before
    e.take(state)
    close(e.run(), e.want, "undo")
    for _ in range(steps):
        assert e.model.graph.redo()
    assert content(e.model) == after
    e.take(now)


@settings(max_examples=6)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_random_edits_of_random_networks(seed, length):
    session(seed, length, forms=1)


@pytest.mark.slow
def test_hundreds_of_networks():
    """Every kind of edit is made, and every form is taken."""
    made: dict[str, int] = {}
    for seed in range(60):
        session(seed, 1 + seed % 9, made, forms=3)
    assert {edit.__name__ for edit in EDITS} <= made.keys()
