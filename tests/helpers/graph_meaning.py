"""What graphs of calls compute, by an interpreter of the tests' own, and what an edit of them is to compute.

A `Meaning` says in which way the values differ from those of a graph as it stands: it is evaluated on the graph
before an edit, and has to give what the graph gives after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import megengine.module as M
from megengine import Tensor
from megengine.core.pytree import flatten
from megengine.dispatch import apply
from megengine.traced_module import TracedModule

IN_PLACE = ("__setitem__", "__iadd__", "__imul__", "__isub__", "__itruediv__")


@dataclass
class Meaning:
    """Changes of values: by (graph, name of a node), for all users or for those behind a place in their graph.

    `calls` holds what is called in place of the module that a node (graph, name) reads, `arguments` what makes other
    arguments of those of an expression (graph, id). `seen` gets all values of each node, in the order of execution.
    """

    values: Mapping[tuple[int, str], Callable[..., Any]] = field(default_factory=dict)
    behind: Mapping[tuple[int, str], int] = field(default_factory=dict)
    calls: Mapping[tuple[int, str], Callable[..., Any]] = field(default_factory=dict)
    arguments: Mapping[tuple[int, int], Callable[[Any], Any]] = field(default_factory=dict)
    seen: dict[tuple[int, str], list[Any]] = field(default_factory=dict)


def leaves(result: Any) -> list[Any]:
    """The tensors of a result as arrays, in the order of its nesting."""
    return [leaf.numpy() for leaf in flatten(result)[0] if isinstance(leaf, Tensor)]


def outputs(graph: Any, tensors: Sequence[Tensor], meaning: Meaning | None = None) -> list[Any]:
    """The results of a graph for tensors in the order of its inputs, as arrays."""
    return [value.numpy() for value in _run(graph, graph.owner, tensors, meaning or Meaning())]


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(module, (list, tuple)):
            module = module[int(part)]
        elif isinstance(module, Mapping):
            module = next(value for key, value in module.items() if str(key) == part)
        else:
            module = object.__getattribute__(module, "__dict__")[part]
    return module


def _run(graph: Any, owner: Any, tensors: Sequence[Tensor], meaning: Meaning) -> list[Tensor]:
    values: dict[str, Any] = {graph.inputs[0].name: owner}
    changed: dict[str, tuple[int, Any]] = {}  # what users behind a place get

    def keep(node: Any, value: Any) -> None:
        key = (id(graph), node.name)
        values[node.name] = value
        meaning.seen.setdefault(key, []).append(value)
        if key in meaning.values:
            new = meaning.values[key](value, lambda other: values[other])
            if key in meaning.behind:
                changed[node.name] = (meaning.behind[key], new)
            else:
                values[node.name] = new

    def value_for(node: Any, position: float) -> Any:
        place, new = changed.get(node.name, (position, None))
        if position <= place:
            return values[node.name]
        return new() if callable(new) else new  # one that is made later

    for node, tensor in zip(graph.inputs[1:], tensors, strict=True):
        keep(node, tensor)
    for expr in graph.exprs(recursive=False):
        if expr.kind != "Input":
            given = [value_for(node, expr.position) for node in expr.inputs]
            for node, made in zip(expr.outputs, _made(graph, expr, given, meaning), strict=True):
                keep(node, made)
    return [value_for(node, float("inf")) for node in graph.outputs]


def _made(graph: Any, expr: Any, given: list[Any], meaning: Meaning) -> list[Any]:
    if expr.kind == "Constant":
        return [expr.value]
    if expr.kind == "GetAttr":
        return [_attribute(given[0], expr.name)]
    if expr.kind == "Apply":
        return _tensors(apply(expr.op, *given, **expr.attrs))
    args, kwargs = expr.unflatten_args(given)
    change = meaning.arguments.get((id(graph), expr.id))
    if change is not None:
        args, kwargs = change((args, kwargs))
    if expr.kind == "CallFunction":
        return _tensors(expr.func(*args, **kwargs))
    target, *rest = args
    if expr.method != "__call__":
        if expr.method in IN_PLACE:
            target = Tensor(target)
            made = getattr(target, expr.method)(*rest, **kwargs)
            return [target if made is None else made]
        return _tensors(getattr(target, expr.method)(*rest, **kwargs))
    other = meaning.calls.get((id(graph), expr.inputs[0].name))
    if other is not None:
        return _tensors(other(*rest, **kwargs))
    if isinstance(target, TracedModule):
        return _run(expr.graph, target, given[1:], meaning)
    assert isinstance(target, M.Module)
    return _tensors(target(*rest, **kwargs))


def _tensors(result: Any) -> list[Any]:
    return [leaf for leaf in flatten(result)[0] if isinstance(leaf, Tensor)]
