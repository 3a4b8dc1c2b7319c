"""Kernels: native extensions, ordered kernel lists, NumPy references, and the runtime of plans."""

from megengine.kernels import filling, floating, int8, onednn, small, strided, training, updates

__all__ = ["filling", "floating", "int8", "onednn", "small", "strided", "training", "updates"]

if __name__ != "megengine.kernels":
    raise ImportError("import megengine.kernels, not kernels: a second copy has classes of its own")
