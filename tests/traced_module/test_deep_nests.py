"""Modules in modules, deeper than Python nests calls: edited, undone, flattened; refused, or with the limit raised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import FileFormatError, GraphError
from megengine.core.recursion import max_recursion_limit
from megengine.traced_module import trace_module
from megengine.traced_module.ir.queries import child_graphs
from megengine.traced_module.passes import optimize
from megengine.traced_module.pictures.dot import to_dot
from megengine.traced_module.source import to_source
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.entry import lower

X = np.array([[1, -2, 3]], np.float32)


class Shell(M.Module):
    """Doubles what the module inside it gives."""

    def __init__(self, inner: M.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x) * 2


def nest(levels: int) -> M.Module:
    net: M.Module = M.ReLU()
    for _ in range(levels):
        net = Shell(net)
    return net


@pytest.fixture(scope="module")
def deep() -> TracedModule:
    with max_recursion_limit():
        return trace_module(nest(400), mge.tensor(X))


@pytest.fixture(scope="module")
def too_deep() -> TracedModule:
    """More levels than the limit has calls, so that it is passed however many calls of a level Python counts."""
    with max_recursion_limit():
        return trace_module(nest(1_000), mge.tensor(X))


def depth(net: M.Module) -> int:
    return 1 + (depth(net.inner) if "inner" in dict(net.named_children()) else 0)


def test_it_runs_and_is_flattened(deep: TracedModule) -> None:
    for net in (deep, deep.clone(), deep.flatten(), lower(deep)):
        np.testing.assert_array_equal(net(mge.tensor(X)).numpy(), np.where(X > 0, np.float32(np.inf), 0))
    assert len(deep.flatten().graph.get_method_by_type("__mul__")) == 400
    assert not child_graphs(deep.flatten().graph)


def test_edits_are_undone(deep: TracedModule) -> None:
    net, before = deep.clone(), list(map(repr, deep.graph.exprs()))
    for expr in net.graph.get_method_by_type("__mul__"):
        with expr.top_graph.insert_exprs():
            expr.top_graph.replace_node({expr.output: F.exp(expr.output)})
    net.graph.lint()
    assert len(net.graph.get_function_by_type(F.exp)) == 400
    while net.graph.undo():
        pass
    assert list(map(repr, net.graph.exprs())) == before


@pytest.mark.parametrize("suffix", [".tm", ".mgt"])
def test_files(deep: TracedModule, suffix: str, tmp_path: Path) -> None:
    with max_recursion_limit():
        mge.save(deep, tmp_path / f"net{suffix}")
        read = mge.load(tmp_path / f"net{suffix}")
        assert depth(read) == depth(deep) == 401
    assert repr(read.flatten()).count("ReLU") == repr(deep.flatten()).count("ReLU") == 1


FOLLOWING = [to_source, lambda net: to_dot(net.graph), lambda net: net.summary()]


@pytest.mark.parametrize("of", [*FOLLOWING, optimize])
def test_what_follows_the_hierarchy(of: Callable[[TracedModule], Any], deep: TracedModule) -> None:
    with max_recursion_limit():
        assert str(of(deep)).count("\n") >= 2


@pytest.mark.parametrize("of", [*FOLLOWING[:2], lambda net: trace_module(net, mge.tensor(X))])
def test_what_follows_the_hierarchy_says_that_it_is_too_deep(
    of: Callable[[TracedModule], Any], too_deep: TracedModule
) -> None:
    with pytest.raises(GraphError, match=r"modules nest too deep .* \(1,000 calls\).*sys\.setrecursionlimit"):
        of(too_deep)


def test_a_file_that_is_too_deep_to_be_written_or_read(too_deep: TracedModule, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="nest too deep"):
        mge.save(too_deep, tmp_path / "net.tm")
    assert not list(tmp_path.iterdir())
    with max_recursion_limit():
        mge.save(trace_module(nest(700), mge.tensor(X)), tmp_path / "net.tm")
    with pytest.raises(FileFormatError, match=r"nest too deep .*sys\.setrecursionlimit"):
        mge.load(tmp_path / "net.tm")


def test_traced_again(deep: TracedModule) -> None:
    with max_recursion_limit():
        again = trace_module(deep, mge.tensor(X))
        assert repr(again).splitlines()[1:] == repr(deep).splitlines()[1:] and depth(again) == 401


class Around(Shell):
    def forward(self, x: Any) -> Any:
        return self.inner(x)


def around(levels: int, leaf: M.Module) -> M.Module:
    for _ in range(levels):
        leaf = Around(leaf)
    return leaf


@pytest.mark.parametrize("levels", [1, 60, 150])
def test_plain_modules_are_called(levels: int) -> None:
    np.testing.assert_array_equal(around(levels, M.ReLU())(mge.tensor(X)).numpy(), np.maximum(X, 0))


def test_errors_of_deep_modules_tell_where() -> None:
    class Fails(M.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("in the innermost")

    for levels in (3, 100):
        with pytest.raises(ValueError, match="in the innermost") as caught:
            around(levels, Fails())(mge.tensor(X))
        assert caught.value.__notes__ == [f"in module {'.'.join(['inner'] * levels)}, Fails(), of Around"]


def test_plain_modules_are_printed() -> None:
    lines = repr(around(100, M.ReLU())).splitlines()
    assert lines[0] == "Around(" and len(lines) == 201 and lines[100] == "  " * 100 + "(inner): ReLU()"


class Endless(M.Module):
    def forward(self, x: Any) -> Any:
        return self(x)


@pytest.mark.parametrize("levels", [0, 20])
def test_a_module_that_calls_itself_without_end(levels: int) -> None:
    """It ends, and what comes after it runs."""
    with pytest.raises(RecursionError, match="maximum recursion depth"):
        around(levels, Endless())(mge.tensor(X))
    assert around(100, M.ReLU())(mge.tensor(X)).shape == (1, 3)


def test_state_dict_and_modules() -> None:
    net = nest(1_100)
    net.inner.weight = mge.Parameter(X)
    assert list(net.state_dict()) == ["inner.weight"]
    assert len(list(net.modules())) == 1_101
    assert not net.eval().inner.inner.training


def test_a_forward_that_calls_itself_without_end() -> None:
    class Endless(M.Module):
        def forward(self, x: Any) -> Any:
            return self.forward(x)

    with pytest.raises(
        GraphError, match=r"trace_module: modules nest too deep.*let it loop, or raise the limit"
    ) as caught:
        trace_module(Endless(), mge.tensor(X))
    assert isinstance(caught.value.__cause__, RecursionError)
