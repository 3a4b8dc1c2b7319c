"""CUDA kernels: sources in `src/`, compiled at run time, launched through a `Runtime`.

CuPy is optional and imported where it is used; `unavailable_reason()` says why there is no GPU.
"""

from __future__ import annotations

from megengine.kernels.cuda import cupy_runtime, runtime


def unavailable_reason(device: str = "gpu0") -> str | None:
    """None when CUDA kernels can run here, else what is missing and the remedy."""
    return None if runtime.stands_in(device) else cupy_runtime.unavailable_reason()


def available(device: str = "gpu0") -> bool:
    """True if CuPy is installed and a CUDA device answers."""
    return unavailable_reason(device) is None
