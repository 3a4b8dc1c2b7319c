"""The names that MegEngine's users import from here."""

from megengine.traced_module.ir.filters import BaseFilter as BaseFilter
from megengine.traced_module.ir.filters import ExprFilter as ExprFilter
from megengine.traced_module.ir.filters import NodeFilter as NodeFilter
from megengine.traced_module.ir.graph import InternalGraph as InternalGraph
from megengine.traced_module.ir.names import NameSpace as NameSpace
from megengine.traced_module.traced import TracedModule as TracedModule
from megengine.traced_module.tracing.entry import register_as_builtin as register_as_builtin
from megengine.traced_module.tracing.entry import trace_module as trace_module
from megengine.traced_module.tracing.entry import wrap as wrap
