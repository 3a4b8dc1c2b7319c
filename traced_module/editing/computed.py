"""Layers and constants that passes compute from weights: logs say how, and compute them again for other weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from megengine.core.errors import FileFormatError, brief
from megengine.tensor import Tensor
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.interpret import interpret
from megengine.traced_module.ir.expr import Apply, Call, Constant, GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.journal import Origin
from megengine.traced_module.ir.node import TensorNode, module_of
from megengine.traced_module.tracing.calls import result_leaves, run_call, shape_value

FUNCTIONS: dict[str, Callable[..., Any]] = {}
F = TypeVar("F", bound=Callable[..., Any])


def made_again(origin: Origin) -> Any:
    """The layer or tensor. Raises FileFormatError for an unknown function, and for what it cannot take."""
    if origin.function not in FUNCTIONS:
        raise FileFormatError(f"a value is computed by {brief(origin.function)}, which is not known here")
    try:
        results = FUNCTIONS[origin.function](*origin.given)
        return results if origin.index is None else results[origin.index]
    except (TypeError, AttributeError, LookupError, AssertionError) as error:
        raise FileFormatError(f"{origin.function}: {error}") from error


def computed_again(function: F) -> F:
    """Declare a function of layers, nodes, numbers and arrays that logs name and call again.

    A pass calls it by `graph.journal.computed(function, ...)` and puts the result into the graph, which depends on
    nothing but its arguments.
    """
    FUNCTIONS[function.__name__] = function
    return function


@computed_again
def constant_of(node: TensorNode) -> Tensor:
    """The value of a node as a tensor of its own: of a weight, of a shape, or of what is computed from such values."""
    value = _value_of(node)
    return Tensor._wrap(value._storage(), value.dtype, value.device)


def _value_of(node: TensorNode) -> Tensor:
    expr = node.expr
    if isinstance(expr, Constant):
        return expr.value
    if isinstance(expr, GetAttr):
        return module_of(node)
    known = shape_value(node)
    if known is not None:
        return known
    values = [Tensor._wrap(v._storage(), v.dtype, v.device) for v in map(_value_of, expr.inputs)]
    if isinstance(expr, Apply):
        small = InternalGraph("constant")
        inputs = [small.constant(value) for value in values]
        made = small.apply(expr.op, *inputs, attrs=expr.attrs)
        set_outputs(small, made if isinstance(made, tuple) else [made])
        results = interpret(small, [])
    else:
        assert isinstance(expr, Call), expr
        results = result_leaves(run_call(expr, values), expr)[0]
    return next(value for value, n in zip(results, expr.outputs, strict=True) if n is node)


def digest_of(weights: Iterable[tuple[str, np.ndarray]]) -> str:
    """Equal for equal weights under the same names."""
    digest = hashlib.blake2b(digest_size=16)
    for name, array in weights:
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
