"""Pairs of uint16 become pairs of int16, which hold the same steps: tensors have no quantized type of uint16."""

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from megengine.convert.onnx.reading import array_of, names_read

if TYPE_CHECKING:
    import onnx

MIDDLE = 1 << 15  # what a zero point of uint16 is larger by than that of int16
DOMAINS = ("", "ai.onnx", "com.microsoft")


def sign_pairs(graph: "onnx.GraphProto") -> None:
    """Give QuantizeLinear to uint16, where DequantizeLinear alone reads it, and its readers zero points of int16.

    (x - z) is the same number for x and z less 2**15, so no result changes. Integers that other nodes or the caller
    see stay what they are.
    """
    zeros = dict(_zeros_of(graph))
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in names_read([node]):
            readers[name].append(node)
    seen = {item.name for item in graph.output}
    taken = {*zeros, *readers, *seen, *(name for node in graph.node for name in node.output)}
    stored: dict[bytes, str] = {}
    signed: set[str] = set()
    for node in graph.node:
        pair = [node, *readers[node.output[0]]] if _is_linear(node, "QuantizeLinear") and len(node.output) == 1 else []
        if len(pair) < 2 or node.output[0] in seen or not all(_reads(one, node.output[0]) for one in pair[1:]):
            continue
        offsets = [_zero_of(one, zeros) for one in pair]
        wide = [offset for offset in offsets if offset is not None and offset.dtype == np.uint16]
        if len(wide) == len(pair):
            signed.add(node.output[0])
            for one, offset in zip(pair, wide, strict=True):
                _set_zero(graph, one, (offset.astype(np.int32) - MIDDLE).astype(np.int16), stored, taken)
    for place in reversed([place for place, item in enumerate(graph.value_info) if item.name in signed]):
        del graph.value_info[place]  # it says uint16


def _is_linear(node: "onnx.NodeProto", op_type: str) -> bool:
    return node.op_type == op_type and node.domain in DOMAINS and len(node.input) in (2, 3)


def _reads(node: "onnx.NodeProto", name: str) -> bool:
    """Whether a node makes floats of integers, and reads them nowhere else."""
    return _is_linear(node, "DequantizeLinear") and [*node.input].index(name) == 0 and [*node.input].count(name) == 1


def _zeros_of(graph: "onnx.GraphProto") -> Iterator[tuple[str, "onnx.TensorProto"]]:
    """Tensors of uint16 that the graph stores, by name."""
    import onnx

    yield from ((tensor.name, tensor) for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.UINT16)
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" and len(node.output) == 1 else ():
            if attribute.name == "value" and attribute.t.data_type == onnx.TensorProto.UINT16:
                yield node.output[0], attribute.t


def _zero_of(node: "onnx.NodeProto", zeros: dict[str, "onnx.TensorProto"]) -> np.ndarray | None:
    """The stored zero point of uint16 of a node, None where it is another one, computed, or in a file beside."""
    import onnx

    if len(node.input) == 3 and node.input[2]:
        tensor = zeros.get(node.input[2])
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return array_of(tensor)
    stated = {attribute.name: attribute.i for attribute in node.attribute}
    # what DequantizeLinear reads has the type that QuantizeLinear says
    is_wide = node.op_type == "DequantizeLinear" or stated.get("output_dtype") == onnx.TensorProto.UINT16
    return np.zeros((), np.uint16) if is_wide and not stated.get("block_size") else None


def _set_zero(
    graph: "onnx.GraphProto", node: "onnx.NodeProto", zero: np.ndarray, stored: dict[bytes, str], taken: set[str]
) -> None:
    import onnx

    key = repr(zero.shape).encode() + zero.tobytes()
    if key not in stored:
        name = f"zero_{len(stored)}"
        while name in taken:
            name += "_"
        taken.add(name)
        stored[key] = name
        graph.initializer.append(onnx.numpy_helper.from_array(zero, name))
    kept = [attribute for attribute in node.attribute if attribute.name != "output_dtype"]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.input[2:] = [stored[key]]
