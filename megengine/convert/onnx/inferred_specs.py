"""Shapes and dtypes of values behind a node that is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from megengine.convert.onnx.inputs import input_spec
from megengine.core.spec import TensorSpec
from megengine.traced_module.ir.node import TensorNode

if TYPE_CHECKING:
    import onnx

_MOST_NUMBERS = 1 << 16  # that ONNX carries along for a value; it takes a microsecond for each


def inferred_specs(model: onnx.ModelProto, nodes: Mapping[str, TensorNode]) -> dict[str, TensorSpec]:
    """Shapes and dtypes of values that ONNX finds, for given inputs."""
    import onnx

    given = onnx.ModelProto()
    given.CopyFrom(model)
    for item in given.graph.input:
        if (node := nodes.get(item.name)) is not None:
            kind = item.type.tensor_type.elem_type
            item.CopyFrom(onnx.helper.make_tensor_value_info(item.name, kind, node.shape))
    found = {}
    try:
        few = _most_numbers(given.graph) <= _MOST_NUMBERS
        for item in onnx.shape_inference.infer_shapes(given, data_prop=few).graph.value_info:
            found[item.name] = input_spec(item, None)
    except Exception:  # what ONNX finds wrong is said by the rules, or follows from a refused node
        return found
    return found


def _most_numbers(graph: onnx.GraphProto) -> int:
    """A bound for the numbers of one value that the inference carries along: joined ones double at every step."""
    counts = {item.name: math.prod(item.dims) for item in graph.initializer if len(item.dims) <= 1}
    for node in graph.node:
        known = [counts.get(name, 1) for name in node.input]
        made = sum(known) if node.op_type == "Concat" else max(known, default=1)
        counts.update(dict.fromkeys(node.output, made))
    return max(counts.values(), default=0)
