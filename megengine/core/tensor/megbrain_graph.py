"""MegEngine's path of graphs of version 1: their names can be imported, and say at the call what to use."""

from functools import partial

from megengine.compat.opdef import OpDef, apply
from megengine.compat.refusals import find
from megengine.compat.tensors import as_device

__getattr__ = partial(find, __name__)
__all__ = ["OpDef", "apply", "as_device"]
