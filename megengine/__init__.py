"""MegEngine for today's Python."""

import importlib
from importlib.util import find_spec
from typing import Any

import megengine._early

if find_spec("megengine.core._engine") is None:
    raise ImportError(
        f"{__file__} is source that was not built; run Python from another folder to use an installed megengine, "
        "or build this one: make setup"
    )

from megengine import autodiff, core, device, dispatch, functional, logger, module, ops, optimizer, serialization
from megengine.core import absent, late
from megengine.device import (
    coalesce_free_memory,
    get_allocated_memory,
    get_cuda_compute_capability,
    get_cuda_device_property,
    get_cuda_driver_version,
    get_cuda_version,
    get_cudnn_version,
    get_default_device,
    get_device_count,
    get_max_allocated_memory,
    get_max_reserved_memory,
    get_mem_status_bytes,
    get_reserved_memory,
    get_tensorrt_version,
    is_atlas_available,
    is_cambricon_available,
    is_cuda_available,
    is_rocm_available,
    reset_max_memory_stats,
    set_default_device,
    set_prealloc_config,
)
from megengine.kernels import cuda as _cuda
from megengine.kernels import forks as _forks
from megengine.logger import enable_debug_log, get_logger, set_log_file, set_log_level
from megengine.random import seed
from megengine.serialization import load, save
from megengine.tensor import Parameter, Tensor, tensor

# what is imported when a file names it
for _prefix, _home in {
    "megengine.traced_module.": "megengine.traced_module.formats.tm_reading",
    "megengine.quantization.": "megengine.quantization",
    "megengine.functional.quantized": "megengine.functional.quantized",
    "megengine.module.qat.": "megengine.module.qat",
    "megengine.module.quantized.": "megengine.module.quantized",
    "megengine.core._imperative_rt.ops.": "megengine.compat.builtin",
}.items():
    late.provide(_prefix, lambda home=_home: importlib.import_module(home))

absent.explain_modules()
_forks.register()


def _full_sync() -> None:
    """Wait for the GPUs in use; on the processor values exist when a call returns. Raises what a kernel refused."""
    _cuda.synchronize()


def __getattr__(name: str) -> Any:
    part = late.part(__name__, name)  # imported when it is first named
    if part is not None:
        return part
    if name == "cgtools":  # MegEngine's short name
        return importlib.import_module("megengine.utils.comp_graph_tools")
    raise absent.missing(__name__, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *late.parts(__name__), *(name for name in globals() if name.startswith("__"))})


__version__ = "2.0.0.dev0"
__all__ = [
    "Parameter",
    "Tensor",
    "autodiff",
    "coalesce_free_memory",
    "core",
    "device",
    "dispatch",
    "enable_debug_log",
    "functional",
    "get_allocated_memory",
    "get_cuda_compute_capability",
    "get_cuda_device_property",
    "get_cuda_driver_version",
    "get_cuda_version",
    "get_cudnn_version",
    "get_default_device",
    "get_device_count",
    "get_logger",
    "get_max_allocated_memory",
    "get_max_reserved_memory",
    "get_mem_status_bytes",
    "get_reserved_memory",
    "get_tensorrt_version",
    "is_atlas_available",
    "is_cambricon_available",
    "is_cuda_available",
    "is_rocm_available",
    "load",
    "logger",
    "module",
    "ops",
    "optimizer",
    "reset_max_memory_stats",
    "save",
    "seed",
    "serialization",
    "set_default_device",
    "set_log_file",
    "set_log_level",
    "set_prealloc_config",
    "tensor",
]
