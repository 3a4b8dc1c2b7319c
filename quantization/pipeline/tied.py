"""Values whose channels can only be scaled together: those that layers make, as far as sums and clamps carry them.

A factor of a channel behind convolutions passes through sums and ReLU and, as far as nothing is cut, through ReLU6; the
convolutions that read the values divide by it. In networks with residuals all results of one stage are tied.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode


@dataclass(frozen=True, slots=True)
class Tied:
    """Values with the same factors, behind clamps from 0 up to `limit` (infinite: none).

    Args:
        nodes: in the order of execution.
        writers: the convolutions that make them.
        readers: those that read them; nothing else does.
    """

    nodes: tuple[TensorNode, ...]
    writers: tuple[Apply, ...]
    readers: tuple[Apply, ...]
    limit: float

    def reached(self, start: TensorNode) -> set[int]:
        """The places in `readers` of those that a value reaches, itself or in a sum."""
        names, found = {start.name}, set()
        for node in self.nodes:
            if isinstance(node.expr, Apply) and any(n.name in names for n in node.expr.inputs):
                names.add(node.name)
        for at, layer in enumerate(self.readers):
            if layer.inputs[0].name in names:
                found.add(at)
        return found


def tied_values(graph: InternalGraph) -> Iterator[Tied]:
    """All of a graph, in the order of execution, that only convolutions with constant weights make and read."""
    order = {e.outputs[0].name: at for at, e in enumerate(graph.exprs()) if e.outputs}
    done: set[str] = set()
    for expr in graph.exprs():
        if isinstance(expr, Apply) and is_layer(expr) and expr.outputs[0].name not in done:
            nodes = _carried(expr.outputs[0])
            done |= nodes.keys()
            tied = _of(sorted(nodes.values(), key=lambda n: order[n.name]), graph.outputs)
            if tied is not None:
                yield tied


def _carried(start: TensorNode) -> dict[str, TensorNode]:
    """What sums and clamps tie to a value, by name."""
    found, waiting = {start.name: start}, [start]
    while waiting:
        node = waiting.pop()
        around = [node.expr, *node.users]
        for expr in around:
            if isinstance(expr, Apply) and _carries(expr):
                new = [n for n in (*expr.inputs, *expr.outputs) if n.name not in found]
                found.update({n.name: n for n in new})
                waiting += new
    return found


def _of(nodes: Sequence[TensorNode], outputs: Sequence[TensorNode]) -> Tied | None:
    """The values as one; None if anything but convolutions makes or reads them."""
    writers, readers, limit = [], [], np.inf
    for node in nodes:
        made = node.expr
        if node in outputs or not isinstance(made, Apply):
            return None
        if is_layer(made):
            writers.append(made)
        elif not _carries(made):
            return None
        elif (bounds := made.record.rule.bounds(made.attrs)) is not None and bounds[1] is not None:
            limit = min(limit, bounds[1])
        for user in node.users:
            if isinstance(user, Apply) and is_layer(user) and user.inputs[0] is node and _by_channel(user):
                readers.append(user)
            elif not (isinstance(user, Apply) and _carries(user)):
                return None
    return Tied(tuple(nodes), tuple(writers), tuple(readers), limit) if readers else None


def is_layer(expr: object) -> bool:
    """True for a convolution with constant weight and bias."""
    constants = expr.inputs[1:] if isinstance(expr, Apply) and expr.record.rule.convolves else ()
    return bool(constants) and all(isinstance(n.expr, Constant) for n in constants)


def _by_channel(layer: Apply) -> bool:
    """True if each input channel meets weights of its own: a convolution without groups, or a depthwise one."""
    return layer.attrs["groups"] == 1 or layer.inputs[1].spec.shape[1] == 1


def _carries(expr: Apply) -> bool:
    """True for a sum of values of one shape, and for a clamp that starts at 0 or nowhere."""
    if expr.record.rule.adds:
        return len({n.spec.shape for n in (*expr.inputs, *expr.outputs)}) == 1
    bounds = expr.record.rule.bounds(expr.attrs)
    return bounds is not None and bounds[0] in (None, 0.0) and (bounds[1] is None or bounds[1] > 0)
