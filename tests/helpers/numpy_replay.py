"""Traced modules computed once more, in NumPy and float64, by walking their expressions: shares no kernel with us.

`overrides` says what an edit is expected to do: a function for the value of a node of a graph (by its id and the name
of the node), or the name of the node of which it takes the value.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import megengine.functional as F
import megengine.module as M
from megengine.traced_module import TracedModule
from megengine.traced_module.ir.node import Node

Overrides = Mapping[tuple[int, str], Callable[[np.ndarray], np.ndarray] | str]


def wide(tensor: Any) -> np.ndarray:
    """The array of a tensor; floats in float64."""
    array = tensor.numpy()
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def windows(x: np.ndarray, size: Sequence[int], stride: Sequence[int]) -> np.ndarray:
    found = np.lib.stride_tricks.sliding_window_view(x, tuple(size), (2, 3))
    return found[:, :, :: stride[0], :: stride[1]]


def convolution(layer: M.Conv2d, x: np.ndarray) -> np.ndarray:
    (top, left), groups = layer.padding, layer.groups
    w = wide(layer.weight).reshape(groups, layer.out_channels // groups, -1, *layer.kernel_size)
    found = windows(np.pad(x, ((0, 0), (0, 0), (top, top), (left, left))), layer.kernel_size, layer.stride)
    n, c, oh, ow = found.shape[:4]
    found = found.reshape(n, groups, c // groups, oh, ow, *layer.kernel_size)
    y = np.einsum("ngchwij,gocij->ngohw", found, w).reshape(n, -1, oh, ow)
    return y if layer.bias is None else y + wide(layer.bias)


def normalized(layer: M.BatchNorm2d, x: np.ndarray) -> np.ndarray:
    mean, var, gain, bias = (
        wide(t).reshape(1, -1, 1, 1) for t in (layer.running_mean, layer.running_var, layer.weight, layer.bias)
    )
    return (x - mean) / np.sqrt(var + layer.eps) * gain + bias


LAYERS: dict[type, Callable[..., Any]] = {
    M.Conv2d: convolution,
    M.BatchNorm2d: normalized,
    M.Linear: lambda layer, x: x @ wide(layer.weight).T + wide(layer.bias),
    M.ReLU: lambda _, x: np.maximum(x, 0),
    M.Sigmoid: lambda _, x: 1 / (1 + np.exp(-x)),
    M.Identity: lambda _, x: x,
    M.MaxPool2d: lambda layer, x: windows(x, (2, 2), (2, 2)).max((-1, -2)),
}
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.relu: lambda x: np.maximum(x, 0),
    F.sigmoid: lambda x: 1 / (1 + np.exp(-x)),
    F.maximum: np.maximum,
    F.concat: lambda xs, axis=0, device=None: np.concatenate(xs, axis),
    F.split: lambda x, count, axis=0: np.split(x, count, axis),
    F.mean: lambda x, axis=None, keepdims=False: x.mean(axis, keepdims=keepdims),
    F.sum: lambda x, axis=None, keepdims=False: x.sum(axis, keepdims=keepdims),
}
METHODS: dict[str, Callable[..., Any]] = {
    "__add__": np.add,
    "__mul__": np.multiply,
    "__rsub__": lambda x, y: y - x,
    "__neg__": np.negative,
    "__getitem__": lambda x, key: x[key],
}


def replay(module: TracedModule, inputs: Sequence[np.ndarray], overrides: Overrides | None = None) -> list[np.ndarray]:
    """The outputs of a traced module, in the order of its graph."""
    return _run(module.graph, module, [np.asarray(x, np.float64) for x in inputs], overrides or {})


def _run(graph: Any, owner: Any, inputs: Sequence[Any], overrides: Overrides) -> list[Any]:
    values: dict[Node, Any] = {}

    def keep(node: Node, value: Any) -> None:
        change = overrides.get((id(graph), node.name))
        if isinstance(change, str):
            value = next(known for other, known in values.items() if other.name == change)
        values[node] = change(value) if callable(change) else value

    def given(part: Any) -> Any:
        if isinstance(part, Node):
            return values[part]
        if isinstance(part, (list, tuple)):
            return type(part)(map(given, part))
        return part

    values[graph.inputs[0]] = owner
    for node, value in zip(graph.inputs[1:], inputs, strict=True):
        keep(node, value)
    for expr in graph.exprs(recursive=False):
        if expr.kind == "Input":
            continue
        made = _computed(expr, given, values, overrides)
        for node, value in zip(expr.outputs, made, strict=True):
            keep(node, value)
    return [values[node] for node in graph.outputs]


def _computed(expr: Any, given: Callable[[Any], Any], values: Mapping[Node, Any], overrides: Overrides) -> list[Any]:
    """The values of the outputs of one expression."""
    if expr.kind == "GetAttr":
        found = values[expr.inputs[0]]
        for part in expr.name.split("."):
            found = found[int(part)] if isinstance(found, list) else getattr(found, part)
        return [found if isinstance(found, M.Module) else wide(found)]
    if expr.kind == "Constant":
        return [expr.value if isinstance(expr.value, M.Module) else wide(expr.value)]
    args, kwargs = given(expr.args), {name: given(value) for name, value in expr.kwargs.items()}
    if expr.kind == "CallFunction":
        made = FUNCTIONS[expr.func](*args, **kwargs)
    elif isinstance(args[0], TracedModule):
        return _run(expr.graph, args[0], [values[node] for node in expr.inputs[1:]], overrides)
    elif isinstance(args[0], M.Module):
        made = LAYERS[type(args[0])](*args, **kwargs)
    else:
        made = METHODS[expr.method](*args, **kwargs)
    return made if isinstance(made, list) else [made]
