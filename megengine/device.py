"""Devices: where a tensor's storage lives.

`cpu0`, `cpu0:1`, `multithread4` and more are names of the processor; `gpu0`, `gpux`, `cuda`, `cuda:0` are NVIDIA GPUs,
which need CuPy and a driver. `xpux` is the processor, until `set_default_device("xpux")` finds a GPU.
`test0` is a second device that exists on every machine: its storage is main memory too, but tensors must be copied to
it, so device dispatch and mixed-device errors can be tested. Other kinds (`rocm0`) are refused where they are named.
"""

from __future__ import annotations

import enum
import functools
import os
import re
from functools import partial
from typing import Any

from megengine.core import absent
from megengine.core.effectless import warn_once
from megengine.core.errors import ArgumentError, DeviceError, OptionError, brief, nearest
from megengine.core.exports import own_names
from megengine.kernels import _core, cuda, memory

_HOST = re.compile(r"(cpu|xpu)(x|\d+)?(:(\d+|default))?|multithread(\d+(:\d+)?|:default:\d+)")
_TEST = re.compile(r"(test\d+)(:0)?")
_GPU = re.compile(r"(gpu|cuda)(x|\d+)?(:(\d+))?")
_OTHER = re.compile(r"(rocm|cambricon|atlas)(x|\d+)?(:\d+)?")
_EXPECTED = "expected cpu0, the processor, or gpu0, a GPU"
_xpu = ["cpu0"]  # what the name xpux stands for
_default = ["xpux", "cpu0"]  # the name that was set, and the device it stands for


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
    """The device that a name stands for: "cpu0" for all names of the processor.

    Raises:
        ArgumentError: the name is no string.
        DeviceError: there is no such device; the message says what is missing and what to use.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"device is {brief(name)}; expected a name: xpux or cpu0, the processor")
    name = str.__str__(name)
    plain = _plain(name)
    if plain is None:
        if other := _OTHER.fullmatch(name):
            raise DeviceError(
                f"device {name!r} is not usable: {other[1]} devices are not supported; use xpux or cpu0, the processor"
            )
        raise DeviceError(f"unknown device {brief(name)}; {_EXPECTED}{nearest(name, ('cpu0', 'xpux', 'gpu0'))}")
    if plain.startswith("gpu") and (reason := cuda.unavailable_reason(plain)) is not None:
        raise DeviceError(f"device {name!r} is not usable: {reason}; or use xpux or cpu0, the processor")
    return plain


def _plain(name: str) -> str | None:
    """The device that a name stands for, whether it is usable or not; None for a name of none."""
    if _HOST.fullmatch(name):
        return _xpu[0] if name.startswith("xpu") else "cpu0"
    if test := _TEST.fullmatch(name):
        return test[1]
    if gpu := _GPU.fullmatch(name):
        number = gpu[2] if gpu[2] not in (None, "x") else gpu[4] if gpu[1] == "cuda" and gpu[4] else "0"
        return f"gpu{int(number)}"
    return None


class CompNode(str):
    """The device of a tensor: equal to all its names, written as MegEngine writes it ("xpux:0").

    >>> tensor(1.0).device == "xpux" == tensor(1.0).device
    True
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def __new__(cls, name: str = "xpux") -> CompNode:
        return super().__new__(cls, normalize(name))

    @property
    def logical_name(self) -> str:
        """MegEngine's name of the device: "xpux:0" for the processor."""
        return "xpux:0" if str.__str__(self) == "cpu0" else f"{str.__str__(self)}:0"

    @property
    def physical_name(self) -> str:
        """The device that the logical name stands for: "cpu0:0"."""
        return f"{str.__str__(self)}:0"

    @property
    def physical_locator(self) -> tuple[str, int, int]:
        """Kind, number and stream: ("cpu", 0, 0)."""
        kind = str.__str__(self).rstrip("0123456789")
        return kind, int(str.__str__(self)[len(kind) :]), 0

    @property
    def get_mem_status_bytes(self) -> tuple[int, int]:
        """Total and free memory, in bytes. An attribute, as in MegEngine."""
        return get_mem_status_bytes(str.__str__(self))

    @property
    def get_used_memory(self) -> int:
        """Bytes in use. An attribute, as in MegEngine."""
        return get_allocated_memory(str.__str__(self))

    @staticmethod
    def _get_default_device() -> str:
        return get_default_device()

    @staticmethod
    def _set_default_device(device: str) -> None:
        set_default_device(device)

    @staticmethod
    def _get_device_count(device_type: DeviceType, warn: bool = False) -> int:
        return get_device_count({DeviceType.CUDA: "gpu", DeviceType.ROCM: "rocm"}.get(device_type, "cpu"))

    @staticmethod
    def _sync_all() -> None:
        """Wait for the GPUs; calls on the processor are synchronous."""
        cuda.synchronize()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        mine, name = str.__str__(self), str.__str__(other)
        return mine == name or mine == _plain(name)

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __str__(self) -> str:
        return self.logical_name

    def __format__(self, spec: str) -> str:
        return format(self.logical_name, spec)

    def __repr__(self) -> str:
        return f'CompNode("{self.physical_name}" from "{self.logical_name}")'

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (str.__str__(self),)


comp_node = functools.cache(CompNode)


def is_cuda_available() -> bool:
    """Whether tensors can live on a GPU: CuPy, a driver and an NVIDIA GPU are there."""
    return cuda.available()


def get_device_count(device_type: str) -> int:
    """Number of devices of a kind: "cpu" and "xpu" 1, "gpu" those of CUDA, "rocm" none. Raises OptionError."""
    kinds = ("cpu", "gpu", "rocm", "xpu")
    if not isinstance(device_type, str) or device_type not in kinds:
        raise OptionError(
            f"get_device_count: device_type is {brief(device_type)}; expected one of {', '.join(kinds)}"
            f"{nearest(str(device_type), kinds)}"
        )
    return cuda.count() if device_type == "gpu" else int(device_type in ("cpu", "xpu"))


def get_default_device() -> str:
    """Name of the device of tensors created without one, as it was set; "xpux", the processor, at first."""
    return _default[0]


def default_device() -> str:
    """The device that the default name stands for, as specs of tensors hold it."""
    return _default[1]


def set_default_device(device: str = "xpux") -> None:
    """Set the device of tensors created without one, for the whole process: "xpux" for a GPU where there is one."""
    try:
        if isinstance(device, str) and device.startswith("xpu"):
            _xpu[:] = ["gpu0" if cuda.available() else "cpu0"]
        name = normalize(device)
    except (ArgumentError, DeviceError) as exc:
        exc.add_note("while calling set_default_device")
        raise
    if device.startswith("multithread"):
        warn_once(f"device {device!r}", "eager calls take one thread; compiled plans take several: threads=")
    _default[:] = str.__str__(device), name


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
    """The kind of device that "xpu" stands for: "cpu" or "gpu"."""
    return _xpu[0].rstrip("0123456789")


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
    """Version of cuDNN, major * 10000 + minor * 100 + patch; 0 where convolutions on GPUs do not use it."""
    return cuda.cudnn_version() if cuda.available() else 0


def get_tensorrt_version() -> int:
    """0: TensorRT is not used."""
    return 0


def _cuda_properties(device: int, device_type: DeviceType) -> dict[str, Any]:
    if device_type is not DeviceType.CUDA:
        raise DeviceError(f"device_type is {device_type}; expected DeviceType.CUDA")
    runtime, count = _cupy().cuda.runtime, cuda.count()
    if device not in range(count):
        raise DeviceError(f"CUDA device {brief(device)} does not exist; expected a number below {count}")
    return runtime.getDeviceProperties(device)


def get_cuda_compute_capability(device: int, device_type: DeviceType = DeviceType.CUDA) -> int:
    """Compute capability of a GPU, major * 10 + minor. Raises DeviceError without CUDA or such a device."""
    properties = _cuda_properties(device, device_type)
    return properties["major"] * 10 + properties["minor"]


def get_cuda_device_property(device: int, device_type: DeviceType = DeviceType.CUDA) -> dict[str, Any]:
    """Properties of a GPU, by their names in CUDA. Raises DeviceError without CUDA or such a device."""
    found = _cuda_properties(device, device_type)
    return {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in found.items()
    }


def _gpu(device: str | None) -> str | None:
    """The device, if it is a GPU; the default one where none is named."""
    name = default_device() if device is None else normalize(device)
    return name if name.startswith("gpu") else None


def get_mem_status_bytes(device: str | None = None) -> tuple[int, int]:
    """Total and free memory of the machine, or of the GPU, in bytes."""
    if gpu := _gpu(device):
        memory_of = cuda.memory(gpu)
        return memory_of["total"], memory_of["free"]
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page


def get_allocated_memory(device: str | None = None) -> int:
    """Bytes of the pool that are in use.

    Plans take their memory from it, and so do the engine's own kernels for results of 1 MiB and more. Other values are
    NumPy's arrays, which are not counted. On a GPU all values are.
    """
    gpu = _gpu(device)
    return cuda.memory(gpu)["used"] if gpu else _core.live_bytes()


def get_reserved_memory(device: str | None = None) -> int:
    """Bytes that the pool holds, in use or kept for reuse."""
    gpu = _gpu(device)
    return cuda.memory(gpu)["reserved"] if gpu else _core.live_bytes() + _core.kept_bytes()


def get_max_allocated_memory(device: str | None = None) -> int:
    """The most bytes of the pool that were in use at a time, since `reset_max_memory_stats`."""
    gpu = _gpu(device)
    return cuda.memory(gpu)["peak_used"] if gpu else _core.peak_bytes()[0]


def get_max_reserved_memory(device: str | None = None) -> int:
    """The most bytes that the pool held at a time, since `reset_max_memory_stats`."""
    gpu = _gpu(device)
    return cuda.memory(gpu)["peak_reserved"] if gpu else _core.peak_bytes()[1]


def reset_max_memory_stats(device: str | None = None) -> None:
    """Set both peaks to the present values."""
    if gpu := _gpu(device):
        cuda.reset_peaks(gpu)
    else:
        _core.reset_peak_bytes()


def coalesce_free_memory() -> None:
    """Return memory that is kept for reuse to the system, and to the GPUs in use."""
    memory.release()
    cuda.release()


def set_prealloc_config(
    alignment: int = 1,
    min_req: int = 32 * 1024 * 1024,
    max_overhead: int = 0,
    growth_factor: float = 2.0,
    device_type: DeviceType = DeviceType.CUDA,
) -> None:
    """Checked and otherwise without effect, as a warning says: nothing is allocated ahead of its use.

    Raises:
        OptionError: a value is too small.
    """
    for name, value, least in (
        ("alignment", alignment, 1),
        ("min_req", min_req, 0),
        ("max_overhead", max_overhead, 0),
        ("growth_factor", growth_factor, 1),
    ):
        if value < least:
            raise OptionError(f"set_prealloc_config: {name} is {value}; expected {least} or more")
    warn_once("megengine.set_prealloc_config", "memory is allocated when it is needed, and kept for reuse")


__getattr__ = partial(absent.part_or_error, __name__)
__all__ = own_names(globals())
