"""TracedModule: a model as an editable graph."""

import megengine.traced_module.methods
from megengine.traced_module.comparing.diff import GraphDiff, diff
from megengine.traced_module.editing.edit_log import EditLog
from megengine.traced_module.formats.native import load, save
from megengine.traced_module.formats.tm_reading import load_tm
from megengine.traced_module.formats.tm_writing import save_tm
from megengine.traced_module.interpret import interpret
from megengine.traced_module.ir.expr import (
    Apply,
    CallFunction,
    CallMethod,
    Constant,
    Expr,
    GetAttr,
    Input,
    is_apply_def,
    is_call_function,
    is_call_module,
    is_call_tensor_method,
    is_constant,
    is_getattr,
    is_input,
)
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.passes import optimize
from megengine.traced_module.profiling import profile
from megengine.traced_module.pytree import register_supported_type
from megengine.traced_module.tm_config import disable_default_checker, enable_expr_checker
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.entry import lower, register_as_builtin, trace_module, wrap
from megengine.traced_module.tracing.record import record
from megengine.traced_module.tracing.specialization import Specialization, SpecializationWarning

__all__ = [
    "Apply",
    "CallFunction",
    "CallMethod",
    "Constant",
    "EditLog",
    "Expr",
    "GetAttr",
    "GraphDiff",
    "Input",
    "InternalGraph",
    "ModuleNode",
    "Node",
    "Specialization",
    "SpecializationWarning",
    "TensorNode",
    "TracedModule",
    "diff",
    "disable_default_checker",
    "enable_expr_checker",
    "interpret",
    "is_apply_def",
    "is_call_function",
    "is_call_module",
    "is_call_tensor_method",
    "is_constant",
    "is_getattr",
    "is_input",
    "load",
    "load_tm",
    "lower",
    "optimize",
    "profile",
    "record",
    "register_as_builtin",
    "register_supported_type",
    "save",
    "save_tm",
    "trace_module",
    "wrap",
]

if __name__ != "megengine.traced_module":
    raise ImportError("import megengine.traced_module, not traced_module: a second copy has classes of its own")
