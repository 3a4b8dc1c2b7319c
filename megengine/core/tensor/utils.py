"""MegEngine's path of helpers for operators."""

# ruff: noqa: F401

from megengine.autodiff import Function
from megengine.compat import subgraphs, tensors
from megengine.compat.opdef import apply
from megengine.compat.refusals import expose
from megengine.compat.subgraphs import OPERATORS
from megengine.core.tensor.dtype import is_dtype_equal, is_quantize
from megengine.functional.helpers import dtype_promotion, get_device
from megengine.tensor import Tensor

_opr_map = OPERATORS  # MegEngine's name
__getattr__ = expose(globals(), subgraphs, tensors)
