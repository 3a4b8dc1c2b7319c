"""Programs of elementwise operations over broadcast operands, in one pass over memory; a single op is one of them.

The text of a kernel is generated for the program and the dtypes of its operands. Numbers among the attributes are
arguments of the kernel, so that a clip with other bounds is no other kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16, storage_of
from megengine.core.errors import DivisionByZeroError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import runtime_of
from megengine.kernels.cuda.sources import TYPES, Program
from megengine.kernels.elementwise import Instruction, program_of
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

Shape = tuple[tuple[str, str, tuple[int, ...]], ...]  # of a program: (op, dtype that a cast makes, sources)

MOST_INPUTS, MOST_ARGUMENTS = 31, 96
_BLOCK, _MOST_BLOCKS = 256, 1 << 16
_BYTES = 16  # of the widest load
_SMALL = 1 << 31  # elements that 32-bit numbers count

# the kinds of dtypes that an op computes: b(ool), i(nteger), f(loat), c(omplex)
_FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh"),
    *("atanh", "tanh", "erf", "sigmoid", "silu", "gelu", "softplus", "sqrt", "rsqrt", "hsigmoid", "hswish"),
    *("div", "pow", "atan2"),
)
_TRUTHS = (
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_xor"),
)
_DIVISIONS = ("floor_div", "mod", "trunc_div")
KINDS = {
    **dict.fromkeys(_FUNCTIONS, "f"),
    **dict.fromkeys(("sub", "neg", "floor_div", "mod", "clip", "leaky_relu"), "if"),
    **dict.fromkeys(("trunc_div", "left_shift", "right_shift"), "i"),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), "bi"),
    **dict.fromkeys(("add", "mul", "abs", "sign", "square", "relu", "relu6", "relu_backward"), "bif"),
    **dict.fromkeys(("floor", "ceil", "round", "round_even", "maximum", "minimum", "where", "cast", *_TRUTHS), "bif"),
    "logical_not": "bif",
    **{"complex": "f", "real": "c", "imag": "c"},
}
for _op in ("add", "sub", "mul", "div", "neg", "equal", "not_equal", "where"):
    KINDS[_op] += "c"
# C++'s names of the types of elements, and complex dtypes beside their parts
_TYPES = {**TYPES, np.dtype(np.complex64): "Complex<float>", np.dtype(np.complex128): "Complex<double>"}
_PARTS = {np.dtype(np.complex64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.float64)}
_WHOLES = {part: whole for whole, part in _PARTS.items()}
_NUMBERS = {"clip": ("lo", "hi"), "leaky_relu": ("slope",)}  # attributes that are arguments


def _kind(dtype: np.dtype) -> str:
    return {"b": "b", "i": "i", "u": "i", "c": "c"}.get(dtype.kind, "f")


def _type(dtype: np.dtype) -> str:
    return _TYPES[np.dtype(dtype)]


def _computed(dtype: np.dtype) -> np.dtype:
    """The dtype in which numbers are computed with."""
    return np.dtype(np.float32) if dtype.itemsize == 2 and _kind(dtype) == "f" else dtype


def _result(op: str, attrs: dict[str, Any], dtypes: list[np.dtype], sources: tuple[int, ...]) -> np.dtype:
    if op == "cast":
        return np.dtype(attrs["dtype"])
    if op in _TRUTHS:
        return np.dtype(np.bool_)
    of = dtypes[sources[0 if op == "relu_backward" else -1]]
    return _WHOLES[of] if op == "complex" else _PARTS[of] if op in ("real", "imag") else of


def _why_not(op: str, attrs: dict[str, Any], dtypes: list[np.dtype], sources: tuple[int, ...]) -> str | None:
    """Why an instruction is not computed here, or None."""
    if op not in KINDS:
        return f"{op} is not elementwise"
    unknown = next(
        (d for d in (*(dtypes[i] for i in sources), attrs.get("dtype")) if d is not None and d not in _TYPES), None
    )
    if unknown is not None:
        return f"{op} of {unknown}"
    of = dtypes[sources[-1]]
    if _kind(of) not in KINDS[op] or (op == "complex" and of not in _WHOLES):
        return f"{op} of {of}"
    if _kind(of) == "i" and not all(math.isfinite(attrs[name]) for name in _NUMBERS.get(op, ())):
        return f"{op} of {of} without bounds"
    return f"where of {dtypes[sources[0]]}" if op == "where" and dtypes[sources[0]] != np.bool_ else None


def _dtypes(program: tuple[Instruction, ...], inputs: tuple[np.dtype, ...]) -> list[np.dtype] | str:
    """The dtypes of inputs and results, or why the program is not computed here."""
    dtypes = list(inputs)
    for op, items, sources in program:
        attrs = dict(items)
        why = _why_not(op, attrs, dtypes, sources)
        if why is not None:
            return why
        dtypes.append(_result(op, attrs, dtypes, sources))
    return dtypes


def usable(problem: Problem) -> str | None:
    """Why a program, or a single op, is not computed here; None if it is."""
    if len(problem.inputs) > MOST_INPUTS:
        return counted(len(problem.inputs), "input")
    program = program_of(problem)
    dtypes = _dtypes(program, tuple(storage_of(s.dtype) for s in problem.inputs))
    return dtypes if isinstance(dtypes, str) else _too_many(problem, program)


def _too_many(problem: Problem, program: tuple[Instruction, ...]) -> str | None:
    """Why the kernel would have more arguments than one takes, or None."""
    lengths, strides = collapsed(problem.outputs[0].shape, [s.shape for s in problem.inputs])
    walks = len({tuple(s) for s in strides}) * len(lengths) + len(lengths) + 3
    count = len(strides) + walks + sum(len(_NUMBERS.get(op, ())) for op, *_ in program)
    return None if count < MOST_ARGUMENTS else counted(count, "argument")


# ---------------------------------------------------------------- texts


@dataclass(frozen=True, slots=True)
class _Body:
    """The function of one element, and what it takes beside the operands."""

    text: str
    parameters: str  # with types, of the kernel
    names: str  # as they are passed on
    refuses: bool


def _expression(op: str, to: np.dtype, values: list[str], more: list[str]) -> str:
    if op == "cast":
        return f"op_cast<{_type(to)}>({values[0]})"
    if op == "where":
        return f"op_where({', '.join(values)})"
    call = f"op_{op}({', '.join([f'widen({v})' for v in values] + more)})"
    return call if op in _TRUTHS else f"narrow<{_type(to)}>({call})"


@functools.cache
def _body(shape: Shape, inputs: tuple[np.dtype, ...]) -> _Body:
    """The function `value` of a program of (op, dtype that a cast makes, sources)."""
    dtypes, lines, parameters, refuses = list(inputs), [], [], False
    for op, to, sources in shape:
        attrs = {"dtype": np.dtype(to)} if op == "cast" else {}
        made, of = _result(op, attrs, dtypes, sources), _computed(dtypes[sources[-1]])
        more = []
        for _ in _NUMBERS.get(op, ()):
            more.append(f"c{len(parameters)}")
            parameters.append(f"{_type(of)} {more[-1]}")
        if op in _DIVISIONS:
            more.append("refused" if _kind(of) == "i" else "nullptr")
            refuses |= _kind(of) == "i"
        expression = _expression(op, made, [f"v{i}" for i in sources], more)
        if op in ("floor_div", "mod") and _kind(of) == "f":
            expression = expression.replace("nullptr", "(int*)nullptr")
        lines.append(f"    const {_type(made)} v{len(dtypes)} = {expression};")
        dtypes.append(made)
    parameters += ["int* refused"] if refuses else []
    taken = [f"{_type(d)} v{i}" for i, d in enumerate(inputs)] + parameters
    head = "".join(f"typedef {_type(d)} T{i};\n" for i, d in enumerate(inputs))
    head += f"typedef {_type(dtypes[-1])} TO;\n"
    text = (
        f"{head}COC_FN TO value({', '.join(taken)}) {{\n" + "\n".join(lines) + f"\n    return v{len(dtypes) - 1};\n}}\n"
    )
    names = "".join(f", {p.split()[-1]}" for p in parameters)
    return _Body(text, "".join(f", {p}" for p in parameters), names, refuses)


def _pack(inputs: tuple[np.dtype, ...], out: np.dtype) -> int:
    """Elements that one thread takes at once: the widest fill a load."""
    return _BYTES // max(d.itemsize for d in (*inputs, out))


def _name(shape: Shape) -> str:
    return f"elementwise_{shape[0][0] if len(shape) == 1 else 'program'}.cu"


@functools.cache
def flat_program(shape: Shape, inputs: tuple[np.dtype, ...], pack: int) -> Program:
    """A program over operands that lie as the result does, or are one number each: bit k of `full` tells the first."""
    body, numbers = _body(shape, inputs), range(len(inputs))
    operands = "".join(f"const T{k}* __restrict__ x{k}, " for k in numbers)
    loads = "".join(
        f"        Pack<T{k}, {pack}> p{k};\n"
        f"        if (full >> {k} & 1) p{k}.load(x{k} + j * {pack}); else p{k}.fill(x{k}[0]);\n"
        for k in numbers
    )
    packed = ", ".join(f"p{k}.v[k]" for k in numbers)
    single = ", ".join(f"x{k}[full >> {k} & 1 ? i : 0]" for k in numbers)
    text = f"""#include "elementwise.cuh"
{body.text}
KERNEL(cuda_flat, {operands}TO* __restrict__ out, i64 n, int full{body.parameters}) {{
    const i64 packs = n / {pack}, first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const i64 step = (i64)gridDim.x * blockDim.x;
#pragma unroll 1
    for (i64 j = first; j < packs; j += step) {{
{loads}        Pack<TO, {pack}> y;
#pragma unroll
        for (int k = 0; k < {pack}; ++k) y.v[k] = value({packed}{body.names});
        y.store(out + j * {pack});
    }}
#pragma unroll 1
    for (i64 i = packs * {pack} + first; i < n; i += step) out[i] = value({single}{body.names});
}}
"""
    return Program(_name(shape), text=text)


@functools.cache
def strided_program(
    shape: Shape, inputs: tuple[np.dtype, ...], walks: tuple[int, ...], pack: int, kind: str
) -> Program:
    """A program over operands with strides.

    `walks` tells for each operand which of several lists of strides it has, and holds the number of axes behind them.
    Along the last axis the elements of a list lie side by side (bit of `inner`) or are one number, and `pack` are taken
    at once. `kind` is the type that counts elements.
    """
    body, numbers, axes, lists = (
        _body(shape, inputs),
        range(len(inputs)),
        walks[-1],
        range(max(walks[:-1], default=0) + 1),
    )
    operands = "".join(f"const T{k}* __restrict__ x{k}, " for k in numbers)
    lengths = "".join(f", {kind} n{d}" for d in range(1, axes))
    strides = "".join(f", {kind} s{w}_{d}" for w in lists for d in range(axes))
    places = "".join(
        f"        const {kind} a{d} = rest % n{d};\n        rest /= n{d};\n" for d in range(axes - 1, 0, -1)
    )
    along = "".join(f" + a{d} * s{{w}}_{d}" for d in range(1, axes))
    places += "".join(f"        const {kind} at{w} = rest * s{w}_0{along.format(w=w)};\n" for w in lists)
    loads = "".join(
        f"        Pack<T{k}, {pack}> p{k};\n"
        f"        if (inner >> {w} & 1) p{k}.load(x{k} + at{w}); else p{k}.fill(x{k}[at{w}]);\n"
        for k, w in zip(numbers, walks, strict=False)
    )
    packed = ", ".join(f"p{k}.v[k]" for k in numbers)
    text = f"""#include "elementwise.cuh"
{body.text}
KERNEL(cuda_strided, {operands}TO* __restrict__ out, {kind} packs, int inner{lengths}{strides}{body.parameters}) {{
    const {kind} step = ({kind})gridDim.x * blockDim.x;
#pragma unroll 1
    for ({kind} j = ({kind})blockIdx.x * blockDim.x + threadIdx.x; j < packs; j += step) {{
        {kind} rest = j;
{places}{loads}        Pack<TO, {pack}> y;
#pragma unroll
        for (int k = 0; k < {pack}; ++k) y.v[k] = value({packed}{body.names});
        y.store(out + (i64)j * {pack});
    }}
}}
"""
    return Program(_name(shape), text=text)


# ---------------------------------------------------------------- launches


@dataclass(frozen=True, slots=True)
class _Launch:
    """A kernel with all but the arrays that it takes."""

    program: Program
    kernel: str
    grid: int
    arguments: tuple[Any, ...]  # behind the arrays
    refuses: bool


def collapsed(shape: tuple[int, ...], operands: list[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
    """The fewest axes over which operands that broadcast to `shape` can be walked: lengths, and strides in elements."""
    strides = []
    for operand in operands:
        steps = [math.prod(operand[axis + 1 :]) if n != 1 else 0 for axis, n in enumerate(operand)]
        strides.append([0] * (len(shape) - len(operand)) + steps)
    lengths: list[int] = []
    kept: list[list[int]] = [[] for _ in operands]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        joins = bool(lengths) and all(k[-1] == s[axis] * n for k, s in zip(kept, strides, strict=True))
        if joins:
            lengths[-1] *= n
            for k, s in zip(kept, strides, strict=True):
                k[-1] = s[axis]
        else:
            lengths.append(n)
            for k, s in zip(kept, strides, strict=True):
                k.append(s[axis])
    return lengths, kept


def _shape_of(program: tuple[Instruction, ...]) -> Shape:
    """The program without the numbers among its attributes."""
    return tuple((op, str(dict(items)["dtype"]) if op == "cast" else "", tuple(s)) for op, items, s in program)


def _numbers(program: tuple[Instruction, ...], dtypes: list[np.dtype]) -> tuple[Any, ...]:
    """The numbers among the attributes, as arguments."""
    found = []
    for op, items, sources in program:
        attrs, kind = dict(items), _computed(dtypes[sources[-1]]).type
        found += [kind(attrs[name]) for name in _NUMBERS.get(op, ())]
    return tuple(found)


def _blocks(count: int) -> int:
    return min(-(-count // _BLOCK), _MOST_BLOCKS)


@functools.lru_cache(maxsize=8192)
def _launch(problem: Problem, aligned: bool) -> _Launch:
    program, out = program_of(problem), problem.outputs[0]
    inputs = tuple(storage_of(s.dtype) for s in problem.inputs)
    dtypes = _dtypes(program, inputs)
    assert isinstance(dtypes, list)
    shape, more, size = _shape_of(program), _numbers(program, dtypes), out.size
    pack, refuses = _pack(inputs, dtypes[-1]), _body(shape, inputs).refuses
    lengths, strides = collapsed(out.shape, [s.shape for s in problem.inputs])
    if aligned and len(lengths) <= 1:
        full = sum((not s or s[0] == 1) << k for k, s in enumerate(strides))
        arguments = (np.int64(size), np.int32(full), *more)
        return _Launch(flat_program(shape, inputs, pack), "cuda_flat", _blocks(-(-size // pack)), arguments, refuses)
    lengths, strides = (lengths, strides) if lengths else ([1], [[0]] * len(strides))
    pack = pack if aligned and lengths[-1] % pack == 0 else 1
    lists = list(dict.fromkeys(map(tuple, strides)))
    inner = sum((s[-1] == 1) << w for w, s in enumerate(lists))
    kind, counts = ("unsigned", np.uint32) if size < _SMALL else ("i64", np.int64)
    lengths[-1] //= pack
    steps = [n for s in lists for n in (*s[:-1], s[-1] * pack)]
    arguments = (counts(size // pack), np.int32(inner), *map(counts, (*lengths[1:], *steps)), *more)
    walks = (*(lists.index(tuple(s)) for s in strides), len(lengths))
    made = strided_program(shape, inputs, walks, pack, kind)
    return _Launch(made, "cuda_strided", _blocks(size // pack), arguments, refuses)


def _division_by_zero(op: str) -> Any:
    return lambda number: DivisionByZeroError(f"{op}: integer division by zero; expected a divisor without zeros")


def run(problem: Problem, *arrays: DeviceArray) -> DeviceArray:
    """The result of a program, or of a single op."""
    runtime = arrays[0].runtime if arrays else runtime_of(problem.device)
    spec = problem.outputs[0]
    out = runtime.empty(spec.shape, storage_of(spec.dtype))
    if not out.size:
        return out
    places = out.address
    for array in arrays:
        places |= array.address
    launch = _launch(problem, not places % _BYTES)
    arguments = (*arrays, out, *launch.arguments)
    if launch.refuses:
        arguments = (*arguments, runtime.refusal(_division_by_zero(_divides(problem))))
    runtime.launch(launch.program, launch.kernel, launch.grid, _BLOCK, arguments)
    return out


def cast(array: DeviceArray, dtype: np.dtype) -> DeviceArray:
    """The numbers of an array in another plain dtype, in memory of their own."""
    specs = [TensorSpec(array.shape, d, array.runtime.name) for d in (array.dtype, dtype)]
    return run(Problem("cast", specs[:1], specs[1:], {"dtype": dtype}), array)


def _divides(problem: Problem) -> str:
    return next(op for op, _, _ in program_of(problem) if op in _DIVISIONS)


cuda_elementwise = EagerKernel("cuda_elementwise", run, usable)
cuda_bitcast = EagerKernel("cuda_bitcast", lambda problem, x: x.view(problem.attrs.dtype))
KERNELS: dict[str, tuple[Kernel, ...]] = {
    **{op: (cuda_elementwise,) for op in ("elementwise", *KINDS)},
    "bitcast": (cuda_bitcast,),
}


def programs() -> Iterator[Program]:
    """Kernels of every op for a dtype of floats, or else of integers; some for all dtypes; and strided ones."""
    some = {"c": np.complex64, "f": np.float32, "i": np.int32, "b": np.bool_}
    wide = [np.dtype(t) for t in (np.float64, np.float16, np.int8, np.uint8, np.int64)] + [bfloat16]
    for op, kinds in KINDS.items():
        count = 3 if op == "where" else 2 if op in _TWO else 1
        every = op in ("add", "floor_div", "where", "cast")
        dtypes = [np.dtype(some[kind]) for kind in "ficb" if kind in kinds]
        for dtype in [*dtypes, *wide] if every else dtypes[:1]:
            inputs = (np.dtype(np.bool_), dtype, dtype) if op == "where" else (dtype,) * count
            shape = ((op, "int32" if op == "cast" else "", tuple(range(count))),)
            made = _result(op, {"dtype": "int32"}, list(inputs), tuple(range(count)))
            yield flat_program(shape, inputs, _pack(inputs, made))
    for walks, pack, kind in (((0, 1, 2), 4, "unsigned"), ((0, 1, 3), 1, "unsigned"), ((0, 0, 4), 4, "i64")):
        yield strided_program((("add", "", (0, 1)),), (np.dtype(np.float32),) * 2, walks, pack, kind)


_TWO = (
    *("add", "sub", "mul", "div", "pow", "floor_div", "mod", "maximum", "minimum", "atan2", "trunc_div", "left_shift"),
    *("right_shift", "bitwise_and", "bitwise_or", "bitwise_xor", "relu_backward", *_TRUTHS, "complex"),
)
