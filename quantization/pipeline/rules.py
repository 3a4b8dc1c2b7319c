"""What quantization does with each op: the `quant` rule of its record. Everything else in this package asks here."""

from megengine.dispatch import QuantRule, registry
from megengine.dispatch.record import Attrs

NO_RULE = QuantRule("")


def rule_of(op: str) -> QuantRule | None:
    """The rule of an op, or None: the op stays in float."""
    record = registry.get(op)
    return record.quant if record is not None and isinstance(record.quant, QuantRule) else None


def clamp_of(op: str, attrs: Attrs) -> tuple[float | None, float | None] | None:
    """Real bounds if the op is a clamp, else None."""
    rule = rule_of(op)
    return rule.clamp(attrs) if rule is not None and rule.clamp is not None else None


def is_convolution(op: str) -> bool:
    """True for a layer whose windows of the input meet a weight [outputs, inputs of a group, height, width]."""
    rule = rule_of(op)
    return rule is not None and rule.weighted and not rule.rows and not rule.transposed
