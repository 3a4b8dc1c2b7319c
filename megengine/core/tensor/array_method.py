"""MegEngine's path of what tensors can do: here `Tensor` has it itself."""

# ruff: noqa: F401

from megengine.compat import tensors
from megengine.compat.opdef import apply
from megengine.compat.refusals import expose
from megengine.functional.helpers import broadcast_cpp, expand_dims_cpp, squeeze_cpp
from megengine.tensor import Tensor
from megengine.tensor import Tensor as ArrayMethodMixin

__getattr__ = expose(globals(), tensors)
