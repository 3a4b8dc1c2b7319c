"""integerize: chains between dequantize and quantize become integer ops; what has no rule stays in float."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, is_float, qint8
from megengine.core.errors import QuantizationError
from megengine.core.sizes import is_open
from megengine.dispatch import QuantRule, apply
from megengine.kernels.reference.integer import ratio
from megengine.quantization.modules import Product, accumulator_weight, first_axis, spread
from megengine.quantization.pipeline.epilogue import bounds, epilogue
from megengine.quantization.pipeline.groups import group_of
from megengine.quantization.pipeline.match import (
    Clamp,
    LayerMatch,
    Stored,
    centred,
    is_product,
    layer,
    layer_with_residual,
    over_picture,
    stored,
    strip_clamps,
)
from megengine.quantization.pipeline.order import put_in_order
from megengine.quantization.pipeline.sequences import integer_steps
from megengine.quantization.pipeline.streams import NARROW
from megengine.tensor import Tensor
from megengine.traced_module.editing.rewiring import replace_all_uses
from megengine.traced_module.ir.end_names import keep_result_names, result_names
from megengine.traced_module.ir.expr import Apply, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead

Replaced = tuple[TensorNode, TensorNode] | None  # a value, and the one in its place


@dataclass(slots=True)
class Site:
    """One float value that becomes integers: new exprs go before `before` and are named after `result`.

    `value` is what stands before the clamp; `dtype` None asks for a float32 result.
    """

    graph: InternalGraph
    before: Expr
    result: TensorNode
    value: TensorNode
    clamp: Clamp
    dtype: QuantizedDType | None
    int_bias: bool

    @property
    def name(self) -> str:
        """Name of the float node that the integers stand for."""
        return self.result.name

    @property
    def target(self) -> QuantizedDType:
        """The dtype, where the result is integers."""
        assert self.dtype is not None, f"{self.name}: a float32 result has no quantized dtype"
        return self.dtype

    def emit(self, op: str, *inputs: TensorNode, label: str = "int", **attrs) -> TensorNode:
        meta = {k: v for k, v in self.result.meta.items() if k in ("module", "source", "passes")}
        name = f"{self.name}_{label}"
        return self.graph.apply(op, *inputs, attrs=attrs, name=name, before=self.before, meta=meta)

    def constant(self, value: np.ndarray | Tensor, label: str) -> TensorNode:
        return self.graph.constant(value, name=f"{self.name}_{label}", before=self.before)


def integerize(graph: InternalGraph, *, int_bias: bool = False) -> InternalGraph:
    """A copy of a QDQ graph in which every known chain is an integer op, and sums of float layers have one order.

    Layers whose float result goes on in float give float32 directly (`dtype="float32"`).

    Raises:
        QuantizationError: a multiplier, bias or accumulator is out of range; the node is named.
    """
    return with_integers(graph, int_bias=int_bias)[0]


def with_integers(graph: InternalGraph, *, int_bias: bool = False) -> tuple[InternalGraph, dict[str, TensorNode]]:
    """What `integerize` gives, and what stands for each edge of the QDQ graph, and each last state, by its name."""
    g, integers = graph.clone(), {}
    for expr in g.exprs():
        if isinstance(expr, Apply) and expr.record.rule.scans:
            integers |= integer_steps(g, expr, int_bias=int_bias)
    remove_dead(g)
    for replaced in (_integers, _float_result):
        for expr in g.exprs():
            if not isinstance(expr, Apply):
                continue
            pair = replaced(g, expr, int_bias)
            if expr.record.quantizes:
                integers[expr.meta.get("edge", "")] = expr.output if pair is None else pair[1]
            if pair is not None:
                replace_all_uses(g, *pair)
        remove_dead(g)
    put_in_order(g)
    keep_result_names(g, result_names(graph))
    return g, integers


def _integers(g: InternalGraph, expr: Apply, int_bias: bool) -> Replaced:
    if not expr.record.quantizes:
        return None
    value, clamp = strip_clamps(expr.inputs[0])
    site = Site(g, expr, expr.inputs[0], value, clamp, expr.attrs["dtype"], int_bias)
    match = layer_with_residual(site.value)
    try:
        result = _from_op(site) if match is None else _emit_layer(site, match)
    except QuantizationError as exc:
        exc.add_note(f"while making integers of {site.name!r}")
        raise
    return None if result is None else (expr.output, result)


def _float_result(g: InternalGraph, expr: Apply, int_bias: bool) -> Replaced:
    if is_product(expr):
        return _float_product(g, expr)
    if expr.record.weighted:
        return _float_layer(g, expr, int_bias)
    return _float_total(g, expr) if over_picture(expr) else None


def _emit_layer(site: Site, match: LayerMatch) -> TensorNode:
    dtype = site.dtype
    w, w_dtype = _rows_first(match)
    numbers = epilogue(site.name, w, w_dtype, match.data.dtype, match.bias, dtype, int_bias=site.int_bias)
    lo, hi = (0, 0) if dtype is None else bounds(dtype, site.clamp)
    inputs = [
        match.data.node,
        site.constant(Tensor._wrap(w, w_dtype), "w"),
        site.constant(numbers.b, "b"),
        site.constant(numbers.M, "M"),
        site.constant(numbers.B, "B"),
    ]
    attrs = {"lo": lo, "hi": hi, "ratio": 0.0, "dtype": "float32" if dtype is None else dtype}
    if match.residual is not None:
        assert dtype is not None, "a residual is summed in steps of the output"
        inputs.append(match.residual.node)
        attrs["ratio"] = ratio(match.residual.dtype, dtype)
    if match.expr.record.rows:
        data = inputs[0]
        if len(data.shape) != 4:
            return site.emit("qlinear", *inputs, **attrs)
        # four axes lie channels-last in memory, and kernels want the last axis in one piece
        rows = math.prod(data.shape[:-1])
        for i in (0, 5)[: len(inputs) - 4]:
            inputs[i] = site.emit("reshape", inputs[i], label=f"rows{i}", shape=(rows, inputs[i].shape[-1]))
        result = site.emit("qlinear", *inputs, label="rows", **attrs)
        return site.emit("reshape", result, shape=(*data.shape[:-1], result.shape[-1]))
    window = {k: match.expr.attrs[k] for k in ("stride", "padding", "dilation", "groups")}
    if match.expr.record.transposed:
        labels = map("spread{}".format, itertools.count())
        inputs[0], window["padding"] = spread(
            _product(match.expr), inputs[0], w.shape[2:], lambda *step, **a: site.emit(*step, label=next(labels), **a)
        )
        window["stride"] = (1, 1)
    return site.emit("qconv2d", *inputs, **window, **attrs)


def _product(expr: Apply) -> Product:
    return Product(expr.op, **{k: expr.attrs[k] for k in ("stride", "padding", "dilation", "groups", "output_padding")})


def _rows_first(match: LayerMatch) -> tuple[np.ndarray, QuantizedDType]:
    """Weights with output channels first, as integer kernels take them."""
    weight = centred(match.weight)
    assert weight is not None, "layer() refuses such weights"
    w, dtype = weight
    if match.expr.record.rows and not match.expr.attrs.get("transpose_b"):
        return np.ascontiguousarray(w.T), first_axis(dtype)
    if match.expr.record.transposed:
        return accumulator_weight(_product(match.expr), w), first_axis(dtype)
    return w, dtype


def _of_one_scale(node: TensorNode) -> Stored | None:
    """The integers behind a node; None for a constant with a scale for each channel, which only layers take."""
    found = stored(node)
    return found if found is not None and found.dtype.axis is None else None


def _from_op(site: Site) -> TensorNode | None:
    """What the rule of the op says, then a change of scale where one is needed."""
    direct = _of_one_scale(_behind_narrowing(site.value))
    if direct is not None:
        return _rescale(site, direct)
    if (group := group_of(site.value, part=True)) is not None:
        return _join(site, group.root) if group.rule.joins else _emit(site, group.rule, group.data, group.attrs)
    expr = site.value.expr
    if not isinstance(expr, Apply):
        return None
    rule = expr.record.rule
    if rule.joins:
        return _join(site, expr)
    if rule.integer and rule.kind not in ("weighted", "table"):
        return _emit(site, rule, expr.inputs, expr.attrs)
    moved = _moved(site, site.value)
    return None if moved is None else _rescale(site, Stored(moved))


def _behind_narrowing(node: TensorNode) -> TensorNode:
    """What a transposition that moves nothing reads."""
    return node.expr.inputs[0] if NARROW in node.expr.meta else node


def _emit(site: Site, rule: QuantRule, operands: Sequence[TensorNode], attrs: Mapping[str, Any]) -> TensorNode | None:
    """The integer op of a rule; None where an operand is not stored as integers of one scale, or a clamp cannot be part
    of it.
    """
    sources = [source for node in operands if (source := _of_one_scale(node)) is not None]
    if len(sources) < len(operands) or (site.clamp != (None, None) and not rule.clamps):
        return None
    dtype = site.dtype
    if dtype is not None:
        lo, hi = bounds(dtype, site.clamp)
        dtype = replace(dtype, qmin=lo + dtype.zero_point, qmax=hi + dtype.zero_point)
    constants = rule.constants(*(source.dtype for source in sources), dtype)
    arrays = {name: value for name, value in constants.items() if isinstance(value, np.ndarray)}
    inputs = [source.node for source in sources]
    inputs += [_spread(site, site.constant(value, name), rule, inputs[0]) for name, value in arrays.items()]
    numbers = {name: value for name, value in constants.items() if name not in arrays}
    return site.emit(rule.integer, *inputs, **attrs, **numbers, dtype=site.dtype or "float32")


def _spread(site: Site, node: TensorNode, rule: QuantRule, data: TensorNode) -> TensorNode:
    """The factors of a normalization for each place of a row, of which a constant has one along open axes."""
    tail = data.shape[len(data.shape) - len(node.shape) :]
    if rule.kind != "norm" or node.shape == tail:
        return node
    return site.emit("broadcast_to", node, label="row", shape=tail)


def _rescale(site: Site, value: Stored) -> TensorNode:
    lo, hi = bounds(site.target, site.clamp)
    if value.dtype == site.dtype and (lo, hi) == bounds(site.target):
        return value.node
    return site.emit(
        "requantize", value.node, ratio=ratio(value.dtype, site.target), lo=lo, hi=hi, dtype=site.dtype, label="rq"
    )


def _moved(site: Site, node: TensorNode) -> TensorNode | None:
    """The integers of a node reached through ops that only move them."""
    direct = _of_one_scale(node)
    if direct is not None:
        return direct.node
    expr = node.expr
    if not isinstance(expr, Apply) or not expr.record.rule.moves or expr.record.rule.usable(expr.attrs) is not None:
        return None
    source, *places = _moved(site, expr.inputs[0]), *expr.inputs[1:]
    return None if source is None else site.emit(expr.op, source, *places, **expr.attrs)


def _join(site: Site, expr: Apply) -> TensorNode | None:
    parts = [_moved(site, n) if is_float(n.dtype) else n for n in expr.inputs]
    if any(p is None for p in parts) or site.clamp != (None, None):
        return None
    quantized = [p for p in parts if p is not None]
    same = [p if p is n else _rescale(site, Stored(p)) for p, n in zip(quantized, expr.inputs, strict=True)]
    return site.emit(expr.op, *same, **expr.attrs)


def _float_layer(g: InternalGraph, expr: Apply, int_bias: bool) -> Replaced:
    """A layer on integers whose result is wanted in float."""
    out = expr.outputs[0]
    alone = len(out.users) == 1 and not any(n is out for n in g.outputs)
    for end in (out.users[0].outputs[0], out) if alone else (out,):  # with its bias, if it has one
        if (match := layer(end)) is not None and match.expr is expr:
            return end, _emit_layer(Site(g, end.expr, end, end, (None, None), None, int_bias), match)
    return None


def _float_product(g: InternalGraph, expr: Apply) -> Replaced:
    """A product of two tensors of integers whose result, with its factor, is wanted in float."""
    ends = (*(u.outputs[0] for u in expr.output.users[:1]), expr.output)
    groups = [one for one in map(group_of, ends) if one is not None and one.rule.kind == "product"]
    group = next(one for one in groups if expr in (one.root, *one.inside))
    out = group.root.output
    site = Site(g, group.root, out, out, (None, None), None, False)
    product = _emit(site, group.rule, group.data, group.attrs)
    return None if product is None else (out, product)


def _float_total(g: InternalGraph, expr: Apply) -> Replaced:
    """A mean or sum over the picture whose result is wanted in float: a depthwise layer of ones, summed in integers."""
    out, source = expr.outputs[0], stored(expr.inputs[0])
    if source is None:
        return None
    _, c, h, w = source.node.spec.shape
    if is_open((h, w)):
        return None
    site = Site(g, expr, out, out, (None, None), None, False)
    whole = apply(expr.op, Tensor(np.ones((1, 1, h, w), np.float32)), **expr.attrs)
    ones, dtype = np.ones((c, 1, h, w), np.int8), qint8(float(whole.item()) / (h * w))
    numbers = epilogue(out.name, ones, dtype, source.dtype, None, None, int_bias=False)
    inputs = [(Tensor._wrap(ones, dtype), "w"), (numbers.b, "b"), (numbers.M, "M"), (numbers.B, "B")]
    window = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": c}
    constants = [site.constant(value, label) for value, label in inputs]
    y = site.emit("qconv2d", source.node, *constants, **window, lo=0, hi=0, ratio=0.0, dtype="float32")
    return out, y if y.shape == out.shape else site.emit("reshape", y, label="flat", shape=out.shape)
