"""Devices: where a tensor's storage lives.

`cpu0` is the processor. `test0` is a second device that exists on every machine: its storage is main memory too, but
tensors must be copied to it, so device dispatch and mixed-device errors can be tested without a GPU. `gpuN` needs CuPy.
"""

from __future__ import annotations

import enum
import os
import re
from typing import Any

from megengine.core import absent
from megengine.core.errors import ArgumentError, DeviceError, OptionError, brief, nearest
from megengine.kernels import cuda

_ALIASES = {"cpu": "cpu0", "xpu": "cpu0", "xpux": "cpu0", "cpux": "cpu0", "gpu": "gpu0", "gpux": "gpu0", "cuda": "gpu0"}
_USUAL = ("cpu0", "xpux", "gpu0")
_NAME = re.compile(r"^(cpu|xpu|gpu|test)(\d+|x)(:\d+)?$")
_default = ["cpu0"]


class DeviceType(enum.Enum):
    """Kinds of devices that MegEngine knows; here there are CPU and CUDA."""

    UNSPEC = 0
    CUDA = 1
    ROCM = 2
    CPU = 3
    CAMBRICON = 8
    ATLAS = 9
    MULTITHREAD = 11
    MAX_DEVICE_ID = 12


def normalize(name: str) -> str:
    """The canonical name of a device, checked to exist. Raises DeviceError with what is missing, ArgumentError."""
    if not isinstance(name, str):
        raise ArgumentError(f"device is {brief(name)}; expected a name: cpu0, gpu0, gpu1, ... or xpux")
    name = _ALIASES.get(name, name)
    found = _NAME.match(name)
    if not found:
        raise DeviceError(f"unknown device {name!r}; expected cpu0, gpu0, gpu1, ... or xpux{nearest(name, _USUAL)}")
    kind, index = found[1], "0" if found[2] == "x" else found[2]
    kind = "cpu" if kind == "xpu" else kind
    if kind == "gpu" and not cuda.available():
        raise DeviceError(f"device {name!r} is not usable: {cuda.unavailable_reason()}; use cpu0")
    return f"{kind}{index}"


def is_cuda_available() -> bool:
    """True if a CUDA device answers."""
    return cuda.available()


def get_device_count(device_type: str) -> int:
    """Number of devices of a kind: "cpu" and "xpu" 1, "gpu" those that answer, "rocm" none. Raises OptionError."""
    kinds = ("cpu", "gpu", "rocm", "xpu")
    if not isinstance(device_type, str) or device_type not in kinds:
        raise OptionError(
            f"get_device_count: device_type is {brief(device_type)}; expected one of {', '.join(kinds)}"
            f"{nearest(str(device_type), kinds)}"
        )
    if device_type in ("cpu", "xpu"):
        return 1
    return _cupy().cuda.runtime.getDeviceCount() if device_type == "gpu" and cuda.available() else 0


def get_default_device() -> str:
    """Device of tensors created without one."""
    return _default[0]


def set_default_device(device: str = "xpux") -> None:
    """Set the device of tensors created without one, for the whole process."""
    try:
        _default[0] = normalize(device)
    except (ArgumentError, DeviceError) as exc:
        exc.add_note("while calling set_default_device")
        raise


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


def _cupy() -> Any:
    reason = cuda.unavailable_reason()
    if reason is not None:
        raise DeviceError(f"a CUDA device is asked for, but {reason}; use cpu0")
    import cupy

    return cupy


def get_cuda_version() -> int:
    """CUDA version in use, major * 1000 + minor * 10. Raises DeviceError without CUDA."""
    return _cupy().cuda.runtime.runtimeGetVersion()


def get_cuda_driver_version() -> int:
    """Latest CUDA version that the driver supports, major * 1000 + minor * 10; 0 without a driver."""
    return _cupy().cuda.runtime.driverGetVersion() if cuda.available() else 0


def get_cudnn_version() -> int:
    """0: cuDNN is not used."""
    return 0


def get_tensorrt_version() -> int:
    """0: TensorRT is not used."""
    return 0


def _cuda_number(device: int, device_type: DeviceType) -> Any:
    if device_type is not DeviceType.CUDA:
        raise DeviceError(f"device_type is {device_type}; expected DeviceType.CUDA")
    count = get_device_count("gpu")
    if not 0 <= device < count:
        raise DeviceError(
            f"CUDA device {device} does not exist; there are {count}"
            + ("" if count else f" ({cuda.unavailable_reason()})")
        )
    return _cupy().cuda.runtime


def get_cuda_compute_capability(device: int, device_type: DeviceType = DeviceType.CUDA) -> int:
    """Compute capability of a CUDA device, major * 10 + minor. Raises DeviceError for one that does not exist."""
    found = _cuda_number(device, device_type).getDeviceProperties(device)
    return found["major"] * 10 + found["minor"]


def get_cuda_device_property(device: int, device_type: DeviceType = DeviceType.CUDA) -> dict[str, Any]:
    """Properties of a CUDA device (name, major, minor, totalGlobalMem in bytes, ...). Raises DeviceError."""
    return _cuda_number(device, device_type).getDeviceProperties(device)


def _on_gpu(device: str | None) -> bool:
    return normalize(get_default_device() if device is None else device).startswith("gpu")


def get_mem_status_bytes(device: str | None = None) -> tuple[int, int]:
    """Total and free memory of a device, in bytes; of the default device without one."""
    if _on_gpu(device):
        with _cupy().cuda.Device(int(normalize(device or get_default_device())[3:])):
            free, total = _cupy().cuda.runtime.memGetInfo()
        return total, free
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page


def get_allocated_memory(device: str | None = None) -> int:
    """Bytes of a GPU's pool that are in use; 0 for the processor, whose memory is not pooled, as in MegEngine."""
    return _cupy().get_default_memory_pool().used_bytes() if _on_gpu(device) else 0


def get_reserved_memory(device: str | None = None) -> int:
    """Bytes that a GPU's pool holds, in use or free; 0 for the processor, whose memory is not pooled."""
    return _cupy().get_default_memory_pool().total_bytes() if _on_gpu(device) else 0


def _no_peaks(name: str, device: str | None) -> int:
    if _on_gpu(device):
        raise DeviceError(f"{name}: CuPy's pool keeps no peaks; count with a cupy.cuda.MemoryHook")
    return 0


def get_max_allocated_memory(device: str | None = None) -> int:
    """0 for the processor, whose memory is not pooled. Raises DeviceError for a GPU: its pool keeps no peaks."""
    return _no_peaks("get_max_allocated_memory", device)


def get_max_reserved_memory(device: str | None = None) -> int:
    """0 for the processor, whose memory is not pooled. Raises DeviceError for a GPU: its pool keeps no peaks."""
    return _no_peaks("get_max_reserved_memory", device)


def reset_max_memory_stats(device: str | None = None) -> None:
    """Nothing for the processor. Raises DeviceError for a GPU: its pool keeps no peaks."""
    _no_peaks("reset_max_memory_stats", device)


def coalesce_free_memory() -> None:
    """Give what GPU pools hold without using it back to the system; the processor's memory is not pooled."""
    if cuda.available():
        _cupy().get_default_memory_pool().free_all_blocks()


def set_prealloc_config(
    alignment: int = 1,
    min_req: int = 32 * 1024 * 1024,
    max_overhead: int = 0,
    growth_factor: float = 2.0,
    device_type: DeviceType = DeviceType.CUDA,
) -> None:
    """Checked and otherwise without effect: nothing is allocated ahead of its use. Raises OptionError."""
    for name, value, least in (
        ("alignment", alignment, 1),
        ("min_req", min_req, 0),
        ("max_overhead", max_overhead, 0),
        ("growth_factor", growth_factor, 1),
    ):
        if value < least:
            raise OptionError(f"set_prealloc_config: {name} is {value}; expected {least} or more")


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)
