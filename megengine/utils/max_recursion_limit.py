"""MegEngine's path of Python's recursion limit, raised for a while."""

from megengine.core.recursion import AlternativeRecursionLimit as AlternativeRecursionLimit
from megengine.core.recursion import max_recursion_limit as max_recursion_limit
