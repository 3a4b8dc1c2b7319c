"""Specs of calls are remembered where they can only come out the same, and never else."""

import copy
import gc
import pickle
import weakref
from collections import OrderedDict

import numpy as np
import pytest
from megengine_graphs import leaves, listing, traced

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.collecting import collection_paused
from megengine.core.errors import GraphError, ShapeError
from megengine.core.pytree import flatten
from megengine.tensor import Tensor, tensor
from megengine.traced_module import SpecializationWarning, register_as_builtin, trace_module
from megengine.traced_module.ir.node import Node
from megengine.traced_module.tracing import specs
from megengine.traced_module.tracing.deferred import Deferring

X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.act = M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.ReLU()

    def forward(self, x):
        return F.avg_pool2d(self.act(self.norm(self.conv(x))), 2).reshape(2, -1)


@pytest.fixture
def made(monkeypatch) -> list:
    """The calls that are really made."""
    found, run = [], specs.run_call
    monkeypatch.setattr(specs, "run_call", lambda expr, values: (found.append(expr), run(expr, values))[1])
    monkeypatch.setattr(specs, "_known", {})
    monkeypatch.setattr(specs, "_results", {})
    return found


def test_an_equal_call_is_made_once(made):
    graph = trace_module(Net().eval(), tensor(X)).graph
    graph.lint()
    first = len(made)
    assert first == 5
    graph.lint()
    trace_module(Net().eval(), tensor(X + 1)).graph.lint()  # other weights, other values
    assert len(made) == first
    graph.add_input_node((2, 5, 8, 8))
    with pytest.raises(ShapeError, match="channels"):  # another shape is another call
        graph.replace_node({graph.inputs[1]: graph.inputs[2]})


def test_a_layer_that_was_changed_is_asked_again():
    module = trace_module(Net().eval(), tensor(X))
    module.graph.lint()
    module.conv.__dict__["weight"] = tensor(np.ones((4, 3, 5, 5), np.float32))  # past the graph
    with pytest.raises(ShapeError, match="changes its results"):
        module.graph.lint()


def test_layers_of_the_user_and_layers_with_hooks_are_always_asked(made):
    sizes = [2]

    @register_as_builtin
    class Repeated(M.Module):
        def forward(self, x):
            return F.concat([x] * sizes[0], 1)

    class Uses(M.Module):
        def __init__(self):
            super().__init__()
            self.repeated, self.act = Repeated(), M.ReLU()

        def forward(self, x):
            return self.act(self.repeated(x))

    module = trace_module(Uses(), tensor(X))
    module.graph.lint()
    sizes[0] = 3
    with pytest.raises(ShapeError, match="changes its results"):
        module.graph.lint()
    sizes[0] = 2
    module.act.register_forward_hook(lambda layer, inputs, outputs: outputs[:1])
    with pytest.raises(ShapeError, match="changes its results"):
        module.graph.lint()


def test_numbers_of_other_types_are_other_calls():
    assert specs._typed((1, (2, 1))) != specs._typed((1.0, (2, 1)))
    assert specs._typed((1, (2, 1))) != specs._typed((1, (2, True)))
    assert specs._typed((1, (2, 1))) == specs._typed((1, (2, 1)))


@pytest.mark.parametrize("name", ["call_mix", "multi_io", "res_plain", "res_fused"])
def test_a_second_trace_is_the_first_again(name, made):
    assert listing(traced(name)) == listing(traced(name))


class Asks(M.Module):
    def __init__(self, length):
        super().__init__()
        self.conv = M.Conv2d(3, 3, 1)
        self.acts = M.Sequential(*[M.ReLU() for _ in range(length)])

    def forward(self, x):
        y = self.acts(self.conv(x))
        return y * float(y.sum())


def test_values_of_layers_that_were_not_run_are_computed_when_python_asks(made):
    net, x = Asks(3000).eval(), tensor(X)
    want = net(x).numpy()
    for _ in range(2):  # the second time no layer is run while it is traced
        with pytest.warns(SpecializationWarning, match="item"):
            module = trace_module(net, x)
        np.testing.assert_allclose(module(x).numpy(), want, rtol=1e-5)
    assert [k[0] for k in specs._results if isinstance(k[0], type)] == [M.Conv2d, M.ReLU]


class Functions(M.Module):
    def forward(self, x, n):
        y = F.relu(x) * 2
        z = F.sum(y, axis=1, keepdims=True) - y.mean(axis=1, keepdims=True)
        return F.matmul(z, F.exp(x)), n * 2, n * 2.0, n * True, n / n, F.relu(F.relu(x)[:, :1])


def test_functions_on_equal_specs_are_run_once(made, monkeypatch):
    applied, apply = [], Deferring.apply
    monkeypatch.setattr(
        Deferring, "apply", lambda self, op, *rest: (applied.append(op.name), apply(self, op, *rest))[1]
    )
    given = tensor(X), tensor(np.int32([[1], [2]]))
    first = trace_module(Functions(), *given)
    count = len(applied)
    assert count > 10
    second = trace_module(Functions(), *given)
    assert not applied[count:]
    assert listing(first) == listing(second)
    assert [n.spec for n in second.graph.outputs] == [a.spec for a in leaves(second(*given))]
    for a, b in zip(leaves(second(*given)), leaves(Functions()(*given)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


class Shaped(M.Module):
    """The shape of a result follows from values, of which only the specs are equal from call to call."""

    def forward(self, x, y):
        rows = y.shape[0]
        return F.reshape(x, (rows, -1)), F.broadcast_to(x.sum(), (rows, 2)), x[:rows]


@pytest.mark.filterwarnings("ignore::megengine.traced_module.SpecializationWarning")
def test_functions_that_ask_for_values_are_called_each_time(made):
    for rows in (2, 3, 2, 4):
        given = tensor(np.arange(12, dtype=np.float32)), tensor(np.zeros((rows, 1), np.float32))
        module = trace_module(Shaped(), *given)
        assert [n.spec.shape for n in module.graph.outputs] == [(rows, 12 // rows), (rows, 2), (rows,)]
        module.graph.lint()
        for a, b in zip(leaves(module(*given)), leaves(Shaped()(*given)), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_inserted_functions_are_run_once_and_checked_always(made):
    graph = trace_module(Net().eval(), tensor(X)).graph
    (conv,) = graph.get_calls_of(M.Conv2d)
    texts = []
    for _ in range(2):
        with graph.transaction():
            with graph.insert_exprs():
                graph.replace_node({conv.output: F.sigmoid(conv.output) + conv.output})
            texts.append(str(graph))
        size = len(specs._results)
        with graph.insert_exprs(), pytest.raises(ShapeError, match="broadcast"):
            conv.output + graph.inputs[1]
        assert graph.undo()
    assert texts[0] == texts[1] and len(specs._results) == size
    kept = [part for key in specs._results for part in key]
    assert not any(isinstance(part, (Node, Tensor)) for part in kept)  # a memo keeps no model alive
    other = trace_module(Net().eval(), tensor(X)).graph.outputs[0]
    with graph.insert_exprs(), pytest.raises(GraphError, match="does not belong"):
        F.sigmoid(other)


def test_layers_that_assign_to_their_buffers_are_run(made):
    net = Net()
    mean = net.norm.running_mean.numpy().copy()
    for _ in range(2):
        module = trace_module(net, tensor(X))
        assert [k[0] for k in specs._results if isinstance(k[0], type)] == [M.Conv2d, M.ReLU]
    np.testing.assert_array_equal(net.norm.running_mean.numpy(), mean)
    module(tensor(X))
    assert not np.array_equal(net.norm.running_mean.numpy(), mean)


def test_the_memo_is_bounded(monkeypatch):
    memo: dict = {}
    monkeypatch.setattr(specs, "_LIMIT", 3)
    for i in range(10):
        specs._keep(memo, (i,), i)
        assert len(memo) <= 3 and memo[(i,)] == i


def test_results_with_and_without_the_memo_are_equal(made):
    net, x = Net().eval(), tensor(X)
    first, second = trace_module(net, x), trace_module(net, x)
    for a, b in zip(leaves(first(x)), leaves(second(x)), strict=True):
        assert isinstance(a, Tensor)
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_structures_are_hashed_once_and_the_hash_does_not_travel():
    structure = flatten({"a": [1, (2, None)], "b": OrderedDict(c=3)})[1]
    again = flatten({"a": [5, (6, None)], "b": OrderedDict(c=7)})[1]
    assert structure == again and structure is not again
    assert hash(structure) == hash(again) == structure._hash
    other = flatten({"a": [1, [2, None]], "b": OrderedDict(c=3)})[1]
    assert other != structure
    for copied in (copy.deepcopy(structure), pickle.loads(pickle.dumps(structure))):
        assert copied == structure and copied._hash is None and hash(copied) == hash(structure)
    assert "_hash" not in repr(structure)


@pytest.mark.parametrize("suffix", [".tm", ".mgt"])
def test_a_model_that_was_dropped_makes_room_for_the_one_that_is_loaded(suffix, tmp_path):
    path = tmp_path / f"net{suffix}"
    mge.save(trace_module(Net().eval(), tensor(X)), path)
    gc.collect()
    with collection_paused():  # nothing else looks for garbage here
        weights = weakref.ref(mge.load(path).conv.weight._storage())
        assert weights() is not None
        mge.load(path)
        assert weights() is None


def test_the_search_for_garbage_goes_on_behind_a_pause():
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            pass
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()
