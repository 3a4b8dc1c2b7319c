"""Automatic differentiation."""

from megengine.autodiff.forward import jvp
from megengine.autodiff.function import Function
from megengine.autodiff.grad_manager import GradManager, get_backwarding_grad_manager

__all__ = ["Function", "GradManager", "get_backwarding_grad_manager", "jvp"]
