"""Capture: tensors that a forward makes of its values follow the inputs, and what cannot follow them is told."""

import copy
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from capturing import module_of

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import DTypeError, FileFormatError
from megengine.tensor import Parameter, Tensor, tensor
from megengine.traced_module import SpecializationWarning, lower, trace_module
from megengine.traced_module.formats import tm_tensors
from megengine.traced_module.source import to_source

X = np.arange(6, dtype=np.float32).reshape(2, 3)
OTHERS = (X[::-1] + 1, np.arange(12, dtype=np.float32).reshape(4, 3))


def assigned(y, value):
    y[0] = value
    return y


def taken(y, value):
    y.set_value(value)
    return y * 1


RECORDED = {
    "Tensor": lambda s, x: Tensor(x) * 2,
    "tensor": lambda s, x: mge.tensor(data=x, device="cpu0") * 2,
    "dtype": lambda s, x: Tensor(x, dtype="int32") * 2,
    "Parameter": lambda s, x: F.relu(Parameter(x)),
    "parameter of the module": lambda s, x: x + Tensor(s.w) * 2,
    "values among numbers": lambda s, x: Tensor([1, x.sum(), 1]) * 2,
    "lengths among numbers": lambda s, x: tensor([1, x.shape[0], 1], dtype="float32") * 2,
    "nested": lambda s, x: tensor([[x[0, 0], 1.5], (x.shape[0], x[1, 0])]),
    "truth values": lambda s, x: tensor([True, x.sum() > 20]),
    "arrays and values": lambda s, x: tensor([np.ones(3, np.float32), x[0]]),
    "whole values": lambda s, x: Tensor([x, x]),
    "shape": lambda s, x: tensor(x.shape) * x.sum(),
    "copy": lambda s, x: copy.copy(x) * 2,
    "deepcopy": lambda s, x: copy.deepcopy({"a": [x]})["a"][0] * 2,
    "stack": lambda s, x: F.stack([x, Tensor(x)]),
    "full": lambda s, x: F.full((x.shape[0], 2), 3.0) + x.mean(),
    "arange": lambda s, x: F.arange(x.shape[0]) + tensor([x.shape[0]]),
    "assignment to a copy": lambda s, x: assigned(Tensor(x), 5) + x,
    "set_value of values": lambda s, x: taken(x + 0, x * 3),
    "set_value of a sequence": lambda s, x: taken(x + 0, [x.sum(), 1.0]),
    "set_value of numbers": lambda s, x: taken(x + 0, [1.0, 2.0, 3.0]) + x,
    "reset_zero": lambda s, x: (lambda y: (y.reset_zero(), y + x)[1])(x + 0),
    "_reset": lambda s, x: (lambda y: (y._reset(x * 2), y * 1)[1])(x + 0),
    "size": lambda s, x: x * x.size + x.numel(),
}


@pytest.mark.parametrize("forward", RECORDED.values(), ids=RECORDED)
def test_tensors_made_of_values_follow_the_inputs(forward):
    net = module_of(forward, w=Parameter(np.ones(3, np.float32)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = trace_module(net, tensor(X))
    for x in (X, *OTHERS):
        want = net(tensor(x))
        got = traced(tensor(x))
        np.testing.assert_array_equal(got.numpy(), want.numpy())
        assert got.dtype == want.dtype
    np.testing.assert_array_equal(lower(traced)(tensor(OTHERS[0])).numpy(), net(tensor(OTHERS[0])).numpy())


TOLD = {
    "numpy": lambda x: tensor(x.numpy()),
    "asarray": lambda x: tensor(np.asarray(x.shape)) * x.sum(),
    "dlpack": lambda x: x + tensor(np.from_dlpack(x)),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)) * 2,
    "in": lambda x: x * 2 if 1.0 in x else x,
    "tolist": lambda x: tensor(x.tolist()),
    "len": lambda x: x * len(x),
    "iteration": lambda x: sum(row for row in x),
}


@pytest.mark.parametrize("forward", TOLD.values(), ids=TOLD)
def test_values_and_lengths_that_leave_the_trace_are_told(forward):
    with pytest.warns(SpecializationWarning, match=r"test_capture_constructions.py:\d+: .* specialised to this"):
        trace_module(module_of(lambda s, x: forward(x)), tensor(X))


class Child(M.Module):
    def forward(self, x):
        self.seen = x * 3
        return x + 1


class Reader(M.Module):
    def __init__(self):
        super().__init__()
        self.kept = tensor(np.zeros((2, 3), np.float32))

    def forward(self, x):
        return x + self.kept


def reading_down(self, x):
    self.inner.kept = x * 2
    return self.inner(x)


def reading_up(self, x):
    return self.inner(x) + self.inner.seen


@pytest.mark.parametrize(("forward", "inner"), [(reading_down, Reader), (reading_up, Child)])
def test_values_that_pass_between_modules_as_attributes_are_told(forward, inner):
    net = module_of(forward, inner=inner())
    with pytest.warns(SpecializationWarning, match=r"the value, from outside the call, .*pass it to the module as an"):
        traced = trace_module(net, tensor(X))
    np.testing.assert_array_equal(traced(tensor(X)).numpy(), net(tensor(X)).numpy())


def test_a_layer_made_in_the_forward_is_no_change_of_the_graph():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = trace_module(module_of(lambda s, x: M.Linear(3, 4)(x)), tensor(X))
    assert traced(tensor(X)).shape == (2, 4)


def test_what_cannot_be_made_of_values_is_refused():
    quantized = mge.core.dtype.qint8(0.5)
    with pytest.raises(DTypeError, match=r"expected no scale; use astype"):
        trace_module(module_of(lambda s, x: Tensor(x, dtype=quantized)), tensor(X))
    with pytest.raises(DTypeError, match="rectangular nesting"):
        trace_module(module_of(lambda s, x: Tensor([x[0, 0], [x[0]]])), tensor(X))


def made(s, x):
    y = mge.Tensor(x) * 2 + mge.tensor([1.5, x.shape[1], x.sum()], dtype="float32")
    return y + mge.tensor([x[0, 0], 2.0, x[0, 1]])


def test_names_of_made_tensors_are_megengines():
    traced = trace_module(module_of(made), tensor(X))
    named = [(n.name, n.qualname) for n in traced.graph.nodes() if n.name.startswith("new")]
    assert named == [(f"new_out{i}", "Net.[method_new]") for i in ("", "_1", "_2")]
    assert traced.graph.node("new_out_1").expr.args[0][0] == 1.5


@pytest.mark.parametrize("suffix", ["tm", "mgt"])
def test_made_tensors_are_in_files(tmp_path, suffix):
    net = module_of(made)
    traced = trace_module(net, tensor(X))
    mge.save(traced, tmp_path / f"a.{suffix}")
    again = mge.load(tmp_path / f"a.{suffix}")
    assert repr(again) == repr(traced)
    np.testing.assert_array_equal(again(tensor(OTHERS[1])).numpy(), net(tensor(OTHERS[1])).numpy())


def test_made_tensors_of_megengines_files_are_read():
    traced = mge.load(Path(__file__).parents[1] / "data" / "megengine" / "made_tensors.tm")
    x = tensor(np.array([[4, 5, 6], [1, 2, 3]], np.float32))
    np.testing.assert_array_equal(traced(x).numpy(), np.array([[25.5, 23, 63], [7.5, 11, 42]], np.float32))


def test_made_tensors_of_no_tensor_class_are_refused():
    with pytest.raises(FileFormatError, match="calls __new__ of something that is no class of tensors"):
        tm_tensors.without_class([(0, "os.system")])


def test_made_tensors_are_written_as_source():
    assert "mge.tensor([1.5, " in to_source(trace_module(module_of(made), tensor(X)))
