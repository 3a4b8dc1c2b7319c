"""Modules in modules, deeper than Python's calls can nest: captured, edited, undone, flattened, written and read."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.autodiff import GradManager
from megengine.core import deep_calls
from megengine.core.deep_calls import room_left, with_room
from megengine.core.errors import GraphError
from megengine.traced_module import trace_module
from megengine.traced_module.nesting import nesting
from megengine.traced_module.passes import optimize
from megengine.traced_module.pictures.dot import to_dot
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


def test_traced_again(deep: TracedModule) -> None:
    again = trace_module(deep, mge.tensor(X))
    assert repr(again).splitlines()[1:] == repr(deep).splitlines()[1:] and nesting(again) == 401


class Around(Shell):
    def forward(self, x: Any) -> Any:
        return self.inner(x)


def around(levels: int, leaf: M.Module) -> M.Module:
    for _ in range(levels):
        leaf = Around(leaf)
    return leaf


@pytest.mark.parametrize("levels", [1, 150, 400, 3_000])
def test_plain_modules_are_called(levels: int) -> None:
    limit = sys.getrecursionlimit()
    np.testing.assert_array_equal(around(levels, M.ReLU())(mge.tensor(X)).numpy(), np.maximum(X, 0))
    assert sys.getrecursionlimit() == limit


def test_plain_modules_are_trained_and_have_hooks() -> None:
    net, seen = around(400, M.Linear(3, 1)), []
    for module in net.modules():
        module.register_forward_hook(lambda module, inputs, output: seen.append(threading.get_ident()))
    with GradManager().attach(net.parameters()) as manager:
        manager.backward(net(mge.tensor(X)).sum())
    assert len(seen) == 401 and len(set(seen)) == 2  # inner ones ran on a thread with a larger stack
    *_, leaf = net.modules()
    np.testing.assert_array_equal(leaf.weight.grad.numpy(), X)


def test_errors_of_deep_modules_tell_where() -> None:
    class Fails(M.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("in the innermost")

    for levels in (3, 600):
        with pytest.raises(ValueError, match="in the innermost") as caught:
            around(levels, Fails())(mge.tensor(X))
        assert caught.value.__notes__ == [f"in module {'.'.join(['inner'] * levels)}, Fails(), of Around"]


def test_plain_modules_are_printed() -> None:
    lines = repr(around(400, M.ReLU())).splitlines()
    assert lines[0] == "Around(" and len(lines) == 801 and lines[400] == "  " * 400 + "(inner): ReLU()"


class Endless(M.Module):
    def forward(self, x: Any) -> Any:
        return self(x)


@pytest.mark.parametrize("levels", [0, 20, 400])
def test_a_module_that_calls_itself_without_end(levels: int) -> None:
    """It ends, and what comes after it runs."""
    limit, threads = sys.getrecursionlimit(), threading.active_count()
    with pytest.raises(RecursionError, match="maximum recursion depth"):
        around(levels, Endless())(mge.tensor(X))
    assert (sys.getrecursionlimit(), threading.active_count()) == (limit, threads)
    assert around(400, M.ReLU())(mge.tensor(X)).shape == (1, 3)


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
        GraphError, match=r"trace_module: .* Endless nest 1 levels deep.*let it loop or raise the limit"
    ) as caught:
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


@pytest.mark.parametrize("error", [KeyError("in"), SystemExit(3), GeneratorExit("in"), RecursionError("in")])
def test_errors_come_out_as_they_are(error: BaseException) -> None:
    def fail() -> None:
        raise error

    limit, threads = sys.getrecursionlimit(), threading.active_count()
    with pytest.raises(type(error)) as caught:
        with_room(5_000, fail)
    assert caught.value is error
    assert (sys.getrecursionlimit(), threading.active_count()) == (limit, threads)


def test_the_stack_is_as_large_as_the_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python lets every thread nest to one limit: a smaller stack would end the process."""
    sizes = []
    real = threading.stack_size
    monkeypatch.setattr(threading, "stack_size", lambda size=0: (sizes.append(size), real(size))[1])

    def low(left: int) -> int:
        return low(left) if room_left() > left else with_room(left + 50, lambda: 1)

    assert low(100) == 1
    assert sizes[0] == sys.getrecursionlimit() * deep_calls.BYTES_PER_CALL


def test_what_runs_there_sees_the_context_of_the_caller() -> None:
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("before")
    assert with_room(5_000, lambda: (variable.get(), variable.set("inside"))[0]) == "before"
    assert variable.get() == "before"


@pytest.mark.parametrize("started", [False, True])
def test_an_interrupt_while_the_thread_is_started(started: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    real, ran = deep_calls._start, []

    def interrupted(thread: threading.Thread, size: int) -> None:
        if started:
            real(thread, size)
        raise KeyboardInterrupt

    monkeypatch.setattr(deep_calls, "_start", interrupted)
    limit, threads = sys.getrecursionlimit(), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        with_room(5_000, lambda: ran.append(True))
    assert (sys.getrecursionlimit(), threading.active_count()) == (limit, threads)
    assert len(ran) <= started


def test_a_second_interrupt_is_raised_at_once() -> None:
    waits, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        main = threading.main_thread().ident or 0
        signal.pthread_kill(main, signal.SIGINT)
        while not waits.is_set():  # the first one was heard, and the main thread waits
            time.sleep(0.01)
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)
        goes_on.wait(20)
        ended.set()

    def heard(number: int, frame: Any) -> None:
        waits.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, heard)
    try:
        with pytest.raises(KeyboardInterrupt):
            with_room(5_000, run)
        assert not ended.is_set()
    finally:
        goes_on.set()
        signal.signal(signal.SIGINT, before)
    assert ended.wait(20)
    assert not deep_calls._wanted


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
