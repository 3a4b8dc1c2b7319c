"""Every op on the GPU beside its reference, by every usable kernel, and its gradients beside the processor's."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, parts, problem_of, quantized
from gpu_calls import WIDE, called, gradients, near, results, signless

import megengine.functional
import megengine.quantization  # noqa: F401
from megengine.core.dtype import bfloat16
from megengine.core.errors import MegEngineError
from megengine.dispatch import registry
from megengine.kernels.cuda.runtime import runtime_of
from megengine.kernels.registry import family

SAMPLES = [(name, i, sample) for name in sorted(registry) for i, sample in enumerate(registry[name].samples())]
ERRORS = [(name, i, sample) for name in sorted(registry) for i, sample in enumerate(registry[name].error_samples())]


def table(cases):
    return pytest.mark.parametrize(("name", "sample"), [pytest.param(n, s, id=f"{n}-{i}") for n, i, s in cases])


def _takes_doubles(name, sample) -> bool:
    """Whether a sample has float64 inputs, and its op takes them."""
    return _takes(name, sample.inputs, sample.attrs) and any(parts(x)[0].dtype == np.float64 for x in sample.inputs)


def _takes(name, inputs, attrs) -> bool:
    try:
        problem_of(name, inputs, attrs)
    except MegEngineError:
        return False
    return True


def _has_kernel(name) -> bool:
    return any(kernel.name.startswith("cuda_") for kernel in family(name).kernels)


def _check(name, inputs, attrs) -> None:
    """All usable kernels, the libraries' too, compute what the reference computes."""
    if not _has_kernel(name):
        pytest.skip(f"{name} has no CUDA kernel")
    wanted = signless(name, by_reference(name, inputs, attrs))
    exact = registry[name].by_type or registry[name].needs_specs or any(map(quantized, inputs))
    tolerances = [1e-10 if want.dtype in WIDE else 0 if exact else 2e-5 for want in wanted]
    found = signless(name, called(name, inputs, attrs, "gpu0"))
    for have, want, tolerance in zip(found, wanted, tolerances, strict=True):
        near(have, want, rtol=tolerance, atol=tolerance)
    problem = problem_of(name, inputs, attrs)
    runtime = runtime_of("gpu0")
    for kernel in family(name).candidates(problem)[1:]:
        out = kernel.run(problem, *[runtime.upload(parts(x)[0]) for x in inputs])
        found = signless(name, [one.numpy() for one in results(out)])
        for have, want, tolerance in zip(found, wanted, tolerances, strict=True):
            near(have, want, rtol=tolerance, atol=tolerance)


@table(SAMPLES)
def test_samples(name, sample):
    _check(name, [narrowed(x) for x in sample.inputs], sample.attrs)


@table([case for case in SAMPLES if _takes_doubles(case[0], case[2])])
def test_samples_in_float64(name, sample):
    _check(name, sample.inputs, sample.attrs)


@pytest.mark.parametrize("dtype", (np.dtype(np.float16), bfloat16), ids=str)
@table([case for case in SAMPLES if _takes_doubles(case[0], case[2]) and case[1] == 0])
def test_halves(name, sample, dtype):
    if not _has_kernel(name):
        pytest.skip(f"{name} has no CUDA kernel")
    inputs = [narrowed(x, dtype) for x in sample.inputs]
    if not _takes(name, inputs, sample.attrs):
        pytest.skip(f"{name} takes no {dtype}")
    tolerance = 2e-2 if dtype == bfloat16 else 2e-3
    found, wanted = (signless(name, called(name, inputs, sample.attrs, device)) for device in ("gpu0", "cpu0"))
    for have, want in zip(found, wanted, strict=True):
        near(have, want, rtol=tolerance, atol=tolerance)


@table([case for case in SAMPLES if callable(registry[case[0]].vjp) and case[2].differentiable])
def test_gradients(name, sample):
    """The rules are checked with central differences on the processor; here their ops run on the GPU."""
    if not _has_kernel(name):
        pytest.skip(f"{name} has no CUDA kernel")
    inputs = [narrowed(x) for x in sample.inputs]
    found, wanted = (gradients(registry[name], inputs, sample.attrs, device) for device in ("gpu0", "cpu0"))
    for have, want in zip(found, wanted, strict=True):
        assert (have is None) == (want is None)
        if want is not None:
            near(have, want, rtol=2e-4, atol=2e-5 * max(1.0, float(np.abs(want).max(initial=0))))


@table(ERRORS)
def test_wrong_calls(name, sample):
    if not _has_kernel(name):
        pytest.skip(f"{name} has no CUDA kernel")
    with pytest.raises(sample.error, match=sample.match):
        called(name, sample.inputs, sample.attrs, "gpu0")


def test_a_second_call_gives_the_same_bits():
    """Sums have an order that does not depend on the time: no atomics of floats."""
    x = np.random.default_rng(0).standard_normal((64, 1000)).astype(np.float32)
    for name, attrs in (("sum", {"axis": None, "keepdims": False}), ("softmax", {"axis": -1})):
        once, again = (called(name, (x,), attrs, "gpu0") for _ in range(2))
        np.testing.assert_array_equal(once[0], again[0])
