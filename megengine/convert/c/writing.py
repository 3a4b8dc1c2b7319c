"""The parts of a C file: steps, constants, names; and the table of rules, one for each op."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.ops.common import FLOAT32
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.node import TensorNode

# storage -> name of the C type in steps; those with $p may lie where values of other types lay
TYPES = {
    "bool": "uint8_t",
    "uint8": "uint8_t",
    "int8": "int8_t",
    "int16": "${p}i16",
    "int32": "${p}i32",
    "int64": "${p}i64",
    "float32": "${p}f32",
}
PLAIN = {"int16": "int16_t", "int32": "int32_t", "int64": "int64_t", "float32": "float"}


class NoFormError(Exception):
    """Why a node has no C form; the exporter lists all such nodes."""


Rule = Callable[["Step"], None]
RULES: dict[str, Rule] = {}
FLOAT_RULES: dict[str, Rule] = {}  # of the same ops, where the first operand is float32
VIEWS: set[str] = set()  # ops whose result is the first operand in another shape


def rule(*ops: str, floats: bool = False) -> Callable[[Rule], Rule]:
    """Enter the C form of ops; with `floats`, that of ops on float32."""

    def enter(function: Rule) -> Rule:
        (FLOAT_RULES if floats else RULES).update(dict.fromkeys(ops, function))
        return function

    return enter


def identifier(text: str) -> str:
    """A text as a part of C names: letters, digits and single underscores, none of them at the ends."""
    return re.sub(r"[^A-Za-z0-9]+|_{2,}", "_", text).strip("_")


def comment(text: str) -> str:
    """A text that may stand in a comment: no end of it, no line, nothing that compilers warn of."""
    return re.sub(r"[^A-Za-z0-9_.,:()\[\]{}<>=+\- ]", "_", text)


@functools.cache
def _texts(low: int, high: int) -> list[str]:
    return [str(n) for n in range(low, high + 1)]


def numbers(values: np.ndarray) -> str:
    """Integers as lines of an initializer."""
    flat = values.reshape(-1)
    if flat.dtype.itemsize == 1:
        bounds = np.iinfo(flat.dtype)
        words = list(map(_texts(bounds.min, bounds.max).__getitem__, (flat.astype(np.int32) - bounds.min).tolist()))
    elif flat.dtype == np.uint32:
        words = [f"0x{n:08x}u" for n in flat.tolist()]
    else:
        words = [_literal(n) for n in flat.tolist()]
    each = {1: 24, 2: 16}.get(flat.dtype.itemsize, 9 if flat.dtype == np.uint32 else 10)
    return ",\n".join("    " + ",".join(words[i : i + each]) for i in range(0, len(words), each))


def _literal(n: int) -> str:
    """A literal that fits its type: the smallest integers are none."""
    if n == -(2**63):
        return "(-INT64_C(9223372036854775807) - 1)"
    return f"INT64_C({n})" if abs(n) > 2**31 - 1 and n != -(2**31) else "(-2147483647 - 1)" if n == -(2**31) else str(n)


def float_bits(values: Any) -> np.ndarray:
    """Float32 numbers as the integers that store them."""
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def real(value: Any) -> str:
    """A float32 number as a `real` of the helpers."""
    return f"${{p}}of_bits(0x{int(float_bits([value])[0]):08x}u)"


class Constants:
    """Arrays of a file, each stored once; floats as the integers that store them."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.texts: list[str] = []
        self.size = 0
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def add(self, values: np.ndarray, what: str) -> str:
        """The name of an array with these values."""
        values = np.ascontiguousarray(values)
        values = values.astype(np.uint8) if values.dtype == np.bool_ else values
        key = (str(values.dtype), (values.size,), values.tobytes())
        if key not in self._names:
            name = self._names[key] = f"{self.prefix}{what}_{len(self._names)}"
            self.size += values.nbytes
            kind = f"{values.dtype.name}_t"
            held = numbers(values) if values.size else "    0"
            self.texts.append(f"static const {kind} {name}[{max(values.size, 1)}] = {{\n{held}\n}};\n")
        return self._names[key]


@dataclass
class Step:
    """One function of the file: an op with its operands x0, x1, ... and its results y0, y1, ...

    A constant operand has the name of its array.
    """

    expr: Apply
    constants: Constants
    values: dict[str, np.ndarray]  # of the nodes that are constants
    body: list[str] = field(default_factory=list)
    helpers: set[str] = field(default_factory=set)
    operands: list[TensorNode] = field(default_factory=list)
    floats: bool = False  # whether it computes in float
    head: str = ""  # of layers: what each channel begins with

    @property
    def attrs(self) -> Any:
        return self.expr.attrs

    @property
    def inputs(self) -> list[TensorNode]:
        return list(self.expr.inputs)

    @property
    def y(self) -> TensorNode:
        return self.expr.outputs[0]

    def value(self, node: TensorNode) -> np.ndarray:
        """The stored numbers of a constant. Raises NoFormError for a computed value."""
        if node.name not in self.values:
            raise NoFormError(f"{node.name} is computed by the network; expected a constant")
        return self.values[node.name]

    def x(self, node: TensorNode) -> str:
        """The name of an operand."""
        if node.name in self.values:
            given = self.values[node.name]
            if given.dtype == np.float32:
                return f"((const ${{p}}f32 *){self.array(float_bits(given), 'constant')})"
            if given.dtype.name not in TYPES:
                raise NoFormError(f"the constant {node.name} is {given.dtype}")
            return self.array(given, "constant")
        if all(node is not other for other in self.operands):
            self.operands.append(node)
        return f"x{next(i for i, other in enumerate(self.operands) if other is node)}"

    def array(self, values: np.ndarray, what: str) -> str:
        """The name of an array of the file."""
        return self.constants.add(values, what)

    def write(self, text: str, *needs: str, **names: Any) -> None:
        """Lines of the function, with `$name` replaced, and the helpers that they call."""
        self.helpers.update(needs)
        self.body.append(Template(text.strip("\n")).safe_substitute(names))

    def finished(self, t: str, dtype: Any, lo: int | None = None, hi: int | None = None) -> str:
        """The stored integer of the real `t`: clamped, rounded, plus the zero point."""
        self.helpers.add("nearest")
        out = quantized(dtype)
        z = out.zero_point
        lo, hi = out.qmin - z if lo is None else lo, out.qmax - z if hi is None else hi
        return f"({ctype(self.y)})(${{p}}nearest({t}, {lo}, {hi}){plus(z)})"


def form_of(expr: Apply) -> Rule:
    """The rule for an op. Raises NoFormError if there is none."""
    floats = bool(expr.inputs) and expr.inputs[0].spec.dtype == FLOAT32
    found = (FLOAT_RULES.get(expr.op) if floats else None) or RULES.get(expr.op)
    if found is None:
        raise NoFormError("none for these dtypes" if expr.op in FLOAT_RULES else "none for this op")
    return found


def quantized(dtype: Any) -> QuantizedDType:
    """The dtype of integers of 8 or 16 bits with one scale. Raises NoFormError for others."""
    if not isinstance(dtype, QuantizedDType) or dtype.itemsize > 2 or dtype.axis is not None:
        raise NoFormError(f"it has a value of {dtype}; expected 8 or 16 bits with one scale")
    return dtype


def ctype(node: TensorNode) -> str:
    """The C type of a value in steps."""
    name = storage_of(node.spec.dtype).name
    if name not in TYPES:
        raise NoFormError(f"{node.name} is {node.spec.dtype}")
    return TYPES[name]


def plain_type(node: TensorNode) -> str:
    """The C type of an input or output of the network."""
    return PLAIN.get(storage_of(node.spec.dtype).name) or ctype(node)


def plus(n: int) -> str:
    """A number that is added, left out if 0."""
    return f" + {n}" if n > 0 else f" - {-n}" if n else ""


def centred(x: str, node: TensorNode) -> str:
    """A stored integer less its zero point."""
    return f"({x}{plus(-quantized(node.spec.dtype).zero_point)})"


def scaled_strides(shape: Sequence[int], result: Sequence[int]) -> list[int]:
    """Distances of the elements of an operand along the axes of a result to which it is broadcast."""
    steps, step = [], 1
    for n in reversed(shape):
        steps.append(0 if n == 1 else step)
        step *= n
    return [0] * (len(result) - len(shape)) + steps[::-1]


def merged(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Loops over a shape, and the distances of each operand, with axes that lie one behind the other as one."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        if sizes and all(s[-1] == row[axis] * n for s, row in zip(steps, strides, strict=True)):
            sizes[-1] *= n
            for s, row in zip(steps, strides, strict=True):
                s[-1] = row[axis]
        else:
            sizes.append(n)
            for s, row in zip(steps, strides, strict=True):
                s.append(row[axis])
    return sizes, steps


def nested(sizes: Sequence[int], line: str) -> Iterator[str]:
    """Loops with the variables i0, i1, ... around a line."""
    if sizes:
        yield f"int32_t {', '.join(f'i{k}' for k in range(len(sizes)))};"
    for k, n in enumerate(sizes):
        yield f"for (i{k} = 0; i{k} < {n}; ++i{k})"
    yield line


def place(base: int, steps: Sequence[int]) -> str:
    """The index of an element in such loops."""
    terms = [f"i{k}" if s == 1 else f"{s} * i{k}" if s >= 0 else f"({s}) * i{k}" for k, s in enumerate(steps) if s]
    terms = [*([str(base)] if base or not terms else []), *terms]
    return " + ".join(terms)


def table_of(step: Step, function: Callable[[np.ndarray], np.ndarray], what: str) -> str:
    """The name of a table of a function of the only operand, which has 8 bits: 256 results."""
    storage = quantized(step.inputs[0].spec.dtype).storage
    bounds = np.iinfo(storage)
    values = function(np.arange(bounds.min, bounds.max + 1).astype(storage))
    return step.array(float_bits(values) if values.dtype == np.float32 else values, what)


def require_finite(M: Any, B: Any) -> None:
    """Raises NoFormError for factors with which a result may not be finite."""
    if not (np.isfinite(M).all() and np.isfinite(B).all() and np.abs(M).max(initial=0) < 2.0**90):
        raise NoFormError("its scales make results that are not finite")
