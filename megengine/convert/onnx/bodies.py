"""Operators that the standard defines by others: their nodes are imported in their place."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from megengine.convert.onnx.context import Group, Value, spec_of
from megengine.convert.onnx.reading import operator_name
from megengine.core.dtype import storage_of

if TYPE_CHECKING:
    import onnx

# they are computed while importing
FOLDED_ONLY = ("Constant", "MelWeightMatrix")


def has_body(op_type: str, opset: int) -> bool:
    """Whether the standard defines an operator by others at an opset; of some only for certain inputs."""
    return any(map(_versions, _schemas(op_type, opset)))


def body_of(
    node: "onnx.NodeProto", inputs: Sequence[Value | Group | None], opset: int
) -> tuple[list["onnx.NodeProto"], int] | None:
    """The nodes that define a node, which read its inputs and make its outputs, and their opset; None without any."""
    import onnx

    types = [b"" if value is None else _type(value).SerializeToString() for value in inputs]
    for schema in _schemas(operator_name(node), opset):
        for version in _tried(_versions(schema), opset):
            if content := _content(schema, node, types, version):  # there may be none for these inputs
                function = onnx.FunctionProto.FromString(content)
                stated = [item.version for item in function.opset_import if item.domain == ""]
                return _renamed(node, function, schema), max(stated, default=version)
    return None


def _tried(versions: list[int], opset: int) -> list[int]:
    """Opsets at which a body is asked for: it holds until an operator in it changes, then that of an older one does."""
    return [max(opset, min(versions)), *sorted((v for v in versions if v <= opset), reverse=True)] if versions else []


def _content(schema: "onnx.defs.OpSchema", node: "onnx.NodeProto", types: list[bytes], version: int) -> bytes:
    if schema.has_function:
        return schema.get_function_with_opset_version(version)
    return schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)


def _schemas(op_type: str, opset: int) -> list["onnx.defs.OpSchema"]:
    """The schema at an opset, and the newest one where that has the same inputs and attributes.

    Of an operator that came later, the first one: converters wrote ThresholdedRelu before opset 10, where ONNX Runtime
    has it, too.
    """
    import onnx

    if op_type in FOLDED_ONLY or not onnx.defs.has(op_type):
        return []
    newest = onnx.defs.get_schema(op_type)
    known = onnx.defs.has(op_type, max_inclusive_version=opset)
    own = onnx.defs.get_schema(op_type, opset) if known else _first(newest)
    return [own, newest] if _form(own) == _form(newest) else [own]


def _first(schema: "onnx.defs.OpSchema") -> "onnx.defs.OpSchema":
    import onnx

    while onnx.defs.has(schema.name, max_inclusive_version=schema.since_version - 1):
        schema = onnx.defs.get_schema(schema.name, schema.since_version - 1)
    return schema


def _versions(schema: "onnx.defs.OpSchema") -> list[int]:
    return schema.function_opset_versions or schema.context_dependent_function_opset_versions


def _form(schema: "onnx.defs.OpSchema") -> tuple:
    inputs = [(item.name, item.option) for item in schema.inputs]
    return inputs, {name: item.default_value.SerializeToString() for name, item in schema.attributes.items()}


def _type(value: Value | Group) -> "onnx.TypeProto":
    import onnx

    if isinstance(value, Group):  # the standard says no more of an optional value than of a sequence
        first = value.values[0] if value.values else np.zeros(0, np.float32)
        return onnx.helper.make_sequence_type_proto(_type(first))
    spec = spec_of(value)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(storage_of(spec.dtype)))
    return onnx.helper.make_tensor_type_proto(kind, list(spec.shape))


def _renamed(
    node: "onnx.NodeProto", function: "onnx.FunctionProto", schema: "onnx.defs.OpSchema"
) -> list["onnx.NodeProto"]:
    """Copies of a function's nodes with the names of the caller's values; others get the node's name in front."""
    prefix = node.name or next(filter(None, node.output), node.op_type)
    names = {formal: "" for formal in (*function.input, "")}
    names.update(zip(function.input, node.input, strict=False))
    names.update((formal, actual) for formal, actual in zip(function.output, node.output, strict=False) if actual)
    given = {name: item.default_value for name, item in schema.attributes.items() if item.default_value.name}
    given.update((item.name, item) for item in node.attribute)
    made = []
    for inner in function.node:
        for name in (*inner.input, *inner.output):
            names.setdefault(name, f"{prefix}/{name}")
        made.append(_adapted(inner, names, given))
        made[-1].name = f"{prefix}/{inner.name or next(filter(None, inner.output), inner.op_type)}"
    return made


def _adapted(
    node: "onnx.NodeProto", names: dict[str, str], given: dict[str, "onnx.AttributeProto"]
) -> "onnx.NodeProto":
    """A copy of a definition's node with the caller's names and attributes, also in the graphs that it runs."""
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    del copy.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            copy.attribute.add().CopyFrom(given[attribute.ref_attr_name])
            copy.attribute[-1].name = attribute.name
    for graph in (attribute.g for attribute in copy.attribute if attribute.HasField("g")):
        own = {item.name for item in (*graph.input, *graph.initializer)}
        own.update(name for inner in graph.node for name in inner.output)
        outer = {formal: actual for formal, actual in names.items() if formal not in own}
        nodes = [_adapted(inner, outer, given) for inner in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        for item in graph.output:
            item.name = outer.get(item.name, item.name)
    return copy
