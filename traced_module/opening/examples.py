"""One graph for batches of any size, of graphs for some sizes."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from megengine.core.errors import MegEngineError
from megengine.core.sizes import OpenSize
from megengine.core.spec import TensorSpec
from megengine.traced_module.editing.checking import specs_of
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import assign

SIZES = (1009, 1511, 2)  # no usual length is one of the first two, so only what follows from the batch differs


def joined(examples: Sequence[InternalGraph], batch: OpenSize) -> InternalGraph | None:
    """The graph of which those for the batches `SIZES` are examples; None if they differ in more than sizes.

    The first example is changed.
    """
    made = examples[0]
    columns = [list(one.exprs()) for one in examples]
    places = [{n: (i, j) for i, e in enumerate(column) for j, n in enumerate(e.outputs)} for column in columns]
    inputs = [[[at[n] for n in e.inputs] for e in column] for at, column in zip(places, columns, strict=True)]
    results = [[at[n] for n in one.outputs] for at, one in zip(places, examples, strict=True)]
    if any(one != inputs[0] for one in inputs) or any(one != results[0] for one in results):
        return None
    try:
        for same in zip(*columns, strict=True):
            _open(made, same, batch)
    except (MegEngineError, ValueError, _DifferentError):
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
    """One value of which these are examples for `SIZES`: sizes are multiples of the batch and a rest."""
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
        factor, left = divmod(values[1] - first, SIZES[1] - SIZES[0])
        rest = first - factor * SIZES[0]
        if left or factor * SIZES[2] + rest != values[2]:
            raise _DifferentError
        return batch * factor + rest if factor else first
    if any(v is not first and v != first for v in values):
        raise _DifferentError
    return first
