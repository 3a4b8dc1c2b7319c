"""Float evaluation of integer ops: what fake quantization in float computes, node by node."""

from collections.abc import Callable

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized
from megengine.dispatch import get_op
from megengine.kernels.reference import integer
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph


def simulate(graph: InternalGraph, values: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference in steps between each integer node and its float evaluation, by node name.

    Each node is evaluated in float on the real values of its integer inputs and rounded to its dtype, as
    a quantize / dequantize graph does. `values` come from `specification`.
    """
    steps = {}
    for expr in graph.exprs():
        if not isinstance(expr, Apply) or expr.op not in SIMULATED:
            continue
        out = expr.outputs[0]
        dtype = out.spec.dtype
        if not isinstance(dtype, QuantizedDType):
            continue
        y = SIMULATED[expr.op](expr, [values[n.name] for n in expr.inputs])
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


def _reference(op: str, arrays: list[np.ndarray], attrs: dict) -> np.ndarray:
    return np.asarray(get_op(op).reference(*arrays, **attrs), np.float32)


def _layer(expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
    """Float layer on real values, plus the bias that b and B stand for, plus the residual."""
    x, w = _real(expr, arrays, 0), _real(expr, arrays, 1)
    data, weight, out = (n.spec.dtype for n in (expr.inputs[0], expr.inputs[1], expr.outputs[0]))
    s_w = np.broadcast_to(np.asarray(weight.scale, np.float32), (len(w),))
    bias = arrays[2].astype(np.float64) * data.scale * s_w + arrays[4].astype(np.float64) * out.scale
    if expr.op == "qlinear":
        y = np.matmul(x, w.T) + bias.astype(np.float32)
    else:
        window = {k: expr.attrs[k] for k in ("stride", "padding", "dilation", "groups")}
        y = _reference("conv2d", [x, w], window) + bias.astype(np.float32).reshape(-1, 1, 1)
    return y + _real(expr, arrays, 5) if len(arrays) > 5 else y


def _float_op(name: str) -> Callable[[Apply, list[np.ndarray]], np.ndarray]:
    def evaluate(expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
        attrs = {k: v for k, v in expr.attrs.items() if k != "dtype"}
        return _reference(name, [_real(expr, arrays, 0)], attrs)

    return evaluate


def _sum(expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
    a, r = (_real(expr, arrays, i) for i in range(2))
    return a - r if expr.attrs["rb"] < 0 else a + r


def _product(expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
    """The product of real values; m also holds a constant factor."""
    data, out = [n.spec.dtype for n in expr.inputs], known_quantized(expr.outputs[0].spec.dtype)
    factor = np.float32(expr.attrs["m"] * out.only_scale / (data[0].scale * data[1].scale))
    attrs = {k: expr.attrs[k] for k in ("transpose_a", "transpose_b")}
    return _reference("matmul", [_real(expr, arrays, i) for i in range(2)], attrs) * factor


def _norm(expr: Apply, arrays: list[np.ndarray]) -> np.ndarray:
    x, out = _real(expr, arrays, 0), known_quantized(expr.outputs[0].spec.dtype)
    axes = tuple(range(x.ndim - expr.attrs["axes"], x.ndim))
    c = x - x.mean(axes, keepdims=True) if expr.attrs["centred"] else x
    eps = np.float32(expr.attrs["E"] * known_quantized(expr.inputs[0].spec.dtype).only_scale ** 2)
    y = c / np.sqrt(np.square(c).mean(axes, keepdims=True) + eps)
    return y * (arrays[1] * np.float32(out.only_scale)) + arrays[2] * np.float32(out.only_scale)


SIMULATED: dict[str, Callable[[Apply, list[np.ndarray]], np.ndarray]] = {
    "qconv2d": _layer,
    "qlinear": _layer,
    "qadd": _sum,
    "qmatmul": _product,
    "qmaximum": lambda expr, arrays: np.maximum(_real(expr, arrays, 0), _real(expr, arrays, 1)),
    "qminimum": lambda expr, arrays: np.minimum(_real(expr, arrays, 0), _real(expr, arrays, 1)),
    "qsoftmax": lambda expr, arrays: _reference("softmax", [_real(expr, arrays, 0)], {"axis": expr.attrs["axis"]}),
    "qnorm": _norm,
    "qmul": lambda expr, arrays: _real(expr, arrays, 0) * _real(expr, arrays, 1),
    "requantize": lambda expr, arrays: _real(expr, arrays, 0),
    "qmean": _float_op("mean"),
    "qavg_pool2d": _float_op("avg_pool2d"),
}
