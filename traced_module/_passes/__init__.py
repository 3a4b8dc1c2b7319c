"""MegEngine's names for passes and patterns, over the pattern language and the passes of this package."""

from megengine.traced_module._passes.optimization import optimize

__all__ = ["optimize"]
