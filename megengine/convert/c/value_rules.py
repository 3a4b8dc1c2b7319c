"""C forms of ops on single integers: quantize, dequantize, sums, products, tables."""

from __future__ import annotations

import functools

import numpy as np

from megengine.convert.c.writing import (
    Step,
    centred,
    ctype,
    merged,
    nested,
    place,
    quantized,
    real,
    require_finite,
    rule,
    scaled_strides,
    table_of,
)
from megengine.kernels.reference import integer
from megengine.ops.quantized import output_of
from megengine.traced_module.ir.node import TensorNode


def for_each(step: Step, line: str, *nodes: TensorNode) -> None:
    """Loops over the results with a statement, in which $y and $x0, $x1, ... are places of the results and `nodes`."""
    shape = step.y.shape
    sizes, steps = merged(shape, [scaled_strides(node.shape, shape) for node in (step.y, *nodes)])
    places = {"y": place(0, steps[0])} | {f"x{k}": place(0, s) for k, s in enumerate(steps[1:])}
    step.write("\n".join(nested(sizes, line)), **places)


def _operand(step: Step, node: TensorNode, k: int) -> str:
    """An operand at its place in the loops of `for_each`."""
    return f"{step.x(node)}[${{x{k}}}]"


def _real_of(step: Step, node: TensorNode, k: int) -> str:
    """A stored integer less its zero point as a real."""
    step.helpers.add("rounded")
    return f"${{p}}rounded({centred(_operand(step, node, k), node)}, 0)"


def _scaled(step: Step, node: TensorNode, k: int, ratio: float) -> str:
    step.helpers.update(("mul", "of_bits"))
    return f"${{p}}mul({_real_of(step, node, k)}, {real(ratio)})"


@rule("quantize")
def quantize(step: Step) -> None:
    """A division."""
    (x,), d = step.inputs, quantized(step.attrs["dtype"])
    z = d.zero_point
    step.helpers.update(("quantized", "of_bits"))
    t = f"${{p}}quantized(&{_operand(step, x, 0)}, {real(d.only_scale)}, {d.qmin - z}, {d.qmax - z}) + ({z})"
    for_each(step, f"y0[$y] = ({ctype(step.y)})({t});", x)


@rule("dequantize")
def dequantize(step: Step) -> None:
    """A product; of 8 bits it comes from a table."""
    (x,) = step.inputs
    d = quantized(x.spec.dtype)
    if d.itemsize > 1:
        step.helpers.add("store")
        for_each(step, f"${{p}}store(y0 + ($y), {_scaled(step, x, 0, d.only_scale)});", x)
        return
    table = table_of(step, lambda q: integer.dequantize(q, d.scale, d.zero_point), "reals")
    least = -np.iinfo(d.storage).min
    for_each(step, f"memcpy(y0 + ($y), {table} + ({_operand(step, x, 0)} + {least}), 4);", x)


@rule("requantize")
def requantize(step: Step) -> None:
    """A product; of 8 bits it comes from a table."""
    a, (x,) = step.attrs, step.inputs
    d = quantized(x.spec.dtype)
    if d.itemsize > 1:
        t = _scaled(step, x, 0, a["ratio"])
        for_each(step, f"y0[$y] = {step.finished(t, a['dtype'], a['lo'], a['hi'])};", x)
        return
    out = output_of(quantized(a["dtype"]), a["lo"], a["hi"])
    table = table_of(step, lambda q: integer.requantize(q, out, ratio=a["ratio"], z_x=d.zero_point), "table")
    for_each(step, f"y0[$y] = {table}[{_operand(step, x, 0)} + {-np.iinfo(d.storage).min}];", x)


@rule("qtable")
def qtable(step: Step) -> None:
    """The entry of the table, or of the table of the place along an axis."""
    (x, table), axis = step.inputs, step.attrs.get("axis")
    least, values = -np.iinfo(quantized(x.spec.dtype).storage).min, step.value(table)
    name = step.array(values, "table")
    if axis is None:
        for_each(step, f"y0[$y] = {name}[{_operand(step, x, 0)} + {least}];", x)
        return
    axis %= len(x.shape)
    step.write(
        """
int32_t i, k;
for (i = 0; i < $size; ++i) {
    k = i / $inner % $places;
    y0[i] = $name[$codes * k + $x[i] + $least];
}
""",
        size=step.y.spec.size,
        inner=int(np.prod(x.shape[axis + 1 :], dtype=np.int64)),
        places=x.shape[axis],
        codes=values.shape[-1],
        name=name,
        x=step.x(x),
        least=least,
    )


@rule("qadd")
def qadd(step: Step) -> None:
    """Both operands in steps of the result, and their sum."""
    a, (left, right) = step.attrs, step.inputs
    t = f"${{p}}add({_scaled(step, left, 0, a['ra'])}, {_scaled(step, right, 1, a['rb'])})"
    step.helpers.add("add")
    for_each(step, f"y0[$y] = {step.finished(t, a['dtype'], a['lo'], a['hi'])};", left, right)


def _extremum(step: Step, sign: str) -> None:
    """Rounding keeps the order of the operands, so the rounded ones are compared."""
    a, nodes = step.attrs, step.inputs
    ratios = a["ra"], a["rb"]
    parts = [
        step.finished(_scaled(step, node, k, ratio), a["dtype"], a["lo"], a["hi"])
        for k, (node, ratio) in enumerate(zip(nodes, ratios, strict=True))
    ]
    kind = ctype(step.y)
    line = f"{{ const {kind} a = {parts[0]}, b = {parts[1]}; y0[$y] = a {sign} b ? a : b; }}"
    for_each(step, line, *nodes)


rule("qmaximum")(functools.partial(_extremum, sign=">"))
rule("qminimum")(functools.partial(_extremum, sign="<"))


@rule("qmul")
def qmul(step: Step) -> None:
    """The exact product, times one factor."""
    a, (left, right) = step.attrs, step.inputs
    require_finite(np.float32(a["m"]), np.float32(0))
    product = f"(int64_t){centred(_operand(step, left, 0), left)} * {centred(_operand(step, right, 1), right)}"
    step.helpers.update(("mul", "of_bits"))
    t = f"${{p}}mul(${{p}}rounded({product}, 0), {real(a['m'])})"
    for_each(step, f"y0[$y] = {step.finished(t, a['dtype'], a['lo'], a['hi'])};", left, right)


@rule("where")
def where(step: Step) -> None:
    """The one or the other element."""
    mask, left, right = step.inputs
    parts = [_operand(step, node, k) for k, node in enumerate(step.inputs)]
    for_each(step, f"y0[$y] = {parts[0]} ? {parts[1]} : {parts[2]};", mask, left, right)
