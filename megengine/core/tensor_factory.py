"""MegEngine's path of functions that make tensors, in version 1.0."""

from functools import partial

from megengine.compat.refusals import find
from megengine.functional.tensor import arange, eye, full, full_like, linspace, ones, ones_like, zeros, zeros_like

__getattr__ = partial(find, __name__)
__all__ = ["arange", "eye", "full", "full_like", "linspace", "ones", "ones_like", "zeros", "zeros_like"]
