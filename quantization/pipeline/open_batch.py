"""Networks as graphs of ops that take batches of any size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np

from megengine.core.errors import MegEngineError
from megengine.core.sizes import OpenSize, is_open, named
from megengine.core.spec import TensorSpec
from megengine.traced_module import TracedModule, lower
from megengine.traced_module.editing.checking import specs_of
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign

_SIZES = (1009, 1511, 2)  # no usual length is one of the first two, so only what follows from the batch differs


def lowered(module: TracedModule | InternalGraph) -> InternalGraph:
    """The network as ops, for batches of any size where it can be, else for that of the trace."""
    graph = module.graph if isinstance(module, TracedModule) else module
    nodes = [n for n in graph.inputs if isinstance(n, TensorNode)]
    lengths = {n.spec.shape[0] for n in nodes if n.spec.ndim}
    has_batch = len(lengths) == 1 and not is_open(tuple(lengths)) and all(n.spec.ndim for n in nodes)
    if not graph.of_calls or not has_batch:
        return lower(graph).graph
    batch = named("batch", lengths.pop())
    try:
        with _batch_of(graph, nodes, batch):
            return lower(graph).graph
    except MegEngineError:  # the network computes with its sizes, or counts on its number of samples: reshape(1, -1)
        return _from_examples(graph, nodes, batch) or lower(graph).graph


@contextmanager
def _batch_of(graph: InternalGraph, nodes: list[TensorNode], size: int) -> Iterator[None]:
    fixed = [n.spec for n in nodes]
    try:
        for node, spec in zip(nodes, fixed, strict=True):
            assign(graph, node, "_spec", TensorSpec((size, *spec.shape[1:]), spec.dtype, spec.device))
        yield
    finally:
        for node, spec in zip(nodes, fixed, strict=True):
            assign(graph, node, "_spec", spec)


def _from_examples(graph: InternalGraph, nodes: list[TensorNode], batch: OpenSize) -> InternalGraph | None:
    """The graph of which those of three batches are examples; None if they differ in more than sizes."""
    try:
        examples = []
        for size in _SIZES:
            with _batch_of(graph, nodes, size):
                examples.append(lower(graph).graph)
        made = examples[0]
        columns = [list(one.exprs()) for one in examples]
        places = [{n: (i, j) for i, e in enumerate(column) for j, n in enumerate(e.outputs)} for column in columns]
        inputs = [[[at[n] for n in e.inputs] for e in column] for at, column in zip(places, columns, strict=True)]
        results = [[at[n] for n in one.outputs] for at, one in zip(places, examples, strict=True)]
        if any(one != inputs[0] for one in inputs) or any(one != results[0] for one in results):
            return None
        for same in zip(*columns, strict=True):
            _open(made, same, batch)
    except (MegEngineError, _DifferentError):
        return None
    return made


class _DifferentError(Exception):
    """Examples of no common graph."""


def _open(made: InternalGraph, same: tuple[Expr, ...], batch: OpenSize) -> None:
    """Let an expression of the first example follow the batch."""
    first = same[0]
    if len({(type(e), e.callee) for e in same}) > 1:
        raise _DifferentError
    if isinstance(first, Apply):
        attrs = _joined([dict(e.attrs) for e in same if isinstance(e, Apply)], batch)
        assign(made, first, "_attrs", MappingProxyType(attrs))
        specs = specs_of(first, first.inputs)
        assert specs is not None, first
    elif isinstance(first, Constant):
        values = [e.value.numpy() for e in same if isinstance(e, Constant)]
        if not all(np.array_equal(values[0], other, equal_nan=True) for other in values[1:]):
            raise _DifferentError
        return
    else:
        specs = [TensorSpec((batch, *n.spec.shape[1:]), n.spec.dtype, n.spec.device) for n in first.outputs]
    for node, spec in zip(first.outputs, specs, strict=True):
        assign(made, node, "_spec", spec)


def _joined(values: list[Any], batch: OpenSize) -> Any:
    """One value of which these, one for each of `_SIZES`, are examples: sizes are multiples of the batch and a rest."""
    first = values[0]
    kinds = {type(v) for v in values}
    if len(kinds) > 1:
        raise _DifferentError
    if isinstance(first, dict):
        return {key: _joined([v[key] for v in values], batch) for key in first}
    if isinstance(first, (tuple, list)):
        if len({len(v) for v in values}) > 1:
            raise _DifferentError
        return type(first)([_joined(list(one), batch) for one in zip(*values, strict=True)])
    if kinds == {int}:
        factor, left = divmod(values[1] - first, _SIZES[1] - _SIZES[0])
        rest = first - factor * _SIZES[0]
        if left or factor * _SIZES[2] + rest != values[2]:
            raise _DifferentError
        return batch * factor + rest if factor else first
    if any(v is not first and v != first for v in values):
        raise _DifferentError
    return first
