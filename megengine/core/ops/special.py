"""MegEngine's path of constants in version 1.0 to 1.5."""

from megengine.compat.tensors import Const

__all__ = ["Const"]
