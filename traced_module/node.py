"""MegEngine's path of nodes."""

from typing import Any

from megengine.core import absent
from megengine.traced_module.ir.node import ModuleNode as ModuleNode
from megengine.traced_module.ir.node import Node as Node
from megengine.traced_module.ir.node import TensorNode as TensorNode


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)
