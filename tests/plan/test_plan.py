"""Plans equal the eager run: float networks, layouts, residuals, several threads, forked children."""

import multiprocessing
import subprocess
import sys

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.core.errors import DTypeError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.plan.memory import Lifetime, aligned, place
from megengine.quantization import quantize_model, verify
from megengine.tensor import tensor
from megengine.traced_module import InternalGraph, TracedModule, open_batch, trace_module
from megengine.traced_module.editing.expressions import add_input, set_outputs


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.stem = M.ConvBnRelu2d(3, 16, 3, stride=2, padding=1)
        self.a = M.ConvBn2d(16, 16, 3, padding=1)
        self.dw = M.Conv2d(16, 16, 3, padding=1, groups=16)
        self.down = M.Conv2d(16, 24, 1, stride=2)
        self.b = M.Conv2d(16, 24, 3, stride=2, padding=1)
        self.fc = M.Linear(24 * 4, 10)

    def forward(self, x):
        x = self.stem(x)
        y = F.relu(self.a(x) + x)
        y = F.relu6(self.dw(y))
        y = F.relu(self.b(y) + self.down(y))
        y = F.concat([F.max_pool2d(y, 2), F.avg_pool2d(y, 2)], 2)
        y = F.adaptive_avg_pool2d(y, 2)
        return F.softmax(self.fc(F.flatten(y, 1))), y


def picture(n=1):
    return np.random.default_rng(0).standard_normal((n, 3, 32, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def net():
    net = Net().eval()
    for bn in (net.stem.bn, net.a.bn):
        bn.running_mean._reset(tensor(np.random.default_rng(1).uniform(-0.2, 0.2, bn.running_mean.shape)))
    return net


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_plan_equals_eager(net, batch, threads):
    x = picture(batch)
    compiled = plan.compile(trace_module(net, x), threads=threads)
    for _ in range(2):  # a second run finds the arena as the first one left it
        for got, want in zip(compiled(x), net(tensor(x)), strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


def test_tuning_keeps_the_results(net):
    x = picture()
    traced = trace_module(net, x)
    np.testing.assert_allclose(plan.compile(traced, tune=True)(x)[0], plan.compile(traced)(x)[0], rtol=1e-5, atol=1e-6)


def test_convolutions_take_their_surroundings_in(net):
    compiled = plan.compile(trace_module(net, picture()))
    ops = [s.op for s in compiled.steps]
    assert ops.count("fused_conv2d") == 5
    assert not {"conv2d", "batch_norm", "relu", "relu6", "add", "matmul"} & set(ops)
    assert compiled.describe().count("onednn_fused_conv2d") == 5


def _child(compiled, x, queue):
    queue.put(compiled(x)[0])


def test_a_forked_child_runs_the_plan(net):
    x = picture()
    compiled = plan.compile(trace_module(net, x), threads=2)
    expected = compiled(x)[0]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(compiled, x, queue))
    child.start()
    np.testing.assert_array_equal(queue.get(timeout=60), expected)
    child.join(timeout=60)


def test_wrong_inputs(net):
    compiled = plan.compile(trace_module(net, picture()))
    with pytest.raises(ShapeError, match="takes 1 input, got 2"):
        compiled(picture(), picture())
    with pytest.raises(ShapeError, match=r"input 'x' has shape \(2, 3, 32, 32\); expected \(1, 3, 32, 32\)"):
        compiled(picture(2))
    with pytest.raises(DTypeError, match="is float64; expected float32"):
        compiled(picture().astype(np.float64))


def test_plans_show_their_network_and_inputs(net):
    compiled = plan.compile(trace_module(net, tensor(picture())), threads=2)
    size = "float32[1, 3, 32, 32]"
    assert repr(compiled) == f"<Plan of 'Net' for x {size}: {len(compiled.steps)} steps, 2 threads>"
    opened = plan.compile(open_batch(trace_module(net, tensor(picture()))))
    assert repr(opened) == "<OpenPlan of 'Net' for x float32[batch, 3, 32, 32]: compiled for 0 shapes>"


def test_values_alive_together_do_not_overlap():
    rng = np.random.default_rng(0)
    lives = {}
    for i in range(60):
        first = int(rng.integers(0, 40))
        lives[i] = Lifetime(int(rng.integers(1, 5000)), first, first + int(rng.integers(0, 8)))
    offsets, total = place(lives)
    for i, a in lives.items():
        assert offsets[i] % 64 == 0
        assert offsets[i] + aligned(a.size) <= total
        for j, b in lives.items():
            if i < j and not (a.last < b.first or b.last < a.first):
                assert offsets[i] + a.size <= offsets[j] or offsets[j] + b.size <= offsets[i]


def test_a_plan_that_lives_to_the_end_leaves_no_trace():
    script = """
import numpy as np, megengine as mge, megengine.functional as F
from megengine import plan
from megengine.core.spec import TensorSpec
from megengine.traced_module import record
compiled = plan.compile(record(lambda x: F.exp(x), [TensorSpec((2, 3), np.dtype("f4"))]))
def step(addresses): pass
compiled._native.add_call(step, [])  # its globals hold the plan
compiled(np.zeros((2, 3), "f4"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_plan_beside_a_class_of_the_program_leaves_no_trace():
    script = """
import numpy as np, megengine as mge, megengine.functional as F, megengine.module as M
from megengine import plan
from megengine.traced_module import trace_module
class Net(M.Module):  # caches of the engine hold it to the end, and it holds all names of the program
    def forward(self, x): return F.exp(x)
compiled = plan.compile(trace_module(Net(), mge.tensor(np.zeros((2, 3), "f4"))))
compiled(np.zeros((2, 3), "f4"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("axis", [-1, 1, (-1,), (2, 3), (-2, -1), None])
def test_mean_over_axes_however_they_are_given(axis):
    graph = InternalGraph("net")
    x = add_input(graph, "x", TensorSpec((2, 3, 4, 5), np.dtype(np.float32)))
    set_outputs(graph, [graph.apply("mean", x, attrs={"axis": axis, "keepdims": True})])
    given = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    (found,) = plan.compile(TracedModule.from_graph(graph))(given)
    np.testing.assert_allclose(found, given.mean(axis=axis, keepdims=True), rtol=1e-5, atol=1e-6)


class Indexed(M.Module):
    def __init__(self, read):
        super().__init__()
        self.conv, self.read = M.Conv2d(3, 4, 3), read

    def forward(self, x, i):
        return self.read(F.relu(self.conv(x)), i)


def assigned(x, i):
    x[:, i] = 0.5
    return x


@pytest.mark.parametrize(
    "read",
    [lambda x, i: x[i], lambda x, i: x[:, i, 1:], lambda x, i: x[i, ..., None, i], lambda x, i: x[0, i[0]], assigned],
    ids=["first axis", "an axis", "two axes", "a number of it", "assigned"],
)
def test_an_index_may_be_an_input(read):
    x, places = picture(3), [np.int32([0, 2]), np.int32([-1, 1])]
    net = Indexed(read)
    traced = trace_module(net, tensor(x), tensor(places[0]))
    quantized = quantize_model(traced, [(x, i) for i in places])
    assert verify(quantized, [(x, i) for i in places])
    compiled = plan.compile(traced)
    for i in places:
        np.testing.assert_allclose(compiled(x, i)[0], net(tensor(x), tensor(i)).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kernel", "stride", "steps"), [((5, 7), (1, 2), 2), ((3, 3), (2, 2), 1), ((1, 9), (1, 1), 1)])
def test_the_largest_of_a_large_window_is_found_along_one_axis_after_the_other(kernel, stride, steps):
    class Pool(M.Module):
        def forward(self, x):
            return F.max_pool2d(x, kernel, stride, (kernel[0] // 2, kernel[1] // 2))

    x = np.random.default_rng(0).standard_normal((2, 3, 11, 12)).astype(np.float32)
    x[0, 1, 4, 5] = np.nan
    compiled = plan.compile(trace_module(Pool(), tensor(x)))
    assert [step.op for step in compiled.steps].count("max_pool2d") == steps
    np.testing.assert_array_equal(compiled(x)[0], Pool()(tensor(x)).numpy())


class Results(M.Module):
    """Results that only one step touches, and others: read again, the same twice, a view, an input."""

    def forward(self, x):
        read, alone = F.exp(x), F.tanh(x)
        return read, read * 2, alone, alone, F.abs(x), F.abs(x), F.reshape(F.floor(x), (-1,)), x


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4, 5)])
def test_steps_write_the_results_that_none_reads(shape):
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    net = trace_module(Results(), tensor(x))
    compiled = plan.compile(net)
    copied = [s.name for s in compiled.steps if s.op == "to_result"]
    assert len(copied) == 3  # what another step reads, what is given out already, and the input
    first, second = compiled(x), compiled(-x)
    for sign, results in ((1, first), (-1, second)):  # results of one call are not those of the next
        for got, want in zip(results, net(tensor(sign * x)), strict=True):
            np.testing.assert_array_equal(got, want.numpy())
    assert len({got.ctypes.data for got in (*first, *second)}) == 16
