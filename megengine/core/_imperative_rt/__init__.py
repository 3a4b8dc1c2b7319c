"""MegEngine's path of its native module."""

# ruff: noqa: F403

from functools import partial

from megengine.compat.opdef import OpDef
from megengine.compat.refusals import find
from megengine.core._imperative_rt import common, core2, graph, imperative, ops, utils
from megengine.core._imperative_rt.common import *

__getattr__ = partial(find, __name__)
