"""Time of each expression."""

import json
import time

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import traced_module as tm
from megengine.core.errors import GraphError, OptionError
from megengine.tensor import tensor


class Slow(M.Module):
    """A layer that takes its time."""

    def forward(self, x):
        time.sleep(0.02)
        return x + 0


class Inner(M.Module):
    def __init__(self):
        super().__init__()
        self.slow = Slow()

    def forward(self, x):
        return F.relu(self.slow(x))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.fc = Inner(), M.Linear(3, 3)

    def forward(self, x):
        return {"y": self.fc(self.inner(self.inner(x)))}


@pytest.fixture(scope="module", autouse=True)
def slow_is_a_layer():
    tm.register_as_builtin(Slow)


x = tensor(np.ones((2, 3), np.float32))


def test_each_call_is_timed_where_it_is_made():
    module = tm.trace_module(Net(), x)
    found = tm.profile(module, x, runs=3)
    by_name = {one.name: one for one in found.timings}
    assert list(by_name) == [e.name for e in module.graph.exprs() if e.kind in ("CallMethod", "CallFunction")]
    slow = by_name["slow_out"]
    assert (slow.called, slow.module, slow.calls) == ("Slow", "inner.slow", 2)
    assert slow.seconds >= 0.04
    assert slow.source.startswith("test_profiling.py:") and by_name["fc_out"].calls == 1
    assert found.runs == 3 and found.seconds >= slow.seconds
    np.testing.assert_array_equal(found.outputs[0].numpy(), module(x)["y"].numpy())
    assert sum(one.seconds for one in found.timings) <= 1.5 * found.seconds


def test_text_and_plain_values():
    found = tm.profile(tm.trace_module(Net(), x), x=x, runs=1)
    lines = found.to_text().splitlines()
    assert lines[0].split() == ["call", "of", "module", "times", "ms", "share"]
    assert lines[2].split()[:4] == ["slow_out", "Slow", "inner.slow", "2"] and "ms a run, median of 1" in lines[-1]
    assert repr(found) == found.to_text() and max(map(len, found.to_text(60).splitlines())) <= 60
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["name"] == "Net" and [one["calls"] for one in plain["timings"]] == [1, 2, 2, 1, 1]


def test_graphs_of_ops_are_timed_too():
    class Plain(M.Module):
        def forward(self, x):
            return F.exp(F.relu(x))

    found = tm.profile(tm.lower(tm.trace_module(Plain(), x)), x, runs=1)
    assert [(one.called, one.calls) for one in found.timings] == [("relu", 1), ("exp", 1)]


def test_wrong_use():
    module = tm.trace_module(Net(), x)
    with pytest.raises(OptionError, match="profile: got Net; expected a TracedModule"):
        tm.profile(Net(), x)  # pyright: ignore[reportArgumentType]
    for runs in (0, True, 1.5):
        with pytest.raises(OptionError, match=f"runs is {runs!r}; expected a count"):
            tm.profile(module, x, runs=runs)  # pyright: ignore[reportArgumentType]
    with pytest.raises(GraphError, match="was not traced with these arguments"):
        tm.profile(module, [x])
