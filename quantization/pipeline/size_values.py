"""Values that follow from sizes alone, such as positions and masks: no data decides them, but every length may."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
_FAR = 32  # times the sizes of the example, where values that are bounded have nearly all of their range
_ELEMENTS = 2**22  # of a value that is computed at far sizes
_KEEPS = ("clamp", "table")  # kinds whose results are bounded if the operand is
_FEW = 4  # a function whose results lie within -4 to 4 for every argument is bounded by itself


@dataclass(frozen=True, slots=True)
class SizeValues:
    """Names of computed values that sizes alone decide.

    Args:
        names: all of them.
        not_finite: those that hold NaN or infinity at the example.
        growing: those of floats whose range is wider at larger sizes, such as distances between places; not parts of
            stored tables, whose range is that of the table, and not bounded ones.
        bounded: the ends of those whose range is wider at larger sizes, but ends somewhere, as far as sizes were tried:
            sines of places, and layers of them.
    """

    names: frozenset[str]
    not_finite: frozenset[str]
    growing: frozenset[str]
    bounded: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def size_values(inputs: Iterable[TensorNode], exprs: Sequence[Apply]) -> SizeValues:
    """The values that ops in execution order compute without data; constants are folded before."""
    known = _computed(exprs, {})
    of_sizes = [e for e in exprs if e.outputs[0].name in known]
    ends = {name: _ends(value) for name, value in known.items() if is_float(value.dtype)}
    not_finite = frozenset(name for name in ends if not np.isfinite(known[name]).all())
    wider = {}
    if any(names_of(tuple(e.attrs.values())) for e in of_sizes):
        wider = _ends_at(inputs, of_sizes, _LONGER)
    tables = {n.name for e in of_sizes for n in e.outputs if reader_of_table(n) is not None}
    growing = {name for name, end in ends.items() if name in wider and _is_wider(wider[name], end)} - tables
    bounded = growing & _bounded(of_sizes) - not_finite
    far = _ends_at(inputs, of_sizes, _FAR) if bounded else {}
    widest = {name: _widest(ends[name], wider[name], far.get(name, wider[name])) for name in sorted(bounded)}
    return SizeValues(frozenset(known), not_finite, frozenset(growing - bounded), widest)


def reader_of_table(node: TensorNode) -> Apply | None:
    """The op that takes a value from a constant, behind which its elements are only moved; None for other values."""
    expr = node.expr
    while isinstance(expr, Apply) and expr.record.moves:
        if isinstance(expr.inputs[0].expr, Constant):
            return expr
        expr = expr.inputs[0].expr
    return None


def _ends_at(inputs: Iterable[TensorNode], exprs: Sequence[Apply], times: int) -> dict[str, tuple[float, float]]:
    """The ends of values by name where open axes are so many times as long as those of the example."""
    named = ((name_of(n), int(n)) for node in inputs for n in node.spec.shape)
    sizes = {name: times * n for name, n in named if name is not None}
    return {name: _ends(value) for name, value in _computed(exprs, sizes).items() if is_float(value.dtype)}


def _bounded(exprs: Iterable[Apply]) -> set[str]:
    """Names of results that stay in a range at all sizes: those of sines and their like, moved, joined, in layers."""
    found: set[str] = set()
    for expr in exprs:
        rule = expr.record.rule
        computed = [n for n in expr.inputs if not isinstance(n.expr, Constant)]
        keeps = expr.record.moves or rule.combines or rule.joins or rule.weighted or rule.kind in _KEEPS
        alone = not rule.weighted or computed == [expr.inputs[0]]
        if keeps and alone and all(n.name in found for n in computed):
            found.update(n.name for n in expr.outputs)
        elif rule.pointwise and len(expr.inputs) == 1 and not expr.attrs and _saturates(expr.op):
            found.add(expr.output.name)
    return found


@functools.cache
def _saturates(op: str) -> bool:
    """True for a function of one number whose results are small wherever it is taken."""
    far = np.geomspace(1e-30, 1e6, 1000, dtype=np.float32)
    try:
        results = apply(op, _tensor(np.concatenate([-far, far]))).numpy()
    except MegEngineError:
        return False
    return bool(is_float(results.dtype) and (np.abs(results) <= _FEW).all())


def _computed(exprs: Sequence[Apply], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Values by name, at these sizes of the open axes, or the example's; those that are refused are left out, and at
    other sizes those of very many elements.
    """
    known: dict[str, np.ndarray] = {}
    for expr in exprs:
        values = [n.expr.value.numpy() if isinstance(n.expr, Constant) else known.get(n.name) for n in expr.inputs]
        arrays = [value for value in values if value is not None]
        if not values or expr.record.random or len(arrays) < len(values):
            continue
        if sizes and math.prod(int(at(n, sizes)) for one in expr.outputs for n in one.spec.shape) > _ELEMENTS:
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


def _widest(*ends: tuple[float, float]) -> tuple[float, float]:
    return min(low for low, _ in ends), max(high for _, high in ends)


def _is_wider(far: tuple[float, float], near: tuple[float, float]) -> bool:
    return far[0] < _WIDER * near[0] or far[1] > _WIDER * near[1]
