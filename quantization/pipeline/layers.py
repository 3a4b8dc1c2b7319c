"""What is said of networks in which nothing becomes integers."""

from collections.abc import Iterator

from megengine.core.errors import QuantizationError, listed
from megengine.core.text import counted
from megengine.dispatch import registry
from megengine.quantization.pipeline.annotation import Annotation
from megengine.traced_module.bodies import bodies_of
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph


def require_layers(graph: InternalGraph, annotation: Annotation) -> None:
    """Raises QuantizationError if nothing would become integers; says why each layer stays in float."""
    if annotation.weights:
        return
    kinds = [name for name, op in registry.items() if op.weighted or op.rule.scans]
    named = [e.outputs[0].name for e in graph.exprs() if isinstance(e, Apply) and e.op in kinds]
    layers = [name for name in named if name in annotation.floating]
    if layers:
        reasons = [f"{name} ({annotation.floating[name]})" for name in layers]
        raise QuantizationError(
            f"quantize: network {graph.name!r} would stay in float, all {counted(len(layers), 'layer')} with weights: "
            f"{listed(reasons)}; exclude fewer layers, or use it as it is"
        )
    for expr in graph.exprs():
        if held := [e for _, body in bodies_of(expr) for e in _ops(body.graph) if e.op in kinds]:
            raise QuantizationError(
                f"quantize: network {graph.name!r} has nothing to quantize: {counted(len(held), 'layer')} with weights "
                f"({listed([e.outputs[0].name for e in held])}) that {expr.outputs[0].name!r} ({expr.op}) runs, which "
                f"stays in float since its course follows from values; {_WAYS_OUT[expr.op == 'loop']}, or use it as "
                "it is"
            )
    held = sorted({e.op for e in graph.exprs() if isinstance(e, Apply)})
    products = f"; products of two computed values alone ({listed(named)}) stay in float" if named else ""
    raise QuantizationError(
        f"quantize: network {graph.name!r} has nothing to quantize: no layer with weights "
        f"({', '.join(kinds)}), only {listed(held) or 'inputs and constants'}{products}; use it as it is"
    )


# of an if, of a loop
_WAYS_OUT = (
    "where the condition is an input, read the file with input_values={...}, which keeps the branch that is taken",
    "read the file with fixed sizes (input_shapes={...}) or values (input_values={...}) that decide the number of "
    "rounds, which are then written out, or quantize what one round runs as a network of its own",
)


def _ops(graph: InternalGraph) -> Iterator[Apply]:
    """The ops of a graph, and of all graphs that they run."""
    for expr in graph.exprs():
        if isinstance(expr, Apply):
            yield expr
            for _, body in bodies_of(expr):
                yield from _ops(body.graph)
