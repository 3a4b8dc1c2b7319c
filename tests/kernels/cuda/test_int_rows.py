"""Integer averages, softmax, normalization and products on the emulated GPU equal their references in every value."""

import itertools

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, problem_of, same
from emulated_gpu import ORDERS, EmulatedGpu, LaunchError

from megengine.core.dtype import quantized
from megengine.dispatch import get_op
from megengine.kernels.cuda import int_products, int_rows, int_windows
from megengine.kernels.cuda.int_layout import to_first, to_last
from megengine.kernels.cuda.runtime import installed
from megengine.kernels.reference import integer
from megengine.tensor import Tensor

f32 = np.float32
TYPES = [("quint8", "qint8"), ("qint8", "quint8"), ("qint16", "qint16")]


def grid(rng, name, scale=0.05):
    dtype = quantized(name, scale)
    return dtype if name == "qint16" else quantized(name, scale, int(rng.integers(dtype.qmin, dtype.qmax + 1)))


def stored(rng, dtype, shape):
    return Tensor._wrap(rng.integers(dtype.qmin, dtype.qmax + 1, shape).astype(dtype.storage), dtype)


def check(op, inputs, attrs, order=ORDERS[0]):
    same(on_gpu(op, inputs, attrs, gpu=EmulatedGpu(order=order)), by_reference(op, inputs, attrs))


@pytest.mark.parametrize("op", [*int_products.KERNELS, *int_rows.KERNELS, *int_windows.KERNELS])
def test_samples(op):
    for sample in get_op(op).samples():
        check(op, [narrowed(v) for v in sample.inputs], sample.attrs)


AXES = [((2, 5, 7, 7), (2, 3)), ((2, 5, 7, 3), (0, 2)), ((3, 4, 5), (1,)), ((3, 4, 5), None), ((1, 1), 0), ((6,), -1),
        ((2, 3, 4, 5, 2), (0, 2, 4)), ((0, 3), 1), ((2, 9, 3), (-1, 0)), ((1, 70, 64), 1)]  # fmt: skip


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("op", ["qmean", "qsum"])
@pytest.mark.parametrize(("x", "y"), TYPES)
def test_means(op, keepdims, x, y):
    rng = np.random.default_rng(1)
    for shape, axis in AXES:
        y_type = grid(rng, y, 2.0 if op == "qsum" else 0.02)
        check(op, (stored(rng, grid(rng, x), shape),), {"axis": axis, "keepdims": keepdims, "dtype": y_type})


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(3, 4100), (2, 40), (1, 5000), (4100, 3)])
def test_sums_by_warps_and_blocks(shape, order):
    rng = np.random.default_rng(2)
    for axis in (0, 1):
        attrs = {"axis": axis, "keepdims": False, "dtype": grid(rng, "qint8", 0.01)}
        check("qmean", (stored(rng, grid(rng, "quint8"), shape),), attrs, order)


WINDOWS = [((2, 3, 7, 6), (3, 3), (2, 2), ((1, 1), (1, 1))), ((1, 2, 4, 5), (2, 3), (1, 2), ((0, 1), (2, 0))),
           ((1, 1, 1, 1), (1, 1), (1, 1), ((0, 0), (0, 0))), ((2, 5, 8, 8), (8, 8), (1, 1), ((0, 0), (0, 0))),
           ((0, 3, 4, 4), (2, 2), (2, 2), ((0, 0), (0, 0)))]  # fmt: skip


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize(("x", "y"), TYPES)
def test_averages(x, y, padded):
    rng = np.random.default_rng(3)
    for shape, kernel, stride, padding in WINDOWS:
        attrs = {"kernel": kernel, "stride": stride, "padding": padding, "count_include_pad": padded}
        attrs["dtype"] = grid(rng, y, 0.01)
        inputs = (stored(rng, grid(rng, x), shape),)
        check("qavg_pool2d", inputs, attrs)
        problem = problem_of("qavg_pool2d", inputs, attrs)
        with installed(EmulatedGpu()) as gpu:
            y_last = int_windows.average_last(problem, to_last(gpu.upload(np.asarray(inputs[0]._storage()))))
            same((gpu.download(to_first(y_last)),), by_reference("qavg_pool2d", inputs, attrs))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("x", "y"), TYPES)
def test_softmax(x, y, order):
    rng = np.random.default_rng(4)
    for shape, axis in (((3, 50), -1), ((2, 3, 4), 1), ((1, 1), 0), ((5, 33), 0), ((9, 32), 1)):
        x_type = grid(rng, x, 0.03)
        table = integer.softmax_table(x_type.scale, x_type.codes)
        check("qsoftmax", (stored(rng, x_type, shape), table), {"axis": axis, "dtype": grid(rng, y, 1 / 256)}, order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("x", "y"), TYPES)
@pytest.mark.parametrize("centred", [True, False])
def test_norms(x, y, centred, order):
    rng = np.random.default_rng(5)
    for shape, axes in (((3, 20), 1), ((2, 3, 4, 5), 2), ((9, 1), 1), ((2, 2100), 1)):
        tail = shape[len(shape) - axes :]
        G, B = (rng.random(tail) * 40).astype(f32), rng.normal(0, 20, tail).astype(f32)
        attrs = {"axes": axes, "E": float(rng.uniform(1e-3, 1)), "centred": centred, "dtype": grid(rng, y)}
        check("qnorm", (stored(rng, grid(rng, x), shape), G, B), attrs, order)


PRODUCTS = [((3, 4), (4, 5)), ((65, 33), (33, 64)), ((1, 1), (1, 1)), ((2, 1, 4, 3), (5, 3, 6)), ((2, 3, 40), (40, 7)),
            ((0, 3), (3, 2)), ((3, 0), (0, 2)), ((2, 64, 32), (2, 32, 63))]  # fmt: skip
TRIPLES = [("quint8", "qint8", "quint8"), ("qint8", "quint8", "float32"), ("qint16", "qint16", "qint16"),
           ("qint16", "quint8", "qint8"), ("quint8", "quint8", "qint8")]  # fmt: skip


def product(rng, types, shapes, turned, zeros=None):
    """Operands and attributes of a product; `zeros` are zero points in place of random ones."""
    *sides, y = types
    y_type = y if y == "float32" else grid(rng, y)
    lo, hi = (0, 0) if y == "float32" else (y_type.qmin - y_type.zero_point, y_type.qmax - y_type.zero_point)
    dtypes = (
        [grid(rng, t) for t in sides]
        if zeros is None
        else [quantized(t, 0.05, z) for t, z in zip(sides, zeros, strict=True)]
    )
    inputs = [stored(rng, dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
    inputs = [Tensor._wrap(np.swapaxes(np.asarray(v._storage()), -1, -2).copy(), v.dtype) if flip else v
              for v, flip in zip(inputs, turned, strict=True)]  # fmt: skip
    return inputs, {
        "transpose_a": turned[0],
        "transpose_b": turned[1],
        "m": 2.0**-9,
        "lo": lo,
        "hi": hi,
        "dtype": y_type,
    }


@pytest.mark.parametrize("kernel", ["cuda_qmatmul_mma", "cuda_qmatmul"])
@pytest.mark.parametrize("turned", [*itertools.product([False, True], repeat=2)])
@pytest.mark.parametrize("types", TRIPLES)
def test_products(types, turned, kernel):
    rng = np.random.default_rng(6)
    for shapes in PRODUCTS:
        inputs, attrs = product(rng, types, shapes, turned)
        if kernel == "cuda_qmatmul_mma" and ("qint16" in types or shapes[0][-1] == 0):
            continue  # only the other one takes them
        same(on_gpu("qmatmul", inputs, attrs, kernel=kernel), by_reference("qmatmul", inputs, attrs))


@pytest.mark.parametrize("zeros", [(0, 0), (0, 5), (7, 0), (-3, 5)])
@pytest.mark.parametrize("order", ORDERS)
def test_products_on_tensor_cores(zeros, order):
    rng = np.random.default_rng(8)
    for shapes in (((2, 70, 130), (2, 130, 40)), ((33, 400), (400, 65))):
        inputs, attrs = product(rng, ("qint8", "quint8", "qint8"), shapes, (False, True), zeros)
        gpu = EmulatedGpu(order=order)
        same(on_gpu("qmatmul", inputs, attrs, gpu=gpu), by_reference("qmatmul", inputs, attrs))
        assert gpu.launched[-1] == ("int_product_mma.cu", "cuda_qmatmul_mma")


def test_products_of_older_gpus():
    inputs, attrs = product(np.random.default_rng(9), TRIPLES[0], ((5, 16), (16, 8)), (False, False))
    gpu = EmulatedGpu(architecture=75)
    same(on_gpu("qmatmul", inputs, attrs, gpu=gpu), by_reference("qmatmul", inputs, attrs))
    assert gpu.launched == [("int_products.cu", "cuda_qmatmul")]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel", ["cuda_mean", "cuda_qmatmul", "cuda_qmatmul_mma"])
def test_missing_barrier_is_seen(monkeypatch, kernel, order):
    module, memo = {
        "cuda_mean": (int_rows, int_rows._mean_launch),
        "cuda_qmatmul": (int_products, int_products._any_launch),
        "cuda_qmatmul_mma": (int_products, int_products._mma_launch),
    }[kernel]
    make = module.program
    planted = lambda *args, **macros: make(*args, **{"BARRIER()": "(void)0"}, **macros)  # noqa: E731
    monkeypatch.setattr(module, "program", planted)
    memo.cache_clear()
    x = stored(np.random.default_rng(7), quantized("quint8", 0.05), (2, 5000))
    attrs = {"transpose_a": False, "transpose_b": True, "m": 0.5, "lo": 0, "hi": 9, "dtype": quantized("quint8", 0.1)}
    with pytest.raises(LaunchError):
        if kernel == "cuda_mean":
            check("qmean", (x,), {"axis": 1, "keepdims": False, "dtype": quantized("qint8", 0.1)}, order)
        else:
            on_gpu("qmatmul", (x, x), attrs, kernel=kernel, gpu=EmulatedGpu(order=order))
    memo.cache_clear()
