"""Import rules of operators into which ONNX Runtime fuses others: its optimised models have them."""

from megengine import functional as F
from megengine.convert.onnx.context import OnnxNode, Value, composition, rule
from megengine.convert.onnx.dynamic_lstm import DYNAMIC_LSTM, check_dynamic_lstm
from megengine.convert.onnx.operators import like
from megengine.convert.onnx.quant_rules import by_range
from megengine.convert.onnx.real_products import real, real_product
from megengine.dispatch import apply
from megengine.tensor import Tensor

ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip")


@rule("com.microsoft::Gelu")
def gelu(node: OnnxNode, x: Value) -> Value:
    """The exact form."""
    return like(node, "Gelu", x)


@rule("com.microsoft::BiasGelu", "com.microsoft::FastGelu")
def bias_gelu(node: OnnxNode, x: Value, bias: Value | None = None) -> Value:
    """After an addition, in the exact or the tanh form."""
    y = x if bias is None else node.apply("add", x, bias)
    return like(node, "Gelu", y, approximate="tanh" if node.op_type.endswith("FastGelu") else "none")


@composition("com.microsoft::QuickGelu")
def quick_gelu(node: OnnxNode, x: Tensor) -> Tensor:
    """X * sigmoid(alpha * x)."""
    return x * F.sigmoid(x * float(node.attr("alpha", 1.702)))


@composition("com.microsoft::FusedMatMul")
def fused_matmul(node: OnnxNode, a: Tensor, b: Tensor) -> Tensor:
    """Alpha * a' @ b', with the matrices turned; the rows of each may stand before the axes of the batch."""
    a, b = (
        F.transpose(x, (*range(1, x.ndim - 1), 0, x.ndim - 1)) if node.attr(name, 0) and x.ndim > 1 else x
        for name, x in (("transBatchA", a), ("transBatchB", b))
    )
    turned = (bool(node.attr(name, 0)) and x.ndim > 1 for name, x in (("transA", a), ("transB", b)))
    a, b = (F.swapaxes(x, -1, -2) if turn else x for turn, x in zip(turned, (a, b), strict=True))
    alpha = float(node.attr("alpha", 1.0))
    y = F.matmul(a, b)
    return y if alpha == 1.0 else y * alpha


@rule("com.microsoft::FusedConv", "com.microsoft::FusedGemm")
def with_activation(node: OnnxNode, x: Value, w: Value, bias: Value | None = None, added: Value | None = None) -> Value:
    """A layer, an addition to its result, and an activation whose parameters are further attributes."""
    y = like(node, node.op_type.rpartition("Fused")[2], x, w, bias)
    y = y if added is None else node.apply("add", y, added)
    name = node.attr("activation", "")
    if name and name not in ACTIVATIONS:
        raise node.fail(f"its activation is {name!r}; expected one of {', '.join(ACTIVATIONS)}")
    values = list(node.attr("activation_params", ()))
    if name == "Clip":
        return node.apply("clip", y, lo=values[0], hi=values[1])
    stated = {f"activation_{n}": v for n, v in zip(("alpha", "beta"), values, strict=False)} | node.attrs
    attrs = {n: stated[f"activation_{n}"] for n in ("alpha", "beta") if f"activation_{n}" in stated}
    return like(node, name, y, **attrs) if name else y


@composition("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization")
def skip_norm(node: OnnxNode, x: Tensor, skip: Tensor, scale: Tensor, *more: Tensor | None) -> tuple[Tensor, ...]:
    """The sum of inputs and bias, normalised over the last axis; the fourth result is the sum itself."""
    simple = "Simplified" in node.op_type
    shift, bias = (None, *more, None)[:2] if simple else (*more, None, None)[:2]
    total = x + skip if bias is None else x + skip + bias
    centred = total if simple else total - apply("mean", total, axis=(-1,), keepdims=True)
    power = apply("mean", centred * centred, axis=(-1,), keepdims=True)
    y = centred / F.sqrt(power + float(node.attr("epsilon", 1e-5))) * scale
    return y if shift is None else y + shift, total, total, total


@composition("SimplifiedLayerNormalization")
def simple_norm(node: OnnxNode, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """X over its root mean square from an axis on, scaled, and what x is multiplied with."""
    axes = tuple(range(node.axis(int(node.attr("axis", -1)), x.ndim), x.ndim))
    power = apply("mean", x * x, axis=axes, keepdims=True) + float(node.attr("epsilon", 1e-5))
    return x / F.sqrt(power) * scale, 1.0 / F.sqrt(power)


@composition("com.microsoft::MatMulIntegerToFloat")
def product_of_integers(node: OnnxNode, a: Tensor, b: Tensor, *more: Tensor | None) -> Tensor:
    """The product of integers without their zero points, times their scales, and a bias."""
    scale_a, scale_b, zero_a, zero_b, bias = (*more, *(None,) * 5)[:5]
    if scale_a is None or scale_b is None:
        raise node.fail("a scale is missing; expected one of each input")
    return real_product(a, b, (scale_a, scale_b), (zero_a, zero_b), bias)


@composition("com.microsoft::DynamicQuantizeMatMul")
def dynamic_product(node: OnnxNode, a: Tensor, b: Tensor, scale: Tensor, *more: Tensor | None) -> Tensor:
    """The product of integers whose first ones have the range of the values at hand."""
    zero, bias = (*more, None, None)[:2]
    if not node.dynamic:
        y = F.matmul(a, real(b, scale, zero))
        return y if bias is None else y + bias
    stored, step, offset = by_range(a)
    return real_product(stored, b, (step, scale), (offset, zero), bias)


@rule(DYNAMIC_LSTM)
def dynamic_lstm(node: OnnxNode, x: Value, w: Value, r: Value, *more: Value | None) -> Value:
    """LSTM whose stored weights [directions, in, 4 * hidden] have scales; its products are those of real values."""
    check_dynamic_lstm(node)
    *optional, scale_w, zero_w, scale_r, zero_r = (*more, *(None,) * 9)[:9]
    stored = ((w, scale_w, zero_w), (r, scale_r, zero_r))
    weights = (node.composed(lambda _, *of: F.transpose(real(*of), (0, 2, 1)), *of) for of in stored)
    return like(node, "LSTM", x, *weights, *optional)


@composition("com.microsoft::Inverse")
def inverse(node: OnnxNode, x: Tensor) -> Tensor:
    """Inverses of square matrices."""
    return F.matinv(x)
