"""MegEngine's path of Python's recursion limit, raised for a while."""

from megengine.core.recursion import AlternativeRecursionLimit, max_recursion_limit

__all__ = ["AlternativeRecursionLimit", "max_recursion_limit"]
