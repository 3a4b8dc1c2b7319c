"""CUDA sources compile with nvcc where it is installed; the kernels run where there is a GPU."""

import shutil
import subprocess

import numpy as np
import pytest

from megengine.core.errors import DeviceError
from megengine.kernels import cuda

GPU = pytest.mark.skipif(not cuda.available(), reason=str(cuda.unavailable_reason()))
NUMPY = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "log": lambda x: np.log(np.abs(x)),
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "tanh": np.tanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "square": np.square,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "hsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_source_compiles_with_nvcc(tmp_path):
    path = tmp_path / "elementwise.cu"
    path.write_text(cuda.source())
    done = subprocess.run(
        ["nvcc", "-arch=sm_80", "-ptx", "-o", tmp_path / "out.ptx", path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out.ptx").read_text()
    for name, arity in cuda.entries().items():
        assert f"{'unary' if arity == 1 else 'binary'}_{name}" in text


def test_entries_are_derived_from_the_source():
    assert set(cuda.entries()) == set(NUMPY)
    assert cuda.entries()["add"] == 2


@pytest.mark.skipif(cuda.available(), reason="a GPU is present")
def test_without_a_gpu_the_reason_is_named():
    with pytest.raises(DeviceError, match="use the CPU"):
        cuda._module()


@GPU
@pytest.mark.parametrize("name", sorted(NUMPY))
@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 100_003])
def test_elementwise_equals_numpy(name, n):
    import cupy

    rng = np.random.default_rng(n)
    inputs = [rng.standard_normal(n).astype(np.float32) * 4 for _ in range(cuda.entries()[name])]
    if name in {"log", "sqrt"}:
        inputs = [np.abs(x) for x in inputs]
    out = cuda.elementwise(name, *(cupy.asarray(x) for x in inputs)).get()
    np.testing.assert_allclose(out, NUMPY[name](*[x.astype(np.float64) for x in inputs]), rtol=2e-6, atol=2e-6)


@GPU
def test_quantize_rounds_ties_to_even():
    import cupy

    x = np.array([0.25, 0.75, 1.25, -0.25, 1e9, -1e9], np.float32)
    out = cuda.quantize(cupy.asarray(x), scale=0.5, zero_point=3, qmin=0, qmax=255).get()
    assert out.tolist() == [3, 5, 5, 3, 255, 0]


@GPU
def test_matmul_equals_numpy():
    import cupy

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 5, 7)).astype(np.float32), rng.standard_normal((4, 7)).astype(np.float32)
    out = cuda.matmul(cupy.asarray(a), cupy.asarray(b), transpose_b=True).get()
    np.testing.assert_allclose(out, a @ b.T, rtol=1e-5, atol=1e-5)
