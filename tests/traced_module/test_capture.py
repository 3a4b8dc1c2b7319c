"""Capture: whatever a forward does with modules, tensors and Python is in the graph, or the user is told."""

import warnings
from collections import OrderedDict

import numpy as np
import pytest
from megengine_graphs import leaves

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, MegEngineError, OptionError
from megengine.tensor import Parameter, tensor
from megengine.traced_module import (
    SpecializationWarning,
    TracedModule,
    lower,
    record,
    register_as_builtin,
    trace_module,
    wrap,
)
from megengine.traced_module.tracing.calls import builtin_modules, qualified_name, wrapped_functions


def array(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def picture(*shape):
    return tensor(array(*shape))


def module_of(function, **attributes) -> M.Module:
    """A module with these attributes and that forward (its first parameter is the module)."""

    class Net(M.Module):
        forward = function

        def __init__(self):
            super().__init__()
            for name, value in attributes.items():
                setattr(self, name, value)

    return Net()


def same(net, *args, traced=None, **kwargs) -> TracedModule:
    """Trace a module; the graph gives what it gives, on other values too, in every form of the graph."""
    traced = trace_module(net, *args, **kwargs) if traced is None else traced
    traced.graph.lint()
    rng = np.random.default_rng(9)

    def fresh(value):
        if isinstance(value, mge.Tensor):
            return tensor(rng.standard_normal(value.shape).astype(np.float32))
        if isinstance(value, dict):
            return {k: fresh(v) for k, v in value.items()}
        return type(value)(map(fresh, value)) if isinstance(value, (list, tuple)) else value

    for given in ((args, kwargs), (fresh(args), fresh(kwargs))):
        want = net(*given[0], **given[1])
        again = trace_module(traced, *given[0], **given[1])
        for form in (traced, traced.flatten(), traced.clone(), again):
            got = form(*given[0], **given[1])
            assert shape_of(got) == shape_of(want)
            for a, b in zip(leaves(got), leaves(want), strict=True):
                if isinstance(b, mge.Tensor):
                    np.testing.assert_array_equal(a.numpy(), b.numpy())
                else:
                    assert a == b
    return traced


def shape_of(value):
    if isinstance(value, dict):
        return [(k, shape_of(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value)(map(shape_of, value))
    return getattr(value, "shape", type(value))


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


def test_assignments_and_in_place_operators():
    def forward(self, x):
        y = x * 1
        y[:, 0] = 0.5
        y[1:] = y[:1] * 2
        z = y
        z += x
        z *= 2
        y[0, 1] += 1
        return y, z, x

    same(module_of(forward), tensor(array(3, 4)))


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


def test_values_that_python_reads_are_told():
    def forward(self, x):
        if x.sum() > 100:
            return x
        n = int(x.shape[0])
        scale = x.mean().item()
        for _ in range(x.shape[1]):
            x = x + 1
        return x * scale + float(x.max()) + x.numpy()[0, 0] + n

    with pytest.warns(SpecializationWarning) as told:
        traced = trace_module(module_of(forward), tensor(array(2, 3)))
    kinds = [(s.what, s.source.partition(":")[0]) for s in traced.specializations]
    assert [k for k, _ in kinds] == ["the truth value", "item()", "item()", "item()", "item()", "numpy()"]
    assert {f for _, f in kinds} == {"test_capture.py"}
    lines = [int(s.source.partition(":")[2]) for s in traced.specializations]
    assert lines == sorted(lines) and len(told) == 6
    assert "specialised to this value" in str(told[0].message) and "test_capture.py" in str(told[0].message)
    assert "item() of Net.mean_out" in str(traced.specializations[2])


def test_shapes_follow_the_inputs():
    def forward(self, x):
        n, c, h, w = x.shape
        y = x.reshape(n, c, h * w).transpose(0, 2, 1)
        return y.reshape(-1, c) + F.zeros((y.shape[0] * y.shape[1], 1)), F.flatten(x, 1)

    net = module_of(forward)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = same(net, tensor(array(2, 3, 4, 5)))
    other = tensor(array(5, 2, 3, 3))
    for a, b in zip(traced(other), net(other), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert not any(e.op == "GetVarShape" for e in lower(traced).graph.exprs() if hasattr(e, "op"))


def test_nothing_is_computed_and_the_module_stays_as_it_was():
    net = module_of(lambda self, x: self.bn(self.conv(x)), conv=M.Conv2d(3, 4, 3), bn=M.BatchNorm2d(4)).train()
    before = {k: v.copy() for k, v in net.state_dict().items()}
    traced = trace_module(net, tensor(array(1, 3, 8, 8)))
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[key])
    assert traced.bn is net.bn and all(t._value is not None for t in net.tensors())
    huge = mge.Tensor._deferred(mge.core.spec.TensorSpec((64, 3, 8000, 8000), np.dtype(np.float32)))
    assert trace_module(net, huge).graph.outputs[0].shape == (64, 4, 7998, 7998)


def test_random_ops_are_not_frozen():
    traced = trace_module(module_of(lambda self, x: F.dropout(x, 0.5)), tensor(np.ones((50, 50), np.float32)))
    first, second = (traced(tensor(np.ones((50, 50), np.float32))).numpy() for _ in range(2))
    assert not np.array_equal(first, second)


def test_random_values_are_drawn_anew():
    net = module_of(lambda self, x: x + mge.random.normal(0, 1, (3,)) + mge.random.uniform(size=(3,)))
    traced = trace_module(net, tensor(np.zeros(3, np.float32)))
    assert [e.qualified for e in traced.graph.get_function_by_type()] == [
        "megengine.random.normal",
        "megengine.random.uniform",
    ]
    first, second = (traced(tensor(np.zeros(3, np.float32))).numpy() for _ in range(2))
    assert not np.array_equal(first, second)
    with pytest.raises(GraphError, match="draws random values, which graphs of ops do not hold"):
        lower(traced)


def test_generators_of_the_users_are_told_and_not_frozen():
    own = mge.random.RNG(3)
    net = module_of(lambda self, x: x + self.rng.normal(0, 2, size=(2, 3)) + own.permutation(3), rng=mge.random.RNG(1))
    x = tensor(np.zeros((2, 3), np.float32))
    with pytest.warns(SpecializationWarning) as told:
        traced = trace_module(net, x)
    assert [e.qualified for e in traced.graph.get_function_by_type()] == [
        "megengine.random.normal",
        "megengine.random.permutation",
    ]
    assert [(s.what, s.node.rpartition(".")[2]) for s in traced.specializations] == [
        ("the state of an RNG object", "normal_out"),
        ("the state of an RNG object", "permutation_out"),
    ]
    assert all(
        "test_capture.py:" in str(w.message) and "draw from the process-wide one" in str(w.message) for w in told
    )
    first, second = (traced(x).numpy() for _ in range(2))
    assert not np.array_equal(first, second)
    mge.random.seed(5)
    first = traced(x).numpy()
    mge.random.seed(5)
    np.testing.assert_array_equal(traced(x).numpy(), first)
    assert mge.random.RNG(4).normal(size=2).numpy().tolist() == mge.random.RNG(4).normal(size=2).numpy().tolist()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.5),
        lambda x: x + mge.random.normal(size=(3,)),
        lambda x: x + mge.random.RNG(2).uniform(size=(3,)),
        lambda x: M.Dropout(0.5)(x),
    ],
)
def test_graphs_of_ops_refuse_random_values_instead_of_freezing_them(function):
    spec = mge.core.spec.TensorSpec((3,), np.dtype(np.float32))
    with pytest.raises(GraphError, match="draws random values, which graphs of ops do not hold"):
        record(function, [spec])
    with pytest.raises(GraphError, match="draws random values, which graphs of ops do not hold"):
        lower(trace_module(module_of(lambda self, x: function(x)), tensor(np.ones(3, np.float32))))


def test_a_traced_module_is_traced_again():
    def forward(self, x):
        return self.inner(x) + self.inner(x * 2, x)

    net = module_of(forward, inner=Scaled())
    x = tensor(array(2, 3))
    once = trace_module(net, x)
    same(net, x, traced=trace_module(once, x))
    same(module_of(lambda self, x: self.net(x) * 2, net=once), x)


def test_a_branch_on_shapes_in_a_shared_submodule_is_refused():
    class Branch(M.Module):
        def forward(self, x):
            return x * 2 if x.ndim == 2 else x + 1

    def forward(self, x):
        return self.inner(x) + self.inner(F.expand_dims(x, 0))

    with pytest.raises(GraphError, match=r"Net.inner \(Branch\) is called twice .* does not compute the same"):
        trace_module(module_of(forward, inner=Branch()), tensor(array(2, 3)))


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


def test_detached_values_are_values():
    def forward(self, x):
        y = (x * 2).detach()
        return y + x.detach()

    traced = same(module_of(forward), tensor(array(2, 3)))
    assert [e.kind for e in traced.graph.exprs() if e.kind == "Constant"] == []


def test_assignments_have_an_op_level_form():
    def forward(self, x):
        y = x * 2
        y[:, 0] = 1.0
        z = y + x
        z[0] = y[1]
        return y, z

    net = module_of(forward)
    ops = lower(trace_module(net, tensor(array(2, 3))))
    x = tensor(array(2, 3, seed=5))
    for a, b in zip(ops(x), net(x), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


class Gate(M.Module):
    """Pools over the picture as it comes."""

    def __init__(self):
        super().__init__()
        self.fc = M.Conv2d(2, 2, 1)

    def forward(self, x):
        pooled = F.avg_pool2d(x, (x.shape[2], x.shape[3]))
        return x * self.fc(pooled), F.max_pool2d(x, x.shape[-2:])


def test_kernel_sizes_from_shapes_follow_the_input():
    net = Gate()
    traced = trace_module(net, picture(1, 2, 4, 6))
    assert traced.specializations == ()
    for shape in ((1, 2, 4, 6), (3, 2, 5, 2)):
        for a, b in zip(traced(picture(*shape)), net(picture(*shape)), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    with pytest.raises(OptionError, match=r"kernel_size is .*; expected an integer or two integers"):
        F.avg_pool2d(picture(1, 2, 4, 4), tensor(2.0))


class Levels(M.Module):
    """One layer over pictures of several sizes, below another module."""

    def __init__(self):
        super().__init__()
        self.head = M.Sequential(M.Conv2d(2, 2, 3, padding=1), M.ReLU())

    def forward(self, levels):
        found = [self.head(x) for x in levels]
        return [F.flatten(x, 1) for x in found] + [F.zeros((x.shape[0], x.shape[3])) for x in found]


def test_a_module_that_is_called_with_other_shapes_is_flattened_with_them():
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.levels = Levels()

        def forward(self, x):
            return self.levels([x, x[:, :, ::2, ::2]]) + self.levels([x[:1], x[:, :, :3]])

    x = picture(2, 2, 6, 4)
    traced = trace_module(Net(), x)
    flat = traced.flatten()
    flat.graph.lint()
    for a, b in zip(flat(x), Net.forward(traced, x), strict=True):
        assert a.shape == b.shape
    assert [n.shape for n in flat.graph.outputs] == [a.shape for a in flat(x)]


def test_arithmetic_on_shapes_takes_no_time_however_it_is_shared():
    class Net(M.Module):
        def forward(self, x):
            n = x.shape[0]
            for _ in range(300):  # each value is used twice: 2 ** 300 ways through the graph
                n = n + n - n
            return F.reshape(x, (n, -1))

    traced = trace_module(Net(), picture(2, 3, 2))
    traced.graph.lint()
    assert traced(picture(4, 3, 2)).shape == (4, 6)
    assert lower(traced)(picture(2, 3, 2)).shape == (2, 6)


def test_operators_in_place_are_values_of_the_graph():
    def forward(self, x):
        y = x * 2
        z = y
        y += 1
        return z + y

    traced, x = trace_module(module_of(forward), tensor(array(2, 3))), array(2, 3)
    assert [e.outputs[0].name for e in traced.graph._exprs] == ["mul_out", "iadd_out", "add_out"]
    np.testing.assert_allclose(traced(tensor(x)).numpy(), 2 * (2 * x + 1), rtol=1e-6)


def test_arguments_changed_in_place_stay_the_callers():
    def forward(self, x):
        x += 1
        return x * 2

    given = tensor(array(2, 3))
    with pytest.warns(SpecializationWarning, match="change in place of .*x: the graph computes with the new value"):
        traced = trace_module(module_of(forward), given)
    np.testing.assert_array_equal(given.numpy(), array(2, 3))
    np.testing.assert_allclose(traced(given).numpy(), 2 * (array(2, 3) + 1), rtol=1e-6)
    np.testing.assert_array_equal(given.numpy(), array(2, 3))


def test_a_module_may_change_its_argument_that_nobody_uses_again():
    class Adds(M.Module):
        def forward(self, x, y):
            x += y
            return F.relu(x)

    def forward(self, x):
        return self.inner(x * 2, x)

    traced = trace_module(module_of(forward, inner=Adds()), tensor(array(2, 3)))
    np.testing.assert_allclose(traced(tensor(array(2, 3))).numpy(), np.maximum(3 * array(2, 3), 0), rtol=1e-6)


def test_state_that_was_assigned_is_read_as_what_was_computed():
    class Counts(M.Module):
        def __init__(self):
            super().__init__()
            self.total = tensor([1.0])

        def forward(self, x):
            self.total = self.total + x.sum()
            return x * self.total

    net = Counts()
    before = net.total
    traced = trace_module(net, tensor([2.0]))
    assert net.total is before
    np.testing.assert_array_equal(traced(tensor([2.0])).numpy(), [6.0])


def test_state_changed_in_place_is_told_and_given_back():
    class Counts(M.Module):
        def __init__(self):
            super().__init__()
            self.total = tensor([1.0])

        def forward(self, x):
            self.total += x.sum()
            return x * self.total

    net = Counts()
    with pytest.warns(SpecializationWarning, match=r"change in place of Counts\.total"):
        traced = trace_module(net, tensor([2.0]))
    np.testing.assert_array_equal(net.total.numpy(), [1.0])
    np.testing.assert_array_equal(traced(tensor([2.0])).numpy(), [6.0])
    assert len(traced.specializations) == 1
