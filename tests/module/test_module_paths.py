"""A submodule is known by the path it was set at first; traced on its own its graph is named so, as in MegEngine."""

import copy
import pickle

import numpy as np
import pytest

import megengine.module as M
from megengine.tensor import tensor
from megengine.traced_module import trace_module


class Sub(M.Module):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.fc = M.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)


class Holder(M.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.sub = Sub("given")
        self.subs = [Sub(), (Sub(), Holder(Sub()))]
        self.by_key = {"a": Sub(), "b": {"c": [Sub()]}}
        self.seq = M.Sequential(Sub(), M.Sequential(Sub(), M.ReLU()))
        self.shared = self.sub

    def forward(self, x):
        return x


def names(module):
    """What MegEngine derives from the path."""
    graph = trace_module(module, tensor(np.ones((2, 4), np.float32))).graph
    assert graph.inputs[0].qualname == graph.qualname
    return graph.name, graph.qualname


@pytest.mark.parametrize(
    ("get", "name", "path"),
    [
        (lambda n: n, "Net", "Net"),
        (lambda n: n.sub, "sub", "sub"),
        (lambda n: n.shared, "sub", "sub"),
        (lambda n: n.subs[0], "subs_0", "subs.0"),
        (lambda n: n.subs[1][0], "subs_1_0", "subs.1.0"),
        (lambda n: n.subs[1][1].inner, "subs_1_1_inner", "subs.1.1.inner"),
        (lambda n: n.by_key["a"], "by_key_a", "by_key.a"),
        (lambda n: n.by_key["b"]["c"][0], "by_key_b_c_0", "by_key.b.c.0"),
        (lambda n: n.seq[0], "seq_0", "seq.0"),
        (lambda n: n.seq[1][0], "seq_1_0", "seq.1.0"),
    ],
)
def test_path_of_a_submodule(get, name, path):
    assert names(get(Net())) == (name, path)


def test_nodes_below_have_the_path():
    graph = trace_module(Net().subs[1][1], tensor(np.ones((2, 4), np.float32))).graph
    found = {n.qualname for n in graph.nodes()}
    assert {"subs.1.1.[x]", "subs.1.1.inner", "subs.1.1.inner.fc.[out]"} <= found
    fc = next(e for e in graph.exprs() if e.name == "inner_out")
    assert fc.meta["module"] == ""


def test_the_first_name_stays_and_holders_go_in_front():
    sub = Sub()
    assert names(sub) == ("Sub", "Sub")
    holder = Holder(sub)
    assert names(sub) == ("inner", "inner")
    holder.other = sub
    assert names(sub) == ("inner", "inner")
    Holder(Holder(holder))
    assert names(sub) == ("inner_inner_inner", "inner.inner.inner")
    assert names(M.Sequential(Sub())[0]) == ("_0", "0")


def test_what_is_set_later_or_appended():
    net = Holder(Sub())
    net.inner.late = [Sub()]
    assert names(net.inner.late[0])[1] == "inner.late.0"
    net.inner.late.append(Sub())
    assert names(net.inner.late[1])[1] == "Sub"
    net.inner.late = net.inner.late
    assert names(net.inner.late[1])[1] == "inner.late.1"


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_keep_the_path(again):
    net = Holder(Holder(Sub()))
    assert names(again(net).inner.inner)[1] == "inner.inner"
    assert names(again(net.inner.inner))[1] == "inner.inner"
    made = again(net)
    outer = M.Module.__new__(Holder)
    Holder.__init__(outer, made)
    assert names(made.inner.inner)[1] == "inner.inner.inner"


def test_modules_and_lists_that_hold_themselves():
    a, b = Holder(None), Sub()
    a.b, b.a = b, a
    assert names(b)[1] in ("b", "b.a.b", "a.b")
    cycle = [Sub()]
    cycle.append(cycle)
    a.cycle = cycle
    assert names(cycle[0])[1].endswith("cycle.0")


def test_the_path_is_no_attribute():
    """Users may call theirs by any name, and it shows in no listing of settings."""
    net = Net()
    net.sub._place = net.sub._path = M.Linear(4, 4)
    assert names(net.sub)[1] == "sub"
    assert not any(value == "sub" for value in vars(net.sub).values())
