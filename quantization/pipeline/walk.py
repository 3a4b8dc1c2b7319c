"""A graph of ops that is run piece by piece, with operands given in place of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megengine.quantization.ranges import Batch, as_tensors
from megengine.tensor import Tensor
from megengine.traced_module.interpret import run_op
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.sizes import has_open_axes, sizes_of


@dataclass(frozen=True, slots=True)
class Place:
    """How far a graph was run on a sample: the next expression, and the computed values that are still needed.

    Args:
        values: by the identity of their nodes.
        sizes: of open axes.
    """

    at: int
    values: Mapping[int, Tensor]
    sizes: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return sum(value.numpy().nbytes for value in self.values.values())


@dataclass(slots=True)
class Walk:
    """A graph whose ops run up to a place, and from there on when they are wanted.

    Args:
        given: operands in place of the graph's own, by name of the op's first output and place; one behind the last
            operand is added.
    """

    graph: InternalGraph
    given: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    exprs: list[Expr] = field(init=False)
    index: dict[str, int] = field(init=False)
    _last: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.exprs = list(self.graph.exprs())
        self.index = {e.outputs[0].name: at for at, e in enumerate(self.exprs) if e.outputs}
        self._last = {id(n): at for at, e in enumerate(self.exprs) for n in e.inputs}
        self._last |= {id(n): len(self.exprs) for n in self.graph.outputs}

    def start(self, sample: Batch) -> Place:
        """Before the first op."""
        tensors = as_tensors(sample, self.graph)
        sizes = sizes_of(self.graph, [x.shape for x in tensors]) if has_open_axes(self.graph) else {}
        return Place(0, {id(n): x for n, x in zip(self.graph.inputs, tensors, strict=True)}, sizes)

    def moved(self, place: Place, stop: int) -> Place:
        """The place before expression `stop`, not before the one given, which stays as it is."""
        values, sizes = dict(place.values), dict(place.sizes)
        for at in range(place.at, stop):
            expr = self.exprs[at]
            if not isinstance(expr, Apply):
                continue
            results = self._results(expr, values, sizes)
            values.update({id(n): x for n, x in zip(expr.outputs, results, strict=True) if self._is_read(n, at)})
            for node in expr.inputs:
                if not self._is_read(node, at):
                    values.pop(id(node), None)
        return Place(stop, values, sizes)

    def result(self, place: Place) -> Tensor:
        """The first result of the expression at a place."""
        expr = self.exprs[place.at]
        assert isinstance(expr, Apply), expr
        return self._results(expr, place.values, dict(place.sizes))[0]

    def _is_read(self, node: object, at: int) -> bool:
        return self._last.get(id(node), -1) > at

    def _results(self, expr: Apply, values: Mapping[int, Tensor], sizes: dict[str, int]) -> Sequence[Tensor]:
        name, operands = expr.outputs[0].name, []
        for at in range(len(expr.inputs) + ((name, len(expr.inputs)) in self.given)):
            if (given := self.given.get((name, at))) is not None:
                operands.append(given)
            else:
                made = expr.inputs[at].expr
                operands.append(made.value if isinstance(made, Constant) else values[id(expr.inputs[at])])
        return run_op(expr, operands, sizes)
