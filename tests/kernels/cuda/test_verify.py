"""verify on a GPU, which the emulator stands for: every node equals the specification, and a wrong step is found."""

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu

import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.core.errors import DeviceError
from megengine.kernels.cuda.runtime import installed
from megengine.kernels.kernel import EagerKernel
from megengine.kernels.registry import family
from megengine.quantization import quantize_model, verify
from megengine.traced_module import trace_module

RNG = np.random.default_rng(3)
DATA = [RNG.normal(size=(1, 3, 9, 8)).astype(np.float32) for _ in range(4)]


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.first = M.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = M.BatchNorm2d(8)
        self.wide = M.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = M.Conv2d(8, 8, 1)
        self.fc = M.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = x + self.last(F.relu(self.wide(x)))
        return self.fc(F.flatten(F.avg_pool2d(F.max_pool2d(x, 2), 4), 1))


@pytest.fixture(scope="module")
def network():
    return quantize_model(trace_module(Net().eval(), tensor(DATA[0])), [(x,) for x in DATA])


def test_every_node_is_equal(network):
    with installed(EmulatedGpu()) as gpu:
        result = verify(network, [(x,) for x in DATA[:2]], devices=["gpu0"], threads=(1,))
        assert result.exact and [run.run for run in result.runs] == ["eager", "eager, gpu0", "plan, 1 thread"]
        assert len(gpu.launched) > 20


def test_a_wrong_step_of_the_gpu_is_found(network):
    right = next(k for k in family("qconv2d").kernels if k.name.startswith("cuda_"))

    def wrong(problem, *arrays):
        out = right.run(problem, *arrays)
        values = out.numpy()
        values.flat[0] ^= 1
        return out.runtime.upload(values)

    with installed(EmulatedGpu()), family("qconv2d").planted(EagerKernel("cuda_wrong", wrong)):
        result = verify(network, [(DATA[0],)], devices=["cuda"], threads=(1,))
    found = {run.run: run for run in result.runs}
    assert not result.exact and found["eager, cuda"].values and found["eager, cuda"].op == "qconv2d"
    assert not found["eager"].values and not found["plan, 1 thread"].values


def test_without_a_gpu_it_is_refused(network):
    with pytest.raises(DeviceError, match="'gpu0' is not usable"):
        verify(network, [(DATA[0],)], devices=["gpu0"])
