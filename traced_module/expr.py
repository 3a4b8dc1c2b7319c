"""MegEngine's path of expressions."""

from typing import Any

from megengine.core import absent
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

_HOME = f"{__package__}.ir."
__all__ = sorted(n for n, one in [*globals().items()] if str(getattr(one, "__module__", "")).startswith(_HOME))


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)
