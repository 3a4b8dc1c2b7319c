"""Products of matrices: by tiles, every sum one chain in the order of its places, or a few of them.

`ordered_matmul` has one chain always, whose products are rounded before they are added: the bits of the reference.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16, storage_of
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.libraries import Gemm, gemm_of, takes
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.cuda.tensor_cores import (
    MULTIPROCESSORS,
    TILES,
    Precision,
    Tile,
    on_tensor_cores,
    tile_for,
    wide,
)
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

AXES = 8  # of the stack of matrices, after neighbours are joined
THREADS = 256
ACTIVATIONS = ("none", "tanh", "sigmoid", "relu", "relu6", "hsigmoid", "hswish", "silu", "gelu", "softplus")
_SHORTEST = 256  # places of a part of a sum
_FARTHEST = (1 << 31) - 1
# bytes of an element -> least depth from which cuBLAS and a second pass are faster than one own kernel
_LEAST_FUSED = {2: 2048, 4: 64, 8: 1}
Axis = tuple[int, int, int, int]  # size; steps of the left, of the right and of the result, in elements


@functools.cache
def computed_as(dtype: np.dtype) -> tuple[np.dtype, np.dtype]:
    """The dtypes of elements and of sums: floats sum as float32 or float64; integers without sign, which wrap alike."""
    dtype = np.dtype(dtype)
    if dtype == np.float64 or dtype.kind == "b":
        return dtype, np.dtype(np.float64 if dtype.kind == "f" else np.uint32)
    if dtype.kind == "f" or dtype == bfloat16:
        return dtype, np.dtype(np.float32)
    return np.dtype(f"u{dtype.itemsize}"), np.dtype(np.uint64 if dtype.itemsize == 8 else np.uint32)


def macros_of(dtype: np.dtype) -> dict[str, str]:
    """The macros TYPE and ACC of a dtype."""
    element, total = computed_as(dtype)
    return {"TYPE": type_name(element), "ACC": type_name(total)}


def bits_of(array: DeviceArray | None) -> DeviceArray | None:
    """An array as its kernel reads it: integers without sign."""
    if array is None:
        return None
    wanted = computed_as(array.dtype)[0]
    return array if wanted == array.dtype else array.view(wanted)


@dataclass(frozen=True, slots=True)
class Product:
    """A stack of products of matrices: sizes, and steps in elements along rows, places of sums, and columns."""

    rows: int
    columns: int
    depth: int
    left: tuple[int, int]  # row, place
    right: tuple[int, int]  # column, place
    out: tuple[int, int]  # row, column
    stack: tuple[Axis, ...]

    @property
    def matrices(self) -> int:
        """Matrices in the stack."""
        return math.prod(axis[0] for axis in self.stack)

    def simplified(self) -> Product:
        """The same with neighbouring axes joined, and with axes of the stack as more rows where they lie so."""
        joined: list[Axis] = []
        for axis in self.stack:
            size, *steps = axis
            if size == 1:
                continue
            if joined and all(far == near * size for far, near in zip(joined[-1][1:], steps, strict=True)):
                joined[-1] = (joined[-1][0] * size, axis[1], axis[2], axis[3])
            else:
                joined.append(axis)
        rows, (row, _), (out, _) = self.rows, self.left, self.out
        while joined and joined[-1][1:] == (row * rows, 0, out * rows) and rows * joined[-1][0] <= _FARTHEST:
            rows *= joined.pop()[0]
        return Product(rows, self.columns, self.depth, self.left, self.right, self.out, tuple(joined))


_STRUCTS: dict[str, np.dtype] = {
    index: np.dtype(
        [
            *((name, "i4") for name in ("rows", "columns", "depth", "part")),
            *(
                (name, index)
                for name in ("left_row", "left_place", "right_column", "right_place", "out_row", "out_column")
            ),
            ("matrices", "i4"),
            ("axes", "i4"),
            ("sizes", "i4", AXES),
            *((name, "i8", AXES) for name in ("left_steps", "right_steps", "out_steps")),
            ("scale", "f8"),
        ],
        align=True,
    )
    for index in ("i4", "i8")
}


@dataclass(frozen=True, slots=True)
class Launch:
    """How a product is launched: the program, its grid, the parts of sums, and the struct of its sizes."""

    program: Program
    grid: tuple[int, int, int]
    parts: int
    sizes: np.void
    adding: Program | None = None  # of the parts
    starts: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)  # first elements of launches, of left, right and result
    threads: int = THREADS
    shared: int = 0
    wide: bool = False  # operands begin at multiples of 16 bytes


def _index(product: Product) -> str:
    sides = (product.left, product.rows), (product.right, product.columns)
    spans = [step[0] * lines + step[1] * product.depth for step, lines in sides]
    spans.append(product.out[0] * product.rows + product.out[1] * product.columns)
    return "i4" if max(spans) <= _FARTHEST else "i8"


def _tile(product: Product, total: np.dtype) -> int:
    """128 where that makes work for the whole GPU, else 64; sums of 8 bytes take too many registers for 128."""
    blocks = -(-product.rows // 128) * -(-product.columns // 128) * product.matrices
    return 128 if total.itemsize == 4 and min(product.rows, product.columns) > 64 and blocks >= MULTIPROCESSORS else 64


def parts_of(blocks: int, depth: int, multiple: int) -> tuple[int, int]:
    """Into how many parts a sum is split so that the GPU has work, and the places of one, a multiple of a number."""
    count = max(1, min(2 * MULTIPROCESSORS // max(blocks, 1), depth // _SHORTEST))
    places = -(-depth // count)
    places = max(-(-places // multiple) * multiple, multiple)
    return max(1, -(-depth // places)), places


def _starts(product: Product) -> tuple[tuple[tuple[int, int, int], ...], Product]:
    """First elements of launches, and the product that each makes: axes that are too many take turns."""
    spare, kept = product.stack[: len(product.stack) - AXES], product.stack[-AXES:]
    if not spare:
        return ((0, 0, 0),), product
    starts = []
    for place in np.ndindex(*(axis[0] for axis in spare)):
        left, right, out = (sum(i * axis[side] for i, axis in zip(place, spare, strict=True)) for side in (1, 2, 3))
        starts.append((left, right, out))
    return tuple(starts), replace(product, stack=kept)


def grid_of(blocks: int, more: int) -> tuple[int, int, int]:
    """A grid of blocks along x for each of more numbers along y and z, perhaps with some to spare."""
    across = min(more, 65535)
    return blocks, across, -(-more // across)


@dataclass(frozen=True, slots=True)
class Finish:
    """What is done with sums: `ordered` ones are one chain of rounded products; `fused` ones have a scale and more."""

    ordered: bool = False
    fused: bool = False
    activation: str = "none"
    scale: float = 1.0

    @property
    def macros(self) -> dict[str, Any]:
        """The macros of finishing.cuh."""
        return {"FUSED": int(self.fused), "ACT": f"op_{self.activation}"}


def launch_of(product: Product, dtype: np.dtype, finish: Finish = Finish(), architecture: int = 0) -> Launch:
    """The launch of a simplified product of a dtype on a GPU of an architecture."""
    starts, product = _starts(product)
    if not finish.ordered and on_tensor_cores(dtype, architecture):
        sides = _wide_sides(product, starts, dtype)
        if sides is not None:
            return _on_tensor_cores(product, dtype, finish, sides, starts)
    tile, index = _tile(product, computed_as(dtype)[1]), _index(product)
    blocks = -(-product.rows // tile) * -(-product.columns // tile)
    parts, part = (1, max(product.depth, 1))
    if not finish.ordered:
        parts, part = parts_of(blocks * product.matrices, product.depth, 16)
    places = tuple(abs(place) <= abs(line) for line, place in (product.left, product.right))
    made = program_of(dtype, tile, index, places, finish, parts=parts > 1)
    sizes, grid = _struct(product, index, part, finish.scale), grid_of(blocks * parts, product.matrices)
    return Launch(made, grid, parts, sizes, adding_program(dtype, index, finish, parts), starts)


def _struct(product: Product, index: str, part: int, scale: float) -> Any:
    sizes = np.zeros((), _STRUCTS[index])
    sizes["rows"], sizes["columns"], sizes["depth"], sizes["part"] = product.rows, product.columns, product.depth, part
    sizes["left_row"], sizes["left_place"] = product.left
    sizes["right_column"], sizes["right_place"] = product.right
    sizes["out_row"], sizes["out_column"] = product.out
    sizes["matrices"], sizes["axes"], sizes["scale"] = product.matrices, len(product.stack), scale
    for number, axis in enumerate(product.stack):
        names = ("sizes", "left_steps", "right_steps", "out_steps")
        for name, value in zip(names, axis, strict=True):
            sizes[name][number] = value
    return sizes[()]


def program_of(
    dtype: np.dtype, tile: int, index: str, places: tuple[bool, ...], finish: Finish, *, parts: bool = False
) -> Program:
    """The program of a variant; `parts`: it leaves sums of parts."""
    more = {"ROWS": tile, "COLUMNS": tile, "PARTS": int(parts), **_read(index, places)}
    return program("products.cu", exact=finish.ordered, **more, **finish.macros, **macros_of(dtype))


def adding_program(dtype: np.dtype, index: str, finish: Finish, parts: int = 2) -> Program | None:
    """The program that adds parts; None where there is one part."""
    if parts == 1:
        return None
    return program("product_sums.cu", exact=False, INDEX=type_of(index), **finish.macros, **macros_of(dtype))


def _read(index: str, places: tuple[bool, ...]) -> dict[str, Any]:
    return {"INDEX": type_of(index), "LEFT_PLACES": int(places[0]), "RIGHT_PLACES": int(places[1])}


def type_of(index: str) -> str:
    """C++'s name of a type of indices."""
    return "int" if index == "i4" else "i64"


def _wide_sides(product: Product, starts: Any, dtype: np.dtype) -> tuple[bool, ...] | None:
    """Whether places of each side lie together, else lines do; None where 16 bytes of a side are not aligned."""
    found = []
    for number, (line, place), lines in ((0, product.left, product.rows), (1, product.right, product.columns)):
        steps = [axis[1 + number] for axis in product.stack] + [start[number] for start in starts]
        if any(step % wide(dtype) for step in steps):
            return None
        if place == 1 and (lines == 1 or line % wide(dtype) == 0):
            found.append(True)
        elif line == 1 and (product.depth == 1 or place % wide(dtype) == 0):
            found.append(False)
        else:
            return None
    return tuple(found)


def _on_tensor_cores(
    product: Product, dtype: np.dtype, finish: Finish, places: tuple[bool, ...], starts: Any
) -> Launch:
    tile, index = tile_for(product.rows, product.columns, product.matrices, dtype), _index(product)
    blocks = tile.blocks(product.rows, product.columns)
    parts, part = parts_of(blocks * product.matrices, product.depth, 4 * wide(dtype))
    made = tensor_program(dtype, tile, index, places, finish, parts=parts > 1)
    sizes, grid = _struct(product, index, part, finish.scale), grid_of(blocks * parts, product.matrices)
    shared = tile.shared(dtype, left_places=places[0], right_places=places[1])
    adding = adding_program(dtype, index, finish, parts)
    return Launch(made, grid, parts, sizes, adding, starts, tile.threads, shared, wide=True)


def tensor_program(
    dtype: np.dtype, tile: Tile, index: str, places: tuple[bool, ...], finish: Finish, *, parts: bool = False
) -> Program:
    """The program of a variant by tensor cores."""
    more = {"PARTS": int(parts), **_read(index, places), **tile.macros, **finish.macros, **macros_of(dtype)}
    return program("tensor_products.cu", exact=False, **more)


def multiply(
    launch: Launch, left: DeviceArray, right: DeviceArray, out: DeviceArray,
    bias: DeviceArray | None = None, residual: DeviceArray | None = None,
) -> DeviceArray:  # fmt: skip
    """Launch a product into an array that is not yet written."""
    operands: Any = [bits_of(x) for x in (left, right, out)]
    more = bits_of(bias), bits_of(residual)
    if len(launch.starts) == 1:
        _multiply(launch, *operands, *more)
        return out
    for starts in launch.starts:
        _multiply(launch, *map(_behind, operands, starts), *more)
    return out


def _multiply(launch: Launch, *arrays: Any) -> None:
    """Launch on left, right, result, bias and residual."""
    left, right, out, bias, residual = arrays
    runtime, sizes = out.runtime, launch.sizes
    if launch.parts == 1:
        arguments = (left, right, bias, residual, out, sizes)
        runtime.launch(launch.program, "multiply", launch.grid, launch.threads, arguments, launch.shared)
        return
    count = int(sizes["rows"]) * int(sizes["columns"]) * int(sizes["matrices"])
    parts = runtime.empty((launch.parts, count), computed_as(out.dtype)[1])
    arguments = (left, right, parts, sizes)
    runtime.launch(launch.program, "multiply_parts", launch.grid, launch.threads, arguments, launch.shared)
    assert launch.adding is not None
    runtime.each(launch.adding, "finish", count, (parts, bias, residual, out, np.int32(launch.parts), sizes))


def _steps(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def product_of(
    a: tuple[int, ...],
    b: tuple[int, ...],
    out: tuple[int, ...],
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Product:
    """The product of dense stacks of these shapes, which broadcast."""
    of_a, of_b = _steps(a), _steps(b)
    if transpose_a:
        a, of_a = _turned(a), _turned(of_a)
    if transpose_b:
        b, of_b = _turned(b), _turned(of_b)
    return _stacked(a, of_a, b, of_b, out, _steps(out))


def _turned(numbers: Any) -> tuple[int, ...]:
    return (*numbers[:-2], numbers[-1], numbers[-2])


def _stacked(a: Any, of_a: Any, b: Any, of_b: Any, out: Any, of_out: Any) -> Product:
    """The product of stacks with shapes and steps."""
    stack = []
    for axis, size in enumerate(out[:-2]):
        steps = []
        for shape, own in ((a, of_a), (b, of_b)):
            at = axis - (len(out) - len(shape))
            steps.append(own[at] if at >= 0 and shape[at] != 1 else 0)
        stack.append((size, *steps, of_out[axis]))
    sides = (of_a[-2], of_a[-1]), (of_b[-1], of_b[-2]), (of_out[-2], of_out[-1])
    return Product(out[-2], out[-1], a[-1], *sides, tuple(stack)).simplified()


@functools.lru_cache(4096)
def _launch(problem: Problem, architecture: int, tf32: bool) -> Launch:
    op, attrs = problem.op, problem.attrs
    fused = op.startswith("fused")
    finish = Finish(op == "ordered_matmul", fused, attrs.get("activation", "none"), attrs.get("scale", 1.0))
    return launch_of(_product(problem), storage_of(problem.inputs[0].dtype), finish, architecture)


def _product(problem: Problem) -> Product:
    (a, b), attrs, out = problem.inputs[:2], problem.attrs, problem.outputs[0]
    if problem.op == "fused_matmul":
        return _viewed(problem)
    ta, tb = attrs.get("transpose_a", False), attrs.get("transpose_b", problem.op == "fused_linear")
    return product_of(a.shape, b.shape, out.shape, transpose_a=ta, transpose_b=tb)


def _viewed(problem: Problem) -> Product:
    """The product of views (shape, steps, first element), whose axes the result has in another order."""
    (a, of_a, _), (b, of_b, _) = problem.attrs.views
    perm, shape = problem.attrs.perm, problem.outputs[0].shape
    of_out, sizes = [0] * len(shape), [0] * len(shape)
    for axis, step in enumerate(_steps(shape)):
        of_out[perm[axis]], sizes[perm[axis]] = step, shape[axis]
    return _stacked(a, of_a, b, of_b, sizes, of_out)


def _run(problem: Problem, a: DeviceArray, b: DeviceArray, *more: DeviceArray) -> DeviceArray:
    out = a.runtime.empty(problem.outputs[0].shape, a.dtype)
    if not out.size:
        return out
    launch = _launch(problem, a.runtime.architecture, Precision.tf32)
    if launch.wide and (a.address | b.address) % 16:
        launch = _launch(problem, 0, False)
    return multiply(launch, a, b, out, *more)


@functools.lru_cache(4096)
def _gemm(problem: Problem) -> Gemm | None:
    """How cuBLAS computes a problem; None where an own kernel does."""
    product = _product(problem)
    if problem.op == "fused_linear":
        least = _LEAST_FUSED[storage_of(problem.inputs[0].dtype).itemsize]
        if product.depth < least or product.stack:
            return None
    return gemm_of(product)


def _by_cublas(problem: Problem, a: DeviceArray, b: DeviceArray, *more: DeviceArray) -> DeviceArray:
    """The result by cuBLAS where the device has it, else by an own kernel."""
    libraries, out_spec = a.runtime.libraries, problem.outputs[0]
    gemm = _gemm(problem) if libraries is not None and libraries.multiplies else None
    if libraries is None or gemm is None or not out_spec.size:
        return _run(problem, a, b, *more)
    out = a.runtime.empty(out_spec.shape, a.dtype)
    if problem.op != "fused_linear":
        return libraries.gemm(gemm, a, b, out, problem.attrs.get("scale", 1.0))
    sums = libraries.gemm(gemm, a, b, a.runtime.empty(out_spec.shape, computed_as(a.dtype)[1]))
    adding, sizes = _finishing(problem)
    bias, residual = (*more, None)[:2]
    arguments = (sums, *map(bits_of, (bias, residual, out)), np.int32(1), sizes)
    a.runtime.each(adding, "finish", out.size, arguments)
    return out


@functools.lru_cache(4096)
def _finishing(problem: Problem) -> tuple[Program, np.void]:
    """What makes the result of a fused product out of its sums."""
    product, finish = _product(problem), Finish(fused=True, activation=problem.attrs.activation)
    adding = adding_program(storage_of(problem.inputs[0].dtype), "i8", finish)
    assert adding is not None
    return adding, _struct(product, "i8", product.depth, 1.0)


def _seen(problem: Problem, a: DeviceArray, b: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """The operands from the first elements of their views on."""
    (_, _, of_a), (_, _, of_b) = problem.attrs.views
    return _behind(a, of_a), _behind(b, of_b)


def _run_viewed(problem: Problem, a: DeviceArray, b: DeviceArray) -> DeviceArray:
    return _run(problem, *_seen(problem, a, b))


def _views_by_cublas(problem: Problem, a: DeviceArray, b: DeviceArray) -> DeviceArray:
    return _by_cublas(problem, *_seen(problem, a, b))


def _behind(array: DeviceArray, first: int) -> DeviceArray:
    """The elements from a place on."""
    address = array.address + first * array.dtype.itemsize
    return DeviceArray(array.runtime, array.owner, address, (array.size - first,), array.dtype)


def one_rounding(problem: Problem) -> str | None:
    """Why sums of one order are not made: those of halves would be rounded after each product. None if they are."""
    dtype = storage_of(problem.inputs[0].dtype)
    return f"{dtype} sums as float32" if dtype.itemsize == 2 and dtype.kind not in "iu" else None


def programs() -> Iterator[Program]:
    """Variants that are compiled in tests: every dtype, tile, order of reading and activation, not in all pairs."""
    plain, both, float32, float16 = Finish(), (True, False), np.dtype(np.float32), np.dtype(np.float16)
    for dtype in (np.float64, bfloat16, np.int8, np.int64, np.bool_):
        yield program_of(np.dtype(dtype), 64, "i4", both, plain)
    yield program_of(float32, 64, "i4", both, Finish(ordered=True))
    yield program_of(float32, 128, "i8", both, Finish(fused=True))
    yield program_of(float32, 128, "i4", both, plain, parts=True)
    yield tensor_program(float16, Tile(128, 128), "i4", both, plain, parts=True)
    for places in itertools.product((True, False), repeat=2):
        yield tensor_program(float16 if places[0] else float32, Tile(128, 128), "i4", places, plain)
    for activation, tile in zip(ACTIVATIONS, TILES, strict=False):
        yield tensor_program(bfloat16, tile, "i4", (True, True), Finish(fused=True, activation=activation))
    for activation in ACTIVATIONS[len(TILES) :]:
        adding = adding_program(float32, "i4", Finish(fused=True, activation=activation))
        assert adding is not None
        yield adding


def _for_cublas(problem: Problem) -> str | None:
    """Why cuBLAS is not asked for a product. None if it is, where the device has it."""
    dtype = storage_of(problem.inputs[0].dtype)
    return None if takes(dtype) else f"{dtype} is computed by the own kernels"


_RUNS = {
    "matmul": (_by_cublas, _run),
    "fused_linear": (_by_cublas, _run),
    "fused_matmul": (_views_by_cublas, _run_viewed),
}
KERNELS: dict[str, tuple[Kernel, ...]] = {
    op: (EagerKernel(f"cuda_cublas_{op}", by_cublas, _for_cublas), EagerKernel(f"cuda_{op}", own))
    for op, (by_cublas, own) in _RUNS.items()
}
KERNELS["ordered_matmul"] = (EagerKernel("cuda_ordered_matmul", _run, one_rounding),)
