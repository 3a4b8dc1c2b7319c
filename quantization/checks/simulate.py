"""Float evaluation of integer ops: what fake quantization in float computes, node by node."""

import functools
import inspect
from collections.abc import Callable

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized
from megengine.dispatch import Op, QuantRule, registry
from megengine.kernels.reference import integer
from megengine.kernels.reference.recurrent import float_steps
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph


def simulate(graph: InternalGraph, values: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference in steps between each integer node and its float evaluation, by node name.

    Each node is evaluated in float on the real values of its integer inputs and rounded to its dtype, as
    a quantize / dequantize graph does. `values` come from `specification`.
    """
    steps = {}
    for expr in graph.exprs():
        if not isinstance(expr, Apply) or (evaluate := _evaluation(expr.op)) is None:
            continue
        out = expr.outputs[0]
        dtype = out.spec.dtype
        if not isinstance(dtype, QuantizedDType):
            continue
        y = evaluate(expr, [values[n.name] for n in expr.inputs])
        q = np.clip(np.rint(y / np.float32(dtype.only_scale)) + dtype.zero_point, *_limits(expr, dtype))
        steps[out.name] = float(np.abs(q - values[out.name].astype(np.float64)).max(initial=0.0))
    return steps


def _limits(expr: Apply, dtype: QuantizedDType) -> tuple[int, int]:
    if "lo" in expr.attrs:
        return expr.attrs["lo"] + dtype.zero_point, expr.attrs["hi"] + dtype.zero_point
    return dtype.qmin, dtype.qmax


def _real(expr: Apply, arrays: list[np.ndarray], at: int) -> np.ndarray:
    dtype = known_quantized(expr.inputs[at].spec.dtype)
    return integer.dequantize(arrays[at], dtype.scale, dtype.zero_point, dtype.axis)


def _float_of(integer: str) -> Op | None:
    """The float op that has an integer op of its own."""
    rules = ((op, op.quant) for op in registry.values() if isinstance(op.quant, QuantRule) and op.quant.kind != "table")
    return next((op for op, rule in rules if rule.integer == integer), None)


def _evaluation(op: str) -> Callable[[Apply, list[np.ndarray]], np.ndarray] | None:
    if op in SIMULATED or (record := _float_of(op)) is None:
        return SIMULATED.get(op)
    if record.rule.scans:
        return _steps
    return functools.partial(_layer if record.weighted else _alike, record)


def _reference(op: Op, expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
    """The float op on real values, with those of the attributes that it has."""
    attrs = {k: v for k, v in expr.attrs.items() if k in inspect.signature(op.infer).parameters}
    return np.asarray(op.reference(*arrays, **attrs), np.float32)


def _layer(op: Op, expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
    """Float layer on real values, plus the bias that b and B stand for, plus the residual."""
    x, w = _real(expr, arrays, 0), _real(expr, arrays, 1)
    data, weight, out = (n.spec.dtype for n in (expr.inputs[0], expr.inputs[1], expr.outputs[0]))
    s_w = np.broadcast_to(np.asarray(weight.scale, np.float32), (len(w),))
    bias = arrays[2].astype(np.float64) * data.scale * s_w + arrays[4].astype(np.float64) * out.scale
    y = np.matmul(x, w.T) if op.rows else _reference(op, expr, [x, w])
    y = y + bias.astype(np.float32).reshape(-1 if op.rows else (-1, 1, 1))
    return y + _real(expr, arrays, 5) if len(arrays) > 5 else y


def _alike(op: Op, expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
    stored = [i for i, node in enumerate(expr.inputs) if isinstance(node.spec.dtype, QuantizedDType)]
    return _reference(op, expr, [_real(expr, arrays, i) for i in stored])


def _sum(expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
    a, r = (_real(expr, arrays, i) for i in range(2))
    return a - r if expr.attrs["rb"] < 0 else a + r


def _product(expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
    """The product of real values; m also holds a constant factor."""
    data, out = [n.spec.dtype for n in expr.inputs], known_quantized(expr.outputs[0].spec.dtype)
    factor = np.float32(expr.attrs["m"] * out.only_scale / (data[0].scale * data[1].scale))
    product = _float_of("qlinear")
    assert product is not None
    return _alike(product, expr, arrays) * factor


def _steps(expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
    """A layer over steps whose products take the real values of its rounded state."""
    return float_steps(*arrays, **expr.attrs)


def _norm(expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
    x, out = _real(expr, arrays, 0), known_quantized(expr.outputs[0].spec.dtype)
    axes = tuple(range(x.ndim - expr.attrs["axes"], x.ndim))
    c = x - x.mean(axes, keepdims=True) if expr.attrs["centred"] else x
    eps = np.float32(expr.attrs["E"] * known_quantized(expr.inputs[0].spec.dtype).only_scale ** 2)
    y = c / np.sqrt(np.square(c).mean(axes, keepdims=True) + eps)
    return y * (arrays[1] * np.float32(out.only_scale)) + arrays[2] * np.float32(out.only_scale)


# integer ops that are more than the float op with the same attributes
SIMULATED: dict[str, Callable[[Apply, list[np.ndarray]], np.ndarray]] = {
    "qadd": _sum,
    "qmatmul": _product,
    "qnorm": _norm,
    "requantize": lambda expr, arrays: _real(expr, arrays, 0),
}
