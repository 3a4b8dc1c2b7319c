"""MegEngine's path of expressions."""

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
