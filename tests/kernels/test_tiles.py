"""Integer products in tiles (AMX): they read nothing behind their sources, and share a thread's tiles with oneDNN."""

import subprocess
import sys

import numpy as np
import pytest
from page_ends import at_end, fault_of

import megengine.functional  # noqa: F401
from megengine.core.dtype import qint8, quint8
from megengine.core.spec import TensorSpec
from megengine.dispatch import infer
from megengine.kernels import _core, isa
from megengine.kernels.kernel import StepKernel
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family

tiles = pytest.mark.skipif("amx" not in isa.available(), reason="a CPU without AMX")
NONE, ONE = ((0, 0), (0, 0)), ((1, 1), (1, 1))
# name: source, weights, stride, padding. Sources without padding are read where they lie.
CASES = {
    "a depth of 64": ((1, 64, 7, 7), (64, 64, 1, 1), 1, NONE),
    "a depth that fills no tile": ((1, 160, 7, 7), (48, 160, 1, 1), 1, NONE),
    "a depth below a tile": ((1, 24, 5, 9), (144, 24, 1, 1), 1, NONE),
    "fewer pixels than a tile": ((1, 100, 1, 3), (16, 100, 1, 1), 1, NONE),
    "one pixel": ((1, 2048, 1, 1), (80, 2048, 1, 1), 1, NONE),
    "every other pixel": ((2, 32, 15, 15), (130, 32, 1, 1), 2, NONE),
    "every other pixel of short lines": ((1, 20, 9, 3), (20, 20, 1, 1), 2, NONE),
    "windows": ((1, 16, 9, 11), (24, 16, 3, 3), 1, NONE),
    "windows of a depth that fills no tile": ((2, 20, 6, 5), (40, 20, 3, 3), 1, NONE),
    "windows apart": ((1, 8, 11, 21), (70, 8, 3, 3), 2, NONE),
    "tall pictures": ((1, 12, 40, 2), (20, 12, 3, 2), 1, NONE),
    "padding": ((1, 20, 9, 8), (33, 20, 3, 3), 1, ONE),
    "padding and strides": ((1, 16, 33, 33), (33, 16, 3, 3), 2, ONE),
}


def layer(case, zero=3, output=5):
    """A problem of the integer convolution, its arrays (source and result NHWC), and what NumPy makes of it."""
    x, w, stride, padding = case
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, x).astype(np.uint8), rng.integers(-127, 128, w).astype(np.int8)]
    m = (rng.random(w[0]) + 0.5).astype(np.float32) / np.float32(75 * np.sqrt(np.prod(w[1:])))
    offset = rng.integers(-900, 900, w[0]).astype(np.int32) * (zero != 0)  # oneDNN takes none
    arrays += [offset, m, rng.normal(0, 20, w[0]).astype(np.float32)]
    attrs = {"stride": (stride,) * 2, "padding": padding, "dilation": (1, 1), "groups": 1, "ratio": 0.0}
    attrs |= {"dtype": quint8(0.02, output), "lo": -output, "hi": 255 - output}
    specs = [TensorSpec(a.shape, d) for a, d in zip(arrays[:2], (quint8(0.02, zero), qint8(0.1)), strict=True)]
    specs += [TensorSpec(a.shape, a.dtype) for a in arrays[2:]]
    out = infer("qconv2d", specs, attrs)
    assert isinstance(out, TensorSpec)
    problem = Problem("qconv2d", specs, [out], attrs)
    return problem, arrays, _expected(arrays, stride, padding, zero, output)


def _expected(arrays, stride, padding, zero, output):
    x, w, b, m, bias = arrays
    padded = np.pad(x.astype(np.int64) - zero, (NONE[0], NONE[0], *padding))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    sums = np.einsum("nchwij,ocij->nhwo", windows, w.astype(np.int64), optimize=True) + b
    t = sums.astype(np.float32) * m + bias
    return np.ascontiguousarray(np.rint(t.clip(-output, 255 - output)) + output, np.uint8)


def kernel(name):
    return next(k for k in family("qconv2d").kernels if isinstance(k, StepKernel) and k.name == name)


def make(problem, arrays, name="int8_conv", threads=1):
    return kernel(name).make_step(problem, dict(enumerate(arrays[1:], 1)), threads)


@tiles
@pytest.mark.parametrize("case", CASES)
def test_nothing_behind_the_source_is_read(case):
    problem, arrays, want = layer(CASES[case])

    def work(say):
        with isa.capped("amx"):
            for threads in (1, 3):
                got = np.empty_like(want)
                x = at_end(np.ascontiguousarray(arrays[0].transpose(0, 2, 3, 1)))
                _core.run_step(make(problem, arrays, threads=threads), [x, got])
                np.testing.assert_array_equal(got, want)

    assert fault_of(work) == ""


@tiles
def test_tiles_between_steps_of_onednn():
    """Both sides configure the tiles of a thread, in any order."""
    with isa.capped("amx"):
        steps = []
        for case, zero in (("a depth of 64", 0), ("a depth below a tile", 0), ("padding", 0), ("windows", 0)):
            problem, arrays, want = layer(CASES[case], zero, 0)
            names = [k for k in ("int8_conv", "onednn_qconv2d") if kernel(k).usable(problem) is None]
            x = np.ascontiguousarray(arrays[0].transpose(0, 2, 3, 1))
            steps += [(make(problem, arrays, name), x, want) for name in names]
        for step, x, want in steps * 2 + steps[::-1]:
            got = np.empty_like(want)
            _core.run_step(step, [x, got])
            np.testing.assert_array_equal(got, want)


@tiles
def test_a_system_that_refuses_tiles_has_none():
    """Linux keeps AMX from a process whose signal stack has no room for the tiles."""
    code = (
        "import ctypes, os; os.environ.pop('MEGENGINE_MAX_ISA', None)\n"
        "class Stack(ctypes.Structure):\n"
        "    _fields_ = [('at', ctypes.c_void_p), ('flags', ctypes.c_int), ('size', ctypes.c_size_t)]\n"
        "memory = ctypes.create_string_buffer(4096)\n"
        "stack = Stack(ctypes.addressof(memory), 0, 4096)\n"
        "assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0\n"
        "from megengine.kernels import isa\n"
        "print(isa.detected())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "bf16"
