"""Reading and writing of weights and checkpoints."""

from megengine.serialization.numpy_pickle import read_numpy_pickle
from megengine.serialization.torch_file import read_pth

__all__ = ["read_numpy_pickle", "read_pth"]
