"""Kernels: native extensions, ordered kernel lists, NumPy references, and the runtime of plans."""

from importlib.util import find_spec

if __name__ != "megengine.kernels":
    raise ImportError("import megengine.kernels, not kernels: a second copy has classes of its own")
if find_spec("megengine.kernels._core") is None:
    raise ImportError(
        f"{__file__} is source that was not built; run Python from another folder to use an installed megengine, "
        "or build this one: make setup"
    )
