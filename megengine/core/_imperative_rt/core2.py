"""MegEngine's path of `apply` and of what its interpreter offers."""

# ruff: noqa: F401

from megengine.compat import runtime, tensors
from megengine.compat.opdef import apply
from megengine.compat.refusals import expose
from megengine.core import options
from megengine.functional import helpers
from megengine.jit import TraceError
from megengine.tensor import Tensor

__getattr__ = expose(globals(), options, helpers, tensors, runtime)
