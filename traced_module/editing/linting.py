"""What is wrong or suspicious in a model, as a list: more than `graph.lint()`, which stops at the first fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import MegEngineError
from megengine.core.text import counted
from megengine.module import BatchNorm1d, BatchNorm2d, Dropout, SyncBatchNorm
from megengine.tensor import Tensor
from megengine.traced_module.comparing.values import children_of
from megengine.traced_module.ir.expr import Constant, GetAttr, Input, is_call_module
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode, module_of
from megengine.traced_module.ir.provenance import module_path
from megengine.traced_module.ir.queries import child_graphs
from megengine.traced_module.traced import TracedModule

# kind of finding -> what it means
KINDS = {
    "broken": "the graph contradicts itself: it cannot be run or trusted",
    "not finite": "a weight holds NaN or infinity",
    "one value only": "the graph holds for the value that was traced, and no other",
    "training": "a layer in training mode: its results are random, or depend on the rest of the batch",
    "unused": "computed, given or stored, and used by nothing",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        kind: a key of KINDS.
        module: path of the module in which it is; "" for the outermost one.
        name: the node, layer or tensor.
        text: what was found.
    """

    kind: str
    module: str
    name: str
    text: str

    def to_json(self) -> dict[str, str]:
        """Plain values."""
        return asdict(self)


def findings(model: TracedModule) -> list[Finding]:
    """Everything that is wrong or suspicious in a model, at either level; empty for a sound one.

    Example:
        >>> [f.text for f in findings(traced)]  # doctest: +SKIP
    """
    found: list[Finding] = []
    seen: set[int] = set()
    todo = list(reversed(model.graphs))
    while todo:
        graph = todo.pop()
        if id(graph) not in seen:
            seen.add(id(graph))
            found += _of_graph(graph)
            todo += reversed(child_graphs(graph))
    for graph in model.graphs:
        found += _broken(graph)
    found += _of_modules(model)
    found += [
        Finding("one value only", "", s.node, f"{s.what} at {s.source} was fixed as it was traced")
        for s in model.specializations
    ]
    order = list(KINDS)
    return sorted(found, key=lambda f: order.index(f.kind))


def _broken(graph: InternalGraph) -> Iterator[Finding]:
    try:
        graph.lint()
    except MegEngineError as error:
        yield Finding("broken", _path(graph), graph.name, str(error))


def _path(graph: InternalGraph) -> str:
    return graph.qualname[len(graph._top.qualname) + 1 :]


def _of_graph(graph: InternalGraph) -> Iterator[Finding]:
    returned = {id(n) for n in graph.outputs}
    for expr in graph.exprs(recursive=False):
        names = ", ".join(n.name for n in expr.outputs)
        if isinstance(expr, Constant) and (bad := _not_finite(expr.value)):
            yield Finding("not finite", module_path(expr), names, bad)
        if is_call_module(expr) and (text := _in_training(expr.inputs[0].owner)):
            yield Finding("training", _path(graph), expr.inputs[0].name, text)
        if expr._disable_remove or any(n._users or id(n) in returned for n in expr.outputs):
            continue
        if not isinstance(expr, Input):
            yield Finding("unused", _path(graph), names, f"nothing uses {expr._body()[:200]}")
        elif isinstance(expr.outputs[0], TensorNode):
            yield Finding("unused", _path(graph), names, "nothing uses this input")


def _in_training(layer: Any) -> str:
    if isinstance(layer, Dropout) and layer.training and layer.drop_prob > 0:
        return f"{type(layer).__name__} in training mode draws at random; call eval() before tracing"
    if isinstance(layer, (BatchNorm1d, BatchNorm2d, SyncBatchNorm)) and layer.training:
        return f"{type(layer).__name__} in training mode normalizes by the batch; call eval() before tracing"
    return ""


def _not_finite(value: Tensor) -> str:
    if storage_of(value.spec.dtype).kind != "f":
        return ""
    array = np.asarray(value.numpy())
    bad = int(array.size - np.count_nonzero(np.isfinite(array)))
    return f"{bad} of {counted(array.size, 'value')} are NaN or infinite" if bad else ""


def _of_modules(model: TracedModule) -> Iterator[Finding]:
    """Weights of every module, and layers that no graph reads."""
    exprs = [e for g in model.graphs for e in g.exprs()]
    read = {id(module_of(e.outputs[0])) for e in exprs if isinstance(e, GetAttr) and e.outputs[0].users}
    seen: set[int] = set()
    todo: list[tuple[str, Any, bool]] = [("", model, True)]
    while todo:
        path, module, is_open = todo.pop()  # what a layer holds is the layer's business
        if id(module) in seen:
            continue
        seen.add(id(module))
        parent, _, name = path.rpartition(".")
        if isinstance(module, Tensor):
            if bad := _not_finite(module):
                yield Finding("not finite", parent, name, bad)
            continue
        is_layer = not isinstance(module, TracedModule)
        if is_layer and is_open and not read & {id(module), *(id(t) for _, t in module.named_tensors())}:
            yield Finding("unused", parent, name, f"no graph reads this {type(module).__name__}")
        below = reversed(list(children_of(module).items()))
        todo += [(f"{path}.{n}" if path else n, child, not is_layer) for n, child in below]
