"""Products of matrices on a GPU: every form, by tiles and by tensor cores."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import bfloat16
from megengine.dispatch import get_op
from megengine.kernels.cuda import products, tensor_cores

PLAIN = {"transpose_a": False, "transpose_b": False}
FORMS = [(ta, tb) for ta in (False, True) for tb in (False, True)]
_RNG = np.random.default_rng(0)


def whole(dtype, *shape):
    """Small whole numbers: their sums are exact in every order, in halves too."""
    return _RNG.integers(-4, 5, shape).astype(dtype)


def pair(dtype, rows, depth, columns, *, ta=False, tb=False, lead=()):
    """Operands and their exact product in float64."""
    a = whole(dtype, *lead, *((depth, rows) if ta else (rows, depth)))
    b = whole(dtype, *lead, *((columns, depth) if tb else (depth, columns)))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    wide_a = wide_a.swapaxes(-1, -2) if ta else wide_a
    return (a, b), wide_a @ (wide_b.swapaxes(-1, -2) if tb else wide_b)


def product(dtype, rows, depth, columns, *, gpu=None, file=None, **form):
    """Check a product whose result is exact; `file` is the source that must have run."""
    gpu = gpu or EmulatedGpu()
    inputs, wanted = pair(dtype, rows, depth, columns, **form)
    attrs = {"transpose_a": form.get("ta", False), "transpose_b": form.get("tb", False)}
    same(on_gpu("matmul", inputs, attrs, gpu=gpu), (wanted.astype(dtype),))
    assert file is None or gpu.launched[0][0] == file, gpu.launched


@pytest.fixture
def tf32(monkeypatch):
    monkeypatch.setattr(tensor_cores.Precision, "tf32", True)


SAMPLED = [
    pytest.param(op, sample, id=f"{op}-{number}")
    for op in ("matmul", "fused_linear", "fused_matmul")
    for number, sample in enumerate(get_op(op).samples())
    if sample.attrs.get("activation") in (None, "none", "relu", "gelu")
]


@pytest.mark.parametrize(("op", "sample"), SAMPLED)
def test_samples(op, sample):
    inputs = [narrowed(x) for x in sample.inputs]
    same(on_gpu(op, inputs, sample.attrs), by_reference(op, inputs, sample.attrs), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["matmul", "fused_linear", "fused_matmul"])
def test_every_sample_in_float64_and_float32(op):
    for sample in get_op(op).samples():
        same(
            on_gpu(op, sample.inputs, sample.attrs),
            by_reference(op, sample.inputs, sample.attrs),
            rtol=1e-12,
            atol=1e-12,
        )
        inputs = [narrowed(x) for x in sample.inputs]
        same(on_gpu(op, inputs, sample.attrs), by_reference(op, inputs, sample.attrs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65])
def test_edges_of_tiles(n):
    product(np.float32, n, 17, 5)
    product(np.float32, 5, 17, n)
    product(np.float32, 7, n, 3)


@pytest.mark.parametrize(("ta", "tb"), FORMS)
def test_transposed(ta, tb):
    product(np.float32, 70, 33, 66, ta=ta, tb=tb, file="products.cu")


@pytest.mark.parametrize("order", ORDERS)
def test_thread_orders(order):
    product(np.float32, 70, 40, 66, gpu=EmulatedGpu(order=order))
    product(np.float16, 72, 72, 88, gpu=EmulatedGpu(order=order), file="tensor_products.cu")


def test_large_tiles(monkeypatch):
    monkeypatch.setattr(products, "MULTIPROCESSORS", 1)
    gpu = EmulatedGpu()
    product(np.float32, 130, 20, 260, gpu=gpu)
    product(np.float32, 257, 9, 129, ta=True)


def test_long_sums_are_split_and_as_exact_as_pairwise_ones():
    a, b = (_RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 20000), (20000, 5)))
    gpu = EmulatedGpu()
    (found,) = on_gpu("matmul", (a, b), PLAIN, gpu=gpu)
    assert [kernel for _, kernel in gpu.launched] == ["multiply_parts", "finish"]
    exact = a.astype(np.float64) @ b.astype(np.float64)
    pairwise = (a[:, :, None] * b[None]).sum(axis=1)
    assert np.abs(found - exact).max() <= 2 * np.abs(pairwise - exact).max() + 1e-5


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "i4", "u4", "i8", "?"])
def test_integers_wrap_like_numpy(dtype):
    a, b = _RNG.integers(0, 120, (2, 3, 1, 5, 6)).astype(dtype), _RNG.integers(0, 120, (4, 6, 7)).astype(dtype)
    same(on_gpu("matmul", (a, b), PLAIN), (a @ b,))


def test_stacks_of_many_axes_take_turns():
    a, b = whole(np.float32, *(2, 1) * 5, 3, 4), whole(np.float32, *(1, 2) * 5, 4, 2)
    same(on_gpu("matmul", (a, b), PLAIN), (a @ b,))


def test_rows_of_stacks_are_joined():
    made = products.product_of((6, 5, 4), (4, 3), (6, 5, 3))
    assert (made.rows, made.stack) == (30, ())


@pytest.mark.parametrize("sample", list(get_op("ordered_matmul").samples()))
def test_ordered_products_have_the_bits_of_the_reference(sample):
    for inputs in (sample.inputs, [narrowed(x) for x in sample.inputs]):
        same(on_gpu("ordered_matmul", inputs, sample.attrs), by_reference("ordered_matmul", inputs, sample.attrs))


def test_ordered_products_are_one_chain_where_others_split():
    a, b = (_RNG.standard_normal(shape).astype(np.float32) for shape in ((2, 3000), (3000, 3)))
    same(on_gpu("ordered_matmul", (a, b), PLAIN), by_reference("ordered_matmul", (a, b), PLAIN))


@pytest.mark.parametrize(("ta", "tb"), FORMS)
def test_tensor_cores(ta, tb):
    product(np.float16, 72, 40, 88, ta=ta, tb=tb, file="tensor_products.cu")


def test_tensor_cores_split_long_sums():
    product(np.float16, 16, 1040, 24, ta=True, file="tensor_products.cu")


def test_tensor_cores_stack():
    product(bfloat16, 8, 16, 8, lead=(3,), file="tensor_products.cu")


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, True)])
def test_tf32_by_a_setting(tf32, ta, tb):
    product(np.float32, 36, 20, 44, ta=ta, tb=tb, file="tensor_products.cu")


def test_tf32_reads_ten_bits(tf32):
    one = np.full((4, 4), 1 + 2.0**-12, np.float32)
    (found,) = on_gpu("matmul", (one, one), PLAIN)
    np.testing.assert_array_equal(found, 4)


def test_operands_that_are_not_aligned_go_without_tensor_cores():
    product(np.float16, 9, 7, 5, tb=True, file="products.cu")
    product(np.float16, 8, 8, 8, gpu=EmulatedGpu(architecture=75), file="products.cu")


@pytest.mark.slow
@pytest.mark.parametrize("tile", tensor_cores.TILES, ids=str)
@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32], ids=str)
def test_every_tile_of_tensor_cores(monkeypatch, tf32, tile, dtype):
    monkeypatch.setattr(products, "tile_for", lambda *_: tile)
    products._launch.cache_clear()
    for order in ORDERS:
        for ta, tb in FORMS:
            product(dtype, 264, 72, 280, ta=ta, tb=tb, gpu=EmulatedGpu(order=order), file="tensor_products.cu")
    products._launch.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
def test_far_elements(monkeypatch, dtype):
    """Matrices whose places take 64 bits, which those of the test do not need."""
    monkeypatch.setattr(products, "_FARTHEST", 1)
    products._launch.cache_clear()
    product(dtype, 16, 24, 72, tb=True)
    product(dtype, 8, 1040, 16)
    products._launch.cache_clear()
