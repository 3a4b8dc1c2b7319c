"""Nodes whose inputs are all known are computed while importing: shape arithmetic, stored weights in pieces."""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megengine.convert.onnx.context import OnnxNode
from megengine.convert.onnx.operators import is_computed, made_of
from megengine.convert.onnx.reading import array_of, dense, label
from megengine.core.errors import FileFormatError
from megengine.core.text import counted
from megengine.traced_module import InternalGraph
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.ir.node import TensorNode

if TYPE_CHECKING:
    import onnx

# stored integers stay integers; random numbers are the same at every import
KEPT = ("DequantizeLinear", "Bernoulli", "Multinomial", "Dropout")
# their results have at most as many values as their inputs together, or as there are pairs of them
BOUNDED = ("Add", "Cast", "Concat", "Div", "Equal", "Gather", "Mul", "Reshape", "Shape", "Slice", "Squeeze", "Sub")
BOUNDED += ("Transpose", "Unsqueeze", "Where")
LENGTHS = 64  # most numbers of an input that may be lengths
MAX_VALUES = 1 << 28  # most values of a folded constant: a few bytes of a file must not fill the memory
MAX_BYTES = 4 << 30  # of all folded constants, and a multiple of what the file stores
TIMES_STORED = 8


class Budget:
    """Bytes that the constants which are computed for a file may take together."""

    def __init__(self, stored: int) -> None:
        self.most = self.left = MAX_BYTES + TIMES_STORED * stored

    def spend(self, node: "onnx.NodeProto", made: list[np.ndarray]) -> None:
        """Raises FileFormatError when the results of a node are too many after those of others."""
        self.left -= sum(value.nbytes for value in made)
        if self.left < 0:
            raise FileFormatError(
                f"{label(node)}: the constants that the file computes take more than {counted(self.most, 'byte')} "
                f"together; expected at most {MAX_BYTES >> 30} GiB and {TIMES_STORED} times what it stores"
            )


def constant_of(node: "onnx.NodeProto", folder: Path | None) -> np.ndarray:
    """The value of a Constant node, which may lie in a file of the folder. Raises FileFormatError if it is text."""
    for attribute in node.attribute:
        if attribute.name == "sparse_value":
            return dense(attribute.sparse_tensor, folder)
        if attribute.name == "value":
            return array_of(attribute.t, folder)
        if attribute.name in ("value_float", "value_floats"):
            value: Any = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            return np.asarray(value, np.float32)
        if attribute.name in ("value_int", "value_ints"):
            value = attribute.i if attribute.name == "value_int" else list(attribute.ints)
            return np.asarray(value, np.int64)
    raise FileFormatError(f"{label(node)}: expected a number value")


def fold(node: "onnx.NodeProto", read: OnnxNode) -> list[np.ndarray] | None:
    """Outputs of a node whose inputs are all known, or None. Raises FileFormatError if they would be too large.

    They are what the rule of the operator gives, as at run time: the evaluator of the onnx package, which knows more
    operators and data types, is wrong for some windows, norms, recurrent cells and old opsets.
    """
    import onnx

    inputs = [None if value is None else np.asarray(value) for value in read.inputs]
    runs_graphs = any(attribute.HasField("g") for attribute in node.attribute)
    if node.domain not in ("", "ai.onnx") or node.op_type.startswith(("Random", *KEPT)) or runs_graphs:
        return None
    present = {name: value for name, value in zip(node.input, inputs, strict=True) if name and value is not None}
    graph = onnx.helper.make_graph(
        [node],
        "fold",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in present],
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", read.opset)])
    _check_growth(node, inputs)
    _check_size(model, present)
    return _by_rule(read) or _by_reference(model, present)


def _by_rule(node: OnnxNode) -> list[np.ndarray] | None:
    """What the rule of the operator computes; None without one that takes these values."""
    if not is_computed(node.op_type):
        return None
    graph = InternalGraph(name="fold")
    apart = replace(node, graph=graph, constants={}, keep={}, names={})
    try:
        made = made_of(apart)
        values = [apart.stored(value) for value in (made if isinstance(made, tuple) else (made,))]
        if not all(isinstance(value, (np.ndarray, TensorNode)) for value in values):  # sequences
            return None
        set_outputs(graph, [apart.as_node(value) for value in values])
        return [value.numpy() for value in graph.interpret()]
    except Exception:  # the evaluator may know more, and what is wrong with the node is said when it is made
        return None


def _by_reference(model: "onnx.ModelProto", inputs: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """What the evaluator of the onnx package computes."""
    from onnx.reference import ReferenceEvaluator

    try:
        made = ReferenceEvaluator(model).run(None, inputs)
    except Exception:  # whatever is wrong with the node, the rule of its operator says it better
        return None
    if any(value is None or isinstance(value, list) for value in made):  # sequences and optional values have rules
        return None
    return [np.asarray(value) for value in made]


def _check_size(model: "onnx.ModelProto", inputs: dict[str, np.ndarray]) -> None:
    """Refuse a node whose results are too large by the shapes that ONNX infers for its inputs."""
    import onnx

    (node,) = model.graph.node
    sizes = [value.size for value in inputs.values()]
    if node.op_type in BOUNDED and len(node.input) * max(sizes, default=0) + math.prod(sizes) <= MAX_VALUES:
        return
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    for item, value in zip(typed.graph.input, inputs.values(), strict=True):
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        item.CopyFrom(onnx.helper.make_tensor_value_info(item.name, kind, value.shape))
        if value.size <= LENGTHS:
            typed.graph.initializer.append(onnx.numpy_helper.from_array(value, item.name))
    try:
        results = onnx.shape_inference.infer_shapes(typed).graph.output
    except Exception:  # the rule of its operator says what is wrong
        return
    for item in results:
        if (count := math.prod(dim.dim_value or 1 for dim in item.type.tensor_type.shape.dim)) > MAX_VALUES:
            raise _too_large(node, count)


def _too_large(node: "onnx.NodeProto", count: float) -> FileFormatError:
    return FileFormatError(
        f"{label(node)}: makes a constant of {counted(count, 'value', spec='.0f')}; at most {MAX_VALUES} are accepted"
    )


def _check_growth(node: "onnx.NodeProto", inputs: list[np.ndarray | None]) -> None:
    """Operators whose result can be far larger than their inputs."""
    first = inputs[0] if inputs else None
    second = inputs[1] if len(inputs) > 1 else None
    count = 0
    if node.op_type == "ConstantOfShape" and first is not None:
        count = math.prod(int(size) for size in first.reshape(-1))
    elif node.op_type in ("Expand", "Tile", "Pad", "OneHot") and first is not None and second is not None:
        sizes = [abs(int(size)) for size in second.reshape(-1) if np.isfinite(size)]
        shape = first.shape
        count = {
            "Expand": math.prod(max(size, 1) for size in sizes),
            "Tile": first.size * math.prod(sizes),
            "Pad": math.prod(s + a + b for s, a, b in zip(shape, sizes, sizes[len(shape) :], strict=False)),
            "OneHot": first.size * max(sizes, default=0),
        }[node.op_type]
    elif node.op_type == "Range" and None not in inputs[:3] and len(inputs) == 3:
        start, limit, delta = (float(value.reshape(-1)[0]) for value in inputs if value is not None)
        count = abs((limit - start) / delta) if delta else math.inf
    if count > MAX_VALUES:
        raise _too_large(node, count)
