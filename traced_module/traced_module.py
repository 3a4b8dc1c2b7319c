"""The names that MegEngine's users import from here."""

from megengine.traced_module.ir.filters import BaseFilter, ExprFilter, NodeFilter
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import NameSpace
from megengine.traced_module.traced import TracedModule, register_as_builtin, trace_module, wrap

__all__ = [
    "BaseFilter",
    "ExprFilter",
    "InternalGraph",
    "NameSpace",
    "NodeFilter",
    "TracedModule",
    "register_as_builtin",
    "trace_module",
    "wrap",
]
