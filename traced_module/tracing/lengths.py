"""Lengths that calls count, of the true elements of a mask or the boxes that are kept: each call has its own, by name.

While a call is inferred they have provisional names. What stands in a graph is named after the value that has it; when
the call is inferred again it keeps its names, so specs follow from the call and from nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

from megengine.core.sizes import OpenSize, is_open, names_of, renamed
from megengine.core.spec import TensorSpec
from megengine.traced_module.ir.expr import Call
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.ir.queries import all_exprs

Specs = tuple[TensorSpec, ...]
_numbers = itertools.count(1)


def provisional() -> str:
    """A name for a length until it is known which call of which graph counts it; no two are equal."""
    return f"?{next(_numbers)}"


def counted_in(specs: Sequence[TensorSpec], operands: Collection[str]) -> list[str]:
    """Names of lengths that no operand has, as they come in the results."""
    found: dict[str, None] = {}
    for spec in specs:
        for length in spec.shape if is_open(spec.shape) else ():
            found.update(dict.fromkeys(sorted(names_of(length) - set(operands), key=lambda name: (len(name), name))))
    return list(found)


def own_lengths(graph: InternalGraph, wanted: str, specs: Specs, inputs: Sequence[Node]) -> Specs:
    """Results of a new call, with lengths that it counts by names that the model has not."""
    new = counted_in(specs, open_names(inputs))
    return _renamed(specs, _free(graph, wanted, new)) if new else specs


def kept_lengths(expr: Call, specs: Specs, inputs: Sequence[Node], taken: Collection[str] = ()) -> Specs:
    """What a call gives when it is inferred again: lengths that it counts are those which its results have.

    A number is an example of such a length. A length of an operand, or one of the names `taken`, is not: the call
    gets another name.
    """
    known = open_names(inputs)
    new = counted_in(specs, known)
    if not new:
        return specs
    other = {*known, *taken}
    outputs = [n.spec if isinstance(n, TensorNode) else None for n in expr.outputs]
    if len(outputs) == len(specs):
        specs = tuple(_kept(have, spec, set(new), other) for have, spec in zip(outputs, specs, strict=True))
    left = [name for name in counted_in(specs, known) if name in new]
    return _renamed(specs, _free(expr.top_graph, _wanted(expr), left)) if left else specs


def _kept(have: TensorSpec | None, spec: TensorSpec, new: set[str], other: Collection[str]) -> TensorSpec:
    """A result with the lengths that it has in the place of those that are counted."""
    if have is None or have.ndim != spec.ndim:
        return spec

    def known(length: int, counted: int) -> int:
        takes = names_of(counted) & new and not names_of(length) & set(other)
        return length if takes else counted

    return TensorSpec(tuple(map(known, have.shape, spec.shape)), spec.dtype, spec.device)


def open_names(nodes: Iterable[Node]) -> set[str]:
    """Names of the lengths of values that are not fixed."""
    shapes = [node.spec.shape for node in nodes if isinstance(node, TensorNode)]
    return names_of([shape for shape in shapes if OpenSize in map(type, shape)])


def _wanted(expr: Call) -> str:
    return expr.outputs[0].name if expr.outputs else "length"


def _free(graph: InternalGraph, wanted: str, new: Sequence[str]) -> dict[str, str]:
    """A name for each new length that no value of the model has: the wanted one, with a number where it is taken."""
    taken = open_names(node for expr in all_exprs(graph.top) for node in expr.outputs)
    if graph is not graph.top:
        taken |= open_names(graph.nodes(recursive=False))  # one that is being made belongs to no model
    names: dict[str, str] = {}
    for old in new:
        name, number = wanted, 1
        while name in taken:
            name, number = f"{wanted}_{number}", number + 1
        taken.add(name)
        names[old] = name
    return names


def _renamed(specs: Specs, names: dict[str, str]) -> Specs:
    return tuple(TensorSpec(renamed(s.shape, names), s.dtype, s.device) if is_open(s.shape) else s for s in specs)
