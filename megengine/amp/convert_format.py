"""Memory layouts under MegEngine's names, without effect."""

from __future__ import annotations

import copy

from megengine.core.effectless import warn_once
from megengine.module import Module
from megengine.tensor import Tensor

_LAYOUT = "memory layouts are chosen where a plan is made, by megengine.plan.compile"


def convert_module_format(module: Module, inplace: bool = True) -> Module:
    """The module (a copy without `inplace`): memory layouts are chosen where a plan is made, as a warning says."""
    warn_once("megengine.amp.convert_module_format", _LAYOUT)
    return module if inplace else copy.deepcopy(module)


def convert_tensor_format(x: Tensor, inplace: bool = True) -> Tensor:
    """The tensor (a copy without `inplace`): memory layouts are chosen where a plan is made, as a warning says."""
    warn_once("megengine.amp.convert_tensor_format", _LAYOUT)
    return x if inplace else copy.copy(x)
