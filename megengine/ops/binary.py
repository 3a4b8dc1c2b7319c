"""Elementwise ops of two operands that broadcast, their operators, and compositions of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, is_float
from megengine.core.errors import DivisionByZeroError, DTypeError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.types import TensorLike
from megengine.dispatch import (
    FLOAT_ONLY,
    ONNX_WRITER,
    ErrorSample,
    NoRule,
    OnnxRule,
    Op,
    QuantRule,
    Sample,
    apply,
    define,
    mixed,
    no_onnx,
    not_differentiable,
    public,
    zero_gradient,
)
from megengine.kernels.reference import functions, integer, wide_functions
from megengine.ops.common import (
    BOOL,
    as_tensor,
    broadcast_shapes,
    finite,
    floating,
    lift_plain,
    masked,
    operands,
    refuse_quantized,
    require_bool,
    sample_values,
    unbroadcast,
)
from megengine.ops.quantized_calls import Rule, elementwise
from megengine.tensor import Tensor

_HOME = "megengine.functional.elemwise"


def _binary_infer(name: str, *, logical: bool, integer: bool) -> Callable[..., TensorSpec]:
    def infer(x: TensorSpec, y: TensorSpec) -> TensorSpec:
        refuse_quantized(name, x, y)
        if integer and (is_float(x.dtype) or is_float(y.dtype)):
            raise DTypeError(f"{name}: operands are {x.dtype} and {y.dtype}; expected integers; use .astype")
        if x.dtype != y.dtype:
            raise DTypeError(f"{name}: operands are {x.dtype} and {y.dtype}; expected one dtype; use .astype")
        if name == "sub" and x.dtype == BOOL:
            raise DTypeError("sub: operands are bool; expected numbers; use logical_xor, or .astype")
        shape = broadcast_shapes(name, x.shape, y.shape)
        return TensorSpec(shape, BOOL if logical else x.dtype, x.device)

    return infer


def _binary_samples(low: float, high: float, differentiable: bool) -> Callable[[], Iterator[Sample]]:
    def samples() -> Iterator[Sample]:
        for a, b in (((3, 4), (3, 4)), ((2, 3, 4, 5), (1, 3, 1, 1)), ((3, 1), (1, 17)), ((), (4,)), ((0, 3), (3,))):
            x, y = sample_values(*a, low=low, high=high), sample_values(*b, low=low, high=high, seed=1)
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
    quant: QuantRule | NoRule = FLOAT_ONLY,
    loses_digits: bool = False,
) -> Op:
    """Define an elementwise op of two operands that broadcast; `integer` ones refuse floats."""
    smooth = not isinstance(vjp, NoRule)
    return define(
        name,
        _binary_infer(name, logical=logical, integer=integer),
        reference,
        _unbroadcasting(vjp) if smooth else vjp,
        no_onnx("ONNX has no such operator") if onnx is None else OnnxRule(onnx) if isinstance(onnx, str) else onnx,
        _shift_samples if integer else _binary_samples(*domain, smooth),
        _shift_errors(name) if integer else _binary_errors(name),
        quant=quant,
        lift=lift_plain,
        loses_digits=loses_digits,
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


def _check_divisor(name: str, y: np.ndarray) -> None:
    if y.dtype.kind in "iu" and y.size and not np.all(y):
        raise DivisionByZeroError(f"{name}: integer division by zero; expected a divisor without zeros")


def _floor_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    _check_divisor("floor_div", y)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.floor_divide(x, y)


def _modulo(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The sign is the dividend's for floats (as in C), the divisor's for integers (as in Python), as in MegEngine."""
    _check_divisor("mod", y)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.mod(x, y) if y.dtype.kind in "iub" else np.fmod(x, y)


def _truncated_division(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    _check_divisor("trunc_div", y)
    with np.errstate(over="ignore"):  # the smallest integer by -1
        down, rest = np.divmod(x, y)
        return down + ((rest != 0) & ((x < 0) != (y < 0))).astype(x.dtype)


def _pow_vjp(ctx: Any, ct: Tensor) -> tuple:
    x, y = ctx.inputs
    zero = as_tensor(0, like=x)
    at_zero, one = apply("equal", x, zero), as_tensor(1, like=x)
    dx = dy = None
    if ctx.needs[0]:  # x ** 0 is 1 everywhere
        base = apply("where", apply("logical_and", at_zero, apply("equal", y, zero)), one, x)
        dx = ct * y * base ** (y - 1)
    if ctx.needs[1]:  # powers of 0 are 0, and 1 for y = 0
        base = apply("where", apply("logical_and", at_zero, y >= 0), one, x)
        dy = ct * ctx.outputs[0] * apply("log", base)
    return dx, dy


def _larger(ctx: Any, ct: Tensor) -> tuple:
    x, y = ctx.inputs
    return masked(ct, x >= y), masked(ct, x < y)


def _smaller(ctx: Any, ct: Tensor) -> tuple:
    x, y = ctx.inputs
    return masked(ct, x <= y), masked(ct, x > y)


def _atan2_vjp(ctx: Any, ct: Tensor) -> tuple:
    y, x = ctx.inputs
    norm = x * x + y * y
    return ct * x / norm, -ct * y / norm


def _mod_vjp(ctx: Any, ct: Tensor) -> tuple:
    x, y = ctx.inputs
    whole = (x - ctx.outputs[0]) / y
    return ct, -ct * apply("round", whole)


def _ratios(a: QuantizedDType, b: QuantizedDType, y: QuantizedDType) -> dict[str, float]:
    return {"ra": integer.ratio(a, y), "rb": integer.ratio(b, y), **integer.ends(y)}


def _difference(a: QuantizedDType, b: QuantizedDType, y: QuantizedDType) -> dict[str, float]:
    return {"ra": integer.ratio(a, y), "rb": -integer.ratio(b, y), **integer.ends(y)}


def _factor(a: QuantizedDType, b: QuantizedDType, y: QuantizedDType) -> dict[str, float]:
    return {"m": integer.product_multiplier(a.scale, b.scale, y.scale), **integer.ends(y)}


def _pair(op: str, constants: Callable[..., dict[str, float]] = _ratios, kind: str = "pair") -> QuantRule:
    return QuantRule(kind, op, constants, non_negative="inherit")


_PART = QuantRule("part")

_BOOLEAN = not_differentiable("booleans")
_INTEGERS = not_differentiable("integers")
binary("add", np.add, lambda ctx, ct: (ct, ct), onnx=ONNX_WRITER, quant=_pair("qadd", kind="add"))
binary("sub", np.subtract, lambda ctx, ct: (ct, -ct), onnx="Sub", quant=QuantRule("pair", "qadd", _difference))
_QMUL = _pair("qmul", _factor)
binary("mul", np.multiply, lambda ctx, ct: (ct * ctx.inputs[1], ct * ctx.inputs[0]), onnx="Mul", quant=_QMUL)
binary(
    "div",
    _divide,
    lambda ctx, ct: (ct / ctx.inputs[1], -ct * ctx.outputs[0] / ctx.inputs[1]),
    onnx=OnnxRule("Div", read=False),
    domain=(0.5, 3.0),
    quant=_PART,
    loses_digits=True,
)
binary(
    "pow",
    functions.power,
    _pow_vjp,
    onnx=OnnxRule("Pow", read=False),
    domain=(0.5, 3.0),
    quant=_PART,
    loses_digits=True,
)
binary(
    "floor_div", _floor_divide, zero_gradient("the result is piecewise constant"), onnx=ONNX_WRITER, domain=(0.5, 3.0)
)
binary("mod", _modulo, _mod_vjp, onnx=ONNX_WRITER, domain=(0.5, 3.0))
binary("maximum", np.maximum, _larger, onnx=OnnxRule("Max", read=False), quant=_pair("qmaximum"))
binary("minimum", np.minimum, _smaller, onnx=OnnxRule("Min", read=False), quant=_pair("qminimum"))
binary("atan2", wide_functions.atan2, _atan2_vjp, domain=(0.5, 3.0), loses_digits=True)
binary("trunc_div", _truncated_division, _INTEGERS, onnx=OnnxRule("Div", read=False), integer=True)
for _name, _reference, _onnx in (
    ("left_shift", np.left_shift, OnnxRule("BitShift", more=lambda specs: {"direction": "LEFT"}, read=False)),
    ("right_shift", np.right_shift, OnnxRule("BitShift", more=lambda specs: {"direction": "RIGHT"}, read=False)),
    ("bitwise_and", np.bitwise_and, "BitwiseAnd"),
    ("bitwise_or", np.bitwise_or, "BitwiseOr"),
    ("bitwise_xor", np.bitwise_xor, "BitwiseXor"),
):
    binary(_name, _reference, _INTEGERS, onnx=_onnx, integer=True)
for _name, _reference, _onnx in (
    ("equal", np.equal, "Equal"),
    ("not_equal", np.not_equal, ONNX_WRITER),
    ("less", np.less, "Less"),
    ("less_equal", np.less_equal, "LessOrEqual"),
    ("greater", np.greater, "Greater"),
    ("greater_equal", np.greater_equal, "GreaterOrEqual"),
    ("logical_and", np.logical_and, "And"),
    ("logical_or", np.logical_or, "Or"),
    ("logical_xor", np.logical_xor, "Xor"),
):
    binary(_name, _reference, _BOOLEAN, onnx=_onnx, logical=True, quant=_PART)


def _declare_binary(
    name: str,
    *methods: str,
    in_place: str = "",
    real: bool = False,
    logical: bool = False,
    reflected: bool = False,
    quantized: Rule | None = None,
) -> Callable[[Any, Any], Tensor]:
    """Declare the public function of an op; a reflected one is the method for numbers on the left."""

    def function(x: TensorLike, y: TensorLike) -> Tensor:
        a, b = operands(name, y, x) if reflected else operands(name, x, y)
        if logical:
            require_bool(name, a, b)
        return apply(name, floating(a), floating(b)) if real else apply(name, a, b)

    function.__name__ = function.__qualname__ = methods[0].strip("_") if reflected else name
    function.__module__ = home = "megengine.tensor" if reflected else _HOME
    text = f"Elementwise `{name}` of x and y (shapes broadcast); returns a tensor of the broadcast shape."
    function.__doc__ = f"y {name} x, for numbers on the left." if reflected else text
    in_places = (in_place,) if in_place else ()
    return public(home=home, methods=methods, in_place=in_places, by_spec=True, quantized=quantized)(function)


_declare_binary("add", "__add__", in_place="__iadd__", quantized=elementwise)
_declare_binary("sub", "__sub__", in_place="__isub__", quantized=elementwise)
_declare_binary("mul", "__mul__", in_place="__imul__")
_declare_binary("div", "__truediv__", in_place="__itruediv__", real=True)
_declare_binary("floor_div", "__floordiv__", in_place="__ifloordiv__")
_declare_binary("mod", "__mod__", in_place="__imod__")
maximum = _declare_binary("maximum", quantized=elementwise)
minimum = _declare_binary("minimum", quantized=elementwise)
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
def pow(x: TensorLike, y: TensorLike) -> Tensor:
    """X to the power y, elementwise, as floats; powers 1 to 4 are products: `x ** 2` equals `x * x` bit for bit."""
    if isinstance(y, (int, float)) and not isinstance(y, bool) and y in (1, 2, 3, 4):
        x = mixed.raised(floating(x))
        square = x if y == 1 else apply("mul", x, x)
        return square if y <= 2 else apply("mul", square, x if y == 3 else square)
    a, b = operands("pow", x, y)
    return apply("pow", floating(a), floating(b))


_declare_binary("add", "__radd__", reflected=True, quantized=elementwise)
_declare_binary("sub", "__rsub__", reflected=True, quantized=elementwise)
_declare_binary("mul", "__rmul__", reflected=True)
_declare_binary("mod", "__rmod__", reflected=True)
_declare_binary("pow", "__rpow__", reflected=True, real=True)
_declare_binary("div", "__rtruediv__", reflected=True, real=True)
_declare_binary("floor_div", "__rfloordiv__", reflected=True)
_declare_binary("left_shift", "__rlshift__", reflected=True)
_declare_binary("right_shift", "__rrshift__", reflected=True)


@public(home="megengine.tensor", methods=("__pos__",), by_spec=True)
def pos(x: TensorLike) -> Tensor:
    """X itself, as a new tensor."""
    return apply("copy", as_tensor(x), device=as_tensor(x).device)


@public(home=_HOME, by_spec=True)
def atan2(y: TensorLike, x: TensorLike) -> Tensor:
    """Angle of the point (x, y) in (-pi, pi], elementwise (shapes broadcast)."""
    a, b = operands("atan2", y, x)
    return apply("atan2", floating(a), floating(b))


@public(home=_HOME, by_spec=True)
def logaddexp(x: TensorLike, y: TensorLike) -> Tensor:
    """log(exp(x) + exp(y)) without overflow."""
    a, b = map(floating, operands("logaddexp", x, y))
    d = finite(a) - b  # no abs or maximum, which have no slope where a equals b
    return apply("where", d > 0, a + apply("softplus", -d), b + apply("softplus", d))
