"""Reading and writing of weights and checkpoints."""

import functools

from megengine.core import absent
from megengine.core.recursion import max_recursion_limit
from megengine.device import get_default_device
from megengine.serialization.files import builder_of, dmap, load, save, write_atomically
from megengine.serialization.numpy_pickle import read_numpy_pickle
from megengine.serialization.torch_file import read_pth
from megengine.tensor import Tensor

__all__ = [
    "Tensor",
    "builder_of",
    "dmap",
    "get_default_device",
    "load",
    "max_recursion_limit",
    "read_numpy_pickle",
    "read_pth",
    "save",
    "write_atomically",
]

__getattr__ = functools.partial(absent.part_or_error, __name__)
