"""Layers over the steps of a sequence in integers: a product of all inputs, and steps that read the rounded state."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.text import counted
from megengine.kernels.reference.integer import multiplier
from megengine.kernels.reference.recurrent import ARRAYS, biases
from megengine.quantization.modules import first_axis
from megengine.quantization.pipeline.epilogue import epilogue
from megengine.quantization.pipeline.match import Stored, stored
from megengine.quantization.pipeline.selection import Precision
from megengine.quantization.pipeline.spec import Weight
from megengine.tensor import Tensor
from megengine.traced_module.editing.rewiring import replace_all_uses
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import constant_value

_LONGEST = (1 << 31) // (255 * 128)


def why_float(layer: Apply) -> str | None:
    """Why a layer stays in float; None if its products can be integer ones."""
    x, w, r, *_ = layer.inputs
    if isinstance(x.expr, Constant) or not (isinstance(w.expr, Constant) and isinstance(r.expr, Constant)):
        return f"{layer.op} has no constant weights, or no computed input"
    bias = _optional(layer, "bias")
    if bias is not None and constant_value(bias) is None:
        return f"{layer.op} has a computed bias"
    if x.dtype != np.float32:
        return f"{layer.op} of {x.dtype}"
    depth = max(w.shape[2], r.shape[2])
    return f"sums of {counted(depth, 'product')} may not fit int32" if depth >= _LONGEST else None


def weights_of(layer: Apply, wanted: Precision, method: str, integer: bool) -> tuple[Weight, Weight] | None:
    """The specs of the weights of the input and of the state; None if they stay in float.

    Each row, which makes one gate, has a scale: rows are groups.
    """
    if not integer and (wanted.activation_bits or not wanted.weight_bits):
        return None
    rows = wanted.weights == "per_channel"
    method, scheme = wanted.weight_scheme(method)
    reason = f"int{wanted.weight_bits} {wanted.weights.replace('_', ' ')}"
    lengths = [n.shape[2] for n in layer.inputs[1:3]]
    groups = [wanted.group if wanted.group and n % wanted.group == 0 else n if rows else 0 for n in lengths]
    first, last = (Weight(None, method, reason, scheme, group) for group in groups)
    return first, last


@dataclass(frozen=True, slots=True)
class _Rows:
    """An integer weight as rows, each with its scale."""

    values: np.ndarray
    dtype: QuantizedDType


def _rows(node: TensorNode) -> _Rows | None:
    """The integers of a weight [D, gates, n] as [D * gates, n], if each row, or the whole, has one scale."""
    *lead, n = node.shape
    expr = node.expr
    if isinstance(expr, Apply) and expr.record.keeps_order and not isinstance(expr.inputs[0].expr, Constant):
        node = expr.inputs[0]
    value = stored(node)
    if value is None or not isinstance(value.node.expr, Constant):
        return None
    array, dtype = value.node.expr.value.numpy(), value.dtype
    if dtype.axis is not None and array.shape[-1] != n:
        return None
    values = array.reshape(int(np.prod(lead)), n)
    if dtype.axis is not None:
        dtype = first_axis(dtype)
    return _Rows(values, dtype) if dtype.axis is None or np.size(dtype.scale) == len(values) else None


def _optional(layer: Apply, name: str) -> TensorNode | None:
    given = layer.attrs["given"]
    return layer.inputs[3 + given.index(name)] if name in given else None


def _state(layer: Apply) -> QuantizedDType | None:
    """The dtype of the state: what the layer says, or that to which all readers of its results round them."""
    if (state := layer.attrs.get("state")) is not None:
        return state
    dtypes = {u.attrs["dtype"] if isinstance(u, Apply) and u.record.quantizes else None for u in layer.outputs[0].users}
    return dtypes.pop() if len(dtypes) == 1 else None


def integer_steps(g: InternalGraph, layer: Apply, *, int_bias: bool) -> dict[str, TensorNode]:
    """Put integer ops in the place of a layer; the float values that stand for its last states, by name.

    A linear layer computes the sums of the gates in float32, for all steps and directions at once.
    """
    data, w, r, state = stored(layer.inputs[0]), _rows(layer.inputs[1]), _rows(layer.inputs[2]), _state(layer)
    if data is None or w is None or r is None or state is None:
        return {}
    place = _Place(g, layer)
    sums, own = place.sums(data, w, int_bias=int_bias)
    factors = np.broadcast_to(multiplier(state.scale, r.dtype.scale, 1.0), (len(r.values),)).astype(np.float32)
    inputs = [sums, place.constant(r.values.astype(np.int8), "r"), place.constant(factors, "M")]
    kept = {"bias": own} if own is not None else {}
    kept |= {name: _optional(layer, name) for name in layer.attrs["given"] if name != "bias"}
    options = {k: v for k, v in layer.attrs.items() if k not in ("state", "given")}
    attrs = {**options, "given": tuple(kept), "dtype": state}
    y, *last = place.emit(layer.record.rule.integer, *inputs, *kept.values(), label="int", **attrs)
    real = place.emit("dequantize", y, label="real")
    for old, new in zip(layer.outputs, (real, *last), strict=True):
        replace_all_uses(g, old, new)
    return {old.name: new for old, new in zip(layer.outputs[1:], last, strict=True)}


@dataclass(frozen=True, slots=True)
class _Place:
    """New ops in front of a layer, named after it."""

    graph: InternalGraph
    layer: Apply

    def emit(self, op: str, *inputs: TensorNode, label: str, **attrs: Any) -> Any:
        first = self.layer.outputs[0]
        meta = {k: v for k, v in first.meta.items() if k in ("module", "source", "passes")}
        return self.graph.apply(op, *inputs, attrs=attrs, name=f"{first.name}_{label}", before=self.layer, meta=meta)

    def constant(self, value: np.ndarray | Tensor, label: str) -> TensorNode:
        return self.graph.constant(value, name=f"{self.layer.outputs[0].name}_{label}", before=self.layer)

    def sums(self, x: Stored, w: _Rows, *, int_bias: bool) -> tuple[TensorNode, TensorNode | None]:
        """The sums of the gates before the recurrent products, and the bias that stays with these."""
        layer, (directions, gates, n) = self.layer, self.layer.inputs[2].shape
        node = _optional(layer, "bias")
        bias = None if node is None else np.asarray(constant_value(node), np.float32)
        apart = layer.attrs["cell"] == "gru" and layer.attrs["linear_before_reset"]
        like, shape = np.zeros(0, np.float32), (gates, n)
        pairs = [biases(ARRAYS, None if bias is None else bias[d], shape, like, apart=apart) for d in range(directions)]
        first, own = (np.stack([pair[i] for pair in pairs]) for i in range(2))
        name = layer.outputs[0].name
        numbers = epilogue(name, w.values, w.dtype, x.dtype, first.reshape(-1), None, int_bias=int_bias)
        weight = self.constant(Tensor._wrap(np.ascontiguousarray(w.values), w.dtype), "w")
        constants = [self.constant(v, k) for k, v in (("b", numbers.b), ("m", numbers.M), ("B", numbers.B))]
        attrs = {"lo": 0, "hi": 0, "ratio": 0.0, "dtype": "float32"}
        sums = self.emit("qlinear", x.node, weight, *constants, label="sums", **attrs)
        return sums, self.constant(own, "bias") if apart and bias is not None else None
