"""Arguments of recorded calls by name, and what expressions without arguments say, as in MegEngine 1.13."""

import pytest

import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.traced_module import trace_module
from megengine.traced_module.expr import CallFunction, Constant, GetAttr, Input


class Calls(M.Module):
    def __init__(self):
        super().__init__()
        self.weight = tensor([[2.0, 3.0]])

    def forward(self, x):
        y = -(1 - x @ self.weight) + tensor([4.0])
        y[0] = 5
        return y[1].astype("int32").sum(0) + y.reshape(-1, 1)


@pytest.fixture
def graph():
    return trace_module(Calls(), tensor([[1.0], [2.0]])).graph


# printed by the real MegEngine 1.13
NAMES = {
    "__matmul__": ["self", "other"],
    "__rsub__": ["self", "value"],
    "__neg__": ["self"],
    "__add__": ["self", "value"],
    "__setitem__": ["self", "index", "value"],
    "__getitem__": ["self", "index"],
    "astype": ["self", "dtype"],
    "sum": ["self", "axis", "keepdims"],
    "reshape": ["self", "args"],
}


@pytest.mark.parametrize("method", NAMES)
def test_arguments_of_methods_have_the_names_of_megengine(graph, method):
    call = graph.get_method_by_type(method).as_list()[0]
    assert list(call.named_args) == NAMES[method]


def test_arguments_are_set_by_these_names():
    traced = trace_module(Calls(), tensor([[1.0], [2.0]]))
    graph = traced.graph
    graph.get_method_by_type("__setitem__").as_unique().set_arg("value", 7)
    graph.get_method_by_type("__getitem__").as_unique().set_arg("index", 0)
    assert traced(tensor([[1.0], [2.0]])).tolist() == [[21.0], [21.0], [21.0], [23.0]]


def test_what_calls_nothing_has_no_arguments(graph):
    plain = [e for e in graph.exprs() if isinstance(e, (Input, GetAttr, Constant))]
    assert {type(e) for e in plain} == {Input, GetAttr, Constant}
    for expr in plain:
        assert expr.const_val is expr.arg_def is expr.out_def is None
        with pytest.raises(AttributeError):
            expr.const_val = []


def test_options_of_new_tensors_are_recorded_by_name():
    # MegEngine takes them by name only: it cannot run a file in which they have places
    class Made(M.Module):
        def forward(self, x):
            return x + F.arange(2) + F.linspace(0, 1, 2)

    graph = trace_module(Made(), tensor([1.0, 2.0])).graph
    calls = [str(e).partition("= ")[2] for e in graph.exprs() if isinstance(e, CallFunction)]
    assert calls == [
        "tensor.arange(2, None, 1, device=None, dtype=float32)",
        "tensor.linspace(0, 1, 2, device=None, dtype=float32)",
    ]


@pytest.mark.parametrize("call", [lambda: F.arange(0, 4, 1, "int32"), lambda: F.linspace(0, 4, 5, "int32")])
def test_options_of_new_tensors_are_given_by_name(call):
    with pytest.raises(TypeError, match="expected (arange|linspace)"):
        call()
