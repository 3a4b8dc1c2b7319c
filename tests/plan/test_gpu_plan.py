"""Plans on a GPU: the numbers of plans of the processor, recorded once and replayed, channels-last between layers."""

import pickle

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from recording_gpu import RecordingGpu

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.core.errors import DeviceError, DTypeError, IndexOutOfRangeError, OptionError, ShapeError
from megengine.kernels.cuda.runtime import installed
from megengine.plan import GpuPlan, OpenPlan, load
from megengine.plan import compile as compile_plan
from megengine.quantization.pipeline.quantize import quantize_model
from megengine.traced_module import InternalGraph, interpret, lower, open_batch, trace_module


@pytest.fixture(autouse=True, params=[EmulatedGpu, RecordingGpu], ids=["steps", "recorded"])
def gpu(request):
    with installed(request.param()) as runtime:
        yield runtime


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Net(M.Module):
    """Two convolutions with a residual, a pool, a concatenation, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = M.Conv2d(3, 8, 3, 1, 1), M.Conv2d(8, 8, 3, 1, 1)
        self.fc = M.Linear(16, 5)

    def forward(self, x):
        y = F.relu(self.conv1(x))
        y = F.relu(self.conv2(y) + y)
        y = F.concat([y, y * 2], axis=1)
        return self.fc(F.avg_pool2d(y, 6).reshape(x.shape[0], -1))


@pytest.fixture
def net():
    return Net().eval()


def traced(net, *arrays):
    return trace_module(net, *map(mge.tensor, arrays))


def test_numbers_are_those_of_the_processor(net):
    graph = traced(net, values(2, 3, 6, 6))
    plan, wanted = compile_plan(graph, device="gpu0"), compile_plan(graph)
    assert isinstance(plan, GpuPlan)
    for seed in range(3):
        x = values(2, 3, 6, 6, seed=seed)
        np.testing.assert_allclose(plan(x)[0], wanted(x)[0], rtol=1e-5, atol=1e-5)


class Convolved(M.Module):
    """A picture by computed weights, and a constant picture, of shapes that look alike in both layouts."""

    def __init__(self):
        super().__init__()
        self.picture = mge.tensor(values(3, 3, 3, 3, seed=5))

    def forward(self, x, w):
        return F.conv2d(x, w, padding=1) + F.conv2d(self.picture, w, padding=1)


def test_weights_of_convolutions_may_be_computed_and_pictures_constant():
    x, w = values(3, 3, 3, 3, seed=1), values(3, 3, 3, 3, seed=2)
    graph = traced(Convolved(), x, w)
    found, wanted = compile_plan(graph, device="gpu0")(x, w), compile_plan(graph)(x, w)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5)


def test_tensors_of_the_gpu_give_tensors_of_the_gpu(net):
    x = values(2, 3, 6, 6)
    graph = traced(net, x)
    (y,) = compile_plan(graph, device="gpu0")(mge.tensor(x, device="gpu0"))
    assert y.device == "gpu0"
    np.testing.assert_allclose(y.numpy(), compile_plan(graph)(x)[0], rtol=1e-5, atol=1e-5)


def test_results_stay_after_the_next_call(net):
    plan = compile_plan(traced(net, values(2, 3, 6, 6)), device="gpu0")
    (first,) = plan(mge.tensor(values(2, 3, 6, 6), device="gpu0"))
    before = first.numpy()
    plan(mge.tensor(values(2, 3, 6, 6, seed=1), device="gpu0"))
    np.testing.assert_array_equal(first.numpy(), before)


def test_an_input_or_a_constant_as_a_result_is_copied(gpu):
    class Echo(M.Module):
        def forward(self, x):
            return x, mge.tensor([1.0, 2.0]) * 1, x + 1

    plan = compile_plan(traced(Echo(), values(2)), device="gpu0")
    given = mge.tensor(values(2, seed=3), device="gpu0")
    same, constant, more = plan(given)
    assert same._storage().address != given._storage().address
    np.testing.assert_array_equal(same.numpy(), given.numpy())
    np.testing.assert_array_equal(constant.numpy(), [1, 2])
    np.testing.assert_array_equal(more.numpy(), given.numpy() + 1)


def test_a_graph_captured_on_the_gpu_is_compiled_for_it():
    class Affine(M.Module):
        def __init__(self):
            super().__init__()
            self.weight = mge.Parameter(values(3), device="gpu0")

        def forward(self, x):
            return F.relu(x * self.weight + 1)

    net, x = Affine(), mge.tensor(values(2, 3), device="gpu0")
    plan = compile_plan(trace_module(net, x))
    assert isinstance(plan, GpuPlan)
    np.testing.assert_array_equal(plan(x)[0].numpy(), net(x).numpy())


def test_every_batch_has_a_plan(net):
    plan = compile_plan(open_batch(traced(net, values(2, 3, 6, 6))), device="gpu0")
    assert isinstance(plan, OpenPlan)
    wanted = compile_plan(open_batch(traced(net, values(2, 3, 6, 6))))
    for batch in (1, 3):
        x = values(batch, 3, 6, 6)
        np.testing.assert_allclose(plan(x)[0], wanted(x)[0], rtol=1e-5, atol=1e-5)


def test_integer_layers_lie_channels_last(net):
    """One turn at the input and one before the pool's rows are all that moves; numbers are the specification's."""
    x = values(2, 3, 6, 6)
    integer = quantize_model(traced(net, x), [x]).integer_graph
    plan = compile_plan(integer, device="gpu0")
    np.testing.assert_array_equal(plan(x)[0], interpret(integer, [mge.tensor(x)])[0].numpy())
    kernels = [s.kernel for s in plan.steps]
    assert kernels.count("cuda_qconv2d_last") == 2
    assert kernels.count("cuda_turn") <= 2, plan.describe()


def test_half_precision_lies_channels_last(net):
    for tensor in net.parameters():
        tensor._reset(tensor.astype("float16"))
    x = values(2, 3, 6, 6).astype(np.float16)
    graph = traced(net, x)
    plan = compile_plan(graph, device="gpu0")
    np.testing.assert_allclose(plan(x)[0], compile_plan(graph)(x)[0], rtol=1e-2, atol=1e-2)
    kernels = [s.kernel for s in plan.steps]
    assert kernels.count("cuda_fused_conv2d_last") == 2
    assert kernels.count("cuda_turn") == 1, plan.describe()


class Moving(M.Module):
    """Between two convolutions pictures get a border, lose columns, are resized, repeated and turned on their side."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = M.Conv2d(3, 8, 3, 1, 1), M.Conv2d(8, 8, 3, 1, 1)

    def forward(self, x):
        y = F.relu(self.conv1(x))
        y = F.nn.pad(y, ((0, 0), (0, 0), (1, 2), (0, 1)))
        y = y[:, :, :, 1::2]
        y = F.vision.interpolate(y, size=(7, 5))
        y = F.transpose(F.repeat(y, 2, 3), (0, 1, 3, 2))
        return self.conv2(y)


@pytest.mark.parametrize("half", [False, True], ids=["integers", "halves"])
def test_moves_between_layers_stay_channels_last(half):
    net, x = Moving().eval(), values(2, 3, 6, 6)
    if half:
        for tensor in net.parameters():
            tensor._reset(tensor.astype("float16"))
        x = x.astype(np.float16)
    graph = traced(net, x) if half else quantize_model(traced(net, x), [x]).integer_graph
    plan = compile_plan(graph, device="gpu0")
    if half:
        np.testing.assert_allclose(plan(x)[0], compile_plan(graph)(x)[0], rtol=1e-2, atol=1e-2)
    else:
        np.testing.assert_array_equal(plan(x)[0], interpret(graph, [mge.tensor(x)])[0].numpy())
    assert [s.kernel for s in plan.steps].count("cuda_turn") == 2, plan.describe()


def test_what_kernels_refuse_is_raised_at_every_run():
    class Pick(M.Module):
        def forward(self, x, i):
            return F.gather(x, 0, i)

    x, good = values(4, 3), np.array([[0, 1, 2]], np.int32)
    plan = compile_plan(traced(Pick(), x, good), device="gpu0")
    for _ in range(2):
        np.testing.assert_array_equal(plan(x, good)[0], np.take_along_axis(x, good, 0))
        with pytest.raises(IndexOutOfRangeError, match="out of range|outside"):
            plan(x, good + 9)


def test_wrong_inputs_are_named(net):
    plan = compile_plan(traced(net, values(2, 3, 6, 6)), device="gpu0")
    with pytest.raises(ShapeError, match="takes 1 input, got 2"):
        plan(values(2, 3, 6, 6), values(1))
    with pytest.raises(ShapeError, match=r"has shape \(4, 3, 6, 6\); expected \(2, 3, 6, 6\); open_batch"):
        plan(values(4, 3, 6, 6))
    with pytest.raises(DTypeError, match="is float64; expected float32; use .astype"):
        plan(values(2, 3, 6, 6).astype(np.float64))
    with installed(EmulatedGpu("gpu1")), pytest.raises(DeviceError, match="is on gpu1; expected gpu0"):
        plan(mge.tensor(values(2, 3, 6, 6), device="gpu1"))


def test_lengths_that_depend_on_values_are_refused():
    class Count(M.Module):
        def forward(self, x):
            return F.nn.nms(x, F.sum(x, axis=1), 0.5)

    graph = traced(Count(), np.abs(values(4, 4)))
    with pytest.raises(OptionError, match="nms gives lengths that depend on values, which plans on gpu0 do not take"):
        compile_plan(graph, device="gpu0")


def test_steps_are_described_and_timed(net, gpu):
    plan = compile_plan(traced(net, values(2, 3, 6, 6)), device="gpu0")
    plan(values(2, 3, 6, 6))
    text = plan.describe()
    assert "on gpu0" in text
    assert ("one by one: gpu0 records no launches" in text) == (type(gpu) is EmulatedGpu)
    rows = plan.profile(values(2, 3, 6, 6), repeat=2)
    assert [info for info, _ in rows] == plan.steps
    assert all(seconds > 0 for _, seconds in rows)


def test_a_recording_launches_what_the_steps_launch(net, gpu):
    plan = compile_plan(traced(net, values(2, 3, 6, 6)), device="gpu0")
    plan(values(2, 3, 6, 6))
    gpu.launched.clear()
    plan(values(2, 3, 6, 6))
    replayed = list(gpu.launched)
    gpu.launched.clear()
    plan._run(plan._arrays([values(2, 3, 6, 6)]))
    assert replayed == gpu.launched


def test_what_waits_for_the_gpu_runs_step_by_step(gpu):
    """A step of the processor copies: such a plan is not recorded, and says so."""
    if type(gpu) is EmulatedGpu:
        pytest.skip("records nothing")
    graph = lower(traced(Net().eval(), values(2, 3, 6, 6))).graph
    plan = GpuPlan(graph)
    step = plan._builder.steps[-1]
    run = step.run
    step.run = lambda *arrays: gpu.upload(run(*arrays).numpy())
    np.testing.assert_allclose(plan(values(2, 3, 6, 6))[0], compile_plan(graph)(values(2, 3, 6, 6))[0], rtol=1e-5)
    assert "one by one: gpu0: the launches cannot be recorded" in plan.describe()


def test_plans_are_copied_and_saved(net, tmp_path):
    x = values(2, 3, 6, 6)
    plan = compile_plan(traced(net, x), device="gpu0")
    wanted = plan(x)[0]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(plan))(x)[0], wanted)
    plan.save(tmp_path / "net.mgt")
    found = load(tmp_path / "net.mgt", device="gpu0")
    assert isinstance(found, GpuPlan)
    np.testing.assert_array_equal(found(x)[0], wanted)
    assert isinstance(found.graph, InternalGraph)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_functions_in_a_row_are_one_launch(dtype):
    class Chain(M.Module):
        def forward(self, x, y):
            return F.exp(-((x - y) ** 2)) * 0.5 + F.tanh(x)

    inputs = [mge.tensor(values(4, 6, seed=1), dtype=dtype), mge.tensor(values(6, seed=2), dtype=dtype)]
    plan = compile_plan(trace_module(Chain(), *inputs), device="gpu0")
    assert [step.op for step in plan.steps] == ["elementwise"]
    found, wanted = plan(*[x.numpy() for x in inputs])[0], Chain()(*inputs).numpy()
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))
