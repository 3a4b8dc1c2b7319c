"""MegEngine's path of tensors without methods, in version 1.0 to 1.2: here they are tensors."""

from megengine.tensor import Tensor as RawTensor
from megengine.tensor import tensor as as_raw_tensor

__all__ = ["RawTensor", "as_raw_tensor"]
