"""Modules in modules, deeper than Python's calls can nest: captured, edited, undone, flattened, written and read."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core import deep_calls
from megengine.core.deep_calls import room_left, with_room
from megengine.core.errors import GraphError
from megengine.traced_module import trace_module
from megengine.traced_module.nesting import nesting
from megengine.traced_module.passes import optimize
from megengine.traced_module.pictures.drawing import to_dot
from megengine.traced_module.source import to_source
from megengine.traced_module.traced import TracedModule, lower

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
    return trace_module(nest(400), mge.tensor(X))


def test_it_runs_and_is_flattened(deep: TracedModule) -> None:
    for net in (deep, deep.clone(), deep.flatten(), lower(deep)):
        np.testing.assert_array_equal(net(mge.tensor(X)).numpy(), np.where(X > 0, np.float32(np.inf), 0))
    assert len(deep.flatten().graph.get_method_by_type("__mul__")) == 400
    assert not deep.flatten().graph.child_graphs()


def test_edits_are_undone(deep: TracedModule) -> None:
    net, before = deep.clone(), list(map(repr, deep.graph.exprs()))
    for expr in net.graph.get_method_by_type("__mul__"):
        with expr.graph.insert_exprs():
            expr.graph.replace_node({expr.output: F.exp(expr.output)})
    net.graph.lint()
    assert len(net.graph.get_function_by_type(F.exp)) == 400
    while net.graph.undo():
        pass
    assert list(map(repr, net.graph.exprs())) == before


@pytest.mark.parametrize("suffix", [".tm", ".mgt"])
def test_files(deep: TracedModule, suffix: str, tmp_path: Path) -> None:
    mge.save(deep, tmp_path / f"net{suffix}")
    read = mge.load(tmp_path / f"net{suffix}")
    assert nesting(read) == nesting(deep) == 401
    assert repr(read.flatten()).count("ReLU") == repr(deep.flatten()).count("ReLU") == 1


@pytest.mark.parametrize("of", [to_source, lambda net: to_dot(net.graph), lambda net: net.summary(), optimize])
def test_what_follows_the_hierarchy(of: Callable[[TracedModule], Any], deep: TracedModule) -> None:
    assert str(of(deep)).count("\n") >= 2


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

    with pytest.raises(GraphError, match=r"Endless nest 1 levels deep.*let it loop or raise the limit") as caught:
        trace_module(Endless(), mge.tensor(X))
    assert isinstance(caught.value.__cause__, RecursionError)


def test_a_stack_that_is_too_large() -> None:
    with pytest.raises(RecursionError, match=r"need a stack of 78,125 MiB; at most 1,024"):
        with_room(10_000_000, lambda: None)


def test_a_stack_that_the_system_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = sys.getrecursionlimit(), threading.stack_size()
    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RecursionError, match=r"gives no stack of 39 MiB: can't start"):
        with_room(5_000, lambda: None)
    assert (sys.getrecursionlimit(), threading.stack_size()) == before


def depth_reached(calls: int) -> int:
    return 1 + depth_reached(calls - 1) if calls else 0


def test_room_is_made_and_taken_away() -> None:
    assert with_room(20_000, lambda: depth_reached(19_000)) == 19_000
    assert with_room(room_left() - 20, lambda: threading.current_thread()) is threading.current_thread()
    with pytest.raises(RecursionError, match="maximum recursion depth"):
        depth_reached(19_000)


def test_two_threads_make_room_at_once() -> None:
    before, found = sys.getrecursionlimit(), []
    meet = threading.Barrier(2, timeout=20)

    def one(calls: int) -> None:
        def run() -> None:
            meet.wait()
            found.append(depth_reached(calls))
            meet.wait()

        with_room(calls + 50, run)

    threads = [threading.Thread(target=one, args=(calls,)) for calls in (3_000, 9_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [3_000, 9_000]
    assert sys.getrecursionlimit() == before
    assert not deep_calls._wanted


def test_errors_come_out_as_they_are() -> None:
    def fail() -> None:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        with_room(5_000, fail)


def test_an_interrupt_is_raised_when_what_runs_there_has_ended() -> None:
    ended = []

    def run() -> None:
        time.sleep(0.2)  # until the main thread waits
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.2)
        ended.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            with_room(5_000, run)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [True]
    assert not deep_calls._wanted
