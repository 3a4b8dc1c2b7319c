"""Which operators are imported, and the one message about those of a file that are not."""

from typing import TYPE_CHECKING

from megengine.convert.onnx.context import RULES
from megengine.core.errors import FileFormatError, nearest
from megengine.core.text import counted
from megengine.dispatch import OnnxRule, Op, registry

if TYPE_CHECKING:
    import onnx

FOLDED_ONLY = ("Size", "ConstantOfShape", "Range", "Constant", "NonZero", "Tile", "OneHot")
LATE = "depends on the network's input"


def record_of(op_type: str) -> Op | None:
    """The op whose record says how this operator is read."""
    rules = ((op, op.onnx) for op in registry.values())
    return next(
        (op for op, rule in rules if isinstance(rule, OnnxRule) and rule.read and rule.op_type == op_type), None
    )


def exported_as(op_type: str) -> Op:
    """The op whose record writes this operator, for readers that bring nodes into its form."""
    return next(op for op in registry.values() if isinstance(op.onnx, OnnxRule) and op.onnx.op_type == op_type)


def is_computed(op_type: str) -> bool:
    """Whether an operator becomes ops of the graph; others are only computed while importing."""
    return op_type in RULES or record_of(op_type) is not None


def refuse_unknown(model: "onnx.ModelProto") -> None:
    """Raises FileFormatError for all operators of a model that cannot be imported together, before any work."""
    refused: dict[str, list[onnx.NodeProto]] = {}
    stored = {item.name for item in model.graph.initializer}
    for node in model.graph.node:
        full = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        if _branches(node):
            refused.setdefault(full, []).append(node)
        elif full in ("Constant", "Shape", "Size") or all(not name or name in stored for name in node.input):
            stored.update(node.output)  # computed while importing
        elif not is_computed(full):
            refused.setdefault(full, []).append(node)
    if refused:
        listed = ", ".join(_described(full, nodes) for full, nodes in refused.items())
        raise FileFormatError(f"ONNX operators that are not supported: {listed}")


def _branches(node: "onnx.NodeProto") -> bool:
    """True for If, Loop, Scan: a node that runs graphs of its own."""
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _described(full: str, nodes: list["onnx.NodeProto"]) -> str:
    count = f"{counted(len(nodes), 'node')}, first" if len(nodes) > 1 else "node"
    name = nodes[0].name or (nodes[0].output[0] if nodes[0].output else "")
    return f"{full!r} ({count} {name!r}; {_reason(full, nodes[0])})"


def _reason(full: str, node: "onnx.NodeProto") -> str:
    import onnx

    if _branches(node):
        return "it runs graphs of its own: export the model with the branch or the number of steps fixed"
    if full in FOLDED_ONLY:
        return f"it {LATE}"
    if node.domain not in ("", "ai.onnx"):
        return f"of the domain {node.domain!r}"
    if onnx.defs.has(node.op_type):
        return "of the ONNX standard, but not imported yet"
    known = (op.onnx.op_type for op in registry.values() if isinstance(op.onnx, OnnxRule))
    return f"no operator of the ONNX standard{nearest(full, [*RULES, *known])}"
