"""Maps of 8-bit integers by channels become tables in plans: the same integers at every level, with fewer steps."""

import numpy as np
import pytest

from megengine import plan
from megengine.core.dtype import qint8, quantized, quint8
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply
from megengine.kernels import isa
from megengine.plan import pictures, tables
from megengine.tensor import Tensor
from megengine.traced_module import record

PLACE = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "lo": -128, "ratio": 0.0}
A, B, C = quint8(0.05, 3), quint8(0.0625, 128), qint8(0.1)


def draw(*shape, dtype=A):
    return np.random.default_rng(shape).integers(dtype.qmin, dtype.qmax + 1, shape).astype(dtype.storage)


def moved(x, dtype, ratio=0.6875):
    z = dtype.zero_point
    return apply("requantize", x, ratio=ratio, lo=dtype.qmin - z, hi=dtype.qmax - z - 5, dtype=dtype)


def affine(x, dtype=C):
    """A layer with a factor and a term of its own for each channel."""
    c, rng = x.shape[1], np.random.default_rng(x.shape[1])
    w = rng.integers(-127, 128, (c, 1, 1, 1)).astype(np.int8)
    b, m = rng.integers(-999, 999, c).astype(np.int32), rng.uniform(1e-3, 2e-2, c).astype(np.float32)
    constants = (w, b, m, rng.uniform(-9, 9, c).astype(np.float32))
    attrs = {**PLACE, "lo": dtype.qmin, "hi": dtype.qmax, "dtype": dtype, "groups": c}
    return apply("qconv2d", x, *map(Tensor, constants), **attrs)


def turned(x, dtype=C, axis=None):
    shape = (256,) if axis is None else (x.shape[1], 256)
    return apply("qtable", x, Tensor(draw(*shape, dtype=dtype)), dtype=dtype, axis=axis)


def joined(*xs):
    return apply("concat", *xs, axis=1)


def kept(x):
    """A window of one place, for which values lie channels-last."""
    return apply("max_pool2d", x, kernel=(2, 2), stride=(1, 1), padding=((0, 0), (0, 0)))


def check(function, *arrays, dtypes=(A, A, A), threads=(1, 3)):
    """Equal to eager calls at every level, with and without vectors; the steps with vectors."""
    specs = [TensorSpec(a.shape, d) for a, d in zip(arrays, dtypes, strict=False)]
    graph, found = record(function, specs), None
    wanted = function(*(Tensor._wrap(a, s.dtype) for a, s in zip(arrays, specs, strict=True)))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for level in isa.available():
        with isa.capped(level):
            for count in threads:
                made = plan.compile(graph, threads=count)
                for got, want in zip(made(*arrays), wanted, strict=True):
                    np.testing.assert_array_equal(got, want.numpy())
                found = made.steps
    return [s.kernel for s in found if s.op not in ("to_rows", "to_channels_last", "to_result")]


@pytest.fixture(autouse=True)
def by_vectors(monkeypatch):
    """As if every level could look up tables of channels by vectors."""
    monkeypatch.setattr(tables, "has_fast_channel_lookup", lambda: True)


@pytest.mark.parametrize("channels", [(1, 1), (16, 3), (5, 64, 17), (65, 130)])
@pytest.mark.parametrize("size", [(13, 12), (17, 17)])
def test_joined_maps_are_one_step(channels, size):
    def function(*xs):
        maps = [moved(kept(x), C, 0.5 + i / 8) for i, x in enumerate(xs)]
        return kept(turned(affine(joined(*maps))))

    steps = check(function, *(draw(1, c, *size) for c in channels))
    assert steps.count("int8_joined_tables") == 1
    assert {s for s in steps if "pool" not in s} == {"int8_joined_tables"}


def test_maps_in_a_row_are_one_table():
    steps = check(lambda x: kept(turned(affine(moved(kept(x), B)), A, axis=1)), draw(2, 19, 14, 14))
    assert [s for s in steps if "pool" not in s] == ["int8_table"]


def test_a_layer_of_single_channels_is_a_table_and_a_requantization_is_none():
    assert "int8_table" in check(lambda x: kept(affine(kept(x))), draw(1, 24, 15, 15))
    assert "int8_table" not in check(lambda x: kept(moved(kept(x), B)), draw(1, 24, 15, 15))


def test_values_that_others_read_stay():
    def function(x, y):
        first = moved(kept(x), C)
        both = joined(first, moved(kept(y), C, 1.5))
        return kept(affine(both)), kept(both), kept(first)

    steps = check(function, draw(1, 8, 16, 16), draw(1, 9, 16, 16))
    assert "int8_depthwise" not in steps and "int8_requantize" in steps


def test_maps_of_outputs_stay():
    def function(x, y):
        between = moved(kept(x), C)
        return kept(affine(joined(between, moved(kept(y), C)))), between

    check(function, draw(1, 8, 16, 16), draw(1, 9, 16, 16))


def test_what_is_joined_as_it_is_has_no_table_of_its_own():
    steps = check(lambda x, y: kept(joined(kept(x), moved(kept(y), A))), draw(1, 8, 16, 16), draw(1, 9, 16, 16))
    assert [s for s in steps if "pool" not in s] == ["int8_joined_tables"]
    in_rows = check(lambda x, y: joined(x, moved(y, A)), draw(1, 8, 16, 16), draw(1, 9, 16, 16))
    assert in_rows.count("int8_table") == 1


def test_a_value_joined_twice_and_one_of_other_signs():
    def function(x, y):
        x, y = kept(x), kept(y)
        return kept(affine(joined(moved(x, A, 2.0), moved(x, A, 0.25), moved(y, A), turned(y, A))))

    steps = check(function, draw(1, 8, 16, 16), draw(1, 33, 16, 16, dtype=C), dtypes=(A, C))
    assert steps.count("int8_joined_tables") == 1


def test_integers_of_four_bits():
    small = quantized("qint4", 0.25)
    x = draw(1, 8, 16, 16, dtype=small)
    steps = check(lambda x: kept(affine(moved(kept(x), small), small)), x, dtypes=(small,))
    assert "int8_table" in steps


def test_small_pictures_are_left_alone():
    steps = check(lambda x: kept(affine(moved(kept(x), B))), draw(1, 24, 6, 6))
    assert "int8_table" not in steps


def test_tables_of_joins_that_pictures_go_through_alone(monkeypatch):
    """Where the op that looks them up is in such a part, they are, too; large tables take the whole batch."""
    monkeypatch.setattr(pictures, "_CACHE", 1 << 10)

    def function(x, y):
        return kept(kept(joined(moved(kept(x), C), affine(moved(kept(y), A)))))

    few, many = draw(3, 8, 16, 16), draw(3, 1024, 8, 8)
    assert check(function, few, few) == ["own_each_picture"]
    steps = check(function, many, many)
    assert "int8_joined_tables" in steps and "own_each_picture" not in steps


@pytest.mark.parametrize("dtype", [A, C, quint8(0.25, 255), quantized("qint4", 0.5), quantized("qint16", 0.001)])
def test_truths_are_quantized_by_choosing(dtype):
    """As the rows of one 1 that words are in front of a product with an embedding."""

    def function(x):
        found = apply("cast", apply("equal", x, Tensor(np.arange(9, dtype=np.int32))), dtype=np.dtype(np.float32))
        return apply("quantize", found, dtype=dtype), apply("quantize", found * 2.0, dtype=dtype)

    x = np.random.default_rng(1).integers(0, 9, (40, 1)).astype(np.int32)
    assert check(function, x, dtypes=(np.dtype(np.int32),)).count("own_elementwise") >= 2
