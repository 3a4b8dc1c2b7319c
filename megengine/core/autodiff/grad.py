"""MegEngine's path of `Grad` and `Function`."""

from megengine.autodiff import Function
from megengine.compat.grads import Grad

__all__ = ["Function", "Grad"]
