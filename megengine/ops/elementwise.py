"""Elementwise ops: one table row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import is_float
from megengine.core.errors import DivisionByZeroError, DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import (
    ErrorSample,
    NoRule,
    OnnxRule,
    Op,
    Sample,
    apply,
    define,
    no_onnx,
    not_differentiable,
    public,
)
from megengine.ops.common import (
    BOOL,
    FLOAT32,
    as_tensor,
    broadcast_shapes,
    cast,
    floating,
    operands,
    refuse_quantized,
    unbroadcast,
)
from megengine.tensor import Tensor

_HOME = "megengine.functional.elemwise"
_NN = "megengine.functional.nn"


def _random(*shape: int, low: float = -3.0, high: float = 3.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape)


# ---------------------------------------------------------------- unary


def _unary_infer(name: str, attrs: dict[str, Any]) -> Callable[..., TensorSpec]:
    def infer(x: TensorSpec, **given: Any) -> TensorSpec:
        refuse_quantized(name, x)
        if given.keys() != attrs.keys() or not all(isinstance(v, (int, float, np.number)) for v in given.values()):
            raise OptionError(f"{name}: attributes are {given}; expected numbers {list(attrs)}")
        return x

    return infer


def _unary_samples(low: float, high: float, attrs: dict[str, Any]) -> Callable[[], Iterator[Sample]]:
    def samples() -> Iterator[Sample]:
        for shape in ((), (1,), (5,), (3, 17), (2, 3, 4, 5), (0, 3)):
            yield Sample((_random(*shape, low=low, high=high),), attrs)

    return samples


def unary(
    name: str,
    reference: Callable[..., np.ndarray],
    vjp: Any,
    *,
    onnx: Any = None,
    domain: tuple[float, float] = (-3.0, 3.0),
    quant: str = "table",
    attrs: dict[str, Any] | None = None,
) -> Op:
    """Define an elementwise op of one operand; `domain` is where its samples lie."""
    return define(
        Op(
            name,
            _unary_infer(name, attrs or {}),
            reference,
            vjp,
            no_onnx("written as a composition") if onnx is None else OnnxRule(onnx) if isinstance(onnx, str) else onnx,
            _unary_samples(*domain, attrs or {}),
            quant=quant,
        )
    )


def _sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _round_half_away(x: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _hsigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x + 3, 0, 6) * x.dtype.type(1 / 6)


def _gelu(x: np.ndarray) -> np.ndarray:
    return (x * 0.5 * (1 + _erf(x / np.sqrt(2.0)))).astype(x.dtype)


def _erf(x: np.ndarray) -> np.ndarray:
    flat = np.asarray(x, np.float64).ravel()
    return np.fromiter((math.erf(v) for v in flat), np.float64, flat.size).reshape(np.shape(x)).astype(x.dtype)


def _mask(condition: Tensor, ct: Tensor) -> Tensor:
    return ct * apply("cast", condition, dtype=ct.dtype)


_ZERO_GRADIENT = not_differentiable("the result is piecewise constant")

# name, reference, vjp(ctx, ct), keywords
unary("neg", np.negative, lambda ctx, ct: (-ct,), onnx="Neg")
unary("abs", np.abs, lambda ctx, ct: (ct * apply("sign", ctx.inputs[0]),), onnx="Abs")
unary("sign", lambda x: x if x.dtype == bool else np.sign(x), _ZERO_GRADIENT, onnx="Sign")
unary("exp", np.exp, lambda ctx, ct: (ct * ctx.outputs[0],), onnx="Exp")
unary("expm1", np.expm1, lambda ctx, ct: (ct * (ctx.outputs[0] + 1),))
unary("log", np.log, lambda ctx, ct: (ct / ctx.inputs[0],), onnx="Log", domain=(0.1, 3.0))
unary("log1p", np.log1p, lambda ctx, ct: (ct / (ctx.inputs[0] + 1),), domain=(-0.5, 3.0))
unary("sqrt", np.sqrt, lambda ctx, ct: (ct * 0.5 / ctx.outputs[0],), onnx="Sqrt", domain=(0.1, 3.0))
unary("rsqrt", lambda x: 1 / np.sqrt(x), lambda ctx, ct: (ct * -0.5 * ctx.outputs[0] / ctx.inputs[0],), domain=(0.1, 3))
unary("square", np.square, lambda ctx, ct: (ct * ctx.inputs[0] * 2,))
unary("sin", np.sin, lambda ctx, ct: (ct * apply("cos", ctx.inputs[0]),), onnx="Sin")
unary("cos", np.cos, lambda ctx, ct: (-ct * apply("sin", ctx.inputs[0]),), onnx="Cos")
unary("tan", np.tan, lambda ctx, ct: (ct * (1 + ctx.outputs[0] * ctx.outputs[0]),), onnx="Tan", domain=(-1, 1))
unary("asin", np.arcsin, lambda ctx, ct: (ct / apply("sqrt", 1 - ctx.inputs[0] ** 2),), onnx="Asin", domain=(-0.9, 0.9))
unary(
    "acos", np.arccos, lambda ctx, ct: (-ct / apply("sqrt", 1 - ctx.inputs[0] ** 2),), onnx="Acos", domain=(-0.9, 0.9)
)
unary("atan", np.arctan, lambda ctx, ct: (ct / (1 + ctx.inputs[0] ** 2),), onnx="Atan")
unary("sinh", np.sinh, lambda ctx, ct: (ct * apply("cosh", ctx.inputs[0]),), onnx="Sinh")
unary("cosh", np.cosh, lambda ctx, ct: (ct * apply("sinh", ctx.inputs[0]),), onnx="Cosh")
unary("asinh", np.arcsinh, lambda ctx, ct: (ct / apply("sqrt", ctx.inputs[0] ** 2 + 1),), onnx="Asinh")
unary("acosh", np.arccosh, lambda ctx, ct: (ct / apply("sqrt", ctx.inputs[0] ** 2 - 1),), onnx="Acosh", domain=(1.2, 3))
unary("atanh", np.arctanh, lambda ctx, ct: (ct / (1 - ctx.inputs[0] ** 2),), onnx="Atanh", domain=(-0.9, 0.9))
unary("tanh", np.tanh, lambda ctx, ct: (ct * (1 - ctx.outputs[0] * ctx.outputs[0]),), onnx="Tanh")
unary("erf", _erf, lambda ctx, ct: (ct * apply("exp", -(ctx.inputs[0] ** 2)) * (2 / np.sqrt(np.pi)),), onnx="Erf")
unary("floor", np.floor, _ZERO_GRADIENT, onnx="Floor")
unary("ceil", np.ceil, _ZERO_GRADIENT, onnx="Ceil")
unary("round", _round_half_away, _ZERO_GRADIENT)  # ONNX Round is half to even
unary(
    "sigmoid",
    _sigmoid,
    lambda ctx, ct: (ct * ctx.outputs[0] * (1 - ctx.outputs[0]),),
    onnx="Sigmoid",
)
_ZEROS = {np.dtype(t): np.zeros((), t) for t in ("f2", "f4", "f8", "i1", "i4", "i8", "u1")}


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, _ZEROS.get(x.dtype, 0))  # NumPy takes twice as long with a Python number


unary(
    "relu",
    _relu,
    lambda ctx, ct: (apply("relu_backward", ct, ctx.outputs[0]),),
    onnx="Relu",
    quant="clamp",
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
    Op(
        "relu_backward",
        _relu_backward_infer,
        lambda ct, y: np.where(y > 0, ct, ct.dtype.type(0)),
        lambda ctx, g: (apply("relu_backward", g, ctx.inputs[1]), None),
        no_onnx("gradient of relu"),
        _relu_backward_samples,
        lambda: iter([ErrorSample((np.zeros(2), np.zeros(3)), {}, ShapeError, "the cotangent has shape")]),
    )
)
unary(
    "relu6",
    lambda x: np.clip(x, 0, 6),
    lambda ctx, ct: (_mask(apply("logical_and", ctx.inputs[0] > 0, ctx.inputs[0] < 6), ct),),
    quant="clamp",
    domain=(-3.0, 8.0),
)
unary(
    "hsigmoid",
    _hsigmoid,
    lambda ctx, ct: (_mask(apply("logical_and", ctx.inputs[0] > -3, ctx.inputs[0] < 3), ct) * (1 / 6),),
    domain=(-5.0, 5.0),
)
unary(
    "hswish",
    lambda x: x * _hsigmoid(x),
    lambda ctx, ct: (
        ct * apply("hsigmoid", ctx.inputs[0])
        + ctx.inputs[0] * _mask(apply("logical_and", ctx.inputs[0] > -3, ctx.inputs[0] < 3), ct) * (1 / 6),
    ),
    onnx="HardSwish",
    domain=(-5.0, 5.0),
)


def _silu_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    s = apply("sigmoid", ctx.inputs[0])
    return (ct * s * (1 + ctx.inputs[0] * (1 - s)),)


def _gelu_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    x = ctx.inputs[0]
    phi = apply("exp", x * x * -0.5) * (1 / np.sqrt(2 * np.pi))
    return (ct * (0.5 * (1 + apply("erf", x * (1 / np.sqrt(2)))) + x * phi),)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0).astype(x.dtype)


unary("silu", lambda x: x * _sigmoid(x), _silu_vjp)
unary("gelu", _gelu, _gelu_vjp, onnx="Gelu")
unary("softplus", _softplus, lambda ctx, ct: (ct * apply("sigmoid", ctx.inputs[0]),), onnx="Softplus")
unary("logical_not", np.logical_not, not_differentiable("booleans"), onnx="Not")
unary(
    "leaky_relu",
    lambda x, slope: np.where(x > 0, x, x * x.dtype.type(slope)),
    lambda ctx, ct: (_mask(ctx.inputs[0] > 0, ct) + _mask(ctx.inputs[0] <= 0, ct) * ctx.attrs["slope"],),
    onnx=OnnxRule("LeakyRelu", {"slope": "alpha"}),
    attrs={"slope": 0.1},
)


def _clip_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    x = ctx.inputs[0]
    return (_mask(apply("logical_and", x >= ctx.attrs["lo"], x <= ctx.attrs["hi"]), ct),)


unary(
    "clip",
    lambda x, lo, hi: np.clip(x, x.dtype.type(lo), x.dtype.type(hi)),
    _clip_vjp,
    quant="clamp",
    attrs={"lo": -1.0, "hi": 1.5},
)

# ---------------------------------------------------------------- binary


def _binary_infer(name: str, *, logical: bool, integer: bool) -> Callable[..., TensorSpec]:
    def infer(x: TensorSpec, y: TensorSpec) -> TensorSpec:
        refuse_quantized(name, x, y)
        if integer and (is_float(x.dtype) or is_float(y.dtype)):
            raise DTypeError(f"{name}: operands are {x.dtype} and {y.dtype}; expected integers; use .astype")
        if x.dtype != y.dtype:
            raise DTypeError(f"{name}: operands are {x.dtype} and {y.dtype}; expected one dtype; use .astype")
        shape = broadcast_shapes(name, x.shape, y.shape)
        return TensorSpec(shape, BOOL if logical else x.dtype, x.device)

    return infer


def _binary_samples(low: float, high: float, differentiable: bool) -> Callable[[], Iterator[Sample]]:
    def samples() -> Iterator[Sample]:
        for a, b in (((3, 4), (3, 4)), ((2, 3, 4, 5), (1, 3, 1, 1)), ((3, 1), (1, 17)), ((), (4,)), ((0, 3), (3,))):
            x, y = _random(*a, low=low, high=high), _random(*b, low=low, high=high, seed=1)
            yield Sample((x, y), {}, differentiable)

    return samples


def _binary_errors(name: str) -> Callable[[], Iterator[ErrorSample]]:
    def errors() -> Iterator[ErrorSample]:
        x, y = np.zeros((2, 3), np.float32), np.zeros((4,), np.float32)
        yield ErrorSample((x, y), {}, ShapeError, rf"{name}: shapes .* do not broadcast")
        yield ErrorSample((x, x.astype(np.int32)), {}, DTypeError, rf"{name}: operands are float32 and int32")

    return errors


def _shift_samples() -> Iterator[Sample]:
    yield Sample((np.array([1, -5, 90], np.int32), np.array([2, 1, 3], np.int32)))
    yield Sample((np.zeros((0, 3), np.int32), np.ones(3, np.int32)))


def _shift_errors(name: str) -> Callable[[], Iterator[ErrorSample]]:
    def errors() -> Iterator[ErrorSample]:
        x = np.zeros((2, 3), np.float32)
        yield ErrorSample((x, x), {}, DTypeError, f"{name}: operands are float32 and float32; expected integers")

    return errors


def binary(
    name: str,
    reference: Callable[..., np.ndarray],
    vjp: Any,
    *,
    onnx: Any = None,
    domain: tuple[float, float] = (-3.0, 3.0),
    logical: bool = False,
    integer: bool = False,
) -> Op:
    """Define an elementwise op of two operands that broadcast; `integer` ones refuse floats."""
    smooth = not isinstance(vjp, NoRule)
    return define(
        Op(
            name,
            _binary_infer(name, logical=logical, integer=integer),
            reference,
            _unbroadcasting(vjp) if smooth else vjp,
            no_onnx("written as a composition") if onnx is None else OnnxRule(onnx) if isinstance(onnx, str) else onnx,
            _shift_samples if integer else _binary_samples(*domain, smooth),
            _shift_errors(name) if integer else _binary_errors(name),
            quant=name if name in ("add", "mul") else "float",
        )
    )


def _unbroadcasting(vjp: Callable[..., Any]) -> Callable[..., tuple]:
    def wrapped(ctx: Any, ct: Tensor) -> tuple:
        return tuple(
            [
                unbroadcast(g, x.spec.shape) if need and g is not None else None
                for g, x, need in zip(vjp(ctx, ct), ctx.inputs, ctx.needs, strict=True)
            ]
        )

    return wrapped


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.true_divide(x, y)


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.power(x, y)


def _check_divisor(name: str, y: np.ndarray) -> None:
    if y.dtype.kind in "iu" and y.size and not np.all(y):
        raise DivisionByZeroError(f"{name}: integer division by zero; expected a divisor without zeros")


def _floor_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    _check_divisor("floor_div", y)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.floor_divide(x, y)


def _modulo(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of floats the sign is the dividend's (C), of integers the divisor's (Python): so has it MegEngine."""
    _check_divisor("mod", y)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.mod(x, y) if y.dtype.kind in "iub" else np.fmod(x, y)


def _pow_vjp(ctx: Any, ct: Tensor) -> tuple:
    x, y = ctx.inputs
    dx = ct * y * x ** (y - 1) if ctx.needs[0] else None
    dy = ct * ctx.outputs[0] * apply("log", x) if ctx.needs[1] else None
    return dx, dy


def _larger(ctx: Any, ct: Tensor) -> tuple:
    x, y = ctx.inputs
    return _mask(x >= y, ct), _mask(x < y, ct)


def _smaller(ctx: Any, ct: Tensor) -> tuple:
    x, y = ctx.inputs
    return _mask(x <= y, ct), _mask(x > y, ct)


def _atan2_vjp(ctx: Any, ct: Tensor) -> tuple:
    y, x = ctx.inputs
    norm = x * x + y * y
    return ct * x / norm, -ct * y / norm


def _mod_vjp(ctx: Any, ct: Tensor) -> tuple:
    x, y = ctx.inputs
    whole = (x - ctx.outputs[0]) / y
    return ct, -ct * apply("round", whole)


_BOOLEAN = not_differentiable("booleans")
_INTEGERS = not_differentiable("shifts of integers")
binary("add", np.add, lambda ctx, ct: (ct, ct), onnx="Add")
binary("sub", np.subtract, lambda ctx, ct: (ct, -ct), onnx="Sub")
binary("mul", np.multiply, lambda ctx, ct: (ct * ctx.inputs[1], ct * ctx.inputs[0]), onnx="Mul")
binary(
    "div",
    _divide,
    lambda ctx, ct: (ct / ctx.inputs[1], -ct * ctx.outputs[0] / ctx.inputs[1]),
    onnx="Div",
    domain=(0.5, 3.0),
)
binary("pow", _power, _pow_vjp, onnx="Pow", domain=(0.5, 3.0))
binary("floor_div", _floor_divide, _ZERO_GRADIENT, domain=(0.5, 3.0))
binary("mod", _modulo, _mod_vjp, domain=(0.5, 3.0))
binary("maximum", np.maximum, _larger, onnx="Max")
binary("minimum", np.minimum, _smaller, onnx="Min")
binary("atan2", np.arctan2, _atan2_vjp, domain=(0.5, 3.0))
binary("left_shift", np.left_shift, _INTEGERS, onnx=no_onnx("BitShift is for unsigned integers"), integer=True)
binary("right_shift", np.right_shift, _INTEGERS, onnx=no_onnx("BitShift is for unsigned integers"), integer=True)
for _name, _reference, _onnx in (
    ("equal", np.equal, "Equal"),
    ("not_equal", np.not_equal, None),
    ("less", np.less, "Less"),
    ("less_equal", np.less_equal, "LessOrEqual"),
    ("greater", np.greater, "Greater"),
    ("greater_equal", np.greater_equal, "GreaterOrEqual"),
    ("logical_and", np.logical_and, "And"),
    ("logical_or", np.logical_or, "Or"),
    ("logical_xor", np.logical_xor, "Xor"),
):
    binary(_name, _reference, _BOOLEAN, onnx=_onnx, logical=True)

# ---------------------------------------------------------------- public functions


def _declare_unary(
    name: str, home: str, methods: tuple[str, ...] = (), *, op: str | None = None, real: bool = True
) -> None:
    def function(x: Any) -> Tensor:
        x = floating(x) if real else as_tensor(x)
        if name == "logical_not":
            _require_bool(name, x)
        return apply(op or name, x)

    function.__name__ = function.__qualname__ = name
    function.__module__ = home
    function.__doc__ = f"Elementwise `{op or name}` of x (any shape); returns a tensor of x's shape."
    public(home=home, methods=methods, by_spec=True)(function)


_KEEP_INTEGERS = {"neg", "abs", "sign", "square", "relu", "relu6", "logical_not", "floor", "ceil", "round"}
_METHODS = {
    "neg": ("__neg__",),
    "abs": ("__abs__",),
    "logical_not": ("__invert__",),
    "round": ("__round__",),
    "floor": ("__floor__",),
    "ceil": ("__ceil__",),
}
_ACTIVATIONS = ("relu", "relu6", "sigmoid", "hsigmoid", "hswish", "silu", "gelu")
for _name in [
    "neg",
    "abs",
    "sign",
    "exp",
    "expm1",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "square",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "tanh",
    "erf",
    "floor",
    "ceil",
    "round",
    "logical_not",
]:
    _home = "megengine.functional.math" if _name == "sign" else _HOME
    _declare_unary(_name, _home, _METHODS.get(_name, ()), real=_name not in _KEEP_INTEGERS)
for _name in _ACTIVATIONS:
    _declare_unary(_name, _NN, real=_name not in _KEEP_INTEGERS)


def _require_bool(name: str, *operands: Tensor) -> None:
    for t in operands:
        if t.dtype != BOOL:
            raise DTypeError(f"{name}: an operand is {t.dtype}; expected bool; compare first, or use .astype")


def _declare_binary(
    name: str, *methods: str, in_place: str = "", real: bool = False, logical: bool = False
) -> Callable[[Any, Any], Tensor]:
    def function(x: Any, y: Any) -> Tensor:
        a, b = operands(name, x, y)
        if logical:
            _require_bool(name, a, b)
        return apply(name, floating(a), floating(b)) if real else apply(name, a, b)

    function.__name__ = function.__qualname__ = name
    function.__module__ = _HOME
    function.__doc__ = f"Elementwise `{name}` of x and y (shapes broadcast); returns a tensor of the broadcast shape."
    return public(home=_HOME, methods=methods, in_place=(in_place,) if in_place else (), by_spec=True)(function)


_declare_binary("add", "__add__", in_place="__iadd__")
_declare_binary("sub", "__sub__", in_place="__isub__")
_declare_binary("mul", "__mul__", in_place="__imul__")
_declare_binary("div", "__truediv__", in_place="__itruediv__", real=True)
_declare_binary("floor_div", "__floordiv__", in_place="__ifloordiv__")
_declare_binary("mod", "__mod__", in_place="__imod__")
maximum = _declare_binary("maximum")
minimum = _declare_binary("minimum")
_declare_binary("left_shift", "__lshift__", in_place="__ilshift__")
_declare_binary("right_shift", "__rshift__", in_place="__irshift__")
_declare_binary("equal", "__eq__")
_declare_binary("not_equal", "__ne__")
_declare_binary("less", "__lt__")
_declare_binary("less_equal", "__le__")
_declare_binary("greater", "__gt__")
_declare_binary("greater_equal", "__ge__")
for _name, _method in (("logical_and", "__and__"), ("logical_or", "__or__"), ("logical_xor", "__xor__")):
    _reflected, _in_place = _method.replace("__", "__r", 1), _method.replace("__", "__i", 1)
    _declare_binary(_name, _method, _reflected, in_place=_in_place, logical=True)


@public(home=_HOME, methods=("__pow__",), in_place=("__ipow__",), by_spec=True)
def pow(x: Any, y: Any) -> Tensor:
    """X to the power y, elementwise, as floats; powers 1 to 4 are products: `x ** 2` equals `x * x` bit for bit."""
    if isinstance(y, (int, float)) and not isinstance(y, bool) and y in (1, 2, 3, 4):
        x = floating(x)
        square = x if y == 1 else apply("mul", x, x)
        return square if y <= 2 else apply("mul", square, x if y == 3 else square)
    a, b = operands("pow", x, y)
    return apply("pow", floating(a), floating(b))


def _declare_reflected(name: str, method: str, *, real: bool = False) -> None:
    def function(x: Any, y: Any) -> Tensor:
        a, b = operands(name, y, x)
        return apply(name, floating(a), floating(b)) if real else apply(name, a, b)

    function.__name__ = function.__qualname__ = method.strip("_")
    function.__doc__ = f"y {name} x, for numbers on the left."
    public(home="megengine.tensor", methods=(method,), by_spec=True)(function)


for _name in ("add", "sub", "mul", "mod"):
    _declare_reflected(_name, f"__r{_name}__")
_declare_reflected("pow", "__rpow__", real=True)
_declare_reflected("div", "__rtruediv__", real=True)
_declare_reflected("floor_div", "__rfloordiv__")
_declare_reflected("left_shift", "__rlshift__")
_declare_reflected("right_shift", "__rrshift__")


@public(home="megengine.tensor", methods=("__pos__",))
def pos(x: Any) -> Tensor:
    """X itself, as a new tensor."""
    return apply("copy", as_tensor(x), device=as_tensor(x).device)


@public(home=_NN)
def softplus(inp: Any) -> Tensor:
    """log(1 + exp(x)) without overflow, elementwise."""
    return apply("softplus", floating(inp))


@public(home=_NN)
def logsigmoid(inp: Any) -> Tensor:
    """log(sigmoid(x)) without overflow, elementwise."""
    return -apply("softplus", -floating(inp))


@public(home=_HOME, methods=("clip", "clamp"), by_spec=True)
def clip(x: Any, lower: float | None = None, upper: float | None = None) -> Tensor:
    """X limited to [lower, upper]; a bound that is None or a tensor is handled too. Any shape; bool becomes float32."""
    x = as_tensor(x)
    x = cast(x, FLOAT32) if x.dtype == BOOL else x
    if isinstance(lower, Tensor) or isinstance(upper, Tensor):
        x = x if lower is None else maximum(x, lower)
        return x if upper is None else minimum(x, upper)
    if lower is None and upper is None:
        raise OptionError("clip: lower and upper are both None; give at least one bound")
    return apply("clip", x, lo=-np.inf if lower is None else float(lower), hi=np.inf if upper is None else float(upper))


@public(home=_NN)
def leaky_relu(inp: Any, negative_slope: float = 0.01) -> Tensor:
    """X where positive, else x times `negative_slope`. Any shape."""
    return apply("leaky_relu", floating(inp), slope=float(negative_slope))


@public(home=_HOME)
def atan(x: Any) -> Tensor:
    """Angle whose tangent is x, elementwise; of float16 a float32, as in MegEngine."""
    x = floating(x)
    return apply("atan", cast(x, FLOAT32) if x.dtype == np.float16 else x)


@public(home=_HOME)
def atan2(y: Any, x: Any) -> Tensor:
    """Angle of the point (x, y) in (-pi, pi], elementwise (shapes broadcast)."""
    a, b = operands("atan2", y, x)
    return apply("atan2", floating(a), floating(b))


@public(home=_HOME)
def logaddexp(x: Any, y: Any) -> Tensor:
    """log(exp(x) + exp(y)) without overflow."""
    a, b = operands("logaddexp", floating(x), floating(y))
    return maximum(a, b) + apply("softplus", -apply("abs", a - b))
