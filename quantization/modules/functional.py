"""Layers on quantized tensors as functions, by MegEngine's names (`megengine.functional.quantized`)."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.core.dtype import QuantizedDType, as_dtype, known_quantized
from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.dispatch import apply, public
from megengine.quantization.modules.arithmetic import Pairs, Product, accumulator_weight, constants, pair, stored_result
from megengine.tensor import Tensor

_HOME = "megengine.functional.quantized"


def _both(padding: Any) -> Pairs:
    h, w = pair(padding)
    return (h, h), (w, w)


def _run(
    name: str, product: Product, inp: Tensor, weight: Tensor, bias: Tensor | None, dtype: Any, *, relu: bool = False
) -> Tensor:
    for what, tensor in (("inp", inp), ("weight", weight)):
        if not isinstance(tensor.dtype, QuantizedDType):
            raise DTypeError(
                f"{name}: {what} is {tensor.dtype}; expected a quantized tensor; see .astype(qint8(scale))"
            )
    target = None if dtype is None else as_dtype(dtype)
    if not isinstance(target, QuantizedDType):
        raise DTypeError(f"{name}: dtype is {dtype!r}; expected the result's quantized dtype, such as qint8(scale)")
    channels = accumulator_weight(product, weight.numpy()).shape[0]
    if bias is not None and bias.size != channels:
        raise ShapeError(f"{name}: bias has shape {bias.shape}; expected (1, {channels}, 1, 1)")
    if bias is not None and isinstance(bias.dtype, QuantizedDType):
        bias = apply("dequantize", bias)
    steps = None if bias is None else bias.numpy()
    c = constants(product, weight, steps, known_quantized(inp.dtype), relu=relu, target=target)
    return stored_result(product, inp, c, target, relu=relu)


@public(home=_HOME)
def conv_bias_activation(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor,
    dtype: Any = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    nonlinear_mode: str = "identity",
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Convolution of a quantized inp [N,C,H,W], bias and ReLU, rounded to `dtype` as MegEngine does.

    weight: quantized [O,C,kh,kw] or grouped 5-d; bias: float32 or qint32, (1,O,1,1).
    Raises DTypeError for tensors that are not quantized.
    """
    name = "conv_bias_activation"
    product = Product("conv2d", pair(stride), _both(padding), pair(dilation), groups)
    if nonlinear_mode.lower() not in ("identity", "relu"):
        raise OptionError(f"{name}: nonlinear_mode is {nonlinear_mode!r}; expected 'identity' or 'relu'")
    return _run(name, product, inp, weight, bias, dtype, relu=nonlinear_mode.lower() == "relu")


@public(home=_HOME)
def batch_conv_bias_activation(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor,
    dtype: Any = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    nonlinear_mode: str = "identity",
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """`conv_bias_activation` with weights of its own for each sample: weight [N,O,C,kh,kw] (or grouped 6-d)."""
    window = (dtype, stride, padding, dilation, groups, nonlinear_mode)
    rows = [conv_bias_activation(inp[i : i + 1], weight[i], bias, *window) for i in range(inp.shape[0])]
    return F.concat(rows, 0)


@public(home=_HOME)
def conv_transpose2d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    dtype: Any = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    output_padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Transposed convolution of a quantized inp [N,I,H,W], with groups and bias too, rounded to `dtype`.

    weight: quantized [I,O,kh,kw] or grouped 5-d; bias: float32 or qint32, (1,O,1,1).
    Raises DTypeError for tensors that are not quantized.
    """
    geometry = (pair(stride), _both(padding), pair(dilation), groups, pair(output_padding))
    return _run("conv_transpose2d", Product("conv_transpose2d", *geometry), inp, weight, bias, dtype)
