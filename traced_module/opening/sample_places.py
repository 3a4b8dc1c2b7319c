"""Places that name the one sample of a fixed batch by its number, 0: for other batches they name each one.

Exporters write `x[:, 2] = y` and `x[arange(batch), at]` with constants that hold the number of every sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import constant_value
from megengine.traced_module.patterns import any_, call, const, match

Shape = tuple[int, ...]

_PUT = call("scatter_nd", any_(), const(), any_())
_PUT_AT = call("scatter_nd", any_(), any_(), any_())
_TAKEN = call("index")


def places_of_one_sample(expr: Apply, old: list[Shape]) -> bool:
    """True for an op that reads or changes the one sample of a batch at places that name it.

    Args:
        old: the shapes of its inputs for the fixed batch.
    """
    if match(_PUT, expr.outputs[0]) is not None:
        places = np.asarray(constant_value(expr.inputs[1]))
        named = places.shape[0] == 1 and places.ndim > 1 and places.shape[-1] > 0 and not places[..., 0].any()
        return named and old[0][0] == old[2][0] == 1 and any(_follows(expr, at, old) for at in (0, 2))
    if match(_PUT_AT, expr.outputs[0]) is not None:
        return _follows(expr, 1, old) and _follows(expr, 2, old)  # each sample has places of its own in one axis
    if match(_TAKEN, expr.outputs[0]) is None or expr.attrs["pattern"][0] != "i" or not _follows(expr, 0, old):
        return False
    if isinstance(expr.inputs[1].expr, Constant):
        return any(old[1:]) and _counts_all(np.asarray(constant_value(expr.inputs[1])), old[0][0])
    return expr.inputs[1].spec.shape != old[1]  # rows of all samples in one axis, from which each takes its own


def _counts_all(numbers: np.ndarray, rows: int) -> bool:
    """True for 0, 1, ... along one axis, one for each row; of one row for any zeros."""
    return (numbers.size == rows or rows == 1) and np.array_equal(
        numbers.ravel(), np.arange(rows).repeat(numbers.size // rows)
    )


def _follows(expr: Apply, at: int, old: list[Shape]) -> bool:
    return expr.inputs[at].spec.shape[:1] != old[at][:1]


def at_every_sample(graph: InternalGraph, expr: Apply, old: list[Shape]) -> list[TensorNode]:
    """The inputs of such an op for the new batch."""
    place = _Place(graph, expr)
    if match(_PUT_AT, expr.outputs[0]) is None:
        x, numbers, *others = expr.inputs
        rows, (batch, left) = old[0][0], divmod(x.spec.shape[0], old[0][0])
        axis = _axis(old[1:], [numbers, *others])
        if isinstance(numbers.expr, Constant) and rows > 1:
            at = len(old[1]) - old[1].index(rows)
            return [x, place.samples(x.spec.shape[0], numbers, at - 1), *others]
        return [x, numbers if left else place.numbered(numbers, batch, axis, rows), *others]
    x, places, updates = expr.inputs
    if _follows(expr, 1, old):
        return [*place.of_each(x, places, old[0], old[1]), updates]
    batch = x.spec.shape[0] if _follows(expr, 0, old) else updates.spec.shape[0]
    x, updates = (n if n.spec.shape[0] == batch else place.repeated(n, batch) for n in (x, updates))
    first = np.zeros(places.spec.shape[-1], storage_of(places.spec.dtype))
    first[0] = 1
    number = place.apply("mul", place.samples(batch, places, places.spec.ndim - 1), place.constant(first))
    return [x, place.apply("add", place.repeated(places, batch), number), updates]


def _axis(old: list[Shape], indices: list[TensorNode]) -> int:
    """Which axis of joint indices, counted from the end, has the batch: that in which one of them follows it."""
    for node, was in zip(indices, old, strict=True):
        for axis, (m, n) in enumerate(zip(was, node.spec.shape, strict=True)):
            if m != n:
                return len(was) - axis
    return max(map(len, old))


class _Place:
    """New nodes in front of an op, named after it."""

    def __init__(self, graph: InternalGraph, expr: Apply) -> None:
        self.graph, self.where = graph, {"name": f"{expr.name}_samples", "before": expr}
        self.meta = expr.meta

    def apply(self, name: str, *inputs: TensorNode, **attrs: Any) -> TensorNode:
        return self.graph.apply(name, *inputs, attrs=attrs, meta=self.meta, **self.where)

    def constant(self, value: np.ndarray) -> TensorNode:
        return self.graph.constant(value, **self.where)

    def repeated(self, node: TensorNode, batch: int) -> TensorNode:
        return self.apply("broadcast_to", node, shape=(batch, *node.spec.shape[1:]))

    def of_each(self, x: TensorNode, places: TensorNode, one: Shape, before: Shape) -> tuple[TensorNode, TensorNode]:
        """A tensor that each sample has one of, behind the others, and the places of all, side by side, in it.

        Args:
            x: one for all samples, of shape `one`, or those of all.
            places: of shape `before` for the fixed batch.
        """
        batch, left = divmod(places.spec.shape[0], before[0])
        if left:
            return x, places
        if x.spec.shape == one:
            many = self.apply("broadcast_to", self.apply("reshape", x, shape=(1, *one)), shape=(batch, *one))
            x = self.apply("reshape", many, shape=(batch * one[0], *one[1:]))
        first = np.zeros(before[-1], storage_of(places.spec.dtype))
        first[0] = one[0]
        rest = (1,) * (len(before) - 1)
        number = self.apply("broadcast_to", self.samples(batch, places, 1), shape=(batch, before[0]))
        number = self.apply("reshape", number, shape=(batch * before[0], *rest))
        return x, self.apply("add", places, self.apply("mul", number, self.constant(first)))

    def samples(self, batch: int, like: TensorNode, behind: int) -> TensorNode:
        """0, 1, ... in the dtype of a node, in front of so many axes of length 1."""
        one = self.constant(np.ones(1, storage_of(like.spec.dtype)))
        counted = self.apply("cumsum", self.apply("broadcast_to", one, shape=(batch,)), axis=0, reverse=False)
        return self.apply("reshape", self.apply("sub", counted, one), shape=(batch, *(1,) * behind))

    def numbered(self, numbers: TensorNode, batch: int, axis: int, rows: int) -> TensorNode:
        """Rows of one sample of so many, of which each sample has its own along an axis, counted from the end.

        Along it those of each sample lie side by side; numbers that no batch divides stay.
        """
        length = (1,) * axis + numbers.spec.shape
        many, left = divmod(length[-axis], batch)
        if left and length[-axis] > 1:
            return numbers
        many = many or 1
        rest = (1,) * (axis - 1)
        first = self.apply(
            "mul", self.samples(batch, numbers, axis), self.constant(np.array(rows, storage_of(numbers.spec.dtype)))
        )
        first = self.apply("broadcast_to", first, shape=(batch, many, *rest))
        return self.apply("add", numbers, self.apply("reshape", first, shape=(batch * many, *rest)))
