"""C forms of steps in float32: ends of networks, functions, and layers whose sums have one order."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from megengine.convert.c.float_helpers import literal
from megengine.convert.c.layer_rules import PRODUCT, TILE, stacks_of
from megengine.convert.c.value_rules import for_each
from megengine.convert.c.window_rules import write_windows
from megengine.convert.c.writing import NoFormError, Step, float_bits, plus, rule
from megengine.core.dtype import storage_of
from megengine.kernels.reference import functions
from megengine.kernels.reference.resize import taps
from megengine.ops.common import FLOAT32, normalize_axes
from megengine.traced_module.ir.node import TensorNode

# op -> a C expression of the operands $a and $b, and the helpers that it calls
_EXPRESSIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "add": ("$a + $b", ()),
    "sub": ("$a - $b", ()),
    "mul": ("$a * $b", ()),
    "div": ("$a / $b", ()),
    "maximum": ("$a > $b || $a != $a ? $a : $b", ()),
    "minimum": ("$a < $b || $a != $a ? $a : $b", ()),
    "neg": ("-$a", ()),
    "abs": ("$a < 0.0f ? -$a : $a", ()),
    "square": ("$a * $a", ()),
    "sqrt": ("${p}sqrt($a)", ("sqrt",)),
    "relu": ("$a > 0.0f || $a != $a ? $a : 0.0f", ()),
    "relu6": ("${p}clip($a, 0.0f, 6.0f)", ("clip",)),
    "clip": ("${p}clip($a, $lo, $hi)", ("clip",)),
    "leaky_relu": ("$a > 0.0f ? $a : $a * $slope", ()),
    "exp": ("${p}exp($a)", ("exp",)),
    "log": ("${p}log($a)", ("log",)),
    "erf": ("${p}erf($a)", ("erf",)),
    "tanh": ("${p}tanh($a)", ("tanh",)),
    "sigmoid": ("${p}sigmoid($a)", ("sigmoid",)),
    "silu": ("$a * ${p}sigmoid($a)", ("sigmoid",)),
    "gelu": (f"$a * 0.5f * (1.0f + ${{p}}erf($a * {literal(0.70710678)}))", ("erf",)),
    "softplus": ("($a < 0.0f ? 0.0f : $a) + ${p}log1p(${p}exp($a < 0.0f ? $a : -$a))", ("exp", "log1p")),
    "hsigmoid": ("${p}hsigmoid($a)", ("hsigmoid",)),
    "hswish": ("$a * ${p}hsigmoid($a)", ("hsigmoid",)),
    "greater": ("$a > $b", ()),
    "greater_equal": ("$a >= $b", ()),
    "less": ("$a < $b", ()),
    "less_equal": ("$a <= $b", ()),
}


def _require_float(step: Step, *nodes: TensorNode) -> None:
    for node in nodes or step.inputs:
        if node.spec.dtype != FLOAT32:
            raise NoFormError(f"it computes with {node.spec.dtype}")
    step.floats = True


def _number(step: Step, value: float) -> str:
    """A float32 number that may be infinite."""
    if math.isfinite(np.float32(value)):
        return literal(value)
    step.helpers.add("float")
    return f"${{p}}float(0x{int(float_bits([value])[0]):08x}u)"


def _pointwise(step: Step) -> None:
    _require_float(step)
    text, helpers = _EXPRESSIONS[step.expr.op]
    step.helpers.update(helpers)
    for name in ("lo", "hi", "slope"):
        if f"${name}" in text:
            text = text.replace(f"${name}", _number(step, step.attrs[name]))
    names = ("a", "b")
    declared = " ".join(
        f"const float {name} = {step.x(node)}[${{x{k}}}];"
        for k, (name, node) in enumerate(zip(names, step.inputs, strict=False))
    )
    text = text.replace("$a", "a").replace("$b", "b")
    for_each(step, f"{{ {declared} y0[$y] = {text}; }}", *step.inputs)


rule(*_EXPRESSIONS, floats=True)(_pointwise)


@rule("max_pool2d", floats=True)
def max_pool2d(step: Step) -> None:
    """The largest number of a window; NaN is larger than all."""
    _require_float(step)
    step.helpers.add("float")
    (x,) = step.inputs
    read = f"{step.x(x)}[(p * {x.shape[2]} + row) * {x.shape[3]} + col]"
    take = f"{{ const float v = {read}; best = v > best || v != v ? v : best; }}"
    write_windows(step, kind="float", first="${p}float(0xff800000u)", counting="", take=take, end="best")


@rule("avg_pool2d", floats=True)
def avg_pool2d(step: Step) -> None:
    """The sum in the order of places, divided by the number of elements."""
    _require_float(step)
    a, (x,) = step.attrs, step.inputs
    every = any(map(any, a["padding"])) and not a["count_include_pad"]
    read = f"{step.x(x)}[(p * {x.shape[2]} + row) * {x.shape[3]} + col]"
    write_windows(
        step,
        kind="float",
        first="0.0f",
        counting="int32_t count = 0;" if every else "",
        take=f"best += {read};" + ("\n            ++count;" if every else ""),
        end=f"best / {'(float)count' if every else literal(math.prod(a['kernel']))}",
    )


def _rows(step: Step, axis: Any) -> tuple[int, int, int]:
    """Sizes in front of, along and behind axes that are side by side. Raises NoFormError for others."""
    (x,) = step.inputs
    axes = [k for k in normalize_axes(step.expr.op, axis, len(x.shape)) if x.shape[k] != 1]
    if any(x.shape[k] != 1 for k in range(min(axes, default=0), max(axes, default=-1) + 1) if k not in axes):
        raise NoFormError(f"its axes {axis} are not side by side")
    first, last = min(axes, default=0), max(axes, default=-1) + 1
    if not axes:
        return x.spec.size, 1, 1
    return math.prod(x.shape[:first]), math.prod(x.shape[first:last]), math.prod(x.shape[last:])


def _summed(length: int, inner: int, row: str) -> str:
    """Statements that add the numbers of a row to `total`, in NumPy's order: in pairs if they are side by side."""
    if inner == 1:
        return f"total = ${{p}}sum({row}, {length});"
    return f"for (k = 0; k < {length}; ++k)\n        total += ({row})[k * {inner}];"


def _reduction(step: Step, *, mean: bool) -> None:
    _require_float(step)
    (x,) = step.inputs
    rows, length, inner = _rows(step, step.attrs["axis"])
    if inner == 1:
        step.helpers.add("sum")
    step.write(
        """
int32_t p, k = 0;
for (p = 0; p < $rows; ++p) {
    float total = 0.0f;
    (void)k;
    $add
    y0[p] = $end;
}
""",
        rows=rows * inner,
        add=_summed(length, inner, f"{step.x(x)} + (p / {inner} * {length * inner} + p % {inner})"),
        end=f"total / {literal(length)}" if mean else "total",
    )


rule("mean", floats=True)(functools.partial(_reduction, mean=True))
rule("sum", floats=True)(functools.partial(_reduction, mean=False))


def _place_of(step: Step, *, sign: str) -> None:
    """The place of the first largest or smallest number along an axis; NaN comes before all."""
    _require_float(step)
    (x,) = step.inputs
    rows, length, inner = _rows(step, step.attrs["axis"])
    step.write(
        """
int32_t p, k;
for (p = 0; p < $rows; ++p) {
    const int32_t at = p / $inner * $whole + p % $inner;
    float best = $x[at];
    y0[p] = 0;
    for (k = 1; k < $length; ++k) {
        const float v = $x[at + k * $inner];
        if (v $sign best || (v != v && best == best)) {
            best = v;
            y0[p] = k;
        }
    }
}
""",
        rows=rows * inner,
        inner=inner,
        whole=length * inner,
        length=length,
        x=step.x(x),
        sign=sign,
    )


rule("argmax", floats=True)(functools.partial(_place_of, sign=">"))
rule("argmin", floats=True)(functools.partial(_place_of, sign="<"))


def _softmax(step: Step, *, logarithm: bool) -> None:
    _require_float(step)
    (x,) = step.inputs
    rows, length, inner = _rows(step, step.attrs["axis"])
    step.helpers.update(("exp", "log") if logarithm else ("exp",))
    if inner == 1:
        step.helpers.add("sum")
    step.write(
        """
int32_t p, k;
for (p = 0; p < $rows; ++p) {
    const int32_t at = p / $inner * $whole + p % $inner;
    float most = $x[at], total = 0.0f;
    for (k = 1; k < $length; ++k) {
        const float v = $x[at + k * $inner];
        most = v > most || v != v ? v : most;
    }
    for (k = 0; k < $length; ++k) {
        const float v = $x[at + k * $inner] - most;
        y0[at + k * $inner] = v < $least ? 0.0f : ${p}exp(v); /* no subnormal numbers */
    }
    $add
    $prepare
    for (k = 0; k < $length; ++k)
        y0[at + k * $inner] = $end;
}
""",
        rows=rows * inner,
        inner=inner,
        whole=length * inner,
        length=length,
        least=literal(functions.LEAST_NORMAL),
        x=step.x(x),
        add=_summed(length, inner, "y0 + at"),
        prepare="total = ${p}log(total);" if logarithm else "",
        end=f"{step.x(x)}[at + k * {inner}] - most - total" if logarithm else f"y0[at + k * {inner}] / total",
    )


rule("softmax", floats=True)(functools.partial(_softmax, logarithm=False))
rule("log_softmax", floats=True)(functools.partial(_softmax, logarithm=True))


@rule("resize", floats=True)
def resize(step: Step) -> None:
    """Sums of neighbours along the first axis of space, then of these along the next one."""
    _require_float(step)
    a, (x,), front = step.attrs, step.inputs, step.attrs.get("front", 0)
    sizes, lengths = a["size"], x.shape[front + 2 :]
    axes = range(len(sizes))
    both = [taps(n, out, a["mode"], a["corners"]) for n, out in zip(lengths, sizes, strict=True)]
    depth = both[0][0].shape[1]
    weights = [f"((const ${{p}}f32 *){step.array(float_bits(w.astype(np.float32)), 'weights')})" for _, w in both]
    places = [step.array(index.astype(np.int32), "places") for index, _ in both]
    at = functools.reduce(lambda at, k: f"({at}) * {lengths[k]} + {places[k]}[{depth} * r{k} + t{k}]", axes, "p")
    into = functools.reduce(lambda at, k: f"({at}) * {sizes[k]} + r{k}", axes, "p")
    lines = [
        f"int32_t p, {', '.join(f'r{k}, t{k}' for k in axes)};",
        f"for (p = 0; p < {math.prod(x.shape[: front + 2])}; ++p)",
    ]
    lines += [f"for (r{k} = 0; r{k} < {sizes[k]}; ++r{k})" for k in axes]
    lines[-1] += " {"
    last = len(sizes) - 1
    for k in reversed(axes):
        pad = "    " * (last - k + 1)
        lines += [f"{pad}float s{k} = 0.0f;", f"{pad}for (t{k} = 0; t{k} < {depth}; ++t{k}) {{"]
    for k in axes:
        pad = "    " * (last - k + 2)
        value = f"{step.x(x)}[{at}]" if k == 0 else f"s{k - 1}"
        lines += [f"{pad}s{k} += {value} * {weights[k]}[{depth} * r{k} + t{k}];", f"{pad[4:]}}}"]
    step.write("\n".join([*lines, f"    y0[{into}] = s{last};", "}"]))


@rule("ordered_conv2d", floats=True)
def ordered_conv2d(step: Step) -> None:
    """For each row of results, in tiles: products tap by tap, and of each tap channel by channel."""
    _require_float(step)
    a, (x, w, *bias) = step.attrs, step.inputs
    (n, c, h, width), (o, each, kh, kw), (oh, ow) = x.shape, w.shape, step.y.shape[2:]
    (sh, sw), (dh, dw), ((top, _), (left, _)) = a["stride"], a["dilation"], a["padding"]
    step.write(
        """
int32_t n, o, r, t, c, i, j, k;
float sums[$tile];
for (n = 0; n < $n; ++n)
for (o = 0; o < $o; ++o)
for (r = 0; r < $oh; ++r)
for (t = 0; t < $ow; t += $tile) {
    const int32_t count = $ow - t < $tile ? $ow - t : $tile;
    for (k = 0; k < count; ++k)
        sums[k] = 0.0f;
    for (i = 0; i < $kh; ++i) {
        const int32_t row = r * $sh + i * $dh$top;
        if (row < 0 || row >= $h)
            continue;
        for (j = 0; j < $kw; ++j)
        for (c = 0; c < $each; ++c) {
            const float w = $w[((o * $each + c) * $kh + i) * $kw + j];
            const int32_t at = t * $sw + j * $dw$left;
            const int32_t from = ((n * $c + o / $outs * $each + c) * $h + row) * $width + at;
            int32_t last = at >= $width ? 0 : ($width - 1 - at) / $sw + 1;
            last = last < count ? last : count;
            for (k = at < 0 ? ($sw - 1 - at) / $sw : 0; k < last; ++k)
                sums[k] += $x[from + k * $sw] * w;
        }
    }
    for (k = 0; k < count; ++k)
        y0[((n * $o + o) * $oh + r) * $ow + t + k] = sums[k]$bias;
}
""",
        **{"n": n, "c": c, "h": h, "width": width, "o": o, "each": each, "kh": kh, "kw": kw, "oh": oh, "ow": ow},
        **{"sh": sh, "sw": sw, "dh": dh, "dw": dw, "top": plus(-top), "left": plus(-left), "tile": TILE},
        outs=max(o // a["groups"], 1),
        w=step.x(w),
        x=step.x(x),
        bias="".join(f" + {step.x(b)}[o]" for b in bias),
    )


@rule("ordered_matmul", floats=True)
def ordered_matmul(step: Step) -> None:
    """For each place of the result, products in the order of the inner axis."""
    _require_float(step)
    left, right = step.inputs
    rows, cols = step.y.shape[-2:]
    step.write(
        PRODUCT,
        kind="float",
        cast="",
        zero="0.0f",
        end=f"y0[(s * {rows} + r) * {cols} + c] = sum;",
        **stacks_of(step, f"{step.x(left)}[{{}}]", f"{step.x(right)}[{{}}]"),
    )


@rule("cast")
def cast(step: Step) -> None:
    """A conversion that is exact, or rounds as float32 does."""
    (x,), target = step.inputs, step.y.spec.dtype
    source = storage_of(x.spec.dtype)
    if target != FLOAT32 or source.kind not in "biu" or source.itemsize > 4:
        raise NoFormError(f"it makes {target} of {x.spec.dtype}")
    step.floats = True
    for_each(step, f"y0[$y] = (float){step.x(x)}[${{x0}}];", x)
