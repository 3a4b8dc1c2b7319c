"""The small tools: paths in modules, tuples, deprecation, recursion, DLPack, futures, naming."""

import sys
import threading
import types
import warnings

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
from megengine.core.errors import DTypeError, GraphError, OptionError, ShapeError
from megengine.dispatch import Op, interpose
from megengine.dispatch.apply import Interposer
from megengine.serialization import dmap, load, save
from megengine.utils import deprecation, dlpack
from megengine.utils.future import Future
from megengine.utils.max_recursion_limit import AlternativeRecursionLimit, max_recursion_limit
from megengine.utils.module_utils import get_expand_structure, set_expand_structure, set_module_mode_safe
from megengine.utils.naming import AutoNaming
from megengine.utils.tensor_sanity_check import TensorSanityCheck
from megengine.utils.tuple_function import get_ndtuple


@pytest.fixture
def net():
    net = M.Sequential(M.Linear(2, 3))
    net.l, net.d, net.t = [M.ReLU(), M.Linear(1, 1)], {"k": M.ReLU(), 3: "three"}, (1, (2, 3))
    return net


def test_paths_in_modules(net):
    assert get_expand_structure(net, "l.0") is net.l[0]
    assert get_expand_structure(net, "d.k") is net.d["k"]
    assert get_expand_structure(net, "d.3") == "three"
    assert get_expand_structure(net, "0.weight") is net[0].weight
    for path, value in (("l.0", 1), ("d.k", 2), ("d.3", 4), ("t.1.0", 5), ("training", False)):
        set_expand_structure(net, path, value)
        assert get_expand_structure(net, path) == value
    assert net.t == (1, (5, 3))


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("nope", AttributeError, "Sequential has no attribute 'nope'"),
        ("l.7", OptionError, "'7' is no position in a list of 2"),
        ("l.x", OptionError, "'x' is no position"),
        ("d.kk", OptionError, "no entry 'kk'; did you mean 'k'"),
        ("", AttributeError, "no attribute ''"),
    ],
)
def test_wrong_paths(net, path, error, text):
    with pytest.raises(error, match=text):
        get_expand_structure(net, path)
    with pytest.raises(error, match=text):
        set_expand_structure(net, path, 1)


def test_mode_for_a_while(net):
    net[0].eval()
    with pytest.raises(RuntimeError, match="inside"), set_module_mode_safe(net):
        assert not any(m.training for m in net.modules())
        raise RuntimeError("inside")
    assert net.training
    assert not net[0].training


def test_tuples():
    assert get_ndtuple(3, n=2) == (3, 3)
    assert get_ndtuple([3, 4], n=2) == (3, 4)
    for value, options, text in (
        ((3,), {"n": 2}, "got 1 number"),
        (0, {"n": 2, "allow_zero": False}, "more than 0"),
        (-1, {"n": 1}, "0 or more"),
    ):
        with pytest.raises(ShapeError, match=text):
            get_ndtuple(value, **options)


def test_old_names_and_defaults_warn():
    relu = deprecation.deprecated_func("1.0", "megengine.functional", "relu", True)
    with pytest.warns(DeprecationWarning, match=r"relu moved in version 1.0; use megengine.functional.relu; this name"):
        assert relu(mge.tensor([-1.0, 2.0])).numpy().tolist() == [0, 2]

    @deprecation.deprecated_kwargs_default("1.1", "b", 1)
    def function(a, b=3):
        return a, b

    with pytest.warns(PendingDeprecationWarning, match="default of 'b' changes after version 1.1"):
        assert function(1) == (1, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert function(1, 2) == function(1, b=2) == (1, 2)


def test_recursion_limits_nest():
    before = sys.getrecursionlimit()

    def deep(n):
        return n and deep(n - 1)

    with max_recursion_limit(), max_recursion_limit():
        assert deep(5000) == 0
    assert sys.getrecursionlimit() == before
    with pytest.raises(ValueError, match="x"), AlternativeRecursionLimit(before + 7):
        assert sys.getrecursionlimit() == before + 7
        raise ValueError("x")
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_dlpack_round_trip(dtype):
    x = mge.tensor(np.arange(6).reshape(2, 3), dtype=dtype)
    back = dlpack.from_dlpack(dlpack.to_dlpack(x))
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(back.numpy(), x.numpy())
    source = np.arange(6, dtype=dtype)
    taken = dlpack.from_dlpack(source)
    source[:] = 0
    assert taken.numpy().tolist() == [0, 1, 2, 3, 4, 5]  # values, not a view
    with pytest.raises(DTypeError, match="expected a DLPack capsule"):
        dlpack.from_dlpack([1, 2])
    with pytest.raises(DTypeError, match="to_dlpack: got list"):
        dlpack.to_dlpack([1])


def test_futures():
    future, got = Future(), []
    reader = threading.Thread(target=lambda: got.append(future.get()))
    reader.start()
    future.set(3)  # comes back because somebody reads
    reader.join()
    assert got == [3]
    with pytest.raises(OptionError, match="set already"):
        future.set(4)
    alone = Future(ack=False)
    alone.set(5)
    assert alone.get() == alone.get() == 5


def test_names_within_scopes():
    AutoNaming.clear()
    AutoNaming.push_scope("a")
    AutoNaming.push_scope("b")
    item = types.SimpleNamespace(name="conv")
    assert AutoNaming.get_scope() == "a.b"
    assert [AutoNaming.gen_name(item) for _ in range(3)] == ["a.b.conv", "a.b.conv[1]", "a.b.conv[2]"]
    AutoNaming.pop_scope()
    AutoNaming.pop_scope()
    assert AutoNaming.gen_name(M.ReLU()) == "ReLU"
    with pytest.raises(OptionError, match="there is no scope"):
        AutoNaming.pop_scope()
    AutoNaming.record_var_name(7, "x")
    assert AutoNaming.get_var_name(7) == "x"
    assert AutoNaming.get_var_name(8) is None
    ops = [types.SimpleNamespace(name=n) for n in "aab"]
    for op in ops:
        AutoNaming.record_opnode(op)
    AutoNaming.remove_duplicate_names()
    assert [op.name for op in ops] == ["a", "a[1]", "b"]
    AutoNaming.clear()
    assert AutoNaming.get_var_name(7) is None


class _Spoils(Interposer):
    def apply(self, op: Op, tensors, attrs, proceed):
        result = proceed()
        tensors[0]._reset(tensors[0] * 0)
        return result


def test_sanity_check_finds_a_changed_input():
    x = mge.tensor([1.0, np.nan])
    with TensorSanityCheck():
        assert (x + 1).numpy()[0] == 2
    with interpose(_Spoils()), pytest.raises(GraphError, match="exp: its input 0 changed"), TensorSanityCheck():
        mge.functional.exp(x)


def test_where_loaded_tensors_go(tmp_path):
    path = tmp_path / "w.pkl"
    save({"w": mge.tensor([1.0])}, path)
    with dmap("test0"), dmap({"xpux": "test0"}):
        assert load(path)["w"].device == "test0"
        assert load(path, map_location="cpu0")["w"].device == "cpu0"
    assert load(path)["w"].device == "cpu0"
