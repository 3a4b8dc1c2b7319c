"""Automatic differentiation."""

from megengine.autodiff.function import Function
from megengine.autodiff.grad_manager import GradManager

__all__ = ["Function", "GradManager"]
