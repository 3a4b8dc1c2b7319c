"""Names of devices as MegEngine 1.13 takes them, what is refused, and what is counted of the memory."""

import copy
import json
import pickle

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
from megengine import device, plan, tensor
from megengine.core import effectless
from megengine.core.errors import ArgumentError, DeviceError
from megengine.core.spec import TensorSpec
from megengine.kernels import cuda, memory
from megengine.random import RNG
from megengine.traced_module import record

# all of them mean the processor to the wheel too
NAMES = (
    *("xpux", "xpux:0", "xpux:1", "xpu0", "xpu0:2", "xpu", "cpux", "cpu0", "cpu0:0", "cpu0:1", "cpu1", "cpu1:3"),
    *("cpu:default", "cpu:1", "multithread1:0", "multithread2", "multithread4:0", "multithread:default:2"),
)
WAYS = {
    "tensor": lambda name: tensor([1.0], device=name),
    "to": lambda name: tensor([1.0]).to(name),
    "copy": lambda name: F.copy(tensor([1.0]), name),
    "zeros": lambda name: F.zeros(1, device=name),
    "RNG": lambda name: RNG(device=name).uniform(),
    "set_default_device": mge.set_default_device,
    "memory": mge.get_allocated_memory,
    "CompNode": device.CompNode,
}


@pytest.fixture
def default():
    yield
    mge.set_default_device("xpux")


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_processor(name, default, monkeypatch):
    monkeypatch.setattr(effectless, "_warned", set())
    x = tensor([1.0, 2.0], device=name)
    assert (x + tensor(1.0)).numpy().tolist() == [2, 3]
    assert x.device == name
    assert (x.device != name) is False
    if name.startswith("multithread"):
        with pytest.warns(effectless.NoEffectWarning, match=f"device '{name}' has no effect: eager calls take one"):
            mge.set_default_device(name)
    else:
        mge.set_default_device(name)
    assert mge.get_default_device() == name and tensor(1.0).device == "cpu0"


@pytest.mark.skipif(cuda.available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["gpu0", "gpux", "gpu0:1", "gpu", "cuda", "cuda:0", "gpu7"])
@pytest.mark.parametrize("way", WAYS)
def test_without_a_gpu_the_reason_is_named(way, name):
    with pytest.raises(DeviceError, match=f"'{name}' is not usable: .*(CuPy|CUDA|driver).*; or use xpux or cpu0"):
        WAYS[way](name)
    assert not mge.is_cuda_available() and mge.get_device_count("gpu") == 0 and mge.get_default_device() == "xpux"


def test_other_names_are_refused():
    for name in ("rocm0", "rocmx", "cambricon0", "atlas0"):
        with pytest.raises(RuntimeError, match=f"device '{name}' is not usable: {name[:-1]} devices are not supported"):
            tensor(1.0, device=name)
    for name in ("cpu-1", "CPU0", "cpu0:", "cpu0:x", "xpux0", "", "default", "multithread:0"):
        with pytest.raises(DeviceError, match="unknown device .*; expected cpu0, the processor, or gpu0"):
            tensor(1.0).to(name)
    with pytest.raises(DeviceError, match="'cpuo'.*did you mean 'cpu0'"):
        tensor(1.0).to("cpuo")
    with pytest.raises(ArgumentError, match="device is 0; expected a name"):
        tensor(1.0, device=0)  # type: ignore[arg-type]


def test_a_device_is_written_as_megengine_writes_it():
    here = tensor([1.0, 2.0]).device
    assert (str(here), f"{here}", here.logical_name) == ("xpux:0",) * 3
    assert (here.physical_name, here.physical_locator) == ("cpu0:0", ("cpu", 0, 0))
    assert repr(here) == 'CompNode("cpu0:0" from "xpux:0")' == repr(device.CompNode("cpu1"))
    assert repr(tensor([1.0, 2.0])) == "Tensor([1. 2.], device=xpux:0)"
    assert repr(tensor(1.0, device="test0").device) == 'CompNode("test0:0" from "test0:0")'
    assert here != "test0" and here != "gpu0" and here != 3 and here == "xpux:0"
    assert {here: 1}[tensor(2.0).device] == 1 and json.loads(json.dumps([here])) == ["cpu0"]
    for same in (pickle.loads(pickle.dumps(here)), copy.copy(here), copy.deepcopy(here)):
        assert (type(same), same, str(same)) == (device.CompNode, here, "xpux:0")


def test_a_device_can_be_given_where_a_name_can():
    there = tensor(1.0, device="test0").device
    assert tensor(2.0, device=there).device == tensor(2.0).to(there).device == F.ones(2, device=there).device == "test0"
    assert type(TensorSpec((), np.dtype("f4"), tensor(1.0).device).device) is device.CompNode
    assert type(F.zeros(3, device=tensor(1.0).device).spec.device) is str  # in specs of values devices are plain names


def test_memory_of_large_results_and_plans_is_counted():
    memory.release()
    mge.reset_max_memory_stats()
    before = mge.get_allocated_memory()
    assert mge.get_max_allocated_memory("cpu0") == before and mge.get_reserved_memory("xpux") == before
    size = 4 << 20
    x = F.relu(F.ones((1 << 20,)))
    assert mge.get_allocated_memory() >= before + size
    del x
    assert mge.get_allocated_memory() == before and mge.get_reserved_memory() >= before + size
    assert min(mge.get_max_allocated_memory(), mge.get_max_reserved_memory()) >= before + size
    mge.coalesce_free_memory()
    assert mge.get_reserved_memory() == before
    mge.reset_max_memory_stats()
    assert mge.get_max_reserved_memory() == before == mge.get_max_allocated_memory()
    compiled = plan.compile(record(lambda x: F.sort(F.exp(x))[0], [TensorSpec((1 << 20,), np.dtype("f4"))]))
    assert mge.get_allocated_memory() >= before + compiled.arena_bytes >= before + size
    del compiled
