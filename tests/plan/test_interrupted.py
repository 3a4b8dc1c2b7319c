"""Signals reach a plan while it runs, and no plan waits for itself."""

import signal

import numpy as np
import pytest

from megengine.kernels import _core

SIZE = 1 << 20


@pytest.fixture
def interrupt():
    """A function that lets KeyboardInterrupt come after a hundredth of a second of computing."""

    def stop(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, stop)
    yield lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def test_an_interruption_ends_a_plan_between_its_steps(interrupt):
    native, copy = _core.Plan(SIZE, 1), _core.copy_step(SIZE)
    x, y, room = native.add_input(SIZE), native.add_output(SIZE), native.add_arena(0)
    for _ in range(20000):  # seconds
        native.add_step(copy, [x, room])
    native.add_step(copy, [room, y])
    out = np.zeros(SIZE, np.uint8)
    for _ in range(2):  # the second run does not wait for the first
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            native.run([np.ones(SIZE, np.uint8)], [out])
    assert not out.any()  # the last step did not run


def test_a_plan_that_runs_itself_is_refused():
    native, arrays = _core.Plan(0, 1), [np.ones(4, np.uint8)]
    x = native.add_input(4)
    native.add_call(lambda addresses: native.run(arrays, []), [x])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="plan: it is running in this thread, .* compile another plan"):
            native.run(arrays, [])


def test_a_plan_may_run_another():
    inner, outer, arrays, ran = _core.Plan(0, 1), _core.Plan(0, 1), [np.ones(4, np.uint8)], []
    inner.add_call(lambda addresses: ran.append("inner"), [inner.add_input(4)])
    outer.add_call(lambda addresses: inner.run(arrays, []), [outer.add_input(4)])
    outer.run(arrays, [])
    outer.run(arrays, [])
    assert ran == ["inner", "inner"]
