"""What a quantized network still computes in float, why, and what it costs; a network all in float is refused."""

from dataclasses import dataclass

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import QuantizationError, listed
from megengine.core.sizes import closed
from megengine.core.text import counted
from megengine.dispatch import registry
from megengine.quantization.pipeline.annotate import Annotation
from megengine.quantization.pipeline.rules import rule_of
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph


@dataclass(frozen=True, slots=True)
class FloatOp:
    """One op that the integer network computes in float.

    Args:
        name, op, module: its node, the op and the path of its module.
        reason: why it is not in integers.
        macs, share: its multiply-accumulates, and their part of the network's.
    """

    name: str
    op: str
    module: str
    reason: str
    macs: int
    share: float


def left_in_float(float_graph: InternalGraph, integer_graph: InternalGraph, annotation: Annotation) -> list[FloatOp]:
    """The ops of the integer graph that compute in float, in execution order (those that only move values aside)."""
    total = sum(_macs(expr) for expr in float_graph.exprs())
    found = []
    for expr in integer_graph.exprs():
        if isinstance(expr, Apply) and _computes_in_float(expr):
            name, macs = expr.outputs[0].name, _macs(expr)
            reason = annotation.floating.get(name, f"no integer kernel takes {expr.op} as it stands here")
            module = str(expr.meta.get("module", "") or "")
            found.append(FloatOp(name, expr.op, module, reason, macs, macs / total if total else 0.0))
    return found


def multiply_adds(graph: InternalGraph) -> dict[str, int]:
    """Multiply-accumulates of every op, by the name of its result."""
    return {expr.outputs[0].name: _macs(expr) for expr in graph.exprs() if isinstance(expr, Apply)}


def _macs(expr: object) -> int:
    if not isinstance(expr, Apply):
        return 0
    specs = [n.spec.example for n in expr.inputs]
    return expr.record.macs(specs, expr.outputs[0].spec.example, closed(dict(expr.attrs)))


def _computes_in_float(expr: Apply) -> bool:
    rule = rule_of(expr.op)
    if (rule is not None and rule.kind == "shape") or expr.record.quantizes or expr.record.dequantizes:
        return False
    return not any(isinstance(n.spec.dtype, QuantizedDType) for n in (*expr.inputs, *expr.outputs))


def require_layers(graph: InternalGraph, annotation: Annotation) -> None:
    """Raises QuantizationError if nothing would become integers; says why each layer stays in float."""
    if annotation.weights:
        return
    kinds = [name for name, op in registry.items() if op.weighted]
    layers = [e.outputs[0].name for e in graph.exprs() if isinstance(e, Apply) and e.op in kinds]
    if not layers:
        held = sorted({e.op for e in graph.exprs() if isinstance(e, Apply)})
        raise QuantizationError(
            f"quantize: network {graph.name!r} has nothing to quantize: no layer with weights "
            f"({', '.join(kinds)}), only {listed(held) or 'inputs and constants'}; use it as it is"
        )
    reasons = [f"{name} ({annotation.floating.get(name, 'no integer rule')})" for name in layers]
    raise QuantizationError(
        f"quantize: network {graph.name!r} would stay in float, all {counted(len(layers), 'layer')} with weights: "
        f"{listed(reasons)}; exclude fewer layers, or use it as it is"
    )
