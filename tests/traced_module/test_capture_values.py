"""Capture: what Python reads of values and shapes, and random values."""

import warnings

import numpy as np
import pytest
from capturing import array, module_of, picture, same

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import GraphError, OptionError
from megengine.tensor import tensor
from megengine.traced_module import (
    SpecializationWarning,
    lower,
    record,
    trace_module,
)


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
    assert {f for _, f in kinds} == {"test_capture_values.py"}
    lines = [int(s.source.partition(":")[2]) for s in traced.specializations]
    assert lines == sorted(lines) and len(told) == 6
    assert "specialised to this value" in str(told[0].message) and "test_capture_values.py" in str(told[0].message)
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
        "test_capture_values.py:" in str(w.message) and "draw from the process-wide one" in str(w.message) for w in told
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


def test_a_branch_on_shapes_in_a_shared_submodule_is_refused():
    class Branch(M.Module):
        def forward(self, x):
            return x * 2 if x.ndim == 2 else x + 1

    def forward(self, x):
        return self.inner(x) + self.inner(F.expand_dims(x, 0))

    with pytest.raises(GraphError, match=r"Net.inner \(Branch\) is called twice .* does not compute the same"):
        trace_module(module_of(forward, inner=Branch()), tensor(array(2, 3)))


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
    with pytest.raises(OptionError, match=r"kernel_size is .*; expected an integer or 2 of them"):
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


def test_results_in_an_object_of_the_users():
    class Output:
        def __init__(self, value):
            self.value = value

    class Net(M.Module):
        def forward(self, x):
            return Output(x * 2)

    how = r"\(Net\) returned .*Output without a tensor; .*named tuples; declare .*Output with .*register_supported_type"
    with pytest.raises(GraphError, match=how):
        trace_module(Net(), tensor([1.0]))


class Attends(M.Module):
    """Asks whether two arguments are one tensor, as attention does."""

    def forward(self, query, key):
        return query * 2 if query is key else query + key * 3


class AttendsTwice(M.Module):
    def __init__(self):
        super().__init__()
        self.inner = Attends()

    def forward(self, x, y=None):
        return self.inner(x, x if y is None else y) + (x if x is not y else x * 5)


@pytest.mark.parametrize(
    ("net", "places", "warned"),
    [(Attends, "00", True), (Attends, "01", False), (AttendsTwice, "0", True), (AttendsTwice, "01", False)],
)
def test_code_that_asks_for_one_tensor_is_followed(net, places, warned):
    values = [mge.tensor(np.arange(4, dtype=np.float32)), mge.tensor(np.ones(4, np.float32))]
    args = [values[int(place)] for place in places]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        traced = trace_module(net(), *args)
    traced.graph.lint()
    for run in (traced, lower(traced), traced.flatten(), traced.clone()):
        np.testing.assert_array_equal(run(*args).numpy(), net()(*args).numpy())
    assert [str(w.message) for w in heard if "the identity of" in str(w.message)] != [] if warned else not heard
    if warned:
        assert "query and key: both are one tensor, and the graph is specialised" in str(heard[0].message)
        assert len(traced.specializations) == 1


def test_one_tensor_given_twice_is_two_for_other_code():
    class Adds(M.Module):
        def forward(self, a, b=None):
            return a - b if b is not None else a

    x, y = mge.tensor([3.0, 4.0]), mge.tensor([1.0, 1.0])
    traced = trace_module(Adds(), x, x)
    np.testing.assert_array_equal(traced(x, y).numpy(), [2, 3])
    assert not traced.specializations
