"""Special functions of torch that its exporter to ONNX lacks, by elementary ones; inside, numbers are float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

_DIVISIONS = {"int64": 92, "int32": 46, "int16": 23, "int8": 11, "uint8": 13}  # of Euclid's algorithm at most
_DIRECT = 16  # terms of a Hurwitz zeta function in front of its series
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)  # B(2j) / (2j)!


def special_decompositions(torch: Any) -> dict[Any, Callable[..., Any]]:
    """By op of torch what computes the same; NotImplemented where the arguments are others."""
    aten = torch.ops.aten

    def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
        def of(x: Any) -> Any:
            kind = x.dtype if x.is_floating_point() else torch.get_default_dtype()
            return function(torch, x.double()).to(kind)

        return of

    def polygamma(order: int, x: Any) -> Any:
        return in_double(functools.partial(_polygamma, order))(x)

    bessel = {
        (aten.i0, aten.special_i0, aten.special_modified_bessel_i0): _bessel(0, scaled=False),
        (aten.special_i0e,): _bessel(0, scaled=True),
        (aten.special_i1, aten.special_modified_bessel_i1): _bessel(1, scaled=False),
        (aten.special_i1e,): _bessel(1, scaled=True),
    }
    return {
        **{op.default: in_double(function) for ops, function in bessel.items() for op in ops},
        **dict.fromkeys((aten.lgamma.default, aten.special_gammaln.default), in_double(_log_gamma)),
        **dict.fromkeys((aten.digamma.default, aten.special_digamma.default), in_double(_digamma)),
        **dict.fromkeys((aten.erfinv.default, aten.special_erfinv.default), lambda x: _inverse_erf(torch, x)),
        aten.special_ndtri.default: lambda x: _inverse_erf(torch, 2 * x - 1) * math.sqrt(2),
        **dict.fromkeys((aten.polygamma.default, aten.special_polygamma.default), polygamma),
        aten.special_zeta.default: lambda s, x: _zeta(torch, s.double(), x.double()).to(x.dtype),
        aten.gcd.default: lambda a, b: _gcd(torch, a, b),
        aten.lcm.default: lambda a, b: _lcm(torch, a, b),
        aten.frexp.Tensor: lambda x: _frexp(torch, x),
    }


def _polynomial(x: Any, factors: Sequence[float]) -> Any:
    total = factors[0]
    for factor in factors[1:]:
        total = total * x + factor
    return total


_LANCZOS = (
    676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
    -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def _log_gamma(torch: Any, x: Any) -> Any:
    """Lanczos' series (g = 7), and the reflection of arguments below 1/2."""
    small = x < 0.5
    y = torch.where(small, 1 - x, x) - 1
    series = 0.99999999999980993 + sum(factor / (y + k) for k, factor in enumerate(_LANCZOS, 1))
    t = y + 7.5
    value = 0.5 * math.log(2 * math.pi) + (y + 0.5) * torch.log(t) - t + torch.log(series)
    mirrored = math.log(math.pi) - torch.log(torch.abs(torch.sin(math.pi * (x - torch.round(x))))) - value
    return torch.where(small, mirrored, value)


def _digamma(torch: Any, x: Any) -> Any:
    """Six steps of the recurrence, then the asymptotic series; reflected below 1/2."""
    small = x < 0.5
    y = torch.where(small, 1 - x, x)
    below = sum(1 / (y + k) for k in range(6))
    t = 1 / (y + 6)
    series = _polynomial(t * t, (-1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12, 0.0))
    value = torch.log(y + 6) - 0.5 * t + series - below
    angle = math.pi * (x - torch.round(x))
    mirrored = value - math.pi * torch.cos(angle) / torch.sin(angle)
    return torch.where(small, mirrored, value)


_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
         -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
        0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def _inverse_erf(torch: Any, x: Any) -> Any:
    """M. Giles, Approximating the erfinv function (GPU Computing Gems, 2011), single precision."""
    w = -torch.log((1 - x) * (1 + x))
    near, far = _polynomial(w - 2.5, _NEAR), _polynomial(torch.sqrt(w) - 3, _FAR)
    ends = torch.where(x.abs() == 1, x * math.inf, torch.where(w < 5, near, far) * x)
    return torch.where(x == 0, x, ends)


def _zeta(torch: Any, s: Any, x: Any) -> Any:
    """Hurwitz' zeta function of x > -10 by the formula of Euler and Maclaurin; s may be negative nowhere."""
    total = sum(torch.pow(x + k, -s) for k in range(_DIRECT))
    y = x + _DIRECT
    power = torch.pow(y, -s)
    total = total + power * y / (s - 1) + 0.5 * power
    factor = s
    for j, number in enumerate(_BERNOULLI):
        power = power / y if j == 0 else power / (y * y)
        total = total + number * factor * power
        factor = factor * (s + (2 * j + 1)) * (s + (2 * j + 2))
    return total


def _polygamma(order: int, torch: Any, x: Any) -> Any:
    """Derivatives of the digamma function: of order 1 by the reflection below 1/2."""
    if order == 0:
        return _digamma(torch, x)
    s = float(order + 1)
    if order > 1:
        return (-1.0) ** (order + 1) * math.factorial(order) * _zeta(torch, s, x)
    small = x < 0.5
    value = _zeta(torch, s, torch.where(small, 1 - x, x))
    wave = math.pi / torch.sin(math.pi * x)
    return torch.where(small, wave * wave - value, value)


def _bessel(order: int, *, scaled: bool) -> Callable[..., Any]:
    """Modified Bessel functions: the power series up to 20, the asymptotic one behind (NIST DLMF 10.25.2, 10.40.1)."""

    def of(torch: Any, x: Any) -> Any:
        size = x.abs()
        square = torch.where(size < 20, size, 0.0).square() / 4
        near: Any = 1.0
        term: Any = 1.0
        for k in range(1, 50):
            term = term * square / (k * (k + order))
            near = near + term
        near = near * (size / 2) ** order * torch.exp(-torch.where(size < 20, size, 0.0))
        large = torch.where(size < 20, 20.0, size)
        far: Any = 1.0
        term = 1.0
        for k in range(1, 16):
            term = -term * (4 * order * order - (2 * k - 1) ** 2) / (8 * k * large)
            far = far + term
        far = far / torch.sqrt(2 * math.pi * large)
        value = torch.where(size < 20, near, far)
        value = value if scaled else value * torch.exp(size)
        return torch.where(x < 0, -value, value) if order else value

    return of


def _gcd(torch: Any, a: Any, b: Any) -> Any:
    """Euclid's algorithm, with as many steps as the largest numbers of the type can take."""
    kind = torch.result_type(a, b)
    a, b = torch.broadcast_tensors(a.to(kind).abs(), b.to(kind).abs())
    for _ in range(_DIVISIONS[str(kind).removeprefix("torch.")]):
        done = b == 0
        a, b = torch.where(done, a, b), torch.where(done, 0, a % torch.where(done, 1, b))
    return a


def _lcm(torch: Any, a: Any, b: Any) -> Any:
    common = _gcd(torch, a, b)
    return (a.long() // torch.where(common == 0, 1, common) * b.long()).abs().to(common.dtype)


def _frexp(torch: Any, x: Any) -> tuple[Any, Any]:
    """The mantissa, from 1/2 to 1, and the exponent of 2; infinities and NaN have the exponent 0."""
    wide = x.double()
    plain = torch.isfinite(wide) & (wide != 0)
    size = torch.where(plain, wide.abs(), 1.0)
    exponent = torch.floor(torch.log2(size)) + 1
    part = size * torch.exp2(-exponent)
    exponent = exponent + torch.where(part >= 1, 1.0, 0.0) - torch.where(part < 0.5, 1.0, 0.0)
    mantissa = torch.where(plain, wide * torch.exp2(-exponent), wide)
    return mantissa.to(x.dtype), torch.where(plain, exponent, 0.0).to(torch.int32)


__all__ = ["special_decompositions"]
