"""Programs of the CUDA kernels, compiled for GPUs by NVRTC without a driver, and what the compiler says of them."""

import hashlib
import importlib
import os
import pkgutil
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import megengine.kernels.cuda
from megengine.core.errors import DeviceError
from megengine.kernels.cuda.compiler import flags_of, nvrtc
from megengine.kernels.cuda.sources import Program, headers_of

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "nvrtc"
_ENTRY = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for '\w+'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\s+"
    r"ptxas info\s*: Used (?P<registers>\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel needs of a GPU: registers a thread, bytes of stack and of registers that went to memory."""

    kernel: str
    registers: int
    stack: int
    spilled: int


def families() -> dict[str, list[Program]]:
    """The programs that each module of kernels declares, by the module's name; each program once."""
    found: dict[str, list[Program]] = {}
    for module in pkgutil.iter_modules(megengine.kernels.cuda.__path__):
        programs = getattr(importlib.import_module(f"megengine.kernels.cuda.{module.name}"), "programs", None)
        if programs is not None:
            found[module.name] = list(dict.fromkeys(programs()))
    return found


def need_nvrtc() -> None:
    """Skips the test where the compiler is not installed."""
    try:
        nvrtc()
    except DeviceError as exc:
        pytest.skip(f"{exc}")


def compiled(program: Program, architecture: int) -> tuple[str, str]:
    """PTX and ptxas's words, of which earlier runs of the tests left a copy."""
    words = [program.source, *headers_of(program.source).values(), *flags_of(program, architecture), nvrtc().version]
    key = hashlib.sha256("\0".join(map(str, words)).encode()).hexdigest()[:40]
    path = CACHE / f"{key}.txt"
    if path.exists():
        ptx, _, log = path.read_text().rpartition("\0")
        return ptx, log
    _, ptx, log = nvrtc().compile(program, architecture, "--ptxas-options=-v")
    ptx = ptx.rstrip("\0")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(f"{ptx}\0{log}")
    os.replace(file.name, path)
    return ptx, log


def resources(log: str) -> list[Resources]:
    """What ptxas says of each kernel."""
    return [
        Resources(m["kernel"], int(m["registers"]), int(m["stack"]), int(m["stores"]) + int(m["loads"]))
        for m in _ENTRY.finditer(log)
    ]


def compile_all(programs: list[Program], architectures: tuple[int, ...]) -> list[tuple[Program, int, str, str]]:
    """Every program for every architecture, in a thread a processor: NVRTC holds no lock of Python."""
    jobs = [(p, a) for p in programs for a in architectures]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = pool.map(lambda job: compiled(*job), jobs)
        return [(p, a, *both) for (p, a), both in zip(jobs, made, strict=True)]
