"""Writers of float ops and of the quantize / dequantize pairs that need the graph; the others have an `OnnxRule`."""

import math

import numpy as np

from megengine.convert.onnx.writing import Writer, attribute, older_writer, quantized, storage, storage_in_onnx, writer
from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.sizes import is_open
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.node import TensorNode

_LARGEST_STEPS = 2**31


@writer("matmul", "ordered_matmul")
def matmul(w: Writer, expr: Apply) -> None:
    """A product of matrices with a transposed operand is Gemm, which knows them; others are MatMul.

    ONNX Runtime (1.32) cannot load a Gemm whose result is a result of the network and is transposed, too.
    """
    left, right = bool(expr.attrs.get("transpose_a")), bool(expr.attrs.get("transpose_b"))
    if (left or right) and len(expr.inputs[0].shape) == len(expr.inputs[1].shape) == 2:
        w.emit("Gemm", expr, transA=int(left), transB=int(right))
        return
    names = [_turned(w, n, flip) for n, flip in zip(expr.inputs, (left, right), strict=True)]
    w.emit("MatMul", expr, names)


def _turned(w: Writer, node: TensorNode, flip: bool) -> str:
    rank = len(node.shape)
    if not flip or rank < 2:
        return w.value(node)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    if isinstance(node.expr, Constant):
        return w.constant(storage(node).transpose(perm), f"{node.name}_t")
    return w.add("Transpose", [w.value(node)], f"{node.name}_t", perm=perm)


def _biased(expr: Apply) -> tuple[Apply, TensorNode] | None:
    """The matrix product, which nothing else reads, and the constant bias that an add joins."""
    if expr.op != "add":
        return None
    for product, bias in (expr.inputs, expr.inputs[::-1]):
        made = product.expr
        if (
            isinstance(made, Apply)
            and made.op in ("matmul", "ordered_matmul")
            and len(product.users) == 1
            and isinstance(bias.expr, Constant)
            and tuple(bias.shape) == tuple(product.shape[-1:])
        ):
            return made, bias
    return None


def linear_of(expr: Apply) -> tuple[Apply, TensorNode] | None:
    """The matrix product and bias that an add makes into one Gemm."""
    found = _biased(expr)
    return found if found is not None and all(len(node.shape) == 2 for node in found[0].inputs) else None


def bias_name(w: Writer, layer: Apply, bias: TensorNode) -> str:
    """The value of a layer's bias: int32 and their scale, where the layer reads integers and they give these floats."""
    made = [_source(layer.inputs[0]), layer.inputs[1].expr]
    sources = [quantized(e.inputs[0]) for e in made if isinstance(e, Apply) and e.op == "dequantize"]
    data, weight = sources if len(sources) == 2 else (None, None)
    if data is None or weight is None or not isinstance(bias.expr, Constant) or len(bias.users) > 1:
        return w.value(bias)
    scale = np.float32(data.only_scale) * np.asarray(weight.scale, np.float32)
    real = storage(bias)
    if scale.size not in (1, real.size) or np.any(np.abs(real) >= _LARGEST_STEPS * scale.astype(np.float64)):
        return w.value(bias)
    steps = np.rint(real / scale.astype(np.float64))
    if not np.array_equal(steps.astype(np.float32) * scale, real):
        return w.value(bias)
    integers = [w.constant(steps, f"{bias.name}_q", np.int32), w.constant(scale, f"{bias.name}_scale")]
    return w.add("DequantizeLinear", integers, [bias.name], **({"axis": 0} if scale.ndim else {}))


def _source(node: TensorNode) -> Expr:
    """What makes the values of a node, in front of ops that only move them."""
    while isinstance(node.expr, Apply) and node.expr.record.moves and node.expr.record.rule.moves:
        node = node.expr.inputs[0]
    return node.expr


@writer("add")
def add(w: Writer, expr: Apply) -> None:
    """Add, or Gemm where it is the bias of a matrix product."""
    if (found := _biased(expr)) is None:
        w.emit("Add", expr)
        return
    product, bias = found
    added = bias_name(w, product, bias)
    if linear_of(expr) is None:
        w.emit("Add", expr, [w.value(product.output), added])
        return
    names = [*map(w.value, product.inputs), added]
    left, right = (int(bool(product.attrs.get(flag))) for flag in ("transpose_a", "transpose_b"))
    w.emit("Gemm", expr, names, transA=left, transB=right)
    w.nodes[-1].name = product.output.name  # what is read has the names of both again


@writer("batch_norm")
def batch_norm(w: Writer, expr: Apply) -> None:
    """BatchNormalization in evaluation form; x, scale, bias, mean, variance."""
    names = [w.value(expr.inputs[0])]
    for node in expr.inputs[1:]:
        flat = isinstance(node.expr, Constant) and len(node.shape) != 1
        names.append(w.constant(storage(node).reshape(-1), f"{node.name}_flat") if flat else w.value(node))
    w.emit("BatchNormalization", expr, names, epsilon=float(expr.attrs["eps"]))


@writer("mean", "sum", "max", "min", "prod")
def reduce(w: Writer, expr: Apply) -> None:
    """The mean over H and W is GlobalAveragePool, which ONNX Runtime has for float32 and float16 alone.

    Before opset 18 only ReduceSum has its axes as an input.
    """
    axes, keep = expr.attrs["axis"], bool(expr.attrs["keepdims"])
    rank = len(expr.inputs[0].shape)
    axes = list(range(rank)) if axes is None else [a % rank for a in ((axes,) if isinstance(axes, int) else axes)]
    if not axes:  # ONNX takes an empty list for all axes
        w.emit("Identity", expr)
        return
    is_pool = rank == 4 and sorted(axes) == [2, 3] and expr.inputs[0].dtype != np.float64
    if expr.op == "mean" and is_pool:
        if keep:
            w.emit("GlobalAveragePool", expr)
        else:
            pooled = w.add("GlobalAveragePool", [w.value(expr.inputs[0])], f"{expr.outputs[0].name}_pooled")
            w.emit("Flatten", expr, [pooled], axis=1)
        return
    name = f"Reduce{expr.op.capitalize()}"
    if expr.op == "sum" or w.opset >= 18:
        axes_name = w.constant(axes, f"{expr.outputs[0].name}_axes", np.int64)
        w.emit(name, expr, [w.value(expr.inputs[0]), axes_name], keepdims=int(keep))
    else:
        w.emit(name, expr, axes=axes, keepdims=int(keep))


@writer("argmax", "argmin")
def arg_reduce(w: Writer, expr: Apply) -> None:
    """ONNX gives int64, ours is int32."""
    import onnx

    a = expr.attrs
    name = "ArgMax" if expr.op == "argmax" else "ArgMin"
    keep = int(bool(a["keepdims"]))
    wide = w.add(name, [w.value(expr.inputs[0])], f"{expr.outputs[0].name}_wide", axis=int(a["axis"]), keepdims=keep)
    w.emit("Cast", expr, [wide], to=onnx.TensorProto.INT32)


@writer("GetVarShape")
def shape(w: Writer, expr: Apply) -> None:
    """ONNX gives int64, ours is int32."""
    import onnx

    wide = w.add("Shape", [w.value(expr.inputs[0])], f"{expr.outputs[0].name}_wide")
    w.emit("Cast", expr, [wide], to=onnx.TensorProto.INT32)


@writer("relu6", "clip")
def clip(w: Writer, expr: Apply) -> None:
    """Clip; an infinite bound is left out."""
    low, high = (0.0, 6.0) if expr.op == "relu6" else (float(expr.attrs["lo"]), float(expr.attrs["hi"]))
    name, dtype = expr.outputs[0].name, storage_of(expr.outputs[0].dtype)
    bounds = [
        "" if math.isinf(value) else w.constant(value, f"{name}_{end}", dtype)
        for value, end in ((low, "min"), (high, "max"))
    ]
    w.emit("Clip", expr, [w.value(expr.inputs[0]), *bounds])


@writer("silu")
def silu(w: Writer, expr: Apply) -> None:
    """X * sigmoid(x)."""
    x = w.value(expr.inputs[0])
    gate = w.add("Sigmoid", [x], f"{expr.outputs[0].name}_gate")
    w.emit("Mul", expr, [x, gate])


@older_writer("HardSwish", since=14)
def hard_swish(w: Writer, expr: Apply) -> None:
    """X * HardSigmoid(x)."""
    x = w.value(expr.inputs[0])
    gate = w.add("HardSigmoid", [x], f"{expr.outputs[0].name}_gate", alpha=1 / 6, beta=0.5)
    w.emit("Mul", expr, [x, gate])


@writer("gelu")
def gelu(w: Writer, expr: Apply) -> None:
    """0.5 * x * (1 + erf(x / sqrt 2)) before opset 20, which has Gelu itself."""
    if w.opset >= 20:
        w.emit("Gelu", expr)
        return
    x, name, dtype = w.value(expr.inputs[0]), expr.outputs[0].name, expr.outputs[0].dtype
    scaled = w.add("Mul", [x, w.constant(math.sqrt(0.5), f"{name}_factor", dtype)], f"{name}_scaled")
    wide = w.add("Add", [w.add("Erf", [scaled], f"{name}_erf"), w.constant(1.0, f"{name}_one", dtype)], f"{name}_wide")
    half = w.add("Mul", [x, w.constant(0.5, f"{name}_half", dtype)], f"{name}_product")
    w.emit("Mul", expr, [half, wide])


@writer("fused_norm")
def fused_norm(w: Writer, expr: Apply) -> None:
    """LayerNormalization, which exists since opset 17, or RMSNormalization, since 23; what they are made of before."""
    x, a, name = expr.inputs[0], expr.attrs, expr.outputs[0].name
    first, tail = len(x.shape) - a["axes"], x.shape[len(x.shape) - a["axes"] :]
    factors = [w.value(node) for node in expr.inputs[1:]]
    operator, since = ("LayerNormalization", 17) if a["centred"] else ("RMSNormalization", 23)
    if w.opset >= since and not (len(factors) == 2 and not a["centred"]):
        ones = np.ones([1] * len(tail) if is_open(tail) else tail)
        factors = factors or [w.constant(ones, f"{name}_ones", storage_of(x.dtype))]
        w.emit(operator, expr, [w.value(x), *factors], axis=first, epsilon=a["eps"])
        return

    def mean(value: str, label: str) -> str:
        axes = list(range(first, len(x.shape)))
        if w.opset < 18:
            return w.add("ReduceMean", [value], f"{name}_{label}", axes=axes)
        return w.add("ReduceMean", [value, w.constant(axes, f"{name}_axes", np.int64)], f"{name}_{label}")

    y = w.value(x)
    if a["centred"]:
        y = w.add("Sub", [y, mean(y, "mean")], f"{name}_centred")
    shift = w.constant(a["eps"], f"{name}_eps", storage_of(x.dtype))
    power = mean(w.add("Mul", [y, y], f"{name}_squared"), "power")
    root = w.add("Sqrt", [w.add("Add", [power, shift], f"{name}_shifted")], f"{name}_root")
    steps = [("Div", root), *zip(("Mul", "Add"), factors, strict=False)]
    for operator, operand in steps[:-1]:
        y = w.add(operator, [y, operand], f"{name}_{operator.lower()}")
    w.emit(steps[-1][0], expr, [y, steps[-1][1]])


@writer("rsqrt")
def rsqrt(w: Writer, expr: Apply) -> None:
    """1 / sqrt(x)."""
    root = w.add("Sqrt", [w.value(expr.inputs[0])], f"{expr.outputs[0].name}_root")
    w.emit("Reciprocal", expr, [root])


@writer("split")
def split(w: Writer, expr: Apply) -> None:
    """Split with the sizes as an input."""
    sizes = w.constant(list(expr.attrs["sections"]), f"{expr.outputs[0].name}_sizes", np.int64)
    w.emit("Split", expr, [w.value(expr.inputs[0]), sizes], axis=int(expr.attrs["axis"]))


@writer("square")
def square(w: Writer, expr: Apply) -> None:
    """X * x."""
    x = w.value(expr.inputs[0])
    w.emit("Mul", expr, [x, x])


@writer("reshape", "broadcast_to")
def reshape(w: Writer, expr: Apply) -> None:
    """Reshape and Expand to the stated shape."""
    shape = list(expr.outputs[0].shape)
    if expr.op == "reshape" and 0 in shape and w.opset < 14:  # 0 means "as before" there
        if is_open(shape):
            raise w.newer(expr, "Reshape to a length of 0 beside open ones", 14)
        w.emit_empty(expr)
        return
    old = expr.inputs[0].spec.shape
    if expr.op == "reshape" and is_open(shape) and 0 not in shape:  # 0 is the size that was there, -1 what is left
        short = [0 if n in old[i : i + 1] and is_open(n) else n for i, n in enumerate(shape)]
        if sum(map(is_open, short)) < 2:
            shape = [-1 if is_open(n) else n for n in short]
    name = w.constant(shape, f"{expr.outputs[0].name}_shape", np.int64)
    attrs = {"allowzero": 1} if expr.op == "reshape" and 0 in expr.outputs[0].spec.shape else {}
    w.emit("Reshape" if expr.op == "reshape" else "Expand", expr, [w.value(expr.inputs[0]), name], **attrs)


@writer("pad")
def pad(w: Writer, expr: Apply) -> None:
    """Pad; the modes have ONNX's names."""
    a, name = expr.attrs, expr.outputs[0].name
    pads = w.constant(attribute(a["widths"]), f"{name}_pads", np.int64)
    inputs = [w.value(expr.inputs[0]), pads]
    if a["mode"] == "constant":
        dtype, value = expr.inputs[0].dtype, a["value"]
        stored = dtype.integer_of(value) if isinstance(dtype, QuantizedDType) else value
        inputs.append(w.constant(stored, f"{name}_value", storage_of(dtype)))
    w.emit("Pad", expr, inputs, mode=a["mode"])


@writer("cast", "bitcast")
def cast(w: Writer, expr: Apply) -> None:
    """Cast, and BitCast, which exists since opset 26."""
    import onnx

    if expr.op == "bitcast" and w.opset < 26:
        raise w.newer(expr, "BitCast", 26)
    operator = "Cast" if expr.op == "cast" else "BitCast"
    w.emit(operator, expr, to=onnx.helper.np_dtype_to_tensor_dtype(storage_of(expr.outputs[0].spec.dtype)))


@writer("quantize", "dequantize")
def quantization(w: Writer, expr: Apply) -> None:
    """QuantizeLinear and DequantizeLinear, per tensor or along the axis of the quantized dtype."""
    node = expr.outputs[0] if expr.op == "quantize" else expr.inputs[0]
    dtype = quantized(node)
    if dtype is None:
        raise w.unsupported(expr, "its quantized side has no quantized dtype")
    base, kind = node.name, storage_in_onnx(dtype)
    scale = w.constant(np.asarray(dtype.scale, np.float32), f"{base}_scale")
    zero = w.constant(np.full(np.shape(dtype.scale), dtype.zero_point), f"{base}_zero_point", kind)
    constant = kind != dtype.storage and isinstance(node.expr, Constant)
    value = w.constant(storage(node), base + "_packed", kind) if constant else w.value(expr.inputs[0])
    inputs = [value, scale, zero]
    attrs = {} if dtype.axis is None else {"axis": int(dtype.axis)}
    w.emit("QuantizeLinear" if expr.op == "quantize" else "DequantizeLinear", expr, inputs, **attrs)
