"""Chains of ops on one number of 16 bits are tables in plans: the bits of the eager run, for every number there is."""

import numpy as np
import pytest

import megengine.functional as F
from megengine import plan, tensor
from megengine.core.dtype import bfloat16
from megengine.core.spec import TensorSpec
from megengine.kernels import isa
from megengine.tensor import Tensor
from megengine.traced_module import record

HALVES = {"bf16": bfloat16, "fp16": np.dtype(np.float16)}


def gelu(x):
    """As networks spell it."""
    return x * 0.5 * (1 + F.tanh(x * 0.75 * (1 + 0.05 * x * x)))


def every(kind):
    return np.arange(1 << 16, dtype=np.uint16).view(HALVES[kind]).reshape(1, 2, 256, 128)


def compiled(compute, *inputs, threads=1):
    graph = record(compute, [TensorSpec(x.shape, x.dtype) for x in inputs], name="net")
    return plan.compile(graph, threads=threads)


def kernels(made):
    return [info.kernel for info in made.steps]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", HALVES)
def test_every_number_has_the_bits_of_the_eager_run(kind):
    x = every(kind)
    for level in isa.available():
        with isa.capped(level):
            made, want = compiled(gelu, x), gelu(Tensor._wrap(x)).numpy()
            got = made(x)[0]
            assert kernels(made) == ["own_half_table"]
            assert got.dtype == x.dtype
            np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    apart = compiled(gelu, x, threads=3)(x)[0]
    np.testing.assert_array_equal(apart.view(np.uint16), got.view(np.uint16))


def test_one_table_for_the_same_chain():
    x = every("bf16")
    made = compiled(lambda a, b: [gelu(a), gelu(b), F.tanh(a) * a * a], x, x)
    tables = [id(e.inputs[1]) for e in made.graph.exprs() if getattr(e, "op", "") == "half_table"]
    assert len(tables) == 3
    assert len(set(tables)) == 2


def test_results_in_float32():
    """What an op without kernels for halves reads is widened by the table."""
    x = np.random.default_rng(0).standard_normal((1, 300, 301)).astype(bfloat16)
    made = compiled(lambda x: F.max(gelu(x), axis=2), x)
    assert "own_half_table" in kernels(made)
    want = F.max(gelu(Tensor._wrap(x)), axis=2).numpy()
    np.testing.assert_array_equal(made(x)[0].view(np.uint16), want.view(np.uint16))


@pytest.mark.parametrize("size", [15, 32767])
def test_few_numbers_are_computed(size):
    assert "own_half_table" not in kernels(compiled(gelu, np.zeros((3, size // 3), bfloat16)))


def test_what_is_no_map_is_computed():
    """Short chains, those of two values or of float32, and with a constant for each channel."""
    x, channels = every("bf16"), tensor(np.arange(2.0, dtype="float32").reshape(2, 1, 1))
    made = compiled(lambda x, y: [F.relu(x * 2), gelu(x * y), gelu(x * channels.astype("bfloat16"))], x, x)
    assert "own_half_table" not in kernels(made)
    assert "own_half_table" not in kernels(compiled(gelu, x.astype(np.float32)))
