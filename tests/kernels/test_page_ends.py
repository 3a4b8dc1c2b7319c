"""Kernels touch nothing behind their operands: the page behind each of them cannot be read."""

import numpy as np
import pytest
from page_ends import at_end, fault_of, room

import megengine.functional  # noqa: F401
import megengine.module as M
from megengine import plan, tensor
from megengine.core.dtype import storage_of
from megengine.core.spec import TensorSpec
from megengine.dispatch import infer, registry
from megengine.kernels import _core, grouped, isa, memory
from megengine.kernels.kernel import StepKernel
from megengine.kernels.native import to_step
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.tensor import Tensor
from megengine.traced_module import trace_module


def problem_of(op, specs, attrs):
    out = infer(op, specs, attrs)
    return Problem(op, specs, out if isinstance(out, tuple) else [out], attrs)


def run_step(kernel, problem, arrays, threads):
    """Run the kernel's step on operands with such pages behind them."""
    constants = {k: arrays[k] for k in kernel.packs if k < len(arrays)}
    step = kernel.make_step(problem, constants, threads)
    outs = [room(int(np.prod(s.shape)) * storage_of(s.dtype).itemsize) for s in problem.outputs]
    operands = []
    for i, array in enumerate(arrays):
        laid = memory.bits(array if kernel.in_rows else to_step(array))
        if i == kernel.inplace_input:
            outs[0][...] = np.ascontiguousarray(laid).reshape(-1).view(np.uint8)
            operands.append(outs[0])
        elif i not in constants:
            operands.append(at_end(laid))
    _core.run_step(step, [*operands, *outs])


def run_sample(name, sample, say):
    """Every kernel that takes the sample, as in an eager call and as in a plan."""
    inputs = [
        a if isinstance(a, Tensor) else Tensor._wrap(a.astype("f4") if a.dtype == "f8" else a) for a in sample.inputs
    ]
    problem, arrays = problem_of(name, [t.spec for t in inputs], sample.attrs), [t.numpy() for t in inputs]
    for kernel in family(name).candidates(problem):
        say(f"{name}: {kernel.name} in a call with {problem.inputs}, {sample.attrs}")
        assert kernel.run is not None
        kernel.run(problem, *map(at_end, arrays))
    for kernel in family(name).candidates(problem, step=True):
        assert isinstance(kernel, StepKernel)
        constants = {k: arrays[k] for k in kernel.packs if k < len(arrays)}
        if all(s.size for s in problem.outputs) and kernel.accepts(problem, constants) is None:
            for threads in (1, 3):
                say(f"{name}: {kernel.name} in a plan with {problem.inputs}, {sample.attrs}")
                run_step(kernel, problem, arrays, threads)


@pytest.mark.parametrize("level", isa.available())
def test_kernels_of_all_samples(level):
    def work(say):
        with isa.capped(level):
            for name, op in registry.items():
                for sample in op.samples():
                    run_sample(name, sample, say)

    assert fault_of(work) == ""


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
def test_every_other_window_of_a_plane(op, level):
    """The last window ends with the plane."""
    more = {"count_include_pad": False} if op == "avg_pool2d" else {}

    def work(say):
        with isa.capped(level):
            for length in range(1, 40, 2):
                for kernel in (1, 3):
                    x = np.arange(float(3 * length), dtype=np.float32).reshape(1, 1, 3, length)
                    attrs = {"kernel": (1, kernel), "stride": (1, 2), "padding": ((0, 0), (kernel // 2,) * 2), **more}
                    problem = problem_of(op, [TensorSpec(x.shape, x.dtype)], attrs)
                    for one in family(op).candidates(problem, step=True):
                        say(f"{one.name} of {length} columns")
                        run_step(one, problem, [x], 1)

    assert fault_of(work) == ""


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transposed_convolutions_of_few_channels(dtype, level):
    """A vector of channels is longer than the last pixel."""

    def work(say):
        with isa.capped(level):
            for channels in (1, 3, 7, 15):
                arrays = [np.ones(s, dtype) for s in ((2, channels, 5, 6), (channels, 1, 3, 3), (channels,))]
                attrs = {"stride": (2, 2), "padding": ((1, 1),) * 2, "dilation": (1, 1), "groups": channels}
                attrs["output_padding"] = (0, 0)
                problem = problem_of("conv_transpose2d", [TensorSpec(a.shape, a.dtype) for a in arrays], attrs)
                for kernel in (grouped.own_transposed_channels, grouped.own_transposed_planes):
                    assert kernel.usable(problem) is None
                    say(f"{kernel.name} of {channels} channels")
                    run_step(kernel, problem, arrays, 1)

    assert fault_of(work) == ""


@pytest.mark.parametrize("layer", [M.MaxPool2d(2, 1 << 24), M.AvgPool2d(2, 1 << 24)], ids=["max", "avg"])
def test_windows_that_lie_far_apart(layer):
    """What a lane without a window would read lies far behind the plane."""
    x = np.random.default_rng(0).standard_normal((1, 3, 9, 9)).astype(np.float32)

    def work(say):
        for level in isa.available():
            with isa.capped(level):
                want = layer(tensor(x)).numpy()
                got = plan.compile(trace_module(layer, tensor(x)), threads=1)(at_end(x))[0]
                np.testing.assert_array_equal(got, want)

    assert fault_of(work) == ""
