"""C files compiled and run, their results beside those of the specification."""

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest

from megengine.convert.c.exporter import for_one_sample, source_of
from megengine.core.dtype import storage_of
from megengine.core.spec import TensorSpec
from megengine.quantization.checks.verify import specification
from megengine.tensor import Tensor
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.tracing.entry import on_processor

STRICT = ("-Wall", "-Wextra", "-Werror")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")


def compiled(folder, text, *flags, compiler="gcc", name="net"):
    """A library of the text."""
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(text if compiler == "g++" else with_strings(text))
    standard = () if compiler == "g++" or any(f.startswith("-std") for f in flags) else ("-std=c99",)
    made = folder / f"{name}.o"
    _run([compiler, *standard, *STRICT, *(flags or ("-O1",)), "-fPIC", "-c", str(source), "-o", str(made)])
    # a library that is linked with -ffast-math turns subnormal numbers off in the process that loads it
    _run([compiler, "-shared", str(made), "-o", str(library)])
    return ctypes.CDLL(str(library))


# how a string literal writes each byte
_ESCAPES = np.array([f"\\{byte:03o}".encode() for byte in range(256)])
_LARGE = 50_000  # characters


def with_strings(text):
    """The text with large arrays of bytes as string literals, which compilers read in a tenth of the time."""

    def string(found):
        values = np.fromstring(found["values"], np.int64, sep=",")
        assert int(found["size"]) == values.size
        assert values.min() >= -128 and values.max() <= 127
        return f'{found[1]}"{_ESCAPES[values.astype(np.int8).view(np.uint8)].tobytes().decode()}";'

    array = rf"(static const int8_t \w+\[(?P<size>\d+)\] = )\{{(?P<values>[-\d,\s]{{{_LARGE},}})\}};"
    return re.sub(array, string, text)


def _run(line):
    made = subprocess.run(line, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def number(text, name):
    """The value of a macro."""
    return int(re.search(rf"#define {name} (\d+)", text)[1])


class CFile:
    """A graph as a compiled C file."""

    def __init__(self, folder, model, *flags, compiler="gcc"):
        self.graph = for_one_sample(on_processor(getattr(model, "integer_graph", model)))
        self.text = source_of(self.graph, "net")
        self.library = compiled(folder, self.text, *flags, compiler=compiler)
        self.size = number(self.text, "NET_ARENA_SIZE")

    def __call__(self, *arrays):
        """The results; an arena that is full of other numbers, and what lies behind it stays as it is."""
        arena = np.full(self.size // 8 + 8, 0x5AA55AA55AA55AA5, np.int64)
        given = [np.ascontiguousarray(a) for a in arrays]
        results = [np.empty(n.shape, storage_of(n.spec.dtype)) for n in self.graph.outputs]
        self.library.net_run(*map(pointer, (*given, *results, arena)))
        assert (arena[self.size // 8 :] == 0x5AA55AA55AA55AA5).all()
        return results

    def check(self, *arrays):
        """Every result is that of the specification, bit for bit but for the sign of 0 and the kind of NaN."""
        wanted = specification(self.graph, arrays)
        for node, got in zip(self.graph.outputs, self(*arrays), strict=True):
            np.testing.assert_array_equal(got, wanted[node.name], err_msg=f"{node.name} {getattr(node.expr, 'op', '')}")


def extremes(graph, seeds=(0, 1)):
    """Inputs of a graph: all of the least and all of the largest numbers, and random ones over the whole range."""
    for fill in ("least", "most", *seeds):
        arrays = []
        for node in graph.inputs:
            dtype = storage_of(node.spec.dtype)
            if dtype == np.float32:
                bounds, zero = (-3e38, 3e38), np.random.default_rng(0).normal(size=node.shape)
            else:
                bounds, zero = (np.iinfo(dtype).min, np.iinfo(dtype).max), 0
            if fill in ("least", "most"):
                arrays.append(np.full(node.shape, bounds[fill == "most"], dtype))
            elif dtype == np.float32:
                arrays.append((np.random.default_rng(fill).normal(size=node.shape) * 3 + zero).astype(dtype))
            else:
                arrays.append(np.random.default_rng(fill).integers(*bounds, node.shape, dtype, endpoint=True))
        yield arrays


class Calls:
    """A graph of calls that have nothing to do with each other."""

    def __init__(self):
        self.graph, self.arrays, self.outputs = InternalGraph("calls"), [], []

    def operand(self, value, *, fixed):
        value = value if isinstance(value, Tensor) else Tensor(value)
        if fixed:
            return self.graph.constant(value)
        node = add_input(self.graph, f"x{len(self.arrays)}", TensorSpec(value.shape, value.dtype))
        self.arrays.append(np.array(value.numpy()))
        return node

    def add(self, op, values, attrs):
        fixed = [isinstance(v, np.ndarray) and (op.startswith("q") or v.dtype.kind in "iub") for v in values]
        nodes = [self.operand(v, fixed=f) for v, f in zip(values, fixed, strict=True)]
        results = self.graph.apply(op, *nodes, attrs=attrs)
        self.outputs += results if isinstance(results, (list, tuple)) else [results]

    def check(self, folder, *flags):
        set_outputs(self.graph, self.outputs)
        file = CFile(folder, self.graph, *flags)
        file.check(*self.arrays)
        for arrays in extremes(file.graph, seeds=(3,)):
            file.check(*arrays)


def stored(dtype, *shape, seed=0):
    values = np.random.default_rng(seed).integers(dtype.qmin, dtype.qmax + 1, shape)
    return Tensor._wrap(values.astype(dtype.storage), dtype)
