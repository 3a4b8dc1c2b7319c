"""Tensors, modules and graphs on a GPU, which the emulator stands for."""

import copy
import pickle
import threading

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.autodiff import GradManager
from megengine.core.errors import DeviceError, IndexOutOfRangeError
from megengine.kernels.cuda import fallback
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import installed
from megengine.kernels.registry import family
from megengine.optimizer import SGD
from megengine.traced_module import trace_module


@pytest.fixture(autouse=True)
def gpu():
    with installed(EmulatedGpu()) as runtime:
        yield runtime
        mge.set_default_device("xpux")
        mge.set_default_device("cpu0")


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("name", ["gpu0", "gpux", "gpu", "gpu0:1", "cuda", "cuda:0"])
def test_all_names_of_the_gpu_are_one_device(name):
    x = tensor(X, device=name)
    assert x.device == name and x.device == "gpu0" and x.device != "cpu0" and x.device != "xpux"
    assert isinstance(x._storage(), DeviceArray) and str(x.device) == "gpu0:0"
    np.testing.assert_array_equal(x.numpy(), X)


def test_the_default_device():
    mge.set_default_device("gpu0")
    made = [
        tensor(X),
        F.zeros((2, 2)),
        F.ones(3),
        F.full((2,), 7),
        F.arange(4),
        F.eye(2),
        mge.random.normal(0, 1, (3,)),
    ]
    assert {str(t.device) for t in made} == {"gpu0:0"}
    np.testing.assert_array_equal(made[3].numpy(), [7, 7])
    mge.set_default_device("xpux")  # a GPU where there is one
    assert tensor(1.0).device == "gpu0" == tensor(1.0).device and tensor(1.0).device == "xpux"
    mge.set_default_device("cpu0")
    assert tensor(1.0).device == "cpu0" and mge.is_cuda_available() and mge.get_device_count("gpu") == 1


def test_copies_between_devices():
    x = tensor(X)
    there = x.to("gpu0")
    assert there.device == "gpu0" and x.device == "cpu0"
    back = there.to("cpu0")
    np.testing.assert_array_equal(back.numpy(), X)
    assert there.to("gpu0")._storage() is not there._storage()
    assert tensor(there, device="cpu0").device == "cpu0" and tensor(there).device == "gpu0"
    for twin in (copy.deepcopy(there), pickle.loads(pickle.dumps(there))):
        assert twin.device == "gpu0"
        np.testing.assert_array_equal(twin.numpy(), X)


def test_values_are_read():
    x = tensor(X, device="gpu0")
    assert x.shape == (2, 3) and x.tolist() == X.tolist() and x[1, 2].item() == 5 and len(x) == 2
    assert repr(tensor([1.0, 2.0], device="gpu0")) == "Tensor([1. 2.], device=gpu0:0)"
    assert 4.0 in x and bool((x.sum() == 15).item())
    np.testing.assert_array_equal(np.asarray(x), X)
    with pytest.raises(DeviceError, match="was given to code for main memory"):
        np.asarray(x._storage())


def test_different_devices_are_not_mixed():
    with pytest.raises(DeviceError, match=r"inputs live on different devices \['cpu0', 'gpu0'\]; copy with .to"):
        tensor(X) + tensor(X, device="gpu0")
    np.testing.assert_array_equal((tensor(X, device="gpu0") + 1).numpy(), X + 1)  # numbers go where the tensor is


def test_an_op_without_a_kernel_is_refused_or_computed_by_the_processor(monkeypatch):
    x = tensor(X, device="gpu0")
    monkeypatch.setattr(family("expm1"), "cuda", ())
    family("expm1").forget()
    with pytest.raises(DeviceError, match=r"expm1: no CUDA kernel computes it for float32\[2, 3\].*HOST_FALLBACK=1"):
        F.expm1(x)
    try:
        fallback.allow(True)
        with pytest.warns(fallback.HostFallbackWarning, match="expm1 has no CUDA kernel"):
            y = F.expm1(x)
    finally:
        fallback.allow(False)
        family("expm1").forget()
    assert y.device == "gpu0"
    np.testing.assert_array_equal(y.numpy(), F.expm1(tensor(X)).numpy())


def test_halves_are_computed_in_float32_and_rounded_once():
    x = tensor(X, dtype="float16", device="gpu0")
    y = F.softmax(x, axis=1)
    assert y.dtype == np.float16 and y.device == "gpu0"
    np.testing.assert_allclose(y.numpy(), F.softmax(tensor(X, dtype="float16"), axis=1).numpy(), atol=5e-4)


def test_what_a_kernel_refuses_is_raised_where_the_value_is_read():
    x = tensor(X, device="gpu0")
    y = x[tensor([0, 5], dtype="int32", device="gpu0")]
    with pytest.raises(IndexOutOfRangeError) as error:
        y.numpy()
    assert any("test_devices.py" in note for note in error.value.__notes__)
    np.testing.assert_array_equal(x.numpy(), X)  # the refusal is raised once


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(3, 4, 3, padding=1)
        self.norm = M.BatchNorm2d(4)
        self.fc = M.Linear(4 * 9, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        return self.fc(F.flatten(F.max_pool2d(x, 2), 1))


@pytest.mark.slow
def test_training_follows_the_processor():
    losses, networks = {}, {}
    for device in ("cpu0", "gpu0"):
        mge.random.seed(5)
        net = networks[device] = Net()
        if device == "gpu0":
            net.load_state_dict(networks["start"].state_dict())
            assert net.to(device) is net
        else:
            networks["start"] = copy.deepcopy(net)
        gm, optimizer = GradManager().attach(net.parameters()), SGD(net.parameters(), lr=0.05, momentum=0.9)
        rng, losses[device] = np.random.default_rng(0), []
        for _ in range(4):
            x, y = rng.normal(size=(4, 3, 6, 6)).astype(np.float32), rng.integers(0, 5, 4).astype(np.int32)
            with gm:
                loss = F.nn.cross_entropy(net(tensor(x, device=device)), tensor(y, device=device))
                gm.backward(loss)
            optimizer.step().clear_grad()
            losses[device].append(loss.item())
    np.testing.assert_allclose(losses["gpu0"], losses["cpu0"], rtol=1e-4)
    for one, other in zip(networks["gpu0"].parameters(), networks["cpu0"].parameters(), strict=True):
        assert one.device == "gpu0"
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-3, atol=1e-5)


def test_traced_modules_move_with_their_constants():
    net = Net().eval()
    x = tensor(np.random.default_rng(1).normal(size=(1, 3, 6, 6)).astype(np.float32))
    traced = trace_module(net, x)
    want = traced(x).numpy()
    twin = traced.to("gpu0")
    got = twin(x.to("gpu0"))
    assert got.device == "gpu0"
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def test_a_replay_that_was_refused_leaves_no_mark(gpu):
    """Of two recordings that refused their inputs one is raised; the other one's next replay is judged anew."""
    recorded = []
    for name in ("first", "second"):
        with gpu.refusals_apart() as one:
            cell = gpu.refusal(lambda number, name=name: IndexOutOfRangeError(f"{name}: {number}"))
        recorded.append((one, cell))
    for one, cell in recorded:
        gpu.copy_in(cell, np.array([6], np.int32))
        gpu.watch_again(one)
    with pytest.raises(IndexOutOfRangeError, match="first: 5"):
        gpu.synchronize()
    gpu.watch_again(recorded[1][0])
    gpu.synchronize()


def test_cells_of_threads_are_their_own(gpu):
    """More refusals than there are cells, of four threads: none shares a cell with another that is watched."""
    taken = []

    def take():
        taken.extend(gpu.refusal(lambda number: IndexOutOfRangeError(str(number))).address for _ in range(700))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 2800 and max(taken) - min(taken) <= 4 * 1023
    gpu.synchronize()
    cells = [gpu.refusal(lambda number: IndexOutOfRangeError(str(number))) for _ in range(9)]
    gpu.synchronize()
    gpu.copy_in(cells[-1], np.array([3], np.int32))  # by a kernel that was launched after the cells were looked at
    gpu.refusal(lambda number: IndexOutOfRangeError(str(number)))
    with pytest.raises(DeviceError, match="a call of another thread was refused its inputs"):
        gpu.synchronize()


def test_full_sync_waits_and_raises(gpu):
    x = tensor(X, device="gpu0")
    x[tensor([5], dtype="int32", device="gpu0")]
    with pytest.raises(IndexOutOfRangeError, match="index 5"):
        mge._full_sync()


def test_a_number_is_given_to_others_as_a_copy(gpu, monkeypatch):
    """Equal numbers are one array on a GPU: who wrote to it would change them all."""
    given = []

    class Given:
        def __dlpack__(self, stream=None):
            return "capsule"

    monkeypatch.setattr(type(gpu), "cupy_array", lambda self, a: given.append(a) or Given(), raising=False)
    one, other = tensor(3.0, device="gpu0"), tensor(3.0, device="gpu0")
    assert one._storage().address == other._storage().address
    assert one.__dlpack__() == "capsule" and given[0].address != other._storage().address
    np.testing.assert_array_equal(given[0].numpy(), np.float32(3))
    x = tensor(X, device="gpu0")
    x.__dlpack__()
    assert given[1].address == x._storage().address
