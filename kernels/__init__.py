"""Kernels: native extensions, ordered kernel lists, NumPy references, and the runtime of plans."""
