"""C forms of layers: convolutions and matrix products with the epilogue of docs/integer-arithmetic.md."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.convert.c.writing import (
    NoFormError,
    Step,
    centred,
    float_bits,
    plus,
    quantized,
    real,
    require_finite,
    rule,
    scaled_strides,
)
from megengine.core.dtype import QuantizedDType
from megengine.core.text import counted
from megengine.traced_module.ir.node import TensorNode

TILE = 64  # sums of a convolution that lie on the stack
_LONGEST = 2**31 // (255 * 128)  # sums of as many products fit int32


def _weights(step: Step, node: TensorNode) -> str:
    """The weight number @, in C; those of 4 bits lie two to a byte."""
    values, dtype = step.value(node), node.spec.dtype
    if not isinstance(dtype, QuantizedDType) or dtype.bits > 4 or np.abs(values.astype(int)).max(initial=0) > 8:
        return step.array(values, "weights") + "[@]"
    flat = (values.reshape(-1).astype(np.int32) + 8).astype(np.uint8)
    flat = np.append(flat, np.zeros(flat.size % 2, np.uint8)).reshape(-1, 2)
    step.helpers.add("nibble")
    return f"${{p}}nibble({step.array(flat[:, 0] | flat[:, 1] << 4, 'weights')}, @)"


def _epilogue(step: Step, acc: str, place: str) -> str:
    """The statement that makes a result at a place of the sum `acc`, of the channel o."""
    a, (x, _, b, M, B, *residual) = step.attrs, step.inputs
    factors, offsets = step.value(M), step.value(B)
    require_finite(factors, offsets)
    step.helpers.update(("layer", "of_bits"))
    steps = {"M": "factors", "B": "offsets"}
    names = {n: step.array(float_bits(step.value(node)), steps[n]) for n, node in (("M", M), ("B", B))}
    step.body.append("${p}real M, B;")
    whole = step.value(b)
    if whole.any():
        name = f"{step.array(whole, 'biases')}[o]"
        wide = quantized(x.spec.dtype).itemsize > 1
        # additions of int32 wrap in the specification
        acc = f"{acc} + {name}" if wide else f"(int32_t)((uint32_t){acc} + (uint32_t){name})"
    t = f"${{p}}layer({acc}, M, B)"
    for node in residual:
        ratio = f"${{p}}mul(${{p}}rounded({centred(f'{step.x(node)}[{place}]', node)}, 0), {real(a['ratio'])})"
        t = f"${{p}}add({t}, {ratio})"
    step.head = f"M = ${{p}}of_bits({names['M']}[o]);\nB = ${{p}}of_bits({names['B']}[o]);"
    return finished_or_stored(step, t, place)


def finished_or_stored(step: Step, t: str, place: str) -> str:
    """The statement that writes the real `t` as a float32 or as an integer."""
    a = step.attrs
    if isinstance(a["dtype"], QuantizedDType):
        return f"y0[{place}] = {step.finished(t, a['dtype'], a['lo'], a['hi'])};"
    step.helpers.add("store")
    return f"${{p}}store(y0 + {place}, {t});"


def _sum_type(node: TensorNode, depth: int) -> str:
    """The C type of a sum of products of stored integers."""
    if quantized(node.spec.dtype).itemsize > 1:
        return "int64_t"
    if depth > _LONGEST:
        raise NoFormError(f"sums of {counted(depth, 'product')} may not fit int32")
    return "int32_t"


@rule("qconv2d")
def qconv2d(step: Step) -> None:
    """For each row of results, in tiles: the sums over channels and taps, then the epilogue."""
    a, (x, w) = step.attrs, step.inputs[:2]
    (n, c, h, width), (o, each, kh, kw), (oh, ow) = x.shape, w.shape, step.y.shape[2:]
    (sh, sw), (dh, dw), ((top, _), (left, _)) = a["stride"], a["dilation"], a["padding"]
    if (kh, kw, sh, sw) == (1, 1, 1, 1) and (h, width) == (oh, ow):  # of all places at once
        h, width, oh, ow = 1, h * width, 1, oh * ow
    kind = _sum_type(x, each * kh * kw)
    names: dict[str, Any] = {
        **{"n": n, "c": c, "h": h, "width": width, "o": o, "each": each, "kh": kh, "kw": kw, "oh": oh, "ow": ow},
        **{"sh": sh, "sw": sw, "dh": dh, "dw": dw, "top": plus(-top), "left": plus(-left), "tile": TILE},
        **{"outs": max(o // a["groups"], 1), "kind": kind, "x": step.x(x)},
        "w": _weights(step, w).replace("@", f"((o * {each} + c) * {kh} + i) * {kw} + j"),
        "read": centred(f"{step.x(x)}[from + k * {sw}]", x),
    }
    end = _epilogue(step, "sums[k]", f"((n * {o} + o) * {oh} + r) * {ow} + t + k")
    step.write(
        """
int32_t n, o, r, t, c, i, j, k;
$kind sums[$tile];
for (n = 0; n < $n; ++n)
for (o = 0; o < $o; ++o) {
    $head
    for (r = 0; r < $oh; ++r)
    for (t = 0; t < $ow; t += $tile) {
        const int32_t count = $ow - t < $tile ? $ow - t : $tile;
        for (k = 0; k < count; ++k)
            sums[k] = 0;
        for (c = 0; c < $each; ++c)
        for (i = 0; i < $kh; ++i) {
            const int32_t row = r * $sh + i * $dh$top;
            if (row < 0 || row >= $h)
                continue;
            for (j = 0; j < $kw; ++j) {
                const int32_t w = $w, at = t * $sw + j * $dw$left;
                const int32_t from = ((n * $c + o / $outs * $each + c) * $h + row) * $width + at;
                int32_t last = at >= $width ? 0 : ($width - 1 - at) / $sw + 1;
                last = last < count ? last : count;
                for (k = at < 0 ? ($sw - 1 - at) / $sw : 0; k < last; ++k)
                    sums[k] += w * $read;
            }
        }
        for (k = 0; k < count; ++k)
            $end
    }
}
""",
        head=step.head,
        end=end,
        **names,
    )


@rule("qlinear")
def qlinear(step: Step) -> None:
    """For each row: the sums over its elements, then the epilogue."""
    x, w = step.inputs[:2]
    (o, depth), rows = w.shape, math.prod(x.shape[:-1])
    end = _epilogue(step, "sum", f"r * {o} + o")
    step.write(
        """
int32_t r, o, k;
for (r = 0; r < $rows; ++r)
for (o = 0; o < $o; ++o) {
    $kind sum = 0;
    $head
    for (k = 0; k < $depth; ++k)
        sum += (int32_t)$w * $read;
    $end
}
""",
        rows=rows,
        o=o,
        depth=depth,
        kind=_sum_type(x, depth),
        w=_weights(step, w).replace("@", f"o * {depth} + k"),
        read=centred(f"{step.x(x)}[r * {depth} + k]", x),
        head=step.head,
        end=end,
    )


PRODUCT = """
int32_t s, r, c, k;
for (s = 0; s < $stacks; ++s) {
    const int32_t left = $left_base, right = $right_base;
    for (r = 0; r < $rows; ++r)
    for (c = 0; c < $cols; ++c) {
        $kind sum = $zero;
        for (k = 0; k < $depth; ++k)
            sum += $cast$left * $right;
        $end
    }
}
"""


def stacks_of(step: Step, left: str, right: str) -> dict[str, Any]:
    """The numbers of `PRODUCT`; `left` and `right` are formats of an element at a place."""
    a, nodes = step.attrs, step.inputs
    *leading, rows, cols = step.y.shape
    stacks = [f"s / {math.prod(leading[k + 1 :])} % {n}" for k, n in enumerate(leading)]
    bases, places = [], []
    for node, turned, (first, second) in zip(
        nodes, (a["transpose_a"], a["transpose_b"]), (("r", "k"), ("k", "c")), strict=True
    ):
        size = node.shape[-2] * node.shape[-1]
        whole = [s * size for s in scaled_strides(node.shape[:-2], leading)]
        terms = [f"{distance} * ({at})" for distance, at in zip(whole, stacks, strict=True) if distance]
        bases.append(" + ".join(terms) or "0")
        first, second = (second, first) if turned else (first, second)
        places.append(f"{node.shape[-1]} * {first} + {second}")
    return {
        "stacks": math.prod(leading),
        "left_base": bases[0],
        "right_base": bases[1],
        "rows": rows,
        "cols": cols,
        "depth": nodes[0].shape[-2 if a["transpose_a"] else -1],
        "left": left.format(f"left + {places[0]}"),
        "right": right.format(f"right + {places[1]}"),
    }


@rule("qmatmul")
def qmatmul(step: Step) -> None:
    """For each place of the result: the sum of products of two computed integers."""
    left, right = step.inputs
    wide = any(quantized(node.spec.dtype).itemsize > 1 for node in (left, right))
    step.helpers.update(("mul", "of_bits"))
    rows, cols = step.y.shape[-2:]
    t = f"${{p}}mul(${{p}}rounded(sum, 0), {real(step.attrs['m'])})"
    step.write(
        PRODUCT,
        kind="int64_t" if wide else "int32_t",
        cast="(int64_t)" if wide else "",
        zero=0,
        end=finished_or_stored(step, t, f"(s * {rows} + r) * {cols} + c"),
        **stacks_of(step, *(centred(f"{step.x(node)}[{{}}]", node) for node in (left, right))),
    )
