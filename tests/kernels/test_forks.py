"""Children forked while other threads compute: plans, eager calls, training and loaders work in them."""

import builtins
import importlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.kernels import _core, forks
from megengine.kernels.kernel import EagerKernel
from megengine.kernels.registry import family
from megengine.traced_module import trace_module

ROUNDS = Path(__file__).parent.parent / "helpers" / "fork_rounds.py"


def rounds(kinds: str, count: int) -> str:
    done = subprocess.run([sys.executable, ROUNDS, kinds, str(count)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_children_of_a_process_whose_threads_run_plans_and_eager_calls():
    assert rounds("plan,eager", 6) == "6 of 6"


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["plan", "python", "eager", "matmul", "svd", "loader", "train", "plan,train,threads"])
def test_many_forks_beside(kinds):
    count = 10 if kinds == "svd" else 25  # each child starts the threads of LAPACK anew, which takes a second
    assert rounds(kinds, count) == f"{count} of {count}"


@pytest.mark.parametrize("way", ["threads", "fork"])
def test_a_file_is_loaded_while_another_thread_imports_what_reads_it(way, tmp_path):
    mge.save(trace_module(M.ReLU(), tensor([1.0])), tmp_path / "net.tm")
    script = ROUNDS.with_name("load_in_threads.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path / "net.tm", way], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def slow_exp():
    """A kernel of `exp` that says when it runs and ends when it is told to."""
    began, go_on = threading.Event(), threading.Event()

    def run(problem, x):
        began.set()
        assert go_on.wait(20)
        return np.exp(x)

    with family("exp").planted(EagerKernel("waiting_exp", run)):
        yield began, go_on
        go_on.set()


def in_child(work) -> int:
    child = os.fork()
    if child == 0:
        try:
            os._exit(work())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_waits_for_the_kernels_that_run_and_others_wait_for_the_fork(slow_exp):
    began, go_on = slow_exp
    x, done = tensor([0.0]), []
    thread = threading.Thread(target=lambda: done.append(F.exp(x).item()))
    thread.start()
    assert began.wait(20)
    threading.Timer(0.1, go_on.set).start()
    assert in_child(lambda: int(F.exp(x).item())) == 1
    assert go_on.is_set()
    thread.join(20)
    assert done == [1]


def test_a_fork_does_not_wait_for_ever(slow_exp):
    began, go_on = slow_exp
    thread = threading.Thread(target=lambda: F.exp(tensor([0.0])))
    thread.start()
    assert began.wait(20)
    start = time.monotonic()
    _core.before_fork(0.05)  # what `os.fork` calls, with a longer limit
    _core.after_fork_in_parent()
    assert 0.04 < time.monotonic() - start < forks.LONGEST_WAIT
    go_on.set()
    thread.join(20)


def test_a_kernel_may_fork():
    forked = []

    def run(problem, x):
        forked.append(in_child(lambda: int((tensor([1.0]) * 5 + F.sqrt(tensor([4.0]))).item())))
        return np.exp(x)

    with family("exp").planted(EagerKernel("forking_exp", run)):
        F.exp(tensor([0.0]))
    assert forked == [7]


def importing(name) -> threading.Thread:
    """A thread that is in the middle of an import."""
    thread = threading.Thread(target=lambda: importlib.import_module(name))
    thread.start()
    while name not in sys.modules:
        time.sleep(0.001)
    return thread


def test_a_fork_waits_for_imports_of_other_threads(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.3)\nready = 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    thread = importing("slow_to_import")
    assert in_child(lambda: importlib.import_module("slow_to_import").ready) == 5
    thread.join()
    sys.modules.pop("slow_to_import")


def test_a_fork_does_not_wait_for_ever_for_an_import(tmp_path, monkeypatch):
    (tmp_path / "runs_on.py").write_text("import time\nwhile not done:\n    time.sleep(0.01)\n".replace("done", "DONE"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(forks, "LONGEST_IMPORT", 0.1)
    monkeypatch.setattr(builtins, "DONE", False, raising=False)
    thread = importing("runs_on")
    assert in_child(lambda: 3) == 3
    monkeypatch.setattr(builtins, "DONE", True, raising=False)  # it was still being imported
    thread.join(20)
    sys.modules.pop("runs_on")
