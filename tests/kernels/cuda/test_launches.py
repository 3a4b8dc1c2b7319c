"""Arguments of kernels as the driver gets them: a library with the driver's function stands for it."""

import subprocess

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu

from megengine.kernels import _core

STAND_IN = r"""
#include <cstring>
unsigned seen[8]; unsigned char bytes[4][16];
extern "C" int cuLaunchKernel(void* f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g,
                              unsigned s, void* stream, void** arguments, void** extra) {
    const unsigned now[8] = {a, b, c, d, e, g, s, (unsigned)(unsigned long long)stream};
    std::memcpy(seen, now, sizeof seen);
    if (s == 99) return std::memcmp(arguments[0], "structure of more than sixteen bytes", 36) ? 2 : 0;
    for (int i = 0; i < 4; i++) std::memcpy(bytes[i], arguments[i], i == 3 ? 4 : 8);
    return f ? (extra ? 1 : 0) : 400;
}
extern "C" unsigned* seen_sizes() { return seen; }
extern "C" unsigned char* seen_bytes() { return bytes[0]; }
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(STAND_IN)
    library = folder / "libdriver.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, folder / "driver.cpp"], check=True)
    return str(library)


def test_arguments_and_sizes_reach_the_driver(driver):
    import ctypes

    launch, library = _core.CudaLauncher(driver), ctypes.CDLL(driver)
    array = EmulatedGpu().upload(np.arange(3.0))
    assert launch(1, (2, 3), (4,), 5, 6, (array, None, np.int64(-7), np.float32(0.5))) == 0
    library.seen_sizes.restype = library.seen_bytes.restype = ctypes.c_void_p
    sizes = np.ctypeslib.as_array((ctypes.c_uint * 8).from_address(library.seen_sizes()))
    assert sizes.tolist() == [2, 3, 1, 4, 1, 1, 5, 6]
    data = bytes((ctypes.c_ubyte * 64).from_address(library.seen_bytes()))
    assert np.frombuffer(data, np.uint64, 1, 0)[0] == array.address
    assert np.frombuffer(data, np.uint64, 1, 16)[0] == 0
    assert np.frombuffer(data, np.int64, 1, 32)[0] == -7
    assert np.frombuffer(data, np.float32, 1, 48)[0] == 0.5
    assert launch(0, (1,), (1,), 0, 0, (None,) * 4) == 400


def test_structures_are_read_where_they_lie(driver):
    launch = _core.CudaLauncher(driver)
    made = np.zeros((), [("words", "S36"), ("number", "i4")])
    made["words"] = b"structure of more than sixteen bytes"
    assert launch(1, (1,), (1,), 99, 0, (made,)) == 0
    with pytest.raises(ValueError, match="a structure 4096"):
        launch(1, (1,), (1,), 99, 0, (np.zeros((), [("words", "i8", 513)]),))


def test_what_no_kernel_takes_is_refused(driver):
    launch = _core.CudaLauncher(driver)
    with pytest.raises(AttributeError, match="address"):
        launch(1, (1,), (1,), 0, 0, ("text", None, None, None))
    with pytest.raises(ValueError, match="one to three lengths"):
        launch(1, (), (1,), 0, 0, (None,) * 4)
    with pytest.raises(ValueError, match="16 bytes"):
        launch(1, (1,), (1,), 0, 0, (np.zeros(5),))
    with pytest.raises(ValueError, match="at most 96 arguments"):
        launch(1, (1,), (1,), 0, 0, (None,) * 97)
    with pytest.raises(RuntimeError, match="no such library"):
        _core.CudaLauncher("no such library")
