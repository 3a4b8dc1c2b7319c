"""Work grows as the model does: calls made by each operation are counted, on chains, wide graphs and deep nests."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.recursion import max_recursion_limit
from megengine.traced_module import trace_module
from megengine.traced_module.comparing.diff import diff
from megengine.traced_module.editing.rewiring import replace_all_uses
from megengine.traced_module.ir.expr import CallFunction, CallMethod, is_call_module
from megengine.traced_module.ir.lint import findings
from megengine.traced_module.ir.order import ExprOrder
from megengine.traced_module.passes import optimize, run_passes
from megengine.traced_module.pictures.dot import to_dot
from megengine.traced_module.source import to_source
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.entry import lower

SLACK = 1.25  # work may grow by a quarter more than the model does


class Chain(M.Module):
    """Each function uses the result of the one before."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Any) -> Any:
        for _ in range(self.size // 2):
            x = F.relu(x) + 1
        return x


class ManyUsers(Chain):
    """One value with many users, which are all returned."""

    def forward(self, x: Any) -> Any:
        x = x + 1
        return [F.relu(x) for _ in range(self.size)]


class ManyInputs(Chain):
    """One call with many operands."""

    def forward(self, x: Any) -> Any:
        return F.concat([F.relu(x) for _ in range(self.size)], axis=0)


class ManyLayers(M.Module):
    """A list of layers, each called with the same value, whose results are all returned."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = [M.ReLU() for _ in range(size)]

    def forward(self, x: Any) -> Any:
        return [layer(x) + 1 for layer in self.layers]


class ManyArguments(Chain):
    """One input for each of many values, which are joined."""

    def forward(self, xs: Any) -> Any:
        return F.concat([F.relu(x) for x in xs], axis=0)


class Nest(M.Module):
    """Modules in modules."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = Nest(size - 1) if size > 1 else M.Identity()

    def forward(self, x: Any) -> Any:
        return F.relu(self.inner(x))


MODELS = {kind.__name__: kind for kind in (Chain, ManyUsers, ManyInputs, ManyLayers, ManyArguments, Nest)}
SIZES = {"Nest": (10, 40)}


def sizes(model: str) -> tuple[int, int]:
    return SIZES.get(model, (40, 160))


@functools.cache
def traced(model: str, size: int) -> TracedModule:
    return trace_module(MODELS[model](size), given(model, size))


def given(model: str, size: int) -> Any:
    x = mge.tensor(np.zeros((2, 3), np.float32))
    return [x + 0 for _ in range(size)] if model == "ManyArguments" else x


def functions(net: TracedModule) -> list[Any]:
    return [e for e in net.graph.exprs() if isinstance(e, (CallFunction, CallMethod)) and not is_call_module(e)]


def insert(net: TracedModule) -> None:
    for expr in functions(net):
        with expr.top_graph.insert_exprs():
            expr.top_graph.replace_node({expr.output: F.sigmoid(expr.output)})


def insert_at(net: TracedModule) -> None:
    for expr in functions(net):
        with expr.top_graph.insert_exprs(expr):
            expr.top_graph.replace_node({expr.output: F.sigmoid(expr.output)})


def insert_many_at_once(net: TracedModule) -> None:
    node = functions(net)[0].output
    with node.graph.insert_exprs():
        for _ in range(len(functions(net))):
            F.exp(node)


def delete(net: TracedModule) -> None:
    for expr in net.graph.get_function_by_type(F.relu):
        expr.top_graph.replace_node({expr.output: expr.inputs[0]})
        expr.top_graph.erase(expr)


def undo(net: TracedModule) -> None:
    while net.graph.undo():
        pass


def undo_and_redo(net: TracedModule) -> None:
    undo(net)
    while net.graph.redo():
        pass


def inserted(net: TracedModule) -> TracedModule:
    net = net.clone()
    insert(net)
    return net


def nothing(net: TracedModule) -> TracedModule:
    return net


def run(net: TracedModule) -> None:
    x = mge.tensor(np.zeros((2, 3), np.float32))
    inputs = [x] * (len(net.graph.inputs) - 1)
    net(inputs[0] if len(inputs) == 1 else inputs)


def replace_all_uses_in(net: TracedModule) -> None:
    graph = net.graph
    old: Any = max((n for n in graph.nodes(recursive=False) if hasattr(n, "spec")), key=lambda n: len(n.users))
    with graph.insert_exprs():
        new = F.exp(old)
    replace_all_uses(graph, old, new)


def rename(net: TracedModule) -> None:
    for i, node in enumerate(net.graph.nodes(recursive=False)):
        net.graph.rename(node, f"renamed_{i}")


def save_and_load(suffix: str) -> Callable[[TracedModule, Path], Any]:
    def both(net: TracedModule, folder: Path) -> None:
        mge.save(net, folder / f"net{suffix}")
        mge.load(folder / f"net{suffix}")

    return both


# operation -> (what makes ready, what is counted)
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "lint": (nothing, lambda net: net.graph.lint()),
    "clone": (nothing, TracedModule.clone),
    "insert": (TracedModule.clone, insert),
    "insert at": (TracedModule.clone, insert_at),
    "insert many at once": (TracedModule.clone, insert_many_at_once),
    "delete": (TracedModule.clone, delete),
    "replace all uses": (TracedModule.clone, replace_all_uses_in),
    "rename": (TracedModule.clone, rename),
    "undo": (inserted, undo),
    "undo and redo": (inserted, undo_and_redo),
    "log": (inserted, lambda net: net.edit_log.to_text()),
    "flatten": (nothing, TracedModule.flatten),
    "optimize": (nothing, lambda net: optimize(net, "all")),
    "lower": (nothing, lower),
    "passes of ops": (lower, lambda net: run_passes(net.graph)),
    "run": (nothing, run),
    "print": (nothing, repr),
    "dot": (nothing, lambda net: to_dot(net.graph)),
    "source": (nothing, to_source),
    "findings": (nothing, findings),
    "diff": (lambda net: (net, inserted(net)), lambda both: diff(*both)),
}


def calls(run: Callable[..., Any], *args: Any) -> int:
    """How many Python and C functions are called."""
    count = 0

    def on_call(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_call)
    try:
        run(*args)
    finally:
        sys.setprofile(None)
    return count


def check(counts: list[int], growth: float) -> None:
    before, after = counts
    assert after <= growth * SLACK * before, f"{after} calls after {before}, where {growth:.3g} times as many were due"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_work_grows_as_the_model_does(operation: str, model: str) -> None:
    ready, counted = OPERATIONS[operation]
    times = 4 if operation == "dot" else 1  # boxes are folded from some number on: to be counted in both
    with max_recursion_limit():
        check([calls(counted, ready(traced(model, size * times))) for size in sizes(model)], 4)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("suffix", [".tm", ".mgt"])
def test_work_of_files_grows_as_the_model_does(suffix: str, model: str, tmp_path: Path) -> None:
    counts = [calls(save_and_load(suffix), traced(model, size), tmp_path) for size in sizes(model)]
    check(counts, 4)


@pytest.mark.parametrize("model", MODELS)
def test_work_of_tracing_grows_as_the_model_does(model: str) -> None:
    check([calls(traced.__wrapped__, model, size) for size in sizes(model)], 4)


@pytest.mark.parametrize("operation", ["diff", "source", "lint", "clone", "flatten", "dot"])
def test_work_on_deep_nests_grows_as_they_do(operation: str) -> None:
    ready, counted = OPERATIONS[operation]
    with max_recursion_limit():
        check([calls(counted, ready(traced("Nest", size))) for size in (60, 240)], 4)


def test_work_of_source_of_a_long_list_of_layers() -> None:
    check([calls(to_source, traced("ManyLayers", size)) for size in (100, 400)], 4)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_work_grows_as_a_chain_of_ten_thousand_does(operation: str) -> None:
    ready, counted = OPERATIONS[operation]
    check([calls(counted, ready(traced("Chain", size))) for size in (2_500, 10_000)], 4)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".tm", ".mgt"])
def test_files_of_ten_thousand_expressions(suffix: str, tmp_path: Path) -> None:
    check([calls(save_and_load(suffix), traced("Chain", size), tmp_path) for size in (2_500, 10_000)], 4)


class _Entry:
    kind = "CallFunction"
    _prev = _next = None
    _key = 0


@pytest.mark.parametrize("place", ["first", "last", "behind the first", "in front of the last", "anywhere"])
def test_keys_follow_the_order_wherever_expressions_are_put(place: str) -> None:
    random = np.random.default_rng(5)
    order: Any = ExprOrder()
    entries: list[Any] = []

    def before() -> Any:
        if place == "last" or not entries:
            return None
        if place == "anywhere":
            return entries[random.integers(len(entries))]
        return {"first": order._first, "behind the first": order._first._next}.get(place, order._last)

    def put_all() -> None:
        for _ in range(2_000):
            entry = _Entry()
            order.insert(entry, before())
            entries.append(entry)

    put_all()
    keys = [e._key for e in order]
    assert keys == sorted(set(keys)) and len(keys) == len(order) == 2_000
