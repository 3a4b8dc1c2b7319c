"""MegEngine's path of nodes."""

from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode

__all__ = ["ModuleNode", "Node", "TensorNode"]
