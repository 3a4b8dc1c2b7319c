"""Loaders that users register bring calls of older `.tm` files up to date, as in MegEngine 1.13."""

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core._imperative_rt.core2 import apply
from megengine.core.errors import FileFormatError, GraphError
from megengine.core.ops import builtin
from megengine.traced_module import register_as_builtin, trace_module, wrap
from megengine.traced_module.expr import CallFunction, CallMethod
from megengine.traced_module.formats import tm_loaders
from megengine.traced_module.serialization import (
    register_functional_loader,
    register_module_loader,
    register_opdef_loader,
    register_tensor_method_loader,
)

X = mge.tensor(np.array([[-1.0, 2.0, 5.0]], np.float32))


@wrap
def scaled(x, factor, bias=0):
    return x * factor + bias


@register_as_builtin
class Shift(M.Module):
    def __init__(self):
        super().__init__()
        self.by = 1

    def forward(self, x):
        return x + self.by


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.shift = Shift()

    def forward(self, x):
        (x,) = apply(builtin.Elemwise(mode="RELU"), self.shift(scaled(x, 2, bias=1)))
        return x.sum()


@pytest.fixture
def reread(tmp_path, monkeypatch):
    """Gives the result of the net after it was saved and loaded; (old, new) parts of the file may be exchanged."""
    for table in ("_functions", "_methods", "_modules", "_ops"):
        monkeypatch.setattr(tm_loaders, table, {})
    path = tmp_path / "net.tm"
    mge.save(trace_module(Net(), X), path)

    def result(old=b"", new=b""):
        path.write_bytes(path.read_bytes().replace(old, new))
        traced = mge.load(path, allow=[Shift])
        traced.graph.lint()
        return traced(X).numpy().item()

    return result


def total(factor=2, bias=1, by=1, act=lambda v: np.maximum(v, 0), end=np.sum):
    return pytest.approx(float(end(act(X.numpy() * factor + bias + by))), rel=1e-5)


def test_a_loader_gives_a_function_other_arguments(reread):
    seen = []

    @register_functional_loader((__name__, "scaled"))
    def bias_is_gone(expr):
        seen.append((type(expr).__bases__[-1], expr.func, expr.args[1:], expr.kwargs, expr.version, str(expr)))
        expr.set_args_kwargs(expr.args[0], 3)

    assert reread() == total(3, 0)
    assert seen[0][:5] == (CallFunction, scaled, (2, 1), {}, "1.13.0") and "scaled(x, 2, 1, )" in seen[0][5]
    assert bias_is_gone.__name__ == "bias_is_gone"


def test_a_loader_replaces_a_function_that_is_gone(reread):
    with pytest.raises(FileFormatError, match="unknown function .*scalex"):
        reread(b"scaled", b"scalex")

    @register_functional_loader((__name__, "scalex"))
    def renamed(expr):
        assert expr.func == (__name__, "scalex")
        expr.func = scaled
        expr.set_arg("bias", 7)

    assert reread() == total(2, 7)


def test_a_function_that_a_loader_names_has_to_be_known(reread):
    @register_functional_loader(scaled)
    def wrong(expr):
        expr.func = ("os", "system")

    with pytest.raises(FileFormatError, match=r"the file calls unknown function 'os\.system'"):
        reread()


def test_a_loader_gives_a_call_another_method_and_constants(reread):
    @register_tensor_method_loader("sum")
    def averaged(expr):
        expr.method = "mean"
        expr.const_val = [(1, 1), (2, False)]

    assert reread() == total(end=np.mean)


def test_a_loader_gives_a_layer_what_it_lacks(reread):
    @register_module_loader((__name__, "Shift"))
    def more(expr):
        assert isinstance(expr, CallMethod) and expr.graph is None
        expr.inputs[0].owner.by = 4

    assert reread() == total(by=4)


def test_a_loader_changes_the_fields_of_an_op(reread):
    @register_opdef_loader(builtin.Elemwise)
    def exponential(expr):
        assert expr.opdef_state == {"mode": "RELU"} and str(expr) == "Elemwise(shift_out)"
        expr.opdef_state["mode"] = "EXP"

    assert reread() == total(act=np.exp)


@pytest.mark.parametrize(
    ("register", "what", "message"),
    [
        (register_functional_loader, "relu", r"got 'relu'; expected \(module, name\)"),
        (register_module_loader, "Conv2d", r"got 'Conv2d'; expected \(module, name\)"),
        (register_tensor_method_loader, mge.Tensor, "expected the name of a method"),
        (register_opdef_loader, 3, "expected a class of ops"),
    ],
)
def test_what_files_cannot_name_is_refused(register, what, message):
    with pytest.raises(GraphError, match=message):
        register(what)


def test_a_second_loader_is_refused_as_there(reread):
    register_functional_loader(F.relu)(str)
    register_functional_loader(F.relu)(str)  # the same one, as of a cell that is run again
    with pytest.raises(AssertionError, match=r"nn\.relu has a loader already"):
        register_functional_loader(("megengine.functional.nn", "relu"))(repr)


def test_errors_of_loaders_name_them(reread):
    @register_tensor_method_loader("sum")
    def broken(expr):
        raise KeyError("no")

    with pytest.raises(FileFormatError, match="the loader of sum raised KeyError: 'no'"):
        reread()


def test_loaders_put_no_tensors_into_calls(reread):
    @register_tensor_method_loader("sum")
    def broken(expr):
        expr.set_args_kwargs(X)

    with pytest.raises(GraphError, match="gets a tensor; expected nodes"):
        reread()
