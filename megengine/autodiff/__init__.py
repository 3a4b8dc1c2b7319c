"""Automatic differentiation."""

from functools import partial

from megengine.autodiff.forward import jvp
from megengine.autodiff.function import Function
from megengine.autodiff.grad_manager import GradManager, get_backwarding_grad_manager
from megengine.core import absent, exports

__all__ = ["Function", "GradManager", "get_backwarding_grad_manager", "jvp"]

__getattr__ = partial(absent.part_or_error, __name__)
exports.limit_stars(__name__)
