"""Kernels: native extensions, ordered kernel lists, NumPy references, and the runtime of plans."""

if __name__ != "megengine.kernels":
    raise ImportError("import megengine.kernels, not kernels: a second copy has classes of its own")
