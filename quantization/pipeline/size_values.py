"""Values that follow from sizes alone, such as positions and masks: no data decides them, but every length may."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import is_float
from megengine.core.errors import MegEngineError
from megengine.core.sizes import at, closed, name_of, names_of
from megengine.dispatch import apply
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode

_LONGER = 2  # times the sizes of the example
_WIDER = 1.125  # times the range there: what is wider grows with the sizes


@dataclass(frozen=True, slots=True)
class SizeValues:
    """Names of computed values that sizes alone decide.

    Args:
        names: all of them.
        not_finite: those that hold NaN or infinity at the example.
        growing: those of floats whose range is wider at larger sizes, such as distances between places; not parts of
            stored tables, whose range is that of the table.
    """

    names: frozenset[str]
    not_finite: frozenset[str]
    growing: frozenset[str]


def size_values(inputs: Iterable[TensorNode], exprs: Sequence[Apply]) -> SizeValues:
    """The values that ops in execution order compute without data; constants are folded before."""
    named = ((name_of(n), int(n)) for node in inputs for n in node.spec.shape)
    longer = {name: _LONGER * n for name, n in named if name is not None}
    known = _computed(exprs, {})
    ends = {name: _ends(value) for name, value in known.items() if is_float(value.dtype)}
    wider = {}
    if any(names_of(tuple(e.attrs.values())) for e in exprs if e.outputs[0].name in known):
        wider = _computed([e for e in exprs if e.outputs[0].name in known], longer)
    tables = {n.name for e in exprs for n in e.outputs if n.name in known and reader_of_table(n) is not None}
    growing = (
        name
        for name, end in ends.items()
        if name in wider and name not in tables and _is_wider(_ends(wider[name]), end)
    )
    not_finite = (name for name in ends if not np.isfinite(known[name]).all())
    return SizeValues(frozenset(known), frozenset(not_finite), frozenset(growing))


def reader_of_table(node: TensorNode) -> Apply | None:
    """The op that takes a value from a constant, behind which its elements are only moved; None for other values."""
    expr = node.expr
    while isinstance(expr, Apply) and expr.record.moves:
        if isinstance(expr.inputs[0].expr, Constant):
            return expr
        expr = expr.inputs[0].expr
    return None


def _computed(exprs: Sequence[Apply], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Values by name, at these sizes of the open axes, or the example's; those that are refused are left out."""
    known: dict[str, np.ndarray] = {}
    for expr in exprs:
        values = [n.expr.value.numpy() if isinstance(n.expr, Constant) else known.get(n.name) for n in expr.inputs]
        arrays = [value for value in values if value is not None]
        if not values or expr.record.random or len(arrays) < len(values):
            continue
        attrs = closed(at(dict(expr.attrs), sizes)) if sizes else expr.attrs_at_example
        try:
            results = apply(expr.op, *map(_tensor, arrays), **attrs)
        except MegEngineError:
            if not sizes:
                raise
            continue
        for node, value in zip(expr.outputs, results if isinstance(results, tuple) else (results,), strict=True):
            known[node.name] = value.numpy()
    return known


def _tensor(value: np.ndarray) -> Tensor:
    """The tensor of an array, which keeps its dtype: a single int64 would become an int32."""
    return Tensor(value, dtype=value.dtype)


def _ends(value: np.ndarray) -> tuple[float, float]:
    finite = value[np.isfinite(value)]
    return float(min(finite.min(initial=0), 0)), float(max(finite.max(initial=0), 0))


def _is_wider(far: tuple[float, float], near: tuple[float, float]) -> bool:
    return far[0] < _WIDER * near[0] or far[1] > _WIDER * near[1]
