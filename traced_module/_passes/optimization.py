"""`optimize` by MegEngine's name."""

from megengine.traced_module.passes.module_passes import optimize

__all__ = ["optimize"]
