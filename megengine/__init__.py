"""MegEngine for today's Python."""

from megengine import autodiff, core, device, dispatch, functional, module, ops, optimizer, serialization
from megengine.device import get_default_device, get_device_count, is_cuda_available, set_default_device
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
    "functional",
    "get_default_device",
    "get_device_count",
    "is_cuda_available",
    "load",
    "module",
    "ops",
    "optimizer",
    "save",
    "seed",
    "serialization",
    "set_default_device",
    "tensor",
]
