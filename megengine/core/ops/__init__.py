"""MegEngine's path of op classes."""

from megengine.core.ops import builtin

__all__ = ["builtin"]
