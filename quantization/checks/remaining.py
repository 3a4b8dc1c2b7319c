"""What a quantized network still computes in float, why, and what it costs; and networks that cannot be quantized."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import QuantizationError
from megengine.quantization.modules.fake_quant import _FakeQuantize
from megengine.quantization.pipeline.annotate import Annotation
from megengine.quantization.pipeline.match import is_op
from megengine.quantization.pipeline.rules import RULES, rule_of
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.pictures.summary import multiplications
from megengine.traced_module.traced import TracedModule

LISTED = 5  # nodes that a message names


@dataclass(frozen=True, slots=True)
class FloatOp:
    """One op that the integer network computes in float.

    Args:
        name: its node.
        op: the op.
        module: path of its module.
        reason: why it is not in integers.
        macs: its multiply-accumulates.
        share: the part of the network's multiply-accumulates that it takes.
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


def _macs(expr: object) -> int:
    if not isinstance(expr, Apply):
        return 0
    return multiplications(expr.op, [n.spec for n in expr.inputs], expr.outputs[0].spec, expr.attrs)


def _computes_in_float(expr: Apply) -> bool:
    rule = rule_of(expr.op)
    if (rule is not None and rule.kind == "shape") or is_op(expr, "quantize", "dequantize"):
        return False
    return not any(isinstance(n.spec.dtype, QuantizedDType) for n in (*expr.inputs, *expr.outputs))


def integer_form(graph: InternalGraph) -> str:
    """What an op-level graph is: "float", "integer", "qdq" (pairs around float layers) or "qat" (fake quantization)."""
    exprs = [expr for expr in graph.exprs() if isinstance(expr, Apply)]
    if any(map(_fake_quantizes, exprs)):
        return "qat"
    stored = {
        expr.op
        for expr in exprs
        if any(isinstance(n.spec.dtype, QuantizedDType) for n in (*expr.inputs, *expr.outputs))
    }
    if stored - {"quantize", "dequantize"}:
        return "integer"
    return "qdq" if stored else "float"


def _fake_quantizes(expr: object) -> bool:
    return isinstance(expr, Apply) and expr.op.startswith("fake_quant")


_FORMS = {
    "integer": "it computes in integers",
    "qdq": "it holds quantize / dequantize pairs around its layers",
    "qat": "it holds fake quantization, as quantization-aware training leaves it",
}


def require_float_modules(model: TracedModule) -> None:
    """Refuse a traced module with fake quantizers that are on, of any kind (the learnt ones are ordinary ops).

    Raises:
        QuantizationError: says where, and what to do.
    """
    found = [path for path, m in model.named_modules() if isinstance(m, _FakeQuantize) and m.enabled]
    if found:
        raise _quantized_already(model.graphs[0].name if model.graphs else "", "qat", found)


def require_float(graph: InternalGraph) -> None:
    """Refuse a network that is quantized.

    Raises:
        QuantizationError: says how it is quantized, where, and what to do.
    """
    form = integer_form(graph)
    if form == "float":
        return
    nodes = [
        n.name
        for expr in graph.exprs()
        for n in expr.outputs
        if isinstance(n.spec.dtype, QuantizedDType) or _fake_quantizes(expr)
    ]
    raise _quantized_already(graph.name, form, nodes)


def _quantized_already(name: str, form: str, nodes: Iterable[str]) -> QuantizationError:
    return QuantizationError(
        f"quantize: network {name!r} is quantized already: {_FORMS[form]} ({_listed(nodes)}); "
        "quantize the float network that it was made from"
    )


def require_integers(graph: InternalGraph, what: str, remedies: tuple[str, str]) -> None:
    """Refuse a network that computes nothing in integers.

    Args:
        graph: op-level.
        what: begins the message.
        remedies: what to do with a float network, and with one of quantize / dequantize pairs.

    Raises:
        QuantizationError: a float network, or one with pairs around float layers.
    """
    form = integer_form(graph)
    if form == "float":
        raise QuantizationError(f"{what} has no integer value; quantize it first: {remedies[0]}")
    if form == "qdq":
        raise QuantizationError(
            f"{what} has quantize / dequantize pairs around float layers (the form for other runtimes); {remedies[1]}"
        )


def require_layers(graph: InternalGraph, annotation: Annotation) -> None:
    """Refuse a network in which nothing would become integers.

    Raises:
        QuantizationError: names the layers and says why each stays in float, or that there is none.
    """
    if annotation.weights:
        return
    kinds = [op for op, rule in RULES.items() if rule.kind == "weighted"]
    layers = [e.outputs[0].name for e in graph.exprs() if isinstance(e, Apply) and e.op in kinds]
    if not layers:
        held = sorted({e.op for e in graph.exprs() if isinstance(e, Apply)})
        raise QuantizationError(
            f"quantize: network {graph.name!r} has nothing to quantize: no layer with weights "
            f"({', '.join(kinds)}), only {_listed(held) or 'inputs and constants'}; use it as it is"
        )
    reasons = [f"{name} ({annotation.floating.get(name, 'no integer rule')})" for name in layers]
    raise QuantizationError(
        f"quantize: network {graph.name!r} would stay in float, all {len(layers)} layers with weights: "
        f"{_listed(reasons)}; exclude fewer layers, or use it as it is"
    )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
