"""Training on the GPU: the curve of the processor, no growing memory, no waiting in eager calls."""

import gc
import time

import numpy as np
from gpu_calls import Learner

import megengine as mge
import megengine.functional as F
from megengine.kernels.cuda.runtime import runtime_of

STEPS = 30


def test_curve_is_that_of_the_processor():
    """Sums have other orders, so curves part slowly: the first steps agree in rounding, all in what they learn."""
    curves = [[float(learner.step().item()) for _ in range(STEPS)] for learner in map(Learner, ("cpu0", "gpu0"))]
    of_cpu, of_gpu = map(np.array, curves)
    np.testing.assert_allclose(of_gpu[:5], of_cpu[:5], rtol=1e-3)
    np.testing.assert_allclose(of_gpu, of_cpu, rtol=5e-2, atol=2e-2)
    assert of_gpu[-1] < 0.1 * of_gpu[0]


def test_memory_does_not_grow():
    learner, runtime = Learner("gpu0"), runtime_of("gpu0")
    used = []
    for _ in range(12):
        learner.step()
        runtime.synchronize()
        used.append(runtime.memory()["used"])
    assert len(set(used[4:])) == 1, used


def test_memory_of_dead_tensors_is_free():
    runtime = runtime_of("gpu0")
    gc.collect()
    before = runtime.memory()["used"]
    x = mge.tensor(np.zeros((1 << 20,), np.float32), device="gpu0")
    y = F.exp(x) + 1
    assert runtime.memory()["used"] >= before + 2 * (4 << 20)
    del x, y
    gc.collect()
    assert runtime.memory()["used"] <= before + (1 << 16)


def test_calls_do_not_wait():
    """A thousand launches on a large tensor are asked for in less time than they take."""
    runtime = runtime_of("gpu0")
    x = mge.tensor(np.zeros((1 << 26,), np.float32), device="gpu0")
    F.exp(x)
    runtime.synchronize()
    begin = time.perf_counter()
    for _ in range(100):
        y = F.exp(x)
    asked = time.perf_counter() - begin
    runtime.synchronize()
    took = time.perf_counter() - begin
    assert asked < 0.6 * took, (asked, took)
    assert float(y[0].item()) == 1
