"""Every op of the registry has a CUDA kernel that computes its samples as the reference does, on the emulated GPU."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, parts, problem_of, quantized, same
from emulated_gpu import EmulatedGpu
from gpu_calls import called, signless

import megengine.functional
import megengine.quantization  # noqa: F401
from megengine.core.dtype import bfloat16
from megengine.core.errors import MegEngineError
from megengine.dispatch import registry
from megengine.kernels.cuda.runtime import installed
from megengine.kernels.registry import family

OPS = sorted(registry)
# ops that no CUDA kernel computes, with the reason; ops leave this list and do not enter it
WITHOUT: dict[str, str] = {}
SAMPLES = [(name, i, sample) for name in OPS for i, sample in enumerate(registry[name].samples())]
CASES = [case for case in SAMPLES if case[0] not in WITHOUT]
ERRORS = [(name, i, e) for name in OPS if name not in WITHOUT for i, e in enumerate(registry[name].error_samples())]


def table(cases):
    return pytest.mark.parametrize(("name", "sample"), [pytest.param(n, s, id=f"{n}-{i}") for n, i, s in cases])


def check(name, inputs, attrs) -> None:
    """What the first usable kernel computes is what the reference computes."""
    wanted = by_reference(name, inputs, attrs)
    if problem_of(name, inputs, attrs).moves_devices:  # no kernel: a copy
        with installed(EmulatedGpu()):
            found = called(name, inputs, attrs, "gpu0")
    else:
        found = on_gpu(name, inputs, attrs)
    exact = registry[name].by_type or registry[name].needs_specs or any(map(quantized, inputs))
    for have, want in zip(signless(name, found), signless(name, wanted), strict=True):
        float_result = want.dtype.kind in "fc"
        # float32 sums have another order, and exponentials another last bit; that is the contract of check_reference
        wide = want.dtype in (np.float64, np.complex128)
        tolerance = 1e-10 if wide else 2e-5
        same(
            (have,), (want,), **({"rtol": tolerance, "atol": tolerance} if float_result and (wide or not exact) else {})
        )


@table([case for case in CASES if case[1] == 0])
def test_the_first_sample_of_every_op(name, sample):
    check(name, [narrowed(x) for x in sample.inputs], sample.attrs)


@pytest.mark.slow
@table([case for case in CASES if case[1] > 0])
def test_every_sample(name, sample):
    check(name, [narrowed(x) for x in sample.inputs], sample.attrs)


def _takes_doubles(name, sample, dtype=np.float64) -> bool:
    """Whether a sample has float64 inputs, and its op takes them, or these numbers of another dtype."""
    try:
        problem_of(name, [narrowed(x, dtype) for x in sample.inputs], sample.attrs)
    except MegEngineError:
        return False
    return any(parts(x)[0].dtype == np.float64 for x in sample.inputs)


@pytest.mark.slow
@table([case for case in CASES if _takes_doubles(case[0], case[2])])
def test_every_sample_in_float64(name, sample):
    check(name, sample.inputs, sample.attrs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (np.dtype(np.float16), bfloat16), ids=str)
@table([case for case in CASES if _takes_doubles(case[0], case[2], np.float16) and case[1] == 0])
def test_halves_through_the_dispatch(name, sample, dtype):
    """Of halves every op computes the float32 result of the same numbers and rounds it once."""
    inputs = [narrowed(x, dtype) for x in sample.inputs]
    with installed(EmulatedGpu()):
        of_cpu, of_gpu = (called(name, inputs, sample.attrs, device) for device in ("cpu0", "gpu0"))
    for have, want in zip(signless(name, of_gpu), signless(name, of_cpu), strict=True):
        assert have.dtype == want.dtype
        wide = [np.asarray(a, np.float64) for a in (have, want)]
        np.testing.assert_allclose(*wide, rtol=2e-2 if dtype == bfloat16 else 2e-3, atol=2e-3)


@pytest.mark.slow
@table(ERRORS)
def test_wrong_calls_have_the_same_error(name, sample):
    """What shapes and attributes show is refused at the call, what values show where the result is read."""
    with installed(EmulatedGpu()), pytest.raises(sample.error, match=sample.match) as caught:
        called(name, sample.inputs, sample.attrs, "gpu0")
    assert isinstance(caught.value, (MegEngineError, IndexError))


def test_the_list_of_ops_without_a_kernel_is_exact():
    """The list shrinks: an op that has a kernel is on it no longer, and an op without one says why on it."""
    lacking = {name for name in OPS if not any(kernel.name.startswith("cuda_") for kernel in family(name).kernels)}
    assert lacking == set(WITHOUT)


def test_the_list_names_ops():
    assert set(WITHOUT) <= set(OPS)
    assert all(WITHOUT.values())


def test_a_kernel_that_computes_something_else_is_caught():
    """`check` compares values: a result that is off by one part in a thousand fails."""
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    wanted = by_reference("exp", (x,), {})
    with pytest.raises(AssertionError):
        same([wanted[0] * np.float32(1.001)], wanted, rtol=2e-5, atol=2e-5)
    assert problem_of("exp", (x,), {}).on_gpu
