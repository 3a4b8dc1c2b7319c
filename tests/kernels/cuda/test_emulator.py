"""The emulated GPU sees what kernels may not do: planted mistakes are caught, in every order of threads."""

import re

import numpy as np
import pytest
from emulated_gpu import ORDERS, EmulatedGpu, LaunchError

from megengine.kernels.cuda.sources import Program

# one kernel a mistake, with words of the error that it is caught with
TEXT = r"""
KERNEL(diverge, int* out) {  // divergent barrier
    if (threadIdx.x < 16) __syncthreads();
    else {
        out[threadIdx.x] = 1;
        __syncthreads();
    }
}
KERNEL(leave_early, int* out) {  // has ended
    if (threadIdx.x == 3) return;
    __syncthreads();
}
KERNEL(half_warp, int* out) {  // deadlock
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}
KERNEL(absent_lane, int* out) {  // does not name
    out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 0);
}
KERNEL(beyond_shared, int* out) {  // tile\[32\] of 32
    SHARED(int, tile, 32);
    tile[threadIdx.x + 1] = 0;
}
KERNEL(before_shared, int* out) {  // tile\[-1\] of 32
    SHARED(int, tile, 32);
    tile[(int)threadIdx.x - 1] = 0;
}
KERNEL(unwritten, int* out) {  // never written
    SHARED(int, tile, 32);
    out[threadIdx.x] = tile[threadIdx.x];
}
KERNEL(beyond_global, int* out) {  // access outside its array
    out[threadIdx.x + 512] = 1;
}
KERNEL(one_beyond, int* out) {  // access outside its array
    if (threadIdx.x == 0) out[64] = 1;
}
KERNEL(misaligned, int* out) {  // misaligned access to tile
    SHARED(int, tile, 32);
    tile[threadIdx.x] = 0;
    __syncthreads();
    out[0] = wide_load<int4>(tile, 1).x;
}
KERNEL(no_syncwarp, int* out) {  // race, line
    SHARED(int, tile, 32);
    tile[threadIdx.x] = 0;
    __syncthreads();
    tile[threadIdx.x] = 1;
    out[threadIdx.x] = tile[threadIdx.x ^ 1];
}
KERNEL(write_write, int* out) {  // race, .*writes tile
    SHARED(int, tile, 32);
    tile[threadIdx.x / 2] = threadIdx.x;
}
KERNEL(write_after_read, int* out) {  // race, .*tile
    SHARED(int, tile, 32);
    tile[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x ^ 1];
    tile[threadIdx.x] = 2;
}
KERNEL(for_ever, int* out) {  // no end
    while (*(volatile int*)out == -1) {}
}
KERNEL(deep, int* out) {  // stack overflow
    volatile char big[100000];
    big[0] = 1;
    out[0] = big[0];
}
KERNEL(no_wait, int* out) {  // never written
    SHARED(int, tile, 4);
    cp_async16(tile, 0, out);
    cp_async_commit();
    out[8] = tile[0];
}
KERNEL(weak_wait, int* out) {  // never written
    SHARED(int, tile, 4);
    cp_async16(tile, 0, out);
    cp_async_commit();
    cp_async_wait<1>();
    out[8] = tile[0];
}
KERNEL(zero_divisor, int* out) {  // division by zero
    out[threadIdx.x] = 7 / (int)(threadIdx.x / 64);
}
"""
PLANTED = re.findall(r"KERNEL\((\w+), int\* out\) \{  // (.+)", TEXT)
MISTAKES = Program("planted.cu", (), TEXT)
SUM = Program(
    "planted_sum.cu",
    (),
    """KERNEL(tree_sum, const float* x, float* y) {
    SHARED(float, tile, 256);
    const int t = threadIdx.x;
    tile[t] = x[t];
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (t < half) tile[t] += (float)tile[t + half];
#ifndef MISSING
        __syncthreads();
#endif
    }
    if (t == 0) y[0] = tile[0];
}""",
)


def _missing(program: Program) -> Program:
    return Program(program.file, (("MISSING", "1"),), program.text)


@pytest.mark.parametrize("order", ORDERS, ids=("forward", "reverse", "random"))
@pytest.mark.parametrize(("name", "words"), PLANTED)
def test_planted_mistakes_are_caught(name, words, order):
    gpu = EmulatedGpu(order=order)
    gpu.limit = 0.2
    out = gpu.empty((64,), np.int32)
    with pytest.raises(LaunchError, match=words):
        gpu.launch(MISTAKES, name, 1, 32, (out,))


@pytest.mark.parametrize("order", ORDERS, ids=("forward", "reverse", "random"))
def test_a_missing_barrier_is_a_race_in_every_order(order):
    """In reverse order the wrong kernel gives the right sum, so that comparing sums would not see it."""
    gpu = EmulatedGpu(order=order)
    x = np.arange(256, dtype=np.float32)
    out = gpu.zeros((1,), np.float32)
    gpu.launch(SUM, "tree_sum", 1, 256, (gpu.upload(x), out))
    assert gpu.download(out)[0] == x.sum()
    with pytest.raises(LaunchError, match=r"planted_sum\.cu tree_sum: .*race, line"):
        gpu.launch(_missing(SUM), "tree_sum", 1, 256, (gpu.upload(x), out))


TYPED = Program("planted_typed.cu", (), "KERNEL(typed, const float* x, int n, i64 m, float v, f16* h) { h[0].x = 0; }")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "float64"),
        (1, np.int64(3)),
        (1, 3),
        (2, np.int32(3)),
        (3, np.float64(3)),
        (4, "float32"),
    ],
)
def test_arguments_of_wrong_types_are_refused(place, value):
    """A GPU would read other bytes than were meant."""
    gpu = EmulatedGpu()
    arguments = [gpu.zeros((4,), np.float32), np.int32(1), np.int64(1), np.float32(1), gpu.zeros((4,), np.float16)]
    gpu.launch(TYPED, "typed", 1, 1, arguments)
    arguments[place] = gpu.zeros((4,), value) if isinstance(value, str) else value
    with pytest.raises(LaunchError, match=f"argument {place} of .* does not fit"):
        gpu.launch(TYPED, "typed", 1, 1, arguments)


def test_a_wrong_number_of_arguments_is_refused():
    gpu = EmulatedGpu()
    with pytest.raises(LaunchError, match="argument 1 of .* does not fit"):
        gpu.launch(TYPED, "typed", 1, 1, (gpu.zeros((4,), np.float32),))


def test_a_null_pointer_is_a_pointer_only():
    gpu = EmulatedGpu()
    arguments = [None, np.int32(1), np.int64(1), np.float32(1), gpu.zeros((4,), np.float16)]
    gpu.launch(TYPED, "typed", 1, 1, arguments)
    with pytest.raises(LaunchError, match="argument 1"):
        gpu.launch(TYPED, "typed", 1, 1, [None, None, *arguments[2:]])


@pytest.mark.parametrize(
    ("grid", "block", "words"),
    [(1, 2048, "threads a block"), ((1, 70000), 32, "a grid of"), (1, (1, 1, 128), "threads a block")],
)
def test_launches_that_no_gpu_takes_are_refused(grid, block, words):
    gpu = EmulatedGpu()
    with pytest.raises(LaunchError, match=words):
        gpu.launch(MISTAKES, "beyond_shared", grid, block, (gpu.zeros((64,), np.int32),))


def test_too_much_shared_memory_is_refused():
    wide = Program(
        "planted_wide.cu", (), "KERNEL(wide, int* out) { SHARED_DYNAMIC(int, tile); tile[0] = 1; out[0] = tile[0]; }"
    )
    gpu = EmulatedGpu()
    out = gpu.zeros((1,), np.int32)
    gpu.launch(wide, "wide", 1, 1, (out,), shared=64)
    assert gpu.download(out)[0] == 1
    with pytest.raises(LaunchError, match="bytes of shared memory"):
        gpu.launch(wide, "wide", 1, 1, (out,), shared=1 << 20)


def test_values_that_nobody_wrote_are_seen():
    """Memory is NaN before it is written: a kernel that leaves an element out differs from every reference."""
    gpu = EmulatedGpu()
    assert np.isnan(gpu.download(gpu.empty((5,), np.float32))).all()
    assert (gpu.download(gpu.empty((5,), np.int32)) == -1).all()


def test_a_kernel_that_is_not_there_is_named():
    gpu = EmulatedGpu()
    with pytest.raises(LaunchError, match=r"planted\.cu has no kernel absent"):
        gpu.launch(MISTAKES, "absent", 1, 1, ())


def test_text_that_does_not_compile_is_an_error_of_the_launch():
    gpu = EmulatedGpu()
    with pytest.raises(LaunchError, match=r"planted_wrong\.cu .* does not compile"):
        gpu.launch(Program("planted_wrong.cu", (), "KERNEL(wrong, int* out) { out[0] = nothing; }"), "wrong", 1, 1, ())
