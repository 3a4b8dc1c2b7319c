"""Results in dicts: nodes stand by sorted keys as in MegEngine 1.13, and a call gives the module's order."""

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
import megengine.traced_module as tm
from megengine.core import pytree
from megengine.traced_module import trace_module


class Answers(M.Module):
    def forward(self, x):
        return {"z": x + 1, "a": x * 2, "m": {"q": x - 1, "b": (x + 2, x + 3)}}


class Asks(M.Module):
    def __init__(self):
        super().__init__()
        self.inner = Answers()

    def forward(self, x):
        found = self.inner(x)
        return {"w": found["z"], "c": found["m"]["b"][0]}


def test_results_in_dicts_stand_by_sorted_keys():
    """The order of MegEngine 1.13; a call gives a dict in the order in which the module made it."""
    x = mge.tensor([1.0, 2.0])
    traced = tm.trace_module(Answers(), x)
    wanted = ["mul_out", "add_out_1", "add_out_2", "sub_out", "add_out"]
    assert [n.name for n in traced.graph.outputs] == wanted
    found = traced(x)
    assert list(found) == ["z", "a", "m"] and list(found["m"]) == ["q", "b"]
    assert [found["z"].tolist(), found["a"].tolist(), found["m"]["q"].tolist()] == [[2, 3], [2, 4], [0, 1]]
    outer = tm.trace_module(Asks(), x)
    assert [n.name for n in outer.graph.outputs] == ["inner_out_1", "inner_out_4"]
    for again in (outer, outer.flatten(), tm.lower(outer)):
        assert {k: v.tolist() for k, v in again(x).items()} == {"w": [2, 3], "c": [3, 4]}


def test_keys_without_an_order_stay_as_they_are():
    class Mixed(M.Module):
        def forward(self, x):
            return {3: x + 1, "k": x * 2}

    traced = tm.trace_module(Mixed(), mge.tensor([1.0]))
    assert [n.name for n in traced.graph.outputs] == ["add_out", "mul_out"]


@pytest.mark.parametrize("suffix", ["mgt", "tm"])
def test_files_keep_results_in_dicts(suffix, tmp_path):
    """`.tm` keeps sorted keys, `.mgt` the order of the dict too."""
    x = mge.tensor([1.0, 2.0])
    traced = tm.trace_module(Asks(), x)
    mge.save(traced, tmp_path / f"net.{suffix}")
    again = mge.load(tmp_path / f"net.{suffix}")
    assert [n.name for n in again.graph.outputs] == [n.name for n in traced.graph.outputs]
    assert {k: v.tolist() for k, v in again(x).items()} == {"w": [2, 3], "c": [3, 4]}
    assert list(again(x)) == (["w", "c"] if suffix == "mgt" else ["c", "w"])


def test_files_with_dicts_in_the_order_of_their_keys(tmp_path, monkeypatch):
    """As files were written before leaves of dicts had sorted keys."""
    x = mge.tensor([1.0, 2.0])
    with monkeypatch.context() as before:
        before.setattr(pytree, "keys_in_order", tuple)
        old = tm.trace_module(Asks(), x)
        assert [n.name for n in old.graph.outputs] == ["inner_out", "inner_out_3"]
        mge.save(old, tmp_path / "old.mgt")
    again = mge.load(tmp_path / "old.mgt")
    assert [n.name for n in again.graph.outputs] == ["inner_out_3", "inner_out"]
    for model in (again, again.flatten(), tm.lower(again)):
        assert {k: v.tolist() for k, v in model(x).items()} == {"w": [2, 3], "c": [3, 4]}
    again.graph.lint()


@pytest.mark.parametrize("nest", [lambda a, b: {"a": a, "nothing": None, "many": 3}, lambda a, b: (a, None, b)])
def test_results_that_are_no_tensors_stay_beside_a_new_one(nest, tmp_path):
    class Net(M.Module):
        def forward(self, x):
            return nest(x * 2, x + 1)

    x = mge.tensor(np.arange(3, dtype=np.float32))
    start = trace_module(Net(), x)
    model = start.clone()
    model.graph.add_output_node("mul_out")
    want = nest(x * 2, x + 1)
    before, value = model(x)
    assert repr(before) == repr(want)
    np.testing.assert_array_equal(value.numpy(), [0, 2, 4])
    model.graph.reset_outputs([None, {"b": model.graph.node("mul_out"), "c": None}])
    mge.save(model, tmp_path / "net.mgt")
    again = start.clone()
    model.edit_log.replay(again)
    for one in (model, mge.load(tmp_path / "net.mgt"), again):
        assert repr(one(x)) == repr([None, {"b": x * 2, "c": None}])
