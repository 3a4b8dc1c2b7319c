"""Devices: where a tensor's storage lives.

`cpu0` is the processor. `test0` is a second device that exists on every machine: its storage is main memory too, but
tensors must be copied to it, so device dispatch and mixed-device errors can be tested without a GPU. `gpuN` needs CuPy.
"""

from __future__ import annotations

import re
from typing import Any

from megengine.core import absent
from megengine.core.errors import DeviceError
from megengine.kernels import cuda

_ALIASES = {"cpu": "cpu0", "xpu": "cpu0", "xpux": "cpu0", "cpux": "cpu0", "gpu": "gpu0", "gpux": "gpu0", "cuda": "gpu0"}
_NAME = re.compile(r"^(cpu|xpu|gpu|test)(\d+|x)(:\d+)?$")
_default = ["cpu0"]


def normalize(name: str) -> str:
    """The canonical name of a device, checked to exist. Raises DeviceError with what is missing."""
    name = _ALIASES.get(name, name)
    found = _NAME.match(name)
    if not found:
        raise DeviceError(f"unknown device {name!r}; expected cpu0, gpu0, gpu1, ... or xpux")
    kind, index = found[1], "0" if found[2] == "x" else found[2]
    kind = "cpu" if kind == "xpu" else kind
    if kind == "gpu" and not cuda.available():
        raise DeviceError(f"device {name!r} is not usable: {cuda.unavailable_reason()}; use cpu0")
    return f"{kind}{index}"


def is_cuda_available() -> bool:
    """True if a CUDA device answers."""
    return cuda.available()


def get_device_count(device_type: str) -> int:
    """Number of devices of a kind ("cpu" or "gpu")."""
    if device_type in ("cpu", "xpu"):
        return 1
    if device_type == "gpu" and cuda.available():
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    return 0


def get_default_device() -> str:
    """Device of tensors created without one."""
    return _default[0]


def set_default_device(device: str = "xpux") -> None:
    """Set the device of tensors created without one, for the whole process."""
    _default[0] = normalize(device)


def is_rocm_available() -> bool:
    """False: ROCm devices are not supported."""
    return False


def is_cambricon_available() -> bool:
    """False: Cambricon devices are not supported."""
    return False


def is_atlas_available() -> bool:
    """False: Atlas devices are not supported."""
    return False


def what_is_xpu() -> str:
    """The kind of device that "xpu" stands for: here always the processor."""
    return "cpu"


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)
