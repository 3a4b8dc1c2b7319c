"""Automatic differentiation."""

from typing import Any

from megengine.autodiff.forward import jvp
from megengine.autodiff.function import Function
from megengine.autodiff.grad_manager import GradManager, get_backwarding_grad_manager
from megengine.core import absent

__all__ = ["Function", "GradManager", "get_backwarding_grad_manager", "jvp"]


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)
