"""What became of the layers of a quantized network, and what it still computes in float: why, and what that costs."""

from dataclasses import dataclass

from megengine.core.dtype import QuantizedDType
from megengine.core.notebook import html_table
from megengine.core.text import counted
from megengine.ops.ordered import ORDERED
from megengine.quantization.pipeline.annotation import Annotation
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


@dataclass(frozen=True, slots=True)
class QuantReport:
    """What became of the layers; `dataclasses.asdict` gives plain JSON values.

    `integer_layers` counts those with integer weights, `floating` are the ops left in float, and `edges` says in a line
    why each integer edge has its scale. `undone` tells of stages that were taken back since they did harm.
    """

    integer_layers: int
    floating: tuple[FloatOp, ...]
    edges: dict[str, str]
    undone: str = ""

    def __str__(self) -> str:
        """A line for what is in integers, and one for each op in float with its reason and share."""
        lines = [f"{counted(self.integer_layers, 'layer')} in integers, {counted(len(self.floating), 'op')} in float"]
        for one in self.floating:
            share = f" ({one.share:.1%} of the multiply-adds)" if one.share else ""
            lines.append(f"{one.op} {one.name}{share}: {one.reason}")
        return "\n".join([*lines, *([self.undone] if self.undone else [])])

    def _repr_html_(self) -> str:
        rows = [(one.name, one.op, one.module, one.reason, f"{one.share:.1%}") for one in self.floating]
        title = f"{counted(self.integer_layers, 'layer')} in integers, {counted(len(rows), 'op')} in float"
        return html_table(("in float", "op", "module", "reason", "share"), rows, numbers=1, title=title)


def multiply_adds(graph: InternalGraph) -> dict[str, int]:
    """Multiply-accumulates of every op, by the name of its result."""
    return {expr.outputs[0].name: expr.macs for expr in graph.exprs() if isinstance(expr, Apply)}


def report_of(
    float_graph: InternalGraph, integer_graph: InternalGraph, annotation: Annotation, undone: str = ""
) -> QuantReport:
    """The report on an integer graph; ops that only move values are not listed."""
    total = sum(multiply_adds(float_graph).values())
    plain, floating = {twin: op for op, twin in ORDERED.items()}, []
    for expr in integer_graph.exprs():
        if not isinstance(expr, Apply) or not _computes_in_float(expr):
            continue
        name, macs, op = expr.outputs[0].name, expr.macs, plain.get(expr.op, expr.op)
        reason = annotation.floating.get(name, f"no integer kernel takes {op} as it stands here")
        module = str(expr.meta.get("module", "") or "")
        floating.append(FloatOp(name, op, module, reason, macs, macs / total if total else 0.0))
    edges = {name: annotation.explain(name) for name in annotation.edges}
    return QuantReport(len(annotation.weights), tuple(floating), edges, undone)


def _computes_in_float(expr: Apply) -> bool:
    if expr.record.rule.kind == "shape" or expr.record.quantizes or expr.record.dequantizes:
        return False
    return not any(isinstance(n.spec.dtype, QuantizedDType) for n in (*expr.inputs, *expr.outputs))
