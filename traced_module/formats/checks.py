"""What files of every format are checked for: scales that fit, multipliers that are numbers, calls of layers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from megengine.core.dtype import DType, QuantizedDType, check_scales
from megengine.core.errors import FileFormatError, GraphError, ShapeError, brief
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op
from megengine.module import Module
from megengine.traced_module.ir.expr import Apply, CallMethod, Constant, GetAttr
from megengine.traced_module.ir.functions import get_subattr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode

_SMALLEST_NORMAL = np.finfo(np.float32).tiny


def check_dtype(name: object, shape: tuple[int, ...], dtype: DType) -> None:
    """Raises FileFormatError where a tensor has another number of scales than its shape has channels."""
    if isinstance(dtype, QuantizedDType):
        try:
            check_scales(brief(name), dtype, shape)
        except ShapeError as error:
            raise FileFormatError(str(error)) from None


def spec_of(name: object, shape: tuple[int, ...], dtype: DType) -> TensorSpec:
    """Shape and dtype of a value, which fit each other. Raises as `check_dtype`."""
    check_dtype(name, shape, dtype)
    return TensorSpec(shape, dtype)


@functools.cache
def _multipliers(op: str) -> tuple[tuple[int, str], ...]:
    """Where an op takes multipliers (M) and offsets (B): docs/integer-arithmetic.md."""
    names = enumerate(inspect.signature(get_op(op).infer).parameters)
    return tuple((place, name) for place, name in names if name in ("M", "B"))


def check_multipliers(expr: Apply) -> None:
    """Raises FileFormatError where a stored M is not finite, normal and positive, or a stored B is not finite."""
    for place, name in _multipliers(expr.op):
        node = expr.inputs[place]
        if not isinstance(node.expr, Constant):
            continue
        values = node.expr.value.numpy()
        bad = ~(np.isfinite(values) & ((values >= _SMALLEST_NORMAL) | (name == "B")))
        if bad.any():
            at, wanted = int(np.argmax(bad)), "finite numbers" if name == "B" else "finite, normal, positive numbers"
            raise FileFormatError(
                f"{expr.outputs[0].name!r} ({expr.op}): {name} of channel {at} is {values.reshape(-1)[at]}; "
                f"expected {wanted}"
            )


def tensor_nodes(nodes: Sequence[Node], graph: InternalGraph) -> tuple[TensorNode, ...]:
    """Nodes that a graph returns. Raises FileFormatError for a module among them."""
    found = tuple(node for node in nodes if isinstance(node, TensorNode))
    if len(found) != len(nodes):
        raise FileFormatError(f"{graph.qualname} returns a module; expected tensors")
    return found


def check_called(graph: InternalGraph) -> None:
    """Raises FileFormatError where an attribute that is no layer is called, or a layer with arguments it lacks."""
    found: dict[int, Any] = {id(node): graph._owner for node in graph._inputs if isinstance(node, ModuleNode)}
    for expr in graph._order:
        if isinstance(expr, GetAttr) and id(expr.inputs[0]) in found:
            with suppress(GraphError):  # what is missing and never called does no harm
                found[id(expr.outputs[0])] = get_subattr(found[id(expr.inputs[0])], expr.name)
        elif isinstance(expr, CallMethod) and expr.method == "__call__":
            called = found.get(id(expr.inputs[0]))
            if called is not None and not isinstance(called, Module):
                raise FileFormatError(f"{expr!r} calls a {type(called).__name__}; expected a layer or a module")
            if called is not None:
                _check_arguments(expr, type(called))


def _check_arguments(expr: CallMethod, kind: type[Module]) -> None:
    try:
        _signature(kind.forward).bind(*expr.args, **expr.kwargs)  # the layer itself is the first
    except TypeError as error:
        raise FileFormatError(f"{expr!r} calls a {kind.__name__} with other arguments than it takes: {error}") from None


@functools.lru_cache(maxsize=1024)
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(forward)
