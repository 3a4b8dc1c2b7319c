"""Helpers of passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megengine.traced_module.ir.expr import Constant, Expr, GetAttr
from megengine.traced_module.ir.node import Node, TensorNode, module_of

__all__ = ["get_const_value", "register_obj"]


def get_const_value(expr: Expr | Node, fall_back: Any = None) -> Any:
    """The tensor of a constant or of an attribute that is a tensor; `fall_back` for other expressions."""
    if isinstance(expr, Node):
        expr = expr.expr
    if isinstance(expr, Constant):
        return expr.value
    if isinstance(expr, GetAttr) and isinstance(expr.outputs[0], TensorNode):
        return module_of(expr.outputs[0])
    return fall_back


def register_obj(objs: Any, _dict: dict[Any, Any]) -> Callable[[Any], Any]:
    """A decorator that enters what it decorates in a table, under one key or several."""

    def register(value: Any) -> Any:
        for key in objs if isinstance(objs, (list, tuple)) else [objs]:
            _dict[key] = value
        return value

    return register
