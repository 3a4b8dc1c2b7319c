"""What a network computes in: float, integers, or float with rounded values; and refusals of the wrong one."""

from collections.abc import Iterable

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import QuantizationError, listed
from megengine.ops.ordered import ORDERED
from megengine.quantization.modules import _FakeQuantize
from megengine.traced_module import TracedModule
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph


def integer_form(graph: InternalGraph) -> str:
    """What an op-level graph is.

    "float", "integer", "qdq" (pairs around float layers), "weights" (integers in constants alone) or "qat" (fake
    quantization). Layers between pairs whose sums have one order are those of an integer network.
    """
    exprs = [expr for expr in graph.exprs() if isinstance(expr, Apply)]
    if any(map(_fake_quantizes, exprs)):
        return "qat"
    stored = {
        expr.record
        for expr in exprs
        if any(isinstance(n.spec.dtype, QuantizedDType) for n in (*expr.inputs, *expr.outputs))
    }
    pairs = {op for op in stored if op.quantizes or op.dequantizes}
    if not all(op.rule.moves or op.rule.joins for op in stored - pairs):  # files move integers between the pairs
        return "integer"
    if any(op.quantizes for op in pairs):
        return "integer" if any(expr.op in ORDERED.values() for expr in exprs) else "qdq"
    return "weights" if stored else "float"


def _fake_quantizes(expr: object) -> bool:
    return isinstance(expr, Apply) and expr.op.startswith("fake_quant")


_FORMS = {
    "integer": "it computes in integers",
    "qdq": "it holds quantize / dequantize pairs around its layers",
    "weights": "its weights are integers",
    "qat": "it holds fake quantization, as quantization-aware training leaves it",
}


def require_float_modules(model: TracedModule) -> None:
    """Raises QuantizationError if fake quantizers of a traced module are on (the learnt ones are ordinary ops)."""
    quantizers = [path for path, m in model.named_modules() if isinstance(m, _FakeQuantize) and m.enabled]
    if quantizers:
        raise _quantized_already(model.graphs[0].name if model.graphs else "", "qat", quantizers)


def require_float(graph: InternalGraph) -> None:
    """Raises QuantizationError if a network is quantized; says how, where, and what to do."""
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
        f"network {name!r} is quantized already: {_FORMS[form]} ({listed(nodes)}); "
        "take the float network that it was made from"
    )


def require_integers(graph: InternalGraph, what: str, remedies: tuple[str, str]) -> None:
    """Raises QuantizationError for a float network, and for one with pairs around float layers. Weights alone will do.

    `what` begins the message; `remedies` say what to do with the one and with the other.
    """
    form = integer_form(graph)
    if form == "float":
        raise QuantizationError(f"{what} has no integer value; quantize it first: {remedies[0]}")
    if form == "qdq":
        raise QuantizationError(
            f"{what} has quantize / dequantize pairs around float layers (the form for other runtimes); {remedies[1]}"
        )
