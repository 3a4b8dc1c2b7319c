"""MegEngine's path of what its processes share."""

# ruff: noqa: F401

from functools import partial

from megengine.compat.refusals import find
from megengine.device import coalesce_free_memory as _try_coalesce_all_free_memory

__getattr__ = partial(find, __name__)
