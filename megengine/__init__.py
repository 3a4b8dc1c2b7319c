"""MegEngine for today's Python."""

from megengine import autodiff, core, device, dispatch, functional, logger, module, ops, optimizer, serialization
from megengine.device import get_default_device, get_device_count, is_cuda_available, set_default_device
from megengine.logger import enable_debug_log, get_logger, set_log_file, set_log_level
from megengine.random import seed
from megengine.serialization import load, save
from megengine.tensor import Parameter, Tensor, tensor

__version__ = "2.0.0.dev0"
__all__ = [
    "Parameter",
    "Tensor",
    "autodiff",
    "core",
    "device",
    "dispatch",
    "enable_debug_log",
    "functional",
    "get_default_device",
    "get_device_count",
    "get_logger",
    "is_cuda_available",
    "load",
    "logger",
    "module",
    "ops",
    "optimizer",
    "save",
    "seed",
    "serialization",
    "set_default_device",
    "set_log_file",
    "set_log_level",
    "tensor",
]
