"""MegEngine's path of op classes for programs."""

# ruff: noqa: F401

from functools import partial

from megengine.compat.builtin import CLASSES
from megengine.compat.opdef import OpDef
from megengine.compat.refusals import find

globals().update(CLASSES)
__getattr__ = partial(find, __name__)
__all__ = sorted([*CLASSES, "OpDef"])
