"""Reading and writing of weights and checkpoints."""

from megengine.serialization.files import builder_of, load, save, write_atomically
from megengine.serialization.numpy_pickle import read_numpy_pickle
from megengine.serialization.torch_file import read_pth

__all__ = ["builder_of", "load", "read_numpy_pickle", "read_pth", "save", "write_atomically"]
