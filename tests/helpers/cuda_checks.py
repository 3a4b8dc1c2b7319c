"""Ops on the emulated GPU beside their references."""

import numpy as np
from emulated_gpu import EmulatedGpu

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer, reference_runner
from megengine.kernels.cuda.runtime import installed
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.tensor import Tensor


def parts(value):
    """Array and dtype of an input: a tensor, perhaps quantized, or an array."""
    if isinstance(value, Tensor):
        return np.asarray(value._storage()), value.dtype
    array = np.asarray(value)
    return array, array.dtype


def problem_of(op: str, inputs, attrs, device: str = "gpu0") -> Problem:
    """The problem of a call on a device."""
    specs = [TensorSpec(array.shape, dtype, device) for array, dtype in map(parts, inputs)]
    out = infer(op, specs, dict(attrs))
    return Problem(op, specs, (out,) if isinstance(out, TensorSpec) else out, dict(attrs))


def on_gpu(op: str, inputs, attrs=None, *, kernel: str | None = None, gpu: EmulatedGpu | None = None):
    """The results of an op on the emulated GPU, as a tuple of arrays: by the first usable kernel, or a named one."""
    problem = problem_of(op, inputs, attrs or {})
    usable = family(op).candidates(problem)
    chosen = next((k for k in usable if kernel in (None, k.name)), None)
    why = family(op).explain(problem)
    assert chosen is not None and chosen.run is not None, f"{op}: no CUDA kernel {kernel or ''} for {problem}: {why}"
    with installed(gpu or EmulatedGpu()) as runtime:
        arrays = [runtime.upload(parts(x)[0]) for x in inputs]
        out = chosen.run(problem, *arrays)
        results = (out,) if len(problem.outputs) == 1 and not isinstance(out, tuple) else tuple(out)
        for spec, one in zip(problem.outputs, results, strict=True):
            counts = any(not isinstance(n, int) for n in spec.shape) or get_op(op).counts
            assert counts or one.shape == spec.shape, (op, one.shape, spec.shape)
            assert one.dtype == storage_of(spec.dtype), (op, one.dtype, spec.dtype)
        found = tuple(runtime.download(one) for one in results)
        for array, before in zip(arrays, inputs, strict=True):  # inputs are not written
            assert runtime.download(array).tobytes() == parts(before)[0].tobytes(), f"{op} wrote an input"
    return found


def by_reference(op: str, inputs, attrs=None):
    """The results of the op's NumPy reference, as a tuple of arrays."""
    problem = problem_of(op, inputs, attrs or {}, "cpu0")
    out = reference_runner(get_op(op), problem, len(problem.outputs) == 1)(*[parts(x)[0] for x in inputs])
    return (out,) if len(problem.outputs) == 1 else tuple(out)


def narrowed(value, dtype=np.float32):
    """An input with float64 numbers as another float type."""
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    return array.astype(dtype) if array.dtype == np.float64 else array


def same(found, wanted, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Equal values, NaN included; floats within a tolerance where one is given."""
    for have, want in zip(found, wanted, strict=True):
        have, want = np.asarray(have), np.asarray(want)
        assert have.dtype == want.dtype and have.shape == want.shape, (have.dtype, want.dtype, have.shape, want.shape)
        if have.dtype.kind not in "biu" and have.dtype.itemsize == 2:
            have, want = have.astype(np.float32), want.astype(np.float32)
        if rtol or atol:
            np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(have, want)


def quantized(value) -> bool:
    """Whether an input is a quantized tensor."""
    return isinstance(value, Tensor) and isinstance(value.dtype, QuantizedDType)
