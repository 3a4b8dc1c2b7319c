"""Which operators are imported, and the one message about those of a file that are not."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from megengine.convert.onnx.bodies import FOLDED_ONLY, has_body
from megengine.convert.onnx.context import QUANTIZED, RULES, OnnxNode, Value, spec_of
from megengine.convert.onnx.control import CONTROL
from megengine.convert.onnx.reading import operator_name, stored_names
from megengine.core.dtype import QuantizedDType, is_float
from megengine.core.errors import FileFormatError, nearest
from megengine.core.text import counted
from megengine.dispatch import OnnxRule, Op, registry

if TYPE_CHECKING:
    import onnx


def record_of(op_type: str) -> Op | None:
    """The op whose record says how this operator is read."""
    for op in registry.values():
        rule = op.onnx
        if isinstance(rule, OnnxRule) and rule.op_type == op_type and rule.read:
            return op
    return None


def exported_as(op_type: str) -> Op:
    """The op whose record writes this operator, for readers that bring nodes into its form."""
    return next(op for op in registry.values() if isinstance(op.onnx, OnnxRule) and op.onnx.op_type == op_type)


def is_computed(op_type: str) -> bool:
    """Whether an operator becomes ops of the graph; others are only computed while importing."""
    return op_type in RULES or record_of(op_type) is not None


def made_of(node: OnnxNode) -> Any:
    """The outputs of a node by the rule of its operator."""
    rule, op = RULES.get(node.op_type), record_of(node.op_type)
    if not (op.moves if rule is None and op is not None else node.op_type in QUANTIZED):
        node = replace(node, inputs=[node.stored(x) for x in node.inputs])
    _refuse_integers(node)
    if rule is not None:
        return rule(node)
    # its rule takes the same inputs, renamed attributes and ONNX's defaults
    if op is None:  # it could not be computed while importing, and has no definition for these inputs
        raise node.fail(_reason(node.op_type))
    assert isinstance(op.onnx, OnnxRule)  # record_of
    inputs = [node.input(index) for index in range(len(node.inputs))]
    given = {**_defaults(node.op_type, node.opset), **node.attrs}
    stated = {ours: given[theirs] for ours, theirs in op.onnx.attributes.items() if theirs in given}
    attrs = {name: tuple(value) if isinstance(value, (list, tuple)) else value for name, value in stated.items()}
    try:
        return node.apply(op.name, *inputs, **attrs)
    except TypeError as error:  # an attribute that our op needs and the node leaves out
        raise node.fail(
            f"{counted(len(inputs), 'input')} and attributes {sorted(node.attrs)} do not fit ({error})"
        ) from error


def like(node: OnnxNode, op_type: str, *inputs: Value | None, **attrs: Any) -> Value:
    """What another operator makes of inputs, with this node's attributes."""
    return made_of(replace(node, op_type=op_type, inputs=list(inputs), attrs={**node.attrs, **attrs}))


def _refuse_integers(node: OnnxNode) -> None:
    """Raises FileFormatError for integers that ONNX does not let the operator read: its results would be rounded."""
    if not (_reads_reals_alone(node.op_type) and node.inputs and node.inputs[0] is not None):
        return
    dtype = spec_of(node.inputs[0]).dtype
    if not (dtype is None or isinstance(dtype, QuantizedDType) or is_float(dtype)):
        raise node.fail(
            f"its input is {dtype}; expected real numbers, as ONNX defines it; put a Cast to float before it"
        )


@cache
def _reads_reals_alone(op_type: str) -> bool:
    """Whether the newest definition of a standard operator takes no integers as its first input."""
    import onnx

    if not onnx.defs.has(op_type):
        return False
    inputs = onnx.defs.get_schema(op_type).inputs
    return bool(inputs) and not any("int" in kind or "bool" in kind for kind in inputs[0].types)


def _defaults(op_type: str, opset: int) -> dict[str, Any]:
    """What ONNX takes for the attributes of an operator that a node leaves out."""
    import onnx

    known = onnx.defs.has(op_type, max_inclusive_version=opset)  # a name of a newer opset is not held against a file
    stated = (onnx.defs.get_schema(op_type, opset) if known else onnx.defs.get_schema(op_type)).attributes.items()
    values = {name: onnx.helper.get_attribute_value(a.default_value) for name, a in stated if a.default_value.name}
    # the standard's 0.01 is stored as a float32, whose shortest decimal is 0.01 again
    return {name: float(str(np.float32(v))) if isinstance(v, float) else v for name, v in values.items()}


def unknown_operators(
    graph: "onnx.GraphProto", opset: int, known: Iterable[str] = ()
) -> tuple[set[int], list[FileFormatError]]:
    """Places of the nodes of a graph whose operators cannot be imported, and the error that lists these, if any.

    `known` names the values that are known beside the graph's own. Graphs that nodes run are looked at when they are.
    """
    refused: dict[str, list[onnx.NodeProto]] = {}
    places: set[int] = set()
    stored = {*known, *stored_names(graph)}
    for place, node in enumerate(graph.node):
        full = operator_name(node)
        if full in CONTROL:
            continue
        if _branches(node) and not has_body(full, opset):
            pass
        elif full in ("Constant", "Shape", "Size") or all(not name or name in stored for name in node.input):
            stored.update(node.output)  # computed while importing
            continue
        elif is_computed(full) or has_body(full, opset):
            continue
        refused.setdefault(full, []).append(node)
        places.add(place)
    listed = ", ".join(_described(full, nodes) for full, nodes in refused.items())
    if not refused:
        return places, []
    error = FileFormatError(f"ONNX operators that are not supported: {listed}")
    error.add_note(_way_out(refused))
    return places, [error]


def _way_out(refused: Iterable[str]) -> str:
    """What can be done about operators that are not imported."""
    fused = any(full.startswith("com.microsoft") for full in refused)
    before = "save the model before ONNX Runtime optimises it (ORT_DISABLE_ALL), or " if fused else ""
    return f"{before}keep the part without them: onnx.utils.extract_model(path, new_path, input_names, output_names)"


def _branches(node: "onnx.NodeProto") -> bool:
    """True for a node that runs graphs of its own."""
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _described(full: str, nodes: list["onnx.NodeProto"]) -> str:
    count = f"{counted(len(nodes), 'node')}, first" if len(nodes) > 1 else "node"
    name = nodes[0].name or (nodes[0].output[0] if nodes[0].output else "")
    return f"{full!r} ({count} {name!r}; {_reason(full, branches=_branches(nodes[0]))})"


def _reason(full: str, *, branches: bool = False) -> str:
    import onnx

    domain, _, name = full.rpartition("::")
    if branches:
        return "it runs graphs of its own: export the model without it"
    if full in FOLDED_ONLY:
        return "it depends on the network's input; give it constants, or take it out of the model"
    if domain:
        return f"of the domain {domain!r}"
    if onnx.defs.has(name):
        return "of the ONNX standard, but not imported yet"
    known = (op.onnx.op_type for op in registry.values() if isinstance(op.onnx, OnnxRule))
    return f"no operator of the ONNX standard{nearest(full, [*RULES, *known])}"
