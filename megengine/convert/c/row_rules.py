"""C forms of softmax and normalization."""

from __future__ import annotations

import math

import numpy as np

from megengine.convert.c.writing import NoFormError, Step, centred, float_bits, quantized, real, require_finite, rule

_SMALLEST_E = 1e-70  # of smaller ones the deviation may be no float32 number


@rule("qsoftmax")
def qsoftmax(step: Step) -> None:
    """Each exp of the table divided by their exact sum."""
    a, (x, table) = step.attrs, step.inputs
    axis = a["axis"] % len(x.shape)
    step.helpers.update(("mul", "div", "of_bits"))
    inner, name = math.prod(x.shape[axis + 1 :]), step.x(table)
    here = f"{name}[most - {step.x(x)}[at + k * {inner}]]"
    one = np.float32(1) / np.float32(quantized(a["dtype"]).only_scale)
    require_finite(one, one)
    step.write(
        """
int32_t p, k;
for (p = 0; p < $rows; ++p) {
    const int32_t at = p / $inner * $whole + p % $inner;
    int32_t most = $x[at];
    int64_t sum = 0;
    ${p}real factor;
    for (k = 1; k < $length; ++k)
        most = $x[at + k * $inner] > most ? $x[at + k * $inner] : most;
    for (k = 0; k < $length; ++k)
        sum += $table[most - $x[at + k * $inner]];
    factor = ${p}div($one, ${p}rounded(sum, 0));
    for (k = 0; k < $length; ++k)
        y0[at + k * $inner] = $end;
}
""",
        rows=step.y.spec.size // max(x.shape[axis], 1),
        inner=inner,
        whole=math.prod(x.shape[axis:]),
        length=x.shape[axis],
        x=step.x(x),
        table=name,
        one=real(one),
        end=step.finished(f"${{p}}mul(${{p}}rounded({here}, 0), factor)", a["dtype"]),
    )


@rule("qnorm")
def qnorm(step: Step) -> None:
    """Exact sums, the deviation in float64, three float32 operations; all of them in integers."""
    a, (x, gain, bias) = step.attrs, step.inputs
    require_finite(step.value(gain), step.value(bias))
    if not a["E"] >= _SMALLEST_E:
        raise NoFormError(f"E is {a['E']}; expected at least {_SMALLEST_E}")
    n = math.prod(x.shape[len(x.shape) - a["axes"] :])
    mantissa, exponent = np.frexp(np.float64(a["E"]))
    step.helpers.update(("wide_add", "wide_div", "wide_sqrt", "mul", "add", "of_bits"))
    step.write(
        """
int32_t p, k;
for (p = 0; p < $rows; ++p) {
    int64_t sum = 0, squares = 0, c;
    const ${p}wide count = ${p}widened($n, 0, 0), e = {UINT64_C($mantissa), $exponent}, one = ${p}widened(1, 0, 0);
    ${p}wide v;
    ${p}real t, factor;
    for (k = 0; k < $n; ++k) {
        c = $read;
        $total
        squares += c * c;
    }
    v = ${p}widened((uint64_t)($n * squares - sum * sum), 0, 0);
    v = ${p}wide_div(v, ${p}widened((uint64_t)$n * $n, 0, 0));
    v = ${p}wide_div(${p}wide_div(one, ${p}wide_sqrt(${p}wide_add(v, e))), count);
    factor = ${p}rounded((int64_t)v.m, v.e);
    for (k = 0; k < $n; ++k) {
        c = $read;
        t = ${p}mul(${p}rounded($n * c - sum, 0), factor);
        t = ${p}add(${p}mul(t, ${p}of_bits($gain[k])), ${p}of_bits($bias[k]));
        y0[$n * p + k] = $end;
    }
}
""",
        rows=x.spec.size // n,
        n=n,
        mantissa=int(np.ldexp(mantissa, 53)),
        exponent=int(exponent) - 53,
        read=centred(f"{step.x(x)}[{n} * p + k]", x),
        total="sum += c;" if a["centred"] else "",
        gain=step.array(float_bits(step.value(gain)), "gains"),
        bias=step.array(float_bits(step.value(bias)), "biases"),
        end=step.finished("t", a["dtype"]),
    )
