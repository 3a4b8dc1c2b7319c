"""Checks of files of every format: scales, multipliers, names of attributes and methods, calls of layers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from megengine.core.dtype import DType, QuantizedDType, check_scales
from megengine.core.errors import FileFormatError, GraphError, ShapeError, brief, nearest
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, CallMethod, Constant, GetAttr
from megengine.traced_module.ir.functions import signature_of
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode, get_subattr
from megengine.traced_module.reserved import is_special
from megengine.traced_module.traced import STATE_NAMES

_SMALLEST_NORMAL = np.finfo(np.float32).tiny


def check_dtype(name: object, shape: tuple[int, ...], dtype: DType) -> None:
    """Raises FileFormatError if the number of scales is not the number of channels."""
    if isinstance(dtype, QuantizedDType):
        try:
            check_scales(brief(name), dtype, shape)
        except ShapeError as error:
            raise FileFormatError(str(error)) from None


def spec_of(name: object, shape: tuple[int, ...], dtype: DType) -> TensorSpec:
    """The spec of a value. Raises as `check_dtype`."""
    check_dtype(name, shape, dtype)
    return TensorSpec(shape, dtype)


def qparams_of(name: object, value: Any) -> Any:
    """Quantization parameters of a node. Raises FileFormatError if the file has something else there."""
    if not all(hasattr(value, part) for part in ("scale", "zero_point", "dtype_meta")):
        raise FileFormatError(f"the qparams of node {brief(name)} are {brief(value)}")
    return value


@functools.cache
def _multipliers(op: str) -> tuple[tuple[int, str], ...]:
    """(place, name) of the multipliers (M) and offsets (B) of an op: docs/integer-arithmetic.md."""
    names = enumerate(inspect.signature(get_op(op).infer).parameters)
    return tuple((place, name) for place, name in names if name in ("M", "B"))


def check_multipliers(expr: Apply) -> None:
    """Raises FileFormatError if a stored M is not finite, normal and positive, or a stored B is not finite."""
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
    tensors = tuple(node for node in nodes if isinstance(node, TensorNode))
    if len(tensors) != len(nodes):
        raise FileFormatError(f"{graph.qualname} returns a module; expected tensors")
    return tensors


def check_attribute(name: Any) -> None:
    """Raises FileFormatError unless this can be the name of a submodule or tensor."""
    if not isinstance(name, str) or is_special(name) or name in STATE_NAMES:
        raise FileFormatError(f"{brief(name)} is not the name of a submodule or tensor")


def check_path(path: str) -> None:
    """Raises FileFormatError unless this can be the path of a submodule or tensor."""
    for part in path.split("."):
        check_attribute(part)
        if not part:
            raise FileFormatError(f"{brief(path)} is not a path of submodules; one of its names is empty")


def check_method(method: str) -> None:
    """Raises FileFormatError for a name that is no public method of tensors."""
    if getattr(getattr(Tensor, method, None), "__public__", None) is None:
        known = [m for m in dir(Tensor) if hasattr(getattr(Tensor, m), "__public__")]
        raise FileFormatError(f"the file calls the tensor method {brief(method)}, unknown here{nearest(method, known)}")


def check_called(graph: InternalGraph) -> None:
    """Raises FileFormatError for a call of something that is not a layer, or of a layer with wrong arguments."""
    owners: dict[int, Any] = {id(node): graph.owner for node in graph.inputs if isinstance(node, ModuleNode)}
    for expr in graph.exprs(recursive=False):
        if isinstance(expr, GetAttr) and id(expr.inputs[0]) in owners:
            with suppress(GraphError):  # it may be missing if it is never called
                owners[id(expr.outputs[0])] = get_subattr(owners[id(expr.inputs[0])], expr.name)
        elif isinstance(expr, CallMethod) and expr.method == "__call__":
            owner = owners.get(id(expr.inputs[0]))
            if isinstance(owner, Module):
                _check_arguments(expr, type(owner))
            elif owner is not None:
                raise FileFormatError(f"{expr!r} calls a {type(owner).__name__}; expected a layer or a module")


def _check_arguments(expr: CallMethod, kind: type[Module]) -> None:
    try:
        signature_of(kind.forward).bind(*expr.args, **expr.kwargs)  # the layer itself is the first
    except TypeError as error:
        raise FileFormatError(f"{expr!r} calls a {kind.__name__} with other arguments than it takes: {error}") from None
