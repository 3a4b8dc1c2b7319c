"""Elementwise ops of one operand: each row declares the record and the public function."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, qint8, quint8
from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.types import TensorLike
from megengine.dispatch import (
    ONNX_WRITER,
    ErrorSample,
    NoRule,
    OnnxRule,
    QuantRule,
    Sample,
    apply,
    define,
    no_onnx,
    not_differentiable,
    public,
    zero_gradient,
)
from megengine.kernels.reference import functions
from megengine.kernels.reference import wide_functions as wide
from megengine.ops.binary import maximum, minimum
from megengine.ops.common import (
    BOOL,
    FLOAT32,
    as_tensor,
    cast,
    floating,
    lift_plain,
    masked,
    refuse_quantized,
    require_bool,
    sample_values,
)
from megengine.ops.quantized_calls import Rule, elementwise
from megengine.tensor import Tensor

_HOME = "megengine.functional.elemwise"
_NN = "megengine.functional.nn"


def _unary_infer(name: str, attrs: dict[str, Any]) -> Callable[..., TensorSpec]:
    def infer(x: TensorSpec, **values: Any) -> TensorSpec:
        refuse_quantized(name, x)
        if name == "neg" and x.dtype == BOOL:
            raise DTypeError("neg: the operand is bool; expected numbers; use logical_not, or .astype")
        if values.keys() != attrs.keys() or not all(isinstance(v, (int, float, np.number)) for v in values.values()):
            raise OptionError(f"{name}: attributes are {values}; expected numbers {list(attrs)}")
        return x

    return infer


def _unary_samples(low: float, high: float, attrs: dict[str, Any]) -> Callable[[], Iterator[Sample]]:
    def samples() -> Iterator[Sample]:
        for shape in ((), (1,), (5,), (3, 17), (2, 3, 4, 5), (0, 3)):
            yield Sample((sample_values(*shape, low=low, high=high),), attrs)

    return samples


_TABLE = QuantRule("table", "qtable")
_PART = QuantRule("part")


def unary(
    name: str,
    reference: Callable[..., np.ndarray],
    vjp: Any,
    *,
    onnx: Any = None,
    domain: tuple[float, float] = (-3.0, 3.0),
    quant: QuantRule | NoRule = _PART,
    attrs: dict[str, Any] | None = None,
    home: str = _HOME,
    method: str = "",
    integers: bool = False,
    quantized: Rule | None = None,
    activation: bool = False,
    loses_digits: bool = False,
) -> None:
    """Define an elementwise op of one operand, and its public function in the module `home`, unless that is empty.

    `domain` is the interval of the samples; `method` names the method of Tensor; with `integers`, integer operands stay
    integers, otherwise they become float32. `quantized` is the rule of the function for quantized tensors; `quant` is
    that of the op in integer networks: by default the op is computed in integers only as a part of longer functions.
    """
    define(
        name,
        _unary_infer(name, attrs or {}),
        reference,
        vjp,
        no_onnx("ONNX has no such operator") if onnx is None else OnnxRule(onnx) if isinstance(onnx, str) else onnx,
        _unary_samples(*domain, attrs or {}),
        quant=quant,
        activation=activation,
        lift=lift_plain,
        loses_digits=loses_digits,
    )
    if not home:
        return

    def function(x: TensorLike) -> Tensor:
        x = as_tensor(x) if integers else floating(x)
        if name == "logical_not":
            require_bool(name, x)
        return apply(name, x)

    function.__name__ = function.__qualname__ = name
    function.__module__ = home
    function.__doc__ = f"Elementwise `{name}` of x (any shape); returns a tensor of x's shape."
    public(home=home, methods=(method,) if method else (), by_spec=True, quantized=quantized)(function)


def round_half_away(x: np.ndarray) -> np.ndarray:
    """The nearest integers; halves are rounded away from zero, as in MegEngine."""
    if x.dtype.kind in "biu":
        return x
    # The sum with 1/2 is rounded: up to 1 for the number below 1/2, and to even numbers where all are whole. With the
    # number below 1/2 it reaches the next whole number for halves, and for nothing less.
    return np.copysign(np.floor(np.abs(x) + np.nextafter(x.dtype.type(0.5), x.dtype.type(0))), x)


def _hsigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x + 3, 0, 6) * x.dtype.type(1 / 6)


def _fixed(dtype: QuantizedDType) -> QuantRule:
    return QuantRule("table", "qtable", fixed=dtype, non_negative="always")


_PIECEWISE = zero_gradient("the result is piecewise constant")

# name, reference, vjp(ctx, ct), keywords
unary(
    "neg",
    np.negative,
    lambda ctx, ct: (-ct,),
    onnx="Neg",
    quant=_TABLE,
    method="__neg__",
    integers=True,
    quantized=elementwise,
)
unary(
    "abs",
    np.abs,
    lambda ctx, ct: (ct * apply("sign", ctx.inputs[0]),),
    onnx="Abs",
    quant=QuantRule("table", "qtable", non_negative="always"),
    method="__abs__",
    integers=True,
)
unary(
    "sign",
    lambda x: x if x.dtype == bool else np.sign(x),
    _PIECEWISE,
    onnx="Sign",
    home="megengine.functional.math",
    integers=True,
)
unary("exp", functions.exp, lambda ctx, ct: (ct * ctx.outputs[0],), onnx="Exp", loses_digits=True)
unary("expm1", wide.expm1, lambda ctx, ct: (ct * (ctx.outputs[0] + 1),), loses_digits=True)
unary("log", functions.log, lambda ctx, ct: (ct / ctx.inputs[0],), onnx="Log", domain=(0.1, 3.0), loses_digits=True)
unary(
    "log1p",
    wide.log1p,
    lambda ctx, ct: (ct / (ctx.inputs[0] + 1),),
    onnx=ONNX_WRITER,
    domain=(-0.5, 3.0),
    loses_digits=True,
)
unary("sqrt", np.sqrt, lambda ctx, ct: (ct * 0.5 / ctx.outputs[0],), onnx="Sqrt", domain=(0.1, 3.0), loses_digits=True)
unary(
    "rsqrt",
    lambda x: 1 / np.sqrt(x),
    lambda ctx, ct: (ct * -0.5 * ctx.outputs[0] / ctx.inputs[0],),
    onnx=ONNX_WRITER,
    domain=(0.1, 3),
    loses_digits=True,
)
unary("square", np.square, lambda ctx, ct: (ct * ctx.inputs[0] * 2,), onnx=ONNX_WRITER, integers=True)
unary(
    "sin",
    wide.sin,
    lambda ctx, ct: (ct * apply("cos", ctx.inputs[0]),),
    onnx="Sin",
    quant=_TABLE,
    loses_digits=True,
)
unary(
    "cos",
    wide.cos,
    lambda ctx, ct: (-ct * apply("sin", ctx.inputs[0]),),
    onnx="Cos",
    quant=_TABLE,
    loses_digits=True,
)
unary(
    "tan",
    wide.tan,
    lambda ctx, ct: (ct * (1 + ctx.outputs[0] * ctx.outputs[0]),),
    onnx="Tan",
    domain=(-1, 1),
    loses_digits=True,
)
unary(
    "asin",
    wide.asin,
    lambda ctx, ct: (ct / apply("sqrt", 1 - ctx.inputs[0] ** 2),),
    onnx="Asin",
    domain=(-0.9, 0.9),
    loses_digits=True,
)
unary(
    "acos",
    wide.acos,
    lambda ctx, ct: (-ct / apply("sqrt", 1 - ctx.inputs[0] ** 2),),
    onnx="Acos",
    domain=(-0.9, 0.9),
    loses_digits=True,
)
unary("atan", wide.atan, lambda ctx, ct: (ct / (1 + ctx.inputs[0] ** 2),), onnx="Atan", home="")
unary("sinh", wide.sinh, lambda ctx, ct: (ct * apply("cosh", ctx.inputs[0]),), onnx="Sinh", loses_digits=True)
unary("cosh", wide.cosh, lambda ctx, ct: (ct * apply("sinh", ctx.inputs[0]),), onnx="Cosh", loses_digits=True)
unary(
    "asinh",
    wide.asinh,
    lambda ctx, ct: (ct / apply("sqrt", ctx.inputs[0] ** 2 + 1),),
    onnx="Asinh",
    loses_digits=True,
)
unary(
    "acosh",
    wide.acosh,
    lambda ctx, ct: (ct / apply("sqrt", ctx.inputs[0] ** 2 - 1),),
    onnx="Acosh",
    domain=(1.2, 3),
    loses_digits=True,
)
unary(
    "atanh",
    wide.atanh,
    lambda ctx, ct: (ct / (1 - ctx.inputs[0] ** 2),),
    onnx="Atanh",
    domain=(-0.9, 0.9),
    loses_digits=True,
)
unary(
    "tanh",
    functions.tanh,
    lambda ctx, ct: (ct * (1 - ctx.outputs[0] * ctx.outputs[0]),),
    onnx="Tanh",
    quant=QuantRule("table", "qtable", fixed=qint8(1 / 128)),
    activation=True,
)
unary(
    "erf",
    functions.erf,
    lambda ctx, ct: (ct * apply("exp", -(ctx.inputs[0] ** 2)) * (2 / np.sqrt(np.pi)),),
    onnx="Erf",
    quant=_TABLE,
)
unary("floor", np.floor, _PIECEWISE, onnx="Floor", method="__floor__", integers=True)
unary("ceil", np.ceil, _PIECEWISE, onnx="Ceil", method="__ceil__", integers=True)
unary("round_even", np.rint, _PIECEWISE, onnx="Round", home="")
unary("round", round_half_away, _PIECEWISE, onnx=ONNX_WRITER, method="__round__", integers=True)
unary(
    "sigmoid",
    functions.sigmoid,
    lambda ctx, ct: (ct * ctx.outputs[0] * (1 - ctx.outputs[0]),),
    onnx="Sigmoid",
    quant=_fixed(quint8(1 / 256)),
    home=_NN,
    activation=True,
)
_ZEROS = {np.dtype(t): np.zeros((), t) for t in ("f2", "f4", "f8", "i1", "i4", "i8", "u1")}


unary(
    "relu",
    lambda x: np.maximum(x, _ZEROS.get(x.dtype, 0)),  # NumPy takes twice as long with a Python number
    lambda ctx, ct: (apply("relu_backward", ct, ctx.outputs[0]),),
    onnx="Relu",
    quant=QuantRule("clamp", clamp=lambda attrs: (0.0, None), non_negative="always"),
    home=_NN,
    integers=True,
    quantized=elementwise,
    activation=True,
)


def _relu_backward_infer(ct: TensorSpec, y: TensorSpec) -> TensorSpec:
    refuse_quantized("relu_backward", ct, y)
    if ct.shape != y.shape:
        raise ShapeError(f"relu_backward: the cotangent has shape {ct.shape}; expected {y.shape}")
    return ct


def _relu_backward_samples() -> Iterator[Sample]:
    rng = np.random.default_rng(1)
    for shape in ((), (5,), (2, 3, 4, 5), (0, 3)):
        y = rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)
        yield Sample((np.asarray(rng.standard_normal(shape)), np.asarray(y)))


define(
    "relu_backward",
    _relu_backward_infer,
    lambda ct, y: np.where(y > 0, ct, ct.dtype.type(0)),
    lambda ctx, g: (apply("relu_backward", g, ctx.inputs[1]), None),
    no_onnx("gradient of relu"),
    _relu_backward_samples,
    lambda: [ErrorSample((np.zeros(2), np.zeros(3)), {}, ShapeError, "the cotangent has shape")],
)
unary(
    "relu6",
    lambda x: np.clip(x, 0, 6),
    lambda ctx, ct: (masked(ct, apply("logical_and", ctx.inputs[0] > 0, ctx.inputs[0] < 6)),),
    onnx=ONNX_WRITER,
    quant=QuantRule("clamp", clamp=lambda attrs: (0.0, 6.0), non_negative="always"),
    domain=(-3.0, 8.0),
    home=_NN,
    integers=True,
    activation=True,
)
unary(
    "hsigmoid",
    _hsigmoid,
    lambda ctx, ct: (masked(ct, apply("logical_and", ctx.inputs[0] > -3, ctx.inputs[0] < 3)) * (1 / 6),),
    onnx=OnnxRule("HardSigmoid", more=lambda specs: {"alpha": 1 / 6, "beta": 0.5}, read=False),
    quant=_fixed(quint8(1 / 255)),
    activation=True,
    domain=(-5.0, 5.0),
    home=_NN,
    loses_digits=True,
)
unary(
    "hswish",
    lambda x: x * _hsigmoid(x),
    lambda ctx, ct: (
        ct * apply("hsigmoid", ctx.inputs[0])
        + masked(ct * ctx.inputs[0], apply("logical_and", ctx.inputs[0] > -3, ctx.inputs[0] < 3)) * (1 / 6),
    ),
    onnx="HardSwish",
    quant=_TABLE,
    domain=(-5.0, 5.0),
    home=_NN,
    activation=True,
)


def _silu_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    s = apply("sigmoid", ctx.inputs[0])
    return (ct * s * (1 + ctx.inputs[0] * (1 - s)),)


def _gelu_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    x = ctx.inputs[0]
    phi = apply("exp", x * x * -0.5) * (1 / np.sqrt(2 * np.pi))
    return (ct * (0.5 * (1 + apply("erf", x * (1 / np.sqrt(2)))) + x * phi),)


unary("silu", functions.silu, _silu_vjp, onnx=ONNX_WRITER, quant=_TABLE, home=_NN, activation=True)
unary("gelu", functions.gelu, _gelu_vjp, onnx=ONNX_WRITER, quant=_TABLE, home=_NN, activation=True)
unary(
    "softplus",
    functions.softplus,
    lambda ctx, ct: (ct * apply("sigmoid", ctx.inputs[0]),),
    onnx="Softplus",
    quant=QuantRule("table", "qtable", non_negative="always"),
    home="",
    activation=True,
    loses_digits=True,
)
unary(
    "logical_not",
    np.logical_not,
    not_differentiable("booleans"),
    onnx="Not",
    method="__invert__",
    integers=True,
)
unary(
    "leaky_relu",
    lambda x, slope: np.where(x > 0, x, x * x.dtype.type(slope)),
    lambda ctx, ct: (masked(ct, ctx.inputs[0] >= 0) + masked(ct, ctx.inputs[0] < 0) * ctx.attrs["slope"],),
    onnx=OnnxRule("LeakyRelu", {"slope": "alpha"}),
    quant=_TABLE,
    attrs={"slope": 0.1},
    home="",
)


def _clip_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    x = ctx.inputs[0]
    return (masked(ct, apply("logical_and", x >= ctx.attrs["lo"], x <= ctx.attrs["hi"])),)


unary(
    "clip",
    lambda x, lo, hi: np.clip(x, x.dtype.type(lo), x.dtype.type(hi)),
    _clip_vjp,
    onnx=ONNX_WRITER,
    quant=QuantRule("clamp", clamp=lambda attrs: (attrs.get("lo"), attrs.get("hi"))),
    attrs={"lo": -1.0, "hi": 1.5},
    home="",
)


@public(home=_NN, by_spec=True)
def softplus(inp: TensorLike) -> Tensor:
    """log(1 + exp(x)) without overflow, elementwise."""
    return apply("softplus", floating(inp))


@public(home=_NN, by_spec=True)
def logsigmoid(inp: TensorLike) -> Tensor:
    """log(sigmoid(x)) without overflow, elementwise."""
    return -apply("softplus", -floating(inp))


def _held(bound: Any, dtype: Any) -> Any:
    """An integer bound for an integer dtype, clipped to its range; any other bound unchanged."""
    if not isinstance(bound, numbers.Integral) or not isinstance(dtype, np.dtype) or dtype.kind not in "iu":
        return bound
    span = np.iinfo(dtype)
    return min(max(int(bound), span.min), span.max)


@public(home=_HOME, methods=("clip", "clamp"), by_spec=True)
def clip(x: TensorLike, lower: float | None = None, upper: float | None = None) -> Tensor:
    """X limited to [lower, upper]; either may be None, or a tensor. Any shape.

    Bool becomes float32; so do integers if a bound is a float.
    """
    x = as_tensor(x)
    x = cast(x, FLOAT32) if x.dtype == BOOL else x
    if lower is None and upper is None:
        raise OptionError("clip: lower and upper are both None; give at least one bound")
    lower, upper = _held(lower, x.dtype), _held(upper, x.dtype)
    whole = isinstance(x.dtype, np.dtype) and x.dtype.kind in "iu"
    kinds = numbers.Integral if whole else (numbers.Real, type(None))  # for one native call
    if not isinstance(lower, kinds) or not isinstance(upper, kinds):
        x = x if lower is None else maximum(x, lower)
        return x if upper is None else minimum(x, upper)
    return apply("clip", x, lo=-np.inf if lower is None else float(lower), hi=np.inf if upper is None else float(upper))


@public(home=_NN, by_spec=True)
def leaky_relu(inp: TensorLike, negative_slope: float = 0.01) -> Tensor:
    """X where positive, else x times `negative_slope`. Any shape."""
    return apply("leaky_relu", floating(inp), slope=float(negative_slope))


@public(home=_HOME, by_spec=True)
def atan(x: TensorLike) -> Tensor:
    """Angle whose tangent is x, elementwise; float16 gives float32, as in MegEngine."""
    x = floating(x)
    return apply("atan", cast(x, FLOAT32) if x.dtype == np.float16 else x)
