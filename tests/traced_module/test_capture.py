"""Capture: whatever a forward does with modules, tensors and Python is in the graph, or the user is told."""

import warnings
from collections import OrderedDict

import numpy as np
import pytest
from capturing import array, module_of, same

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, MegEngineError
from megengine.tensor import Parameter, tensor
from megengine.traced_module import (
    SpecializationWarning,
    register_as_builtin,
    trace_module,
    wrap,
)
from megengine.traced_module.ir.functions import qualified_name, wrapped_functions
from megengine.traced_module.pictures.dot import to_dot
from megengine.traced_module.pictures.drawing import to_svg
from megengine.traced_module.pictures.page import to_html
from megengine.traced_module.tracing.calls import builtin_modules
from megengine.traced_module.tracing.entry import lower


class Scaled(M.Module):
    def forward(self, x, y=None, *rest, scale=1.0, **more):
        x = x * scale
        if y is not None:
            x = x + y
        for r in rest:
            x = x - r
        for name in sorted(more):
            x = x * more[name]
        return x


def test_each_structure_of_arguments_has_its_graph():
    def forward(self, a, b):
        once = self.inner(a) + self.inner(a, b)
        more = self.inner(a, b, b, a, scale=2.0) + self.inner(a, scale=2.0, z=b, w=a) + self.inner(scale=2.0, x=a)
        return once * more

    traced = same(module_of(forward, inner=Scaled()), tensor(array(2, 3)), tensor(array(2, 3, seed=1)))
    assert len(traced.inner.graphs) == 5
    with pytest.raises(GraphError, match="has 5 graphs; expected one"):
        _ = traced.inner.graph
    with pytest.raises(GraphError, match=r"was not traced with these arguments .*scale=7.0.*trace it again"):
        traced.inner(tensor(array(2, 3)), scale=7.0)


def test_one_tensor_for_two_arguments():
    def forward(self, x):
        return self.inner(x, x) + self.inner(x + 1, x)

    traced = same(module_of(forward, inner=Scaled()), tensor(array(2, 3)))
    calls = traced.graph.get_method_by_type("__call__", recursive=False)
    assert [n.name for n in calls[0].inputs] == ["inner", "x", "x"]
    inner = traced.inner.graph
    assert [n.name for n in inner.get_method_by_type("__add__")[0].inputs] == ["mul_out", "y"]


def test_arguments_and_results_nest_and_keep_their_order():
    def forward(self, parts, table, flag, *, gain):
        a, (b, c) = parts
        out = OrderedDict(z=a + table["u"], a=[b, {"y": c * gain, "b": table["k"] if flag else None}])
        return out, (a,), None, 3

    x = tensor(array(2))
    args = ((x, (x + 1, x + 2)), {"u": x, "k": x * 2}, True)
    traced = same(module_of(forward), *args, gain=tensor(array(1)))
    result = traced(*args, gain=tensor(array(1)))
    assert list(result[0]) == ["z", "a"] and list(result[0]["a"][1]) == ["y", "b"] and result[2:] == (None, 3)
    other = {"k": x * 2, "u": x}  # the order of a dict does not matter
    np.testing.assert_array_equal(
        traced(args[0], other, True, gain=x)[0]["z"].numpy(), traced(*args, gain=x)[0]["z"].numpy()
    )
    assert [n.name for n in traced.graph.inputs] == [
        "self",
        "parts_0",
        "parts_1",
        "parts_2",
        "table_0",
        "table_1",
        "gain",
    ]
    np.testing.assert_array_equal(
        traced(args[0], {"u": x.numpy(), "k": x.numpy()}, True, gain=x)[1][0].numpy(), x.numpy()
    )


def test_shared_modules_and_parameters():
    conv = M.Conv2d(3, 3, 1)

    def forward(self, x):
        return self.a(self.b(x)) + self.items[0](x) * self.gain + self.same_gain

    gain = Parameter(array(1, 3, 1, 1))
    traced = same(
        module_of(forward, a=conv, b=conv, items=[conv], gain=gain, same_gain=gain), tensor(array(1, 3, 4, 4))
    )
    assert traced.a is traced.b is conv
    assert len(list(traced.parameters())) == 3


def test_containers_of_modules():
    def forward(self, x):
        for layer in self.layers[1:]:
            x = layer(x)
        for name, layer in self.table.items():
            x = layer(x) if name != "skip" else x
        x = self.deep["list"][1][0](x) + self.layers[-1](x)
        for a, b in zip(self.layers, reversed(self.layers), strict=True):
            x = a(x) + b(x)
        return x * len(self.layers)

    layers = [M.ReLU(), M.Sigmoid(), M.LeakyReLU(0.1)]
    table = {"one": M.ReLU(), "skip": M.Sigmoid()}
    same(module_of(forward, layers=layers, table=table, deep={"list": [M.ReLU(), (M.Sigmoid(),)]}), tensor(array(3, 4)))


def test_a_function_that_returns_its_argument():
    @wrap
    def unchanged(x):
        return x

    def forward(self, x):
        y = unchanged(self.drop(self.same(x)))
        return y + x, F.argmax(x, axis=-1), F.exp(y)

    traced = same(module_of(forward, drop=M.Dropout(0.5), same=M.Identity()).eval(), tensor(array(3, 4)))
    assert traced.graph.get_function_by_type(F.argmax).as_unique().inputs[0].name == "x"


def test_tensors_made_inside():
    def forward(self, x):
        table = tensor(np.arange(4, dtype=np.float32))
        return x + table * F.ones((3, 1)) + F.arange(4) + np.float32(2) + F.zeros_like(x)

    traced = same(module_of(forward), tensor(array(3, 4)))
    assert len([e for e in traced.graph.exprs() if e.kind == "Constant"]) == 1


def test_inheritance_and_hooks():
    class Base(M.Module):
        def __init__(self):
            super().__init__()
            self.fc = M.Linear(4, 4)

        def forward(self, x):
            return self.fc(x)

    class Derived(Base):
        def forward(self, x):
            return F.relu(super().forward(x)) + Base.forward(self, x)

    same(Derived(), tensor(array(2, 4)))
    net = Derived()
    net.fc.register_forward_hook(lambda m, i, o: o * 2)
    same(module_of(lambda self, x: self.net(x), net=net), tensor(array(2, 4)))


def test_a_subclass_of_a_layer_is_looked_into():
    class Wider(M.Conv2d):
        def forward(self, x):
            return super().forward(F.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))) * self.weight.mean()

    traced = same(module_of(lambda self, x: self.conv(x), conv=Wider(2, 3, 3)), tensor(array(1, 2, 4, 4)))
    assert len(traced.graph.get_function_by_type(F.conv2d)) == 1
    assert {"conv.weight", "conv.bias"} == set(dict(traced.named_parameters()))


class Opaque(M.Module):
    def forward(self, x):
        return x + 1 if float(x.numpy().sum()) > 0 else x - 1


def test_registered_modules_and_wrapped_functions_stay_whole():
    @wrap
    def power(x, n=2):
        return x**n if float(x.numpy().max()) > 0 else x

    def forward(self, x):
        return power(self.opaque(x), n=3)

    register_as_builtin(Opaque)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            traced = same(module_of(forward, opaque=Opaque()), tensor(array(2, 3)))
        assert traced.specializations == ()
        assert traced.graph.get_function_by_type(power).as_unique().args[1] == 3
    finally:
        builtin_modules.discard(Opaque)
    del wrapped_functions[qualified_name(power)]
    with pytest.raises(GraphError, match=r"unknown function '.*power'"):
        traced(tensor(array(2, 3)))


def test_a_traced_module_is_traced_again():
    def forward(self, x):
        return self.inner(x) + self.inner(x * 2, x)

    net = module_of(forward, inner=Scaled())
    x = tensor(array(2, 3))
    once = trace_module(net, x)
    same(net, x, traced=trace_module(once, x))
    same(module_of(lambda self, x: self.net(x) * 2, net=once), x)


def assigns(x):
    x[0] = 0
    return x


class Assigns(M.Module):
    def forward(self, x):
        return assigns(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda self, x: 3, "returned int without a tensor"),
        (lambda self, x: None, "returned NoneType without a tensor"),
        (lambda self, x: self.inner(x) + x, r"uses a value that .*inner\.x changed in place"),
        (lambda self, x: F.matmul(x, F.ones((7, 7))), "matmul"),
        (lambda self, x: x.missing(), "no attribute 'missing'"),
    ],
)
def test_what_cannot_be_captured_is_told_and_leaves_no_trace(function, message):
    net = module_of(function, inner=Assigns())
    with pytest.raises((MegEngineError, AttributeError), match=message):
        trace_module(net, tensor(array(2, 3)))
    assert mge.core.hooks.active.get() is None
    assert isinstance(tensor(array(2, 3)).shape, tuple)


def test_only_modules_are_traced():
    with pytest.raises(GraphError, match="expected a Module, got function"):
        trace_module(lambda x: x, tensor(array(2)))
    with pytest.raises(GraphError, match="expected a subclass of Module"):
        register_as_builtin(3)


def test_recursion_depth_is_not_a_limit():
    def forward(self, x):
        for _ in range(3000):
            x = x + 1
        return x

    traced = trace_module(module_of(forward), tensor(array(2)))
    assert len(traced.graph.exprs()) == 3002
    np.testing.assert_allclose(traced(tensor(np.zeros(2, np.float32))).numpy(), [3000, 3000])
    value = []

    def reads(self, x):
        for _ in range(3000):
            x = x + 1
        value.append(float(x.sum()))
        return x

    with pytest.warns(SpecializationWarning):
        trace_module(module_of(reads), tensor(np.zeros(2, np.float32)))
    assert value == [6000.0]


class Halved(M.Module):
    def forward(self, x, factor=2.0):
        return x / factor


WRONG_USE = {
    "no arguments": (
        lambda net, t: trace_module(net),
        r"missing a required argument: 'x'; .* of Halved\(x, factor=2.0\)",
    ),
    "an unknown argument": (
        lambda net, t: trace_module(net, mge.tensor([1.0]), scale=3),
        r"trace_module: got an unexpected keyword argument 'scale'; expected the arguments of Halved\(x",
    ),
    "a class": (lambda net, t: trace_module(Halved, mge.tensor([1.0])), "expected a Module, got type"),
    "wrap a number": (lambda net, t: wrap(3), "wrap: expected a function, got 3, a int"),
    "a picture of a number": (lambda net, t: to_svg(3), "drawing: got a int; expected a graph, as traced.graph"),
    "a picture of a module": (
        lambda net, t: to_dot(t),
        "drawing: got a TracedModule; expected a graph, as traced.graph",
    ),
    "a page of a number": (lambda net, t: to_html(3), "drawing: got a int; expected a graph"),
    "ops of a number": (lambda net, t: lower(3), "lower: got int; expected a TracedModule"),
    "calls of a number": (lambda net, t: t.graph.get_function_by_type(3), "got 3; expected a function, as F.relu"),
    "calls of a name": (lambda net, t: t.graph.get_calls_of("Linear"), "got 'Linear'; expected a class of modules"),
    "nodes of a number": (
        lambda net, t: t.graph.get_module_by_type(3),
        "got 3; expected a class of modules, as M.Conv2d",
    ),
    "what a number depends on": (lambda net, t: t.graph.get_dep_exprs(3), "got 3, a int; expected nodes"),
    "a run of a number": (lambda net, t: t.run(3), "inputs is a int; expected a list of the arguments of a call"),
}


@pytest.mark.parametrize("name", WRONG_USE)
def test_wrong_use_is_told_where_it_is_made(name):
    net = Halved()
    use, message = WRONG_USE[name]
    with pytest.raises(MegEngineError, match=message):
        use(net, trace_module(net, mge.tensor([1.0])))
