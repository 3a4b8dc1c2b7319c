"""C forms of pools, means, extremes along axes, and pictures in other sizes."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from megengine.convert.c.writing import NoFormError, Step, centred, ctype, float_bits, plus, quantized, real, rule
from megengine.core.dtype import QuantizedDType, storage_of
from megengine.kernels.reference import integer
from megengine.kernels.reference.resize import taps
from megengine.ops.common import normalize_axes

_WINDOWS = """
int32_t p, r, c, i, j;
for (p = 0; p < $planes; ++p)
for (r = 0; r < $oh; ++r)
for (c = 0; c < $ow; ++c) {
    $kind best = $first;
    $counting
    for (i = 0; i < $kh; ++i) {
        const int32_t row = r * $sh + i$top;
        if (row < 0 || row >= $h)
            continue;
        for (j = 0; j < $kw; ++j) {
            const int32_t col = c * $sw + j$left;
            if (col < 0 || col >= $w)
                continue;
            $take
        }
    }
    y0[(p * $oh + r) * $ow + c] = $end;
}
"""


def write_windows(step: Step, **names: Any) -> None:
    """Loops over windows, and in each over the elements inside the picture."""
    a, (x,) = step.attrs, step.inputs
    (n, c, h, w), (oh, ow) = x.shape, step.y.shape[2:]
    (kh, kw), (sh, sw), ((top, _), (left, _)) = a["kernel"], a["stride"], a["padding"]
    sizes = {"planes": n * c, "h": h, "w": w, "oh": oh, "ow": ow, "kh": kh, "kw": kw, "sh": sh, "sw": sw}
    step.write(_WINDOWS, top=plus(-top), left=plus(-left), **sizes, **names)


def _whole(step: Step, node: Any) -> np.iinfo:
    """The bounds of the integers of a value. Raises NoFormError for floats."""
    storage = storage_of(node.spec.dtype)
    if storage.kind not in "iu" or storage.itemsize > 4:
        raise NoFormError(f"it compares values of {node.spec.dtype}")
    return np.iinfo(storage)


@rule("max_pool2d")
def max_pool2d(step: Step) -> None:
    """The largest stored integer."""
    (x,) = step.inputs
    least = _whole(step, x).min
    if storage_of(x.spec.dtype).itemsize > 2:
        raise NoFormError(f"it compares values of {x.spec.dtype}")
    read = f"{step.x(x)}[(p * $h + row) * $w + col]"
    h, w = x.shape[2:]
    read = read.replace("$h", str(h)).replace("$w", str(w))
    take = f"if ({read} > best)\n                best = {read};"
    write_windows(step, kind="int32_t", first=least, counting="", take=take, end=f"({ctype(step.y)})best")


@rule("qavg_pool2d")
def qavg_pool2d(step: Step) -> None:
    """The sum, times a factor for each number of elements that a window can have."""
    a, (x,) = step.attrs, step.inputs
    h, w = x.shape[2:]
    full, padded = math.prod(a["kernel"]), any(map(any, a["padding"]))
    every = padded and not a["count_include_pad"]
    step.helpers.update(("mul", "of_bits"))
    if every:
        counts = np.arange(full + 1).clip(1)
        factor = f"${{p}}of_bits({step.array(float_bits(_means(step, counts)), 'factors')}[count])"
    else:
        factor = real(_means(step, full))
    take = f"best += {centred(f'{step.x(x)}[(p * {h} + row) * {w} + col]', x)};"
    write_windows(
        step,
        kind="int64_t",
        first=0,
        counting="int32_t count = 0;" if every else "",
        take=take + ("\n            ++count;" if every else ""),
        end=step.finished(f"${{p}}mul(${{p}}rounded(best, 0), {factor})", a["dtype"]),
    )


def _means(step: Step, count: Any) -> np.ndarray:
    """The factor of a sum of so many elements."""
    source, target = (quantized(d) for d in (step.inputs[0].spec.dtype, step.attrs["dtype"]))
    return (np.float32(source.only_scale) / np.float32(target.only_scale)) / np.asarray(count, np.float32)


def _along(step: Step, axis: Any) -> tuple[list[str], str, int]:
    """Loops over the elements along axes, the index of one of them in the loops of results, and their number."""
    (x,) = step.inputs
    axes = normalize_axes(step.expr.op, axis, len(x.shape))
    strides = [math.prod(x.shape[k + 1 :]) for k in range(len(x.shape))]
    kept = [k for k in range(len(x.shape)) if k not in axes]
    base, size = [], math.prod(x.shape[k] for k in kept)
    for k in kept:
        size //= max(x.shape[k], 1)
        base.append(f"{strides[k]} * (i / {size} % {x.shape[k]})")
    loops = [f"for (k{k} = 0; k{k} < {x.shape[k]}; ++k{k})" for k in axes]
    at = " + ".join([*base, *(f"{strides[k]} * k{k}" for k in axes)]) or "0"
    declared = [f"int32_t {', '.join(['i', *(f'k{k}' for k in axes)])};"]
    return [*declared, *loops], at, math.prod(x.shape[k] for k in axes)


def _reduction(step: Step, kind: str, first: str, take: str, end: str) -> None:
    (declared, *loops), at, _ = _along(step, step.attrs["axis"])
    lines = [declared, f"for (i = 0; i < {step.y.spec.size}; ++i) {{", f"    {kind} best = {first};"]
    lines += [f"    {line}" for line in loops]
    lines += ["    " + take.replace("$at", at), f"    y0[i] = {end};", "}"]
    step.write("\n".join(lines))


def _mean(step: Step, *, summed: bool) -> None:
    """An exact sum, times one factor."""
    (x,) = step.inputs
    count = 1 if summed else max(_along(step, step.attrs["axis"])[2], 1)
    step.helpers.update(("mul", "of_bits"))
    end = step.finished(f"${{p}}mul(${{p}}rounded(best, 0), {real(_means(step, count))})", step.attrs["dtype"])
    _reduction(step, "int64_t", "0", f"best += {centred(f'{step.x(x)}[$at]', x)};", end)


rule("qmean")(functools.partial(_mean, summed=False))
rule("qsum")(functools.partial(_mean, summed=True))


def _extremum(step: Step, *, sign: str) -> None:
    """The largest or smallest stored integer along axes."""
    (x,) = step.inputs
    bounds = _whole(step, x)
    first = f"INT64_C({bounds.min if sign == '>' else bounds.max})"
    read = f"{step.x(x)}[$at]"
    _reduction(step, "int64_t", first, f"best = {read} {sign} best ? {read} : best;", f"({ctype(step.y)})best")


rule("max")(functools.partial(_extremum, sign=">"))
rule("min")(functools.partial(_extremum, sign="<"))


@rule("resize")
def resize(step: Step) -> None:
    """Exact sums of neighbours times whole weights, rounded once."""
    a, (x,), front = step.attrs, step.inputs, step.attrs.get("front", 0)
    if not isinstance(x.spec.dtype, QuantizedDType):
        raise NoFormError(f"it resizes values of {x.spec.dtype}")
    d, sizes, lengths = quantized(x.spec.dtype), a["size"], x.shape[front + 2 :]
    axes = range(len(sizes))
    both = [taps(n, out, a["mode"], a["corners"]) for n, out in zip(lengths, sizes, strict=True)]
    places = [step.array(index.astype(np.int32), "places") for index, _ in both]
    weights = [step.array(integer.whole_weights(weight, len(sizes)).astype(np.int32), "weights") for _, weight in both]
    depth = both[0][0].shape[1]
    from_ = functools.reduce(lambda at, k: f"({at}) * {lengths[k]} + {places[k]}[{depth} * r{k} + t{k}]", axes, "p")
    into = functools.reduce(lambda at, k: f"({at}) * {sizes[k]} + r{k}", axes, "p")
    factor = " * ".join(f"{weights[k]}[{depth} * r{k} + t{k}]" for k in axes)
    bits = integer.resize_bits(len(sizes)) * len(sizes)
    loops = [f"for (r{k} = 0; r{k} < {sizes[k]}; ++r{k})" for k in axes]
    inner = [f"    for (t{k} = 0; t{k} < {depth}; ++t{k})" for k in axes]
    step.helpers.add("shifted")
    z, lo, hi = d.zero_point, d.qmin - d.zero_point, d.qmax - d.zero_point
    names = itertools.chain(["p"], *([f"r{k}", f"t{k}"] for k in axes))
    step.write(
        "\n".join([f"int32_t {', '.join(names)};", "for (p = 0; p < $planes; ++p)", *loops])
        + " {\n    int64_t sum = 0;\n"
        + "\n".join(inner)
        + """
        sum += (int64_t)($factor) * $read;
    sum = sum < 0 ? -(int64_t)${p}shifted((uint64_t)-sum, $bits) : (int64_t)${p}shifted((uint64_t)sum, $bits);
    sum = sum < $lo ? $lo : sum > $hi ? $hi : sum;
    y0[$into] = ($kind)(sum$z);
}
""",
        planes=math.prod(x.shape[: front + 2]),
        factor=factor,
        read=centred(f"{step.x(x)}[{from_}]", x),
        bits=bits,
        lo=lo,
        hi=hi,
        into=into,
        kind=ctype(step.y),
        z=plus(z),
    )
