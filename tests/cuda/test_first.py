"""The ways to the GPU, one call of each, before anything long is run: what fails here explains what fails later."""

import threading

import numpy as np
import pytest
from gpu_calls import move

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import jit, optimizer
from megengine.autodiff import GradManager
from megengine.core.errors import IndexOutOfRangeError
from megengine.kernels.cuda import plan_choices
from megengine.plan import compile as compile_plan
from megengine.quantization import collect
from megengine.traced_module import open_batch, trace_module


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensor(array):
    return mge.tensor(array, device="gpu0")


def test_copies():
    x = numbers(3, 5)
    np.testing.assert_array_equal(tensor(x).numpy(), x)
    np.testing.assert_array_equal(tensor(x).to("cpu0").to("gpu0").numpy(), x)
    assert tensor(np.zeros((0, 3), np.float32)).numpy().shape == (0, 3)


def test_a_launch():
    x = numbers(1000)
    np.testing.assert_array_equal((tensor(x) + 1).numpy(), x + 1)


def test_products():
    a, b = numbers(70, 130), numbers(130, 40, seed=1)
    np.testing.assert_allclose(F.matmul(tensor(a), tensor(b)).numpy(), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_convolutions_and_their_gradients(dtype):
    found = []
    for device in ("gpu0", "cpu0"):
        x, w = (mge.tensor(numbers(*shape), device=device).astype(dtype) for shape in ((2, 16, 9, 9), (24, 16, 3, 3)))
        x, w = mge.Parameter(x), mge.Parameter(w)
        with GradManager().attach([x, w]) as gm:
            y = F.conv2d(x, w, padding=1, stride=2)
            gm.backward(y.sum())
        found.append([t.astype("float32").numpy() for t in (y, x.grad, w.grad)])
    tolerance = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    for have, want in zip(*found, strict=True):
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance * np.abs(want).max())


def test_gradients_whose_ways_are_timed(monkeypatch):
    monkeypatch.setattr(plan_choices.Tuning, "plans", 4)
    found = []
    for device in ("gpu0", "cpu0"):
        x, w = (mge.Parameter(mge.tensor(numbers(*shape), device=device)) for shape in ((3, 8, 10, 10), (12, 8, 3, 3)))
        for _ in range(2):  # the second call knows
            with GradManager().attach([x, w]) as gm:
                gm.backward(F.conv2d(x, w, padding=1).sum())
        found.append([t.numpy() for t in (x.grad, w.grad)])
    for have, want in zip(*found, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_what_a_kernel_refuses():
    x = F.gather(tensor(numbers(3, 3)), 0, tensor(np.array([[7, 0, 0]], np.int32)))
    with pytest.raises(IndexOutOfRangeError):
        x.numpy()
    np.testing.assert_array_equal((tensor(numbers(2)) * 0).numpy(), [0, 0])  # the device goes on


def test_random_numbers_are_those_of_the_processor():
    found = []
    for device in ("gpu0", "cpu0"):
        mge.random.seed(5)
        mge.set_default_device(device)
        found.append(mge.random.normal(size=(1 << 16,)).numpy())
    np.testing.assert_array_equal(*found)


def test_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append((tensor(numbers(9)) * 2).numpy()))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], numbers(9) * 2)


def test_dlpack():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no GPU")
    x = tensor(numbers(4, 3))
    np.testing.assert_array_equal(torch.from_dlpack(x).cpu().numpy(), numbers(4, 3))


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = M.Conv2d(3, 16, 3, 1, 1), M.BatchNorm2d(16), M.Linear(16, 10)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_a_plan_is_recorded():
    net, x = Net().eval(), numbers(2, 3, 8, 8)
    plan = compile_plan(trace_module(net, mge.tensor(x)), device="gpu0")
    for _ in range(3):
        np.testing.assert_allclose(plan(x)[0], net(mge.tensor(x)).numpy(), rtol=1e-3, atol=1e-4)
    assert "one by one" not in plan.describe(), plan.describe().splitlines()[0]


@pytest.mark.parametrize("opened", [False, True])
def test_calibration(opened):
    net, data = trace_module(Net().eval(), mge.tensor(numbers(1, 3, 8, 8))), numbers(70, 3, 8, 8)
    net = open_batch(net) if opened else net
    there, here = collect(net, [data], device="gpu0"), collect(net, [data])
    assert there.samples == here.samples
    for name, one in here.edges.items():
        have = there.edges[name]
        assert have.count == one.count and have.histogram.counts.sum() == one.histogram.counts.sum()
        ends = (have.minimum, have.maximum), (one.minimum, one.maximum)
        np.testing.assert_allclose(*ends, rtol=1e-3, atol=1e-4)
        if one.averaged:
            np.testing.assert_allclose(have.means.value, one.means.value, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("error")  # a step that is not recorded warns
@pytest.mark.parametrize("rule", [optimizer.SGD, optimizer.Adam])
def test_a_step_is_recorded(rule):
    losses, runs = [], []
    for replay in (False, True):
        mge.random.seed(1)
        net = move(Net().train(), "gpu0")
        gm, update = GradManager().attach(net.parameters()), rule([*net.parameters()], lr=0.01)

        def step(x, y, net=net, gm=gm, update=update, replay=replay):
            runs.append(replay)
            with gm:
                loss = F.nn.cross_entropy(net(x), y)
                gm.backward(loss)
            update.step().clear_grad()
            return loss

        call = jit.trace(step, replay=replay)
        x, y = tensor(numbers(4, 3, 8, 8)), tensor(np.arange(4, dtype=np.int32))
        losses.append([call(x, y).item() for _ in range(8)])
    assert losses[0] == losses[1] and runs.count(True) == 4
