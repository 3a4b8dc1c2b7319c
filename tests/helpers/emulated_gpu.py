"""A device whose kernels run on the processor, thread by thread, with checks that no GPU makes (cuda_on_cpu.h)."""

import ctypes
import functools
import hashlib
import itertools
import math
import mmap
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.kernels.cuda import runtime as runtimes
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.sources import FOLDER, Program, headers_of

HERE = Path(__file__).resolve().parent / "cuda_on_cpu"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "cuda_on_cpu"
FLAGS = [
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fstack-clash-protection",
    "-fno-gnu-unique",
    "-U_FORTIFY_SOURCE",
    "-Wno-attributes",
    "-Wno-unused",
]
_LINKER = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []  # takes a third of the usual one's time
ORDERS = ((0, 0), (1, 0), (2, 7))  # of threads and blocks: forward, reverse, random with seed 7
_LIBC = ctypes.CDLL(None, use_errno=True)
_PAGE = mmap.PAGESIZE
_stacks: list[int] = []  # those of the threads of all libraries, which run one after the other


class LaunchError(AssertionError):
    """The kernel did what no kernel may do."""


def _atomic(path: Path, make) -> Path:
    """A file that `make(temporary path)` writes, unless another process was faster."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            make(made)
            os.replace(made, path)
    return path


@functools.cache
def _emulator() -> Path:
    """The folder of the emulator's header, precompiled, and of its own code, which is the same for all kernels."""
    texts = [path.read_bytes() for path in sorted(HERE.iterdir())]
    folder = CACHE / hashlib.sha256(b"\0".join([*texts, " ".join(FLAGS).encode()])).hexdigest()[:20]
    header = _atomic(folder / "cuda_on_cpu.h", lambda path: shutil.copy(HERE / path.name, path))
    for name, *words in (
        ("cuda_on_cpu.h.gch", "-x", "c++-header", header),
        ("cuda_on_cpu.o", "-O2", "-c", HERE / "cuda_on_cpu.cpp"),
    ):
        _atomic(folder / name, lambda path, words=words: subprocess.run(
            ["g++", *FLAGS, *words, "-o", path], check=True, capture_output=True))  # fmt: skip
    return folder


@functools.cache
def library(program: Program) -> tuple[ctypes.CDLL, Path]:
    """The kernels of a program as a shared library."""
    folder, source = _emulator(), program.source
    key = "\0".join([folder.name, source, *headers_of(source).values()])
    path = CACHE / f"{Path(program.file).stem}_{hashlib.sha256(key.encode()).hexdigest()[:24]}.so"

    def build(made: Path) -> None:
        unit = made.with_suffix(".cpp")
        unit.write_text(f'#include "cuda_on_cpu.h"\nnamespace {{\n{source}\n}}\n')
        emulator = folder / "cuda_on_cpu.o"
        command = ["g++", *FLAGS, *_LINKER, "-shared", f"-I{folder}", f"-I{FOLDER}", "-o", made, unit, emulator]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise LaunchError(f"{program.file} {program.macros} does not compile:\n{done.stderr[:4000]}")

    loaded = ctypes.CDLL(str(_atomic(path, build)))
    loaded.coc_signature.restype = ctypes.c_char_p
    loaded.coc_stacks.restype = ctypes.c_void_p
    _stacks[:] = [loaded.coc_stacks(ctypes.c_void_p(_stacks[0] if _stacks else None))]
    return loaded, path


def _kind(value) -> str:
    """The type of an argument as the emulator names it; bool is an unsigned byte in C++."""
    if value is None:
        return "null"
    pointer, dtype = ("P", value.dtype) if isinstance(value, DeviceArray) else ("", np.asarray(value).dtype)
    if dtype in (bfloat16, np.float16):
        return f"{pointer}V2"
    return pointer + dtype.kind.replace("b", "u").replace("c", "V") + str(dtype.itemsize)


def _fits(want: str | None, have: str | None) -> bool:
    """Whether an argument fits a parameter; a void* (PV1) takes arrays of any type."""
    if want is None or have is None or want[0] != "P":
        return want == have
    return have in (want, "null") or (want == "PV1" and have[0] == "P")


class Room:
    """Memory that ends at a page which may not be touched; full of NaN, and of -1 as integers, before it is written."""

    def __init__(self, size: int) -> None:
        body = -(-size // _PAGE) * _PAGE
        self.map = mmap.mmap(-1, body + _PAGE)
        self._anchor = ctypes.c_char.from_buffer(self.map)
        base = ctypes.addressof(self._anchor)
        self.base, self.end = base, base + body
        self.address = self.last(size)
        ctypes.memset(base, 0xFF, body)
        _LIBC.mprotect(ctypes.c_void_p(base + body), ctypes.c_size_t(_PAGE), 0)

    def last(self, size: int) -> int:
        """The address of the last bytes, as many."""
        return self.end - -(-size // 16) * 16


class EmulatedGpu(runtimes.Runtime):
    """A device named gpu0 in the memory of the processor. `order` is that of threads and blocks."""

    def __init__(self, name: str = "gpu0", architecture: int = 90, order: tuple[int, int] = ORDERS[0]) -> None:
        super().__init__(name)
        self.architecture, self.order, self.limit = architecture, order, 60.0  # seconds of a launch
        self.launched: list[tuple[str, str]] = []  # (file, kernel) of every launch

    def empty(self, shape, dtype) -> DeviceArray:
        dtype, shape = np.dtype(dtype), tuple(map(int, shape))
        size = math.prod(shape) * dtype.itemsize
        room = Room(size) if size else None
        return DeviceArray(self, room, room.address if room else 0, shape, dtype)

    def copy_in(self, array, source) -> None:
        assert source.nbytes == array.nbytes
        ctypes.memmove(array.address, source.ctypes.data, source.nbytes)

    def copy_out(self, array, target) -> None:
        assert target.nbytes == array.nbytes
        ctypes.memmove(target.ctypes.data, array.address, target.nbytes)

    def copy_within(self, array, source) -> None:
        assert source.nbytes == array.nbytes
        ctypes.memmove(array.address, source.address, source.nbytes)

    def clear(self, array) -> None:
        ctypes.memset(array.address, 0, array.nbytes)

    def wait(self) -> None:
        """Nothing: launches end before they return."""

    def memory(self) -> dict[str, int]:
        return dict.fromkeys(("total", "free", "used", "reserved", "peak_used", "peak_reserved"), 0)

    def reset_peaks(self) -> None:
        """Nothing is counted."""

    def release(self) -> None:
        """Nothing is kept."""

    def start(self, program, kernel, grid, block, arguments, shared) -> None:
        loaded, path = library(program)
        signature = loaded.coc_signature(kernel.encode())
        if signature is None:
            raise LaunchError(f"{program.file} has no kernel {kernel}")
        wanted, got = signature.decode().split(), [_kind(a) for a in arguments]
        for i, (want, have) in enumerate(itertools.zip_longest(wanted, got)):
            if not _fits(want, have):
                raise LaunchError(f"{kernel}: argument {i} of {got} does not fit {wanted}")
        cells = [
            ctypes.c_void_p(a.address if isinstance(a, DeviceArray) else 0)
            if a is None or isinstance(a, DeviceArray)
            else ctypes.create_string_buffer(np.asarray(a).tobytes())
            for a in arguments
        ]
        pointers = (ctypes.c_void_p * len(cells))(*[ctypes.addressof(c) for c in cells])
        dims = [(ctypes.c_uint * 3)(*d, *(1,) * (3 - len(d))) for d in (grid, block)]
        text = ctypes.c_char_p()
        self.launched.append((program.file, kernel))
        if loaded.coc_launch(
            kernel.encode(), *dims, shared, pointers, *self.order, int(1000 * self.limit), ctypes.byref(text)
        ):
            message = (text.value or b"").decode()
            for at in re.findall(r"code \+(0x[0-9a-f]+)", message):  # -g1 tells the line
                line = subprocess.run(["addr2line", "-e", path, at], capture_output=True, text=True).stdout.strip()
                message = message.replace(f"code +{at}", f"line {Path(line.split()[0]).name if line else '?'}")
            raise LaunchError(f"{program.file} {kernel}: {message}")
