"""MegEngine's path of gradients."""

from megengine.core.autodiff import grad

__all__ = ["grad"]
