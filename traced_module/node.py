"""MegEngine's path of nodes."""

from typing import Any

from megengine.core import absent
from megengine.traced_module.ir.node import ModuleNode as ModuleNode
from megengine.traced_module.ir.node import Node as Node
from megengine.traced_module.ir.node import TensorNode as TensorNode

_HOME = f"{__package__}.ir."
__all__ = sorted(n for n, one in [*globals().items()] if str(getattr(one, "__module__", "")).startswith(_HOME))


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)
