"""TracedModule: a model as an editable graph."""

import functools as _functools

import megengine.traced_module.methods
from megengine.core import absent as _absent
from megengine.traced_module.comparing.diff import GraphDiff as GraphDiff
from megengine.traced_module.comparing.diff import diff as diff
from megengine.traced_module.editing.edit_log import EditLog as EditLog
from megengine.traced_module.formats.native import load as load
from megengine.traced_module.formats.native import save as save
from megengine.traced_module.formats.tm_reading import load_tm as load_tm
from megengine.traced_module.formats.tm_writing import save_tm as save_tm
from megengine.traced_module.interpret import interpret as interpret
from megengine.traced_module.ir.expr import Apply as Apply
from megengine.traced_module.ir.expr import CallFunction as CallFunction
from megengine.traced_module.ir.expr import CallMethod as CallMethod
from megengine.traced_module.ir.expr import Constant as Constant
from megengine.traced_module.ir.expr import Expr as Expr
from megengine.traced_module.ir.expr import GetAttr as GetAttr
from megengine.traced_module.ir.expr import Input as Input
from megengine.traced_module.ir.expr import is_apply_def as is_apply_def
from megengine.traced_module.ir.expr import is_call_function as is_call_function
from megengine.traced_module.ir.expr import is_call_module as is_call_module
from megengine.traced_module.ir.expr import is_call_tensor_method as is_call_tensor_method
from megengine.traced_module.ir.expr import is_constant as is_constant
from megengine.traced_module.ir.expr import is_getattr as is_getattr
from megengine.traced_module.ir.expr import is_input as is_input
from megengine.traced_module.ir.graph import InternalGraph as InternalGraph
from megengine.traced_module.ir.node import ModuleNode as ModuleNode
from megengine.traced_module.ir.node import Node as Node
from megengine.traced_module.ir.node import TensorNode as TensorNode
from megengine.traced_module.opening import open_batch as open_batch
from megengine.traced_module.passes import optimize as optimize
from megengine.traced_module.profiling import profile as profile
from megengine.traced_module.pytree import register_supported_type as register_supported_type
from megengine.traced_module.tm_config import disable_default_checker as disable_default_checker
from megengine.traced_module.tm_config import enable_expr_checker as enable_expr_checker
from megengine.traced_module.traced import TracedModule as TracedModule
from megengine.traced_module.tracing.entry import lower as lower
from megengine.traced_module.tracing.entry import register_as_builtin as register_as_builtin
from megengine.traced_module.tracing.entry import trace_module as trace_module
from megengine.traced_module.tracing.entry import wrap as wrap
from megengine.traced_module.tracing.record import record as record
from megengine.traced_module.tracing.specialization import Specialization as Specialization
from megengine.traced_module.tracing.specialization import SpecializationWarning as SpecializationWarning

if __name__ != "megengine.traced_module":
    raise ImportError("import megengine.traced_module, not traced_module: a second copy has classes of its own")

__getattr__ = _functools.partial(_absent.part_or_error, __name__)
