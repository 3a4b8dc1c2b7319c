"""Graphs to ONNX: float graphs and QDQ graphs, provenance kept as node metadata."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megengine.convert.onnx import (  # noqa: F401  (they fill WRITERS)
    recurrent_rules,
    write_control_rules,
    write_index_rules,
    write_integer_rules,
    write_math_rules,
    write_recurrent_rules,
    write_rules,
    write_window_rules,
)
from megengine.convert.onnx.end_names import part_results, restore
from megengine.convert.onnx.write_exact_sums import integer_sums
from megengine.convert.onnx.writing import OLDER, WRITERS, NewerOpsetError, Writer, attribute, quantized, utf8
from megengine.core.dtype import storage_of
from megengine.core.errors import GraphError, OptionError
from megengine.core.files import replacing
from megengine.core.sizes import is_open, name_of
from megengine.dispatch import NoRule, OnnxWriter, no_onnx, registry
from megengine.dispatch.refusal import kinds_named
from megengine.traced_module.formats.module_writing import texts
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import END_NAMES
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.sizes import counting
from megengine.traced_module.tracing.entry import on_processor

if TYPE_CHECKING:
    import onnx

OLDEST, OPSET = 13, 17  # what is written where no opset is given is read by every runtime of the last years
OPSET_OF_OTHER_BITS = 21  # the first with integers of 4 and 16 bits in QuantizeLinear


@kinds_named
def export(model: Any, path: str | Path, *, opset: int | None = None) -> None:
    """Write an op-level graph as ONNX; quantize / dequantize pairs become QuantizeLinear / DequantizeLinear.

    Args:
        model: an op-level graph, or a traced module that holds one (see `lower`), float or with explicit pairs.
        path: the .onnx file; an old file is replaced only when the new one is complete.
        opset: 13 to the newest that the installed onnx package knows; 17 if not given, 21 where a value is of 4 or 16
            bits, or the first that has all operators of the network.

    Raises:
        GraphError: an op has no ONNX form for its dtypes at this opset; the message names the node.
        WriteError: the path cannot be written.
    """
    content = to_model(model, opset=opset).SerializeToString()
    with replacing(Path(path)) as file:
        file.write(content)


@kinds_named
def export_qdq(model: Any, path: str | Path, *, opset: int | None = None) -> None:
    """Write what `quantize_model` returned as QDQ ONNX: weights are stored integers with their scales and axis.

    Arguments and errors are those of `export`.
    """
    export(model.exchange_graph() if hasattr(model, "exchange_graph") else model, path, opset=opset)


def to_model(model: Any, *, opset: int | None = None) -> "onnx.ModelProto":
    """The ONNX model of an op-level graph, checked by ONNX's own checker."""
    newest, graph = newest_opset(), on_processor(model)
    if opset is not None and not OLDEST <= opset <= newest:
        raise OptionError(f"ONNX export: opset {opset}; expected {OLDEST} to {newest}")
    if opset is not None:
        return _model_proto(graph, opset)
    dtypes = [quantized(node) for node in graph.nodes() if isinstance(node, TensorNode)]
    opset = OPSET if all(d is None or d.bits in (7, 8, 32) for d in dtypes) else OPSET_OF_OTHER_BITS
    while True:
        try:
            return _model_proto(graph, opset)
        except NewerOpsetError as error:
            if error.since > newest:
                raise
            opset = error.since


def _model_proto(graph: InternalGraph, opset: int) -> "onnx.ModelProto":
    import onnx

    w = Writer(opset, write_graph=_graph_proto)
    w.taken.update(node.name for expr in graph.exprs() for node in expr.outputs)
    made = _graph_proto(w, graph, graph.inputs)
    restore(made, graph)
    part_results(made)
    opsets = [onnx.helper.make_opsetid("", opset)]
    version = onnx.helper.find_min_ir_version_for(opsets)
    proto = onnx.helper.make_model(made, opset_imports=opsets, ir_version=version)
    proto.producer_name = "megengine"
    about = {utf8(key): utf8(value) for key, value in texts(graph.metadata).items() if key != END_NAMES}
    onnx.helper.set_model_props(proto, about)
    _check(proto, opset)
    return proto


def newest_opset() -> int:
    """The newest opset that the installed onnx package knows."""
    import onnx

    return onnx.defs.onnx_opset_version()


def _graph_proto(w: Writer, graph: InternalGraph, inputs: Sequence[TensorNode]) -> "onnx.GraphProto":
    """A graph with these inputs; others are values around it."""
    import onnx

    w.axes.update(_open_axes(graph))
    linear = (write_rules.linear_of(expr) for expr in graph.exprs() if isinstance(expr, Apply))
    w.absorbed.update(id(pair[0]) for pair in linear if pair is not None)
    for expr in graph.exprs():
        if isinstance(expr, Apply) and id(expr) not in w.absorbed:
            w.current, first = expr, len(w.nodes)
            _write_expr(w, expr)
            if storage_of(expr.outputs[0].spec.dtype) == np.int16:
                _take_floats(w, first, expr)
            elif truths := {
                node.name for node in expr.inputs if isinstance(node, TensorNode) and node.dtype == np.bool_
            }:
                _take_numbers(w, first, truths)
    w.current = None
    outputs = _outputs(w, graph)
    infos = [_value_info(node) for node in inputs]
    return onnx.helper.make_graph(w.nodes, utf8(graph.name) or "graph", infos, outputs, w.initializers)


def _open_axes(graph: InternalGraph) -> dict[str, tuple[str, int]]:
    """Where the inputs have each open axis."""
    axes: dict[str, tuple[str, int]] = {}
    for node in graph.inputs:
        for axis, size in enumerate(node.spec.shape):
            if (name := name_of(size)) is not None:
                axes.setdefault(name, (node.name, axis))
    for expr in counting(graph):
        for node in expr.outputs:
            for axis, size in enumerate(node.spec.shape):
                if (name := name_of(size)) is not None:
                    axes.setdefault(name, (node.name, axis))
    return axes


def _check(proto: "onnx.ModelProto", opset: int) -> None:
    """ONNX's own checker: an operator may lack a dtype that our op has."""
    import onnx

    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = str(error).strip().splitlines()[0]
        raise GraphError(
            f"ONNX export: ONNX's checker refuses the model at opset {opset}: {reason}; "
            "change the dtype of this node, or give another opset"
        ) from error


def _write_expr(w: Writer, expr: Apply) -> None:
    record = registry.get(expr.op)
    if record is not None and integer_sums(w, expr):
        return
    rule = no_onnx("the op is unknown") if record is None else record.onnx
    if isinstance(rule, NoRule):
        raise w.unsupported(expr, rule.reason)
    if isinstance(rule, OnnxWriter):
        WRITERS[expr.op](w, expr)
        return
    import onnx

    if not onnx.defs.has(rule.op_type, max_inclusive_version=w.opset) and rule.op_type not in OLDER:
        first = onnx.defs.get_schema(rule.op_type).since_version
        raise w.newer(expr, rule.op_type, first)
    since, older = OLDER.get(rule.op_type, (0, None))
    if older is not None and w.opset < since:
        older(w, expr)
        return
    attrs = {theirs: expr.attrs[ours] for ours, theirs in rule.attributes.items() if ours in expr.attrs}
    attrs.update(rule.more([node.spec for node in expr.inputs]))
    plain = 2 if expr.record.weighted else len(expr.inputs)
    names = [*map(w.value, expr.inputs[:plain])]
    names += [write_rules.bias_name(w, expr, node) for node in expr.inputs[plain:]]
    if "pads" in attrs and not expr.record.rule.transposed:
        write_window_rules.emit_window(w, rule.op_type, expr, names, attrs)
    else:
        w.emit(rule.op_type, expr, names, **{name: attribute(value) for name, value in attrs.items()})


# operator -> its inputs of int16, which the standard (MaxPool) or ONNX Runtime (others) lacks; float32 holds them
_WITHOUT_INT16 = {
    **{"MaxPool": (0,), "Pad": (0, 2), "Where": (1, 2), "Max": (0, 1), "Min": (0, 1)},
    **{"ReduceMax": (0,), "ReduceMin": (0,)},
}


def _take_floats(w: Writer, first: int, expr: Apply) -> None:
    """Put casts around the nodes from `first` on that move 16-bit integers and cannot."""
    import onnx

    written, w.nodes[first:] = w.nodes[first:], []
    for node in written:
        inside = node.output[0] != expr.outputs[0].name and node.op_type != "Pad"  # of other values, as weights are
        places = [] if inside else [i for i in _WITHOUT_INT16.get(node.op_type, ()) if i < len(node.input)]
        for i in places:
            node.input[i] = w.add("Cast", [node.input[i]], f"{node.input[i]}_float", to=onnx.TensorProto.FLOAT)
        w.nodes.append(node)
        if places:
            result = node.output[0]
            node.name = node.output[0] = w.free(f"{result}_float")
            w.add("Cast", [node.output[0]], [result], to=onnx.TensorProto.INT16)


def _numeric(node: "onnx.NodeProto", opset: int) -> tuple[list[int], bool]:
    """Inputs of a node of the standard that take int32 and no truth values, by its schema or, of Where, as ONNX Runtime
    has them; and whether its first result has their type.
    """
    import onnx

    if node.domain or not onnx.defs.has(node.op_type, max_inclusive_version=opset):
        return [], False
    schema = onnx.defs.get_schema(node.op_type, opset)
    known = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    kinds = [schema.inputs[min(i, len(schema.inputs) - 1)].type_str for i in range(len(node.input))]
    places = [
        i
        for i, kind in enumerate(kinds)
        if "tensor(int32)" in known.get(kind, ()) and ("tensor(bool)" not in known[kind] or node.op_type == "Where")
    ]
    return places, bool(places) and schema.outputs[0].type_str == kinds[places[0]]


def _take_numbers(w: Writer, first: int, truths: set[str]) -> None:
    """Put casts to int32, which holds them, around nodes from `first` on that read these truth values and cannot."""
    import onnx

    written, w.nodes[first:] = w.nodes[first:], []
    for node in written:
        numeric, same = _numeric(node, w.opset)
        places = [i for i in numeric if node.input[i] in truths]
        for i in places:
            node.input[i] = w.add("Cast", [node.input[i]], f"{node.input[i]}_number", to=onnx.TensorProto.INT32)
        w.nodes.append(node)
        if places and same:
            result = node.output[0]
            node.name = node.output[0] = w.free(f"{result}_number")
            w.add("Cast", [node.output[0]], [result], to=onnx.TensorProto.BOOL)


def _value_info(node: TensorNode, name: str | None = None) -> "onnx.ValueInfoProto":
    import onnx

    dtype = quantized(node)
    kind = onnx.helper.np_dtype_to_tensor_dtype(storage_of(node.spec.dtype) if dtype is None else dtype.storage)
    return onnx.helper.make_tensor_value_info(
        name or node.name, kind, [name_of(n) or str(n) if is_open(n) else n for n in node.spec.shape]
    )


def _outputs(w: Writer, graph: InternalGraph) -> list["onnx.ValueInfoProto"]:
    """Output values; one that is an input, a constant or listed twice gets an Identity, as ONNX wants its own name."""
    infos, seen = [], {node.name for node in graph.inputs}
    for node in graph.outputs:
        name = w.value(node)
        if name in seen or not isinstance(node.expr, Apply):
            name = w.add("Identity", [name], f"{node.name}_output")
        seen.add(name)
        infos.append(_value_info(node, name))
    return infos
