"""CUDA kernels: sources in `src/`, compiled at run time, launched through a `Runtime`.

CuPy is optional and imported where it is used; `unavailable_reason()` says why there is no GPU. The modules of kernels
are parts of this package that are imported when they are first named (`cuda.elementwise`), which only a GPU needs.
"""

from __future__ import annotations

from typing import Any

from megengine.core import late
from megengine.kernels.cuda import runtime


def __getattr__(name: str) -> Any:
    part = _module(name)
    if part is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return part


def _module(name: str) -> Any:
    return late.part(__name__, name)


def _of_cupy() -> Any:
    return _module("cupy_runtime")


runtime.provide(lambda device: _of_cupy().CupyRuntime(device))


def unavailable_reason(device: str = "gpu0") -> str | None:
    """None when CUDA kernels can run here, else what is missing and the remedy."""
    return None if runtime.stands_in(device) else _of_cupy().unavailable_reason(device)


def available(device: str = "gpu0") -> bool:
    """True if CuPy is installed and a CUDA device answers."""
    return unavailable_reason(device) is None


def count() -> int:
    """Number of CUDA devices that can be used."""
    return max(runtime.stand_ins(), _of_cupy().count())


def synchronize() -> None:
    """Wait for every GPU in use. Raises what a kernel refused."""
    for one in runtime.in_use():
        one.synchronize()


def cudnn_version() -> int:
    """The version of cuDNN; 0 where it is not installed."""
    return _module("libraries").cudnn_version()


def memory(device: str) -> dict[str, int]:
    """Bytes of a GPU: total, free; of its pool: used, reserved, and the most of both since `reset_peaks`."""
    return runtime.runtime_of(device).memory()


def reset_peaks(device: str) -> None:
    """Let the most of the pool's bytes be the present ones."""
    runtime.runtime_of(device).reset_peaks()


def release() -> None:
    """Give memory that is kept for reuse back to the GPUs in use."""
    for one in runtime.in_use():
        one.release()
