"""MegEngine's path of nodes."""

from typing import Any

from megengine.core import absent
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)


__all__ = ["ModuleNode", "Node", "TensorNode"]
