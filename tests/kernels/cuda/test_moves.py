"""Ops that move elements, on the emulated GPU, beside NumPy: equal bits."""

import itertools

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, problem_of, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import bfloat16, quantized
from megengine.dispatch import get_op
from megengine.kernels.cuda import bordering, moves, parts, walks
from megengine.tensor import Tensor

SAMPLED = [op for op in moves.KERNELS if op != "copy"]
DTYPES = [np.bool_, np.int8, np.uint8, np.int16, np.float16, bfloat16, np.int32, np.float32, np.int64, np.float64]


def numbers(*shape, dtype=np.float32):
    values = np.arange(np.prod(shape, dtype=int)) * 37 % 251
    return (values % 2 if dtype is np.bool_ else values).reshape(shape).astype(dtype)


def check(op, inputs, gpu=None, **attrs):
    same(on_gpu(op, inputs, attrs, gpu=gpu), by_reference(op, inputs, attrs))


@pytest.mark.parametrize("op", SAMPLED)
def test_samples(op):
    for sample in get_op(op).samples():
        for inputs in ([narrowed(x) for x in sample.inputs], sample.inputs):
            same(on_gpu(op, inputs, sample.attrs), by_reference(op, inputs, sample.attrs))


PERMS = [
    ((2, 3, 5, 7), (0, 2, 3, 1)),
    ((2, 16, 5, 7), (0, 2, 3, 1)),
    ((2, 5, 7, 16), (0, 3, 1, 2)),
    ((31, 33), (1, 0)),
    ((32, 32), (1, 0)),
    ((64, 128), (1, 0)),
    ((8, 9, 10), (2, 1, 0)),
    ((40, 3, 40), (2, 1, 0)),
    ((2, 3, 2, 3, 2, 3), (5, 3, 1, 0, 2, 4)),
    ((6, 5, 16), (1, 0, 2)),
    ((6, 5, 4), (1, 0, 2)),
    ((9, 10, 4), (1, 0, 2)),
    ((3, 1, 4, 1), (3, 2, 1, 0)),
    ((), ()),
    ((1, 1), (1, 0)),
    ((4, 0, 3), (2, 0, 1)),
    ((2,) * 14, tuple(reversed(range(14)))),
]


@pytest.mark.parametrize("shape, perm", PERMS)
def test_transposes_of_every_size_of_elements(shape, perm):
    for dtype in (np.int8, bfloat16, np.float32, np.float64):
        check("transpose", (numbers(*shape, dtype=dtype),), perm=perm)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", ORDERS)
def test_tiles_in_every_order_of_threads(order, dtype):
    for n, m in itertools.product((31, 32, 36), (33, 64, 132)):
        gpu = EmulatedGpu(order=order)
        check("transpose", (numbers(2, n, m, dtype=dtype),), gpu, perm=(0, 2, 1))
        assert gpu.launched == [("tiles.cu", "move_tiles")]


@pytest.mark.parametrize("order", ORDERS)
def test_a_block_goes_on_with_the_next_tile(order, monkeypatch):
    monkeypatch.setattr(walks, "BLOCKS", 2)
    walks.move.cache_clear()
    moves._transposition.cache_clear()
    try:
        check("transpose", (numbers(3, 40, 70),), EmulatedGpu(order=order), perm=(0, 2, 1))
    finally:
        walks.move.cache_clear()
        moves._transposition.cache_clear()


def launched(op, inputs, **attrs):
    gpu = EmulatedGpu()
    check(op, inputs, gpu, **attrs)
    return [kernel for _, kernel in gpu.launched]


def test_what_needs_no_launch_launches_none():
    x = numbers(2, 3, 4)
    assert launched("reshape", (x,), shape=(6, 4)) == []
    assert launched("transpose", (numbers(2, 1, 3),), perm=(1, 0, 2)) == []
    gpu = EmulatedGpu()
    same(on_gpu("copy", (x,), {"device": "gpu0"}, gpu=gpu), (x,))
    assert gpu.launched == []


def test_copies_between_devices():
    x = numbers(3, 4)
    gpu = EmulatedGpu()
    there = moves._copy(problem_of("copy", (x,), {"device": "cpu0"}), gpu.upload(x))
    np.testing.assert_array_equal(there, x)
    assert isinstance(there, np.ndarray)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moves_of_every_dtype(dtype):
    x, y = numbers(4, 5, 8, dtype=dtype), numbers(4, 2, 8, dtype=dtype)
    check("broadcast_to", (x[:, :1],), shape=(2, 4, 5, 8))
    check("slice", (x,), starts=(None, 3, 1), stops=(None, None, 7), steps=(-1, -1, 2))
    check("slice", (x,), starts=(1, 0, 0), stops=(3, 5, 8), steps=(1, 1, 1))
    check("slice_backward", (x[:2],), shape=(6, 5, 8), starts=(1, 0, 0), stops=(3, 5, 8), steps=(1, 1, 1))
    check("slice_backward", (x[:2],), shape=(6, 5, 8), starts=(4, 4, 0), stops=(0, None, 8), steps=(-2, -1, 1))
    check("concat", (x, y, x), axis=-2)
    check("split", (x,), sections=(1, 0, 4), axis=1)
    check("fused_repeat", (x,), counts=(2, 1, 3))
    for mode in ("constant", "edge", "reflect"):
        check("pad", (x,), widths=((1, 2), (0, 0), (3, 4)), mode=mode, value=1.0)
        check("pad", (x,), widths=((1, 2), (0, 0), (0, 0)), mode=mode, value=1.0)


def test_rows_that_stay_together_move_in_wide_units():
    sizes = set()
    for width in (16, 8, 4, 2, 1):
        made = walks.move((3, width), (2 * width, 1), (width, 1), 1)
        sizes.add((width, made.unit))
    assert sizes == {(16, 16), (8, 8), (4, 4), (2, 2), (1, 1)}
    assert walks.move((8,), (1,), (1,), 4, (1, 0)).unit == 4


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 17])
def test_parts_are_joined_and_cut_eight_at_once(count):
    for dtype, inner in ((np.int8, 3), (np.float16, 8), (np.float32, 4), (np.float64, 1), (np.complex128, 1)):
        xs = tuple(numbers(3, (k * 5) % 4, inner, dtype=dtype) + k for k in range(count))
        xs = tuple(x.astype(dtype) for x in xs)
        for axis in (1, -2):
            assert len(launched("concat", xs, axis=axis)) == -(-sum(x.size > 0 for x in xs) // 8)
        whole = np.concatenate(xs, axis=1)
        sections = tuple(x.shape[1] for x in xs)
        assert count == 1 or len(launched("split", (whole,), sections=sections, axis=1)) <= -(-count // 8)
    rows = tuple(numbers(k + 1, 5) for k in range(count))
    check("concat", rows, axis=0)
    check("split", (np.concatenate(rows),), sections=(*range(1, count + 1), 0), axis=0)


def test_parts_at_other_addresses_are_copied_one_by_one():
    gpu, x = EmulatedGpu(), numbers(3, 8)
    held = gpu.upload(np.concatenate([[0], x.ravel()]).astype(np.float32))
    shifted = moves.DeviceArray(gpu, held.owner, held.address + 4, x.shape, x.dtype)
    joining = problem_of("concat", (x, x), {"axis": 1})
    np.testing.assert_array_equal(parts.concat(joining, shifted, gpu.upload(x)).numpy(), np.concatenate([x, x], 1))
    cutting = problem_of("split", (x,), {"axis": 1, "sections": (4, 4)})
    for found, want in zip(parts.split(cutting, shifted), np.split(x, 2, 1), strict=True):
        np.testing.assert_array_equal(found.numpy(), want)


def test_arrays_that_begin_between_wide_units_are_copied():
    gpu = EmulatedGpu()
    x = numbers(17, 64)
    held = gpu.upload(np.concatenate([[0], x.ravel()]).astype(np.float32))
    shifted = moves.DeviceArray(gpu, held.owner, held.address + 4, x.shape, x.dtype)
    np.testing.assert_array_equal(moves.strided_copy(shifted, (17, 32), (64, 2)).numpy(), x[:, ::2])
    np.testing.assert_array_equal(moves.strided_copy(shifted, (16, 64), (64, 1), 64).numpy(), x[1:])
    out = gpu.empty((19, 64), np.float32)
    bordering.padding(x.shape, ((1, 1), (0, 0)), "constant", bytes(4))(out, shifted)
    np.testing.assert_array_equal(out.numpy(), np.pad(x, ((1, 1), (0, 0))))
    bytes_ = numbers(64, 64, dtype=np.int8)
    held = gpu.upload(np.concatenate([[0], bytes_.ravel()]).astype(np.int8))
    shifted = moves.DeviceArray(gpu, held.owner, held.address + 1, bytes_.shape, bytes_.dtype)
    np.testing.assert_array_equal(moves.transposed(shifted, (1, 0)).numpy(), bytes_.T)


def test_large_copies_are_several_launches(monkeypatch):
    for module in (walks, bordering):
        monkeypatch.setattr(module, "LIMIT", 50)
    for cache in (walks.move, bordering.padding, parts._parts, moves._padding):
        cache.cache_clear()
    try:
        x = numbers(5, 7, 3)
        assert len(launched("transpose", (x,), perm=(2, 1, 0))) == 3
        assert len(launched("transpose", (numbers(3, 60, 5),), perm=(1, 2, 0))) == 19
        assert len(launched("pad", (x,), widths=((1, 1), (2, 0), (0, 1)), mode="reflect", value=0.0)) == 7
        assert len(launched("pad", (numbers(9, 9),), widths=((1, 1), (2, 0)), mode="constant", value=2.0)) > 1
    finally:
        for cache in (walks.move, bordering.padding, parts._parts, moves._padding):
            cache.cache_clear()


def test_axes_of_borders_are_numbered_in_32_bits():
    """Axes side by side are not joined to one of 2**31 elements or more, which the kernel's fields do not hold."""
    joined = bordering.padding((1 << 17, 1 << 16), ((0, 0), (0, 0)), "constant", bytes(1), 1)
    apart = bordering.padding((1 << 10, 1 << 10), ((0, 0), (0, 0)), "constant", bytes(1), 1)
    assert int(joined.launches[0].arguments[0]["axes"]) == 2 and int(apart.launches[0].arguments[0]["axes"]) == 1
    assert sum(int(one.arguments[2]) for one in joined.launches) == 1 << 33


def test_division_by_multiplication_is_exact():
    for size in [*range(1, 70), 127, 128, 129, 1000, 65535, 65536, 65537, 2**30 + 1, 2**31 - 1]:
        fields = walks.divisors([size])
        (magic,), (shift,) = fields["magic"], fields["shift"]
        assert 0 < magic < 2**32
        for n in {0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2**31 - 1, 2**31 // size * size - 1}:
            if 0 <= n < 2**31:
                assert ((n * magic >> 32) + n) >> shift == n // size, (n, size)


def test_quantized_borders_are_the_integer_of_the_value():
    x = Tensor._wrap(numbers(3, 4, dtype=np.int8), quantized("qint8", 0.5, 3))
    for value in (0.0, 2.0, 1e6):
        check("pad", (x,), widths=((1, 0), (0, 2)), mode="constant", value=value)
    by_channel = Tensor._wrap(numbers(3, 4, dtype=np.int8), quantized("qint8", (0.5, 1.0, 2.0), axis=0))
    check("pad", (by_channel,), widths=((1, 0), (0, 2)), mode="edge", value=0.0)
    with pytest.raises(AssertionError, match="has a scale per channel"):
        on_gpu("pad", (by_channel,), {"widths": ((1, 0), (0, 2)), "mode": "constant", "value": 0.0})


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_arrays(shape):
    x = numbers(*shape)
    check("pad", (x,), widths=((1, 2), (0, 1)), mode="constant", value=1.0)
    check("concat", (x, x), axis=1)
    check("split", (x,), sections=(shape[1], 0), axis=1)
    check("broadcast_to", (x,), shape=(2, *shape))
    check("slice_backward", (x,), shape=(9, 9), starts=(4, 5), stops=(4 + shape[0], 5 + shape[1]), steps=(1, 1))


WINDOWS = [
    ((2, 3, 9), {"kernel": (3,), "stride": (2,), "padding": ((1, 2),), "dilation": (2,)}),
    (
        (1, 2, 5, 4, 6),
        {"kernel": (2, 3, 2), "stride": (1, 2, 3), "padding": ((0, 1), (1, 0), (1, 1)), "dilation": (1, 1, 2)},
    ),
]


@pytest.mark.parametrize("shape, attrs", WINDOWS)
def test_windows_of_other_numbers_of_axes(shape, attrs):
    for dtype in (np.float16, np.float32, np.int32, np.uint8):
        x = numbers(*shape, dtype=dtype)
        check("unfold", (x,), value=3.0, **attrs)
        (cols,) = by_reference("unfold", (x,), {"value": 0.0, **attrs})
        rest = {k: v for k, v in attrs.items() if k != "kernel"}
        if dtype is np.float16:  # summed in float32, rounded once
            got = on_gpu("fold", (cols,), {"size": shape[2:], **rest})[0]
            want = by_reference("fold", (cols.astype(np.float32),), {"size": shape[2:], **rest})[0]
            np.testing.assert_array_equal(got, want.astype(np.float16))
        else:
            check("fold", (cols,), size=shape[2:], **rest)


def test_sums_of_windows_add_in_the_references_order():
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6, 3, 3)).astype(np.float32)
    check("fold", (x,), size=(6, 6), stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1))


def test_a_small_array_travels_with_the_launch():
    gpu = EmulatedGpu()
    for value in (np.arange(64, dtype=np.int32), np.array(3.5), np.zeros((0, 2), np.int8)):
        np.testing.assert_array_equal(moves.constant(gpu, value).numpy(), value)


def test_programs_hold_every_launched_source():
    assert {p.file for p in moves.programs()} == {"moves.cu", "tiles.cu", "constants.cu", "parts.cu", "windows.cu"}


PLAIN = {"kernel": (1, 1), "value": 0.0, "stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}


def test_complex_numbers_are_moved_and_not_computed_with():
    for dtype in (np.complex64, np.complex128):
        x = numbers(3, 4).astype(dtype) * (1 + 2j)
        check("transpose", (x,), perm=(1, 0))
        check("concat", (x, x), axis=0)
        check("pad", (x,), widths=((1, 0), (0, 1)), mode="constant", value=1.0)
        check("slice", (x,), starts=(0, 1), stops=(3, 4), steps=(2, 1))
        with pytest.raises(AssertionError, match="no kernel computes with complex"):
            on_gpu("unfold", (x[None, None],), PLAIN)
