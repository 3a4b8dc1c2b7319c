"""Compiling CUDA sources at run time: NVRTC through ctypes, so that no driver is needed to compile.

NVRTC is called directly because CuPy's `RawModule` flushes subnormal numbers (`-ftz=true`), which no CPU does.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
from typing import Any

from megengine.core.errors import DeviceError
from megengine.kernels.cuda.sources import Program, headers_of

_NAMES = ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12")
_DIGEST = hashlib.sha256().digest_size
_REMEDY = "pip install 'megengine[cuda]'"


def _candidates() -> list[str]:
    """Where NVRTC may lie: the wheel of NVIDIA's, of CUDA 13 and 12, then what the system finds."""
    found: list[str] = []
    for package in ("nvidia.cu13", "nvidia.cuda_nvrtc"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for place in (spec.submodule_search_locations or ()) if spec else ():
            library = os.path.join(place, "lib")
            files = sorted(os.listdir(library)) if os.path.isdir(library) else ()
            found += [os.path.join(library, name) for name in files if name.startswith("libnvrtc.so.")]
    return found + list(_NAMES)


class Nvrtc:
    """The library: sources to machine code."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def architectures(self) -> list[int]:
        """The GPUs that it compiles for, as compute capability times ten."""
        count = ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(found)
        return list(found)

    def _bytes(self, made: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(made, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(made, text)
        return text.raw

    def compile(self, program: Program, architecture: int, *options: str) -> tuple[bytes, str, str]:
        """Machine code, PTX and log of a program for an architecture. Raises DeviceError with the compiler's words."""
        headers = headers_of(program.source)
        names = (ctypes.c_char_p * len(headers))(*[n.encode() for n in headers])
        texts = (ctypes.c_char_p * len(headers))(*[t.encode() for t in headers.values()])
        made = ctypes.c_void_p()
        file = program.file.encode()
        create, compile_ = self._library.nvrtcCreateProgram, self._library.nvrtcCompileProgram
        create(ctypes.byref(made), program.source.encode(), file, len(headers), texts, names)
        flags = [f.encode() for f in (*flags_of(program, architecture), *options)]
        try:
            failed = compile_(made, len(flags), (ctypes.c_char_p * len(flags))(*flags))
            log = self._bytes(made, "ProgramLog").decode(errors="replace").strip("\0\n ")
            if failed:
                reason = self._library.nvrtcGetErrorString(failed).decode()
                raise DeviceError(f"{program.file} does not compile for sm_{architecture}: {reason}\n{log}")
            return self._bytes(made, "CUBIN"), self._bytes(made, "PTX").decode(errors="replace"), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(made))


def flags_of(program: Program, architecture: int) -> list[str]:
    """The compiler's flags: a product and a sum are never joined where results are exact."""
    return [f"--gpu-architecture=sm_{architecture}", "--std=c++17", f"--fmad={'false' if program.exact else 'true'}"]


@functools.cache
def nvrtc() -> Nvrtc:
    """The compiler. Raises DeviceError where it is not installed."""
    reasons = []
    for path in _candidates():
        try:
            return Nvrtc(ctypes.CDLL(path))
        except OSError as exc:
            reasons.append(str(exc))
    raise DeviceError(f"NVRTC, which compiles CUDA kernels, was not found ({reasons[-1]}); {_REMEDY}")


def cache_folder() -> str:
    """Where compiled kernels are kept: `MEGENGINE_CUDA_CACHE`, or a folder of the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("MEGENGINE_CUDA_CACHE") or os.path.join(base, "megengine", "cuda")


def _key(program: Program, architecture: int) -> str:
    source = program.source
    parts: list[Any] = [source, *headers_of(source).values(), *flags_of(program, architecture), nvrtc().version]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:40]


def cubin(program: Program, architecture: int) -> bytes:
    """Machine code of a program, from the cache on disk where it was compiled before."""
    path = os.path.join(cache_folder(), f"{_key(program, architecture)}.cubin")
    made = stored(path)
    if made is None:
        made = nvrtc().compile(program, architecture)[0]
        store(path, made)
    return made


def stored(path: str) -> bytes | None:
    """The content of a file of the cache, which has its digest behind it; None where it is not there, or is damaged."""
    try:
        with open(path, "rb") as file:
            whole = file.read()
    except OSError:
        return None
    made, digest = whole[:-_DIGEST], whole[-_DIGEST:]
    return made if hashlib.sha256(made).digest() == digest else None


def store(path: str, made: bytes) -> None:
    """Write a file of the cache at once, or not at all: the cache saves time only."""
    import tempfile

    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), delete=False) as file:
            try:
                file.write(made + hashlib.sha256(made).digest())
                file.close()
                os.replace(file.name, path)
            except OSError:  # no room: the next kernels need it, too
                os.unlink(file.name)
                raise
