"""Files of plans, their options, and values known beforehand."""

import copy
import pickle

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.core.dtype import quint8
from megengine.core.errors import FileFormatError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.quantization import quantize_model, verify
from megengine.tensor import Tensor, tensor
from megengine.traced_module import InternalGraph, interpret, lower, open_batch, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.stem = M.ConvBnRelu2d(3, 8, 3, padding=1)
        self.fc = M.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(self.stem(x), 2)
        return self.fc(F.flatten(F.adaptive_avg_pool2d(x, 1), 1))


X = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def traced():
    return trace_module(Net().eval(), X)


def test_a_saved_plan_gives_the_same_bits(traced, tmp_path):
    compiled = plan.compile(traced)
    compiled.save(tmp_path / "net.mgt")
    loaded = plan.load(tmp_path / "net.mgt", threads=2)
    assert [s.kernel for s in loaded.steps] == [s.kernel for s in compiled.steps]
    np.testing.assert_array_equal(loaded(X)[0], compiled(X)[0])


@pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy])
def test_pickles_and_copies(traced, copied):
    """Of plans, for one batch and for any, and of quantized networks; they hold the network, compiled again."""
    quantized = quantize_model(open_batch(traced), X)
    for compiled in (plan.compile(traced, threads=2), plan.compile(quantized.traced())):
        made = copied(compiled)
        np.testing.assert_array_equal(made(X)[0], compiled(X)[0])
        assert made.describe() == compiled.describe()
    made = copied(quantized)
    assert made.report == quantized.report and verify(made, [X]).exact
    np.testing.assert_array_equal(made(tensor(X)).numpy(), quantized(tensor(X)).numpy())


def test_another_batch_has_a_remedy(traced):
    for run in (plan.compile(traced), lower(traced)):
        with pytest.raises(
            ShapeError, match=r"shape \(1, 3, 16, 16\); expected .*; open_batch gives a network for any"
        ):
            run(X[:1])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileFormatError, match=r"gone\.mgt: no such file"):
        plan.load(tmp_path / "gone.mgt")


def test_compiling_leaves_the_model_as_it_was(traced):
    before = str(traced.graph)
    plan.compile(traced)
    assert str(traced.graph) == before


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_are_at_least_one(traced, threads):
    with pytest.raises(OptionError, match=f"threads is {threads}; expected an integer, at least 1"):
        plan.compile(traced, threads=threads)


def test_a_tuned_plan_computes_the_same(traced):
    compiled = plan.compile(traced, threads=2, tune=True)
    np.testing.assert_allclose(compiled(X)[0], traced(tensor(X)).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize("shape", [(2, 8, 4, 4), (1, 8, 1, 1)])
def test_constant_operands_reach_the_kernels(shape, tune):
    graph = InternalGraph(name="net")
    x = add_input(graph, "x", TensorSpec((2, 8, 4, 4), np.dtype(np.float32)))
    value = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    total = graph.apply("add", x, graph.constant(value, name="c"))
    set_outputs(graph, [graph.apply("concat", total, graph.constant(X[:, :1, :4, :4], name="d"), attrs={"axis": 1})])
    given = np.random.default_rng(2).standard_normal(x.shape).astype(np.float32)
    compiled = plan.compile(graph, tune=tune)
    assert "reference" not in {s.kernel for s in compiled.steps}
    np.testing.assert_array_equal(compiled(given)[0], np.concatenate([given + value, X[:, :1, :4, :4]], 1))


def test_gates_run_without_python():
    class Gate(M.Module):
        def forward(self, x):
            g = F.sigmoid(F.mean(x, (2, 3), keepdims=True))
            return F.softmax(F.tanh(x) * g, axis=1)

    traced = trace_module(Gate(), X)
    compiled = plan.compile(traced, threads=2)
    assert "reference" not in {s.kernel for s in compiled.steps}, compiled.describe()
    np.testing.assert_allclose(compiled(X)[0], traced(tensor(X)).numpy(), rtol=1e-5, atol=1e-6)


def test_quantized_constants_reach_the_kernels():
    graph = InternalGraph(name="net")
    a, r, y = quint8(0.1, 3), quint8(0.2, 7), quint8(0.25, 5)
    x = add_input(graph, "x", TensorSpec((1, 4, 3, 3), a))
    values = np.random.default_rng(3).integers(0, 256, (2, 1, 4, 3, 3), np.uint8)
    c = graph.constant(Tensor._wrap(values[0], r), name="c")
    attrs = {"ra": 0.5, "rb": 0.75, "lo": -5, "hi": 250, "dtype": y}
    set_outputs(graph, [graph.apply("qadd", x, c, attrs=attrs)])
    compiled = plan.compile(graph)
    assert [s.kernel for s in compiled.steps if s.op == "qadd"] == ["int8_add"]
    got = compiled(values[1])[0]
    np.testing.assert_array_equal(got, interpret(graph, [Tensor._wrap(values[1], a)])[0]._storage())


def test_weights_that_are_inputs_run_the_reference():
    graph = InternalGraph(name="net")
    f32 = np.dtype(np.float32)
    x, w = add_input(graph, "x", TensorSpec((2, 3, 16, 16), f32)), add_input(graph, "w", TensorSpec((4, 3, 1, 1), f32))
    attrs = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}
    set_outputs(graph, [graph.apply("conv2d", x, w, attrs=attrs)])
    weights = np.random.default_rng(4).standard_normal((4, 3, 1, 1)).astype(np.float32)
    got = plan.compile(graph)(X, weights)[0]
    np.testing.assert_allclose(got, np.einsum("nchw,oc->nohw", X, weights[:, :, 0, 0]), rtol=1e-5, atol=1e-5)
