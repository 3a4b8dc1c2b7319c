"""Gradient rules on the emulated GPU: chains of elementwise ops are one launch, and can be differentiated again."""

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu

import megengine as mge
import megengine.functional as F
from megengine.autodiff import GradManager
from megengine.kernels.cuda.runtime import installed

ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "relu6": F.relu6,
    "hswish": F.hswish,
    "leaky_relu": F.leaky_relu,
    "clip": lambda x: F.clip(x, -1.0, 1.0),
}


@pytest.fixture
def gpu():
    with installed(EmulatedGpu()) as runtime:
        yield runtime


def gradient(function, device, dtype="float32"):
    x = mge.Tensor(np.linspace(-4, 8, 60, dtype=np.float32).reshape(5, 12), dtype=dtype, device=device)
    with GradManager().attach([x]) as gm:
        gm.backward(function(x), mge.Tensor(np.linspace(-1, 1, 60).reshape(5, 12), dtype=dtype, device=device))
    return x.grad.numpy()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_rule_is_one_launch_with_the_same_bits(name, gpu):
    wanted = gradient(ACTIVATIONS[name], "cpu0")
    counts = []
    for _ in range(3):  # op by op, then recorded, then replayed
        before = len(gpu.launched)
        np.testing.assert_array_equal(gradient(ACTIVATIONS[name], "gpu0"), wanted)
        counts.append(len(gpu.launched) - before)
    assert counts[0] > counts[1] == counts[2]
    assert gpu.launched[-1][0] == "elementwise_program.cu"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_round_as_op_by_op(dtype, gpu):
    first, *others = (gradient(F.silu, "gpu0", dtype) for _ in range(3))
    for other in others:
        np.testing.assert_array_equal(other.astype(np.float32), first.astype(np.float32))


def second(device):
    x = mge.Tensor(np.linspace(-2, 2, 12, dtype=np.float32), device=device)
    with GradManager().attach([x]) as outer:
        with GradManager().attach([x]) as inner:
            inner.backward(F.sum(F.silu(x)))
        grad = x.grad
        x.grad = None
        outer.backward(F.sum(grad * grad))
    return x.grad.numpy()


def test_a_fused_rule_has_a_gradient(gpu):
    wanted = second("cpu0")
    for _ in range(3):
        np.testing.assert_allclose(second("gpu0"), wanted, rtol=1e-5, atol=1e-6)
