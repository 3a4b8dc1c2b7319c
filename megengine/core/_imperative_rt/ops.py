"""MegEngine's path of op classes, under which its files name them."""

# ruff: noqa: F401

from functools import partial

from megengine.compat.builtin import CLASSES
from megengine.compat.layers import delete_rng_handle, new_rng_handle
from megengine.compat.opdef import OpDef
from megengine.compat.refusals import find
from megengine.compat.runtime import jit_supported, set_jit_enabled
from megengine.random import seed as set_global_rng_seed

globals().update(CLASSES)
__getattr__ = partial(find, __name__)
__all__ = sorted([*CLASSES, "OpDef"])
