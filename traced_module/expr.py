"""MegEngine's path of expressions."""

from typing import Any

from megengine.core import absent
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


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)


__all__ = [
    "Apply",
    "CallFunction",
    "CallMethod",
    "Constant",
    "Expr",
    "GetAttr",
    "Input",
    "is_apply_def",
    "is_call_function",
    "is_call_module",
    "is_call_tensor_method",
    "is_constant",
    "is_getattr",
    "is_input",
]
