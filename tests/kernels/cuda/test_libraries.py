"""What is asked of cuBLAS and cuDNN: stand-ins read the memory of the emulated GPU at the addresses that they get."""

import ctypes
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, problem_of, same
from emulated_gpu import EmulatedGpu

import megengine as mge
from megengine.core.dtype import bfloat16
from megengine.core.errors import DeviceError
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op
from megengine.kernels.cuda import compiler, convolution, cudnn_graphs, libraries, plan_choices, products
from megengine.kernels.cuda.libraries import Libraries
from megengine.kernels.cuda.runtime import installed
from megengine.kernels.problem import Problem
from megengine.kernels.reference import conv

_RNG = np.random.default_rng(0)
_TYPES = {0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16), 14: bfloat16}


def at(address, shape, strides, dtype):
    """The elements at an address, by steps in elements; writable."""
    dtype = np.dtype(dtype)
    span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    memory = (ctypes.c_char * (span * dtype.itemsize)).from_address(address)
    flat = np.frombuffer(memory, dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * dtype.itemsize for s in strides])


class Blas:
    """cuBLAS's gemmStridedBatchedEx on main memory, as its documentation states it: by columns."""

    def __init__(self):
        self.asked = []

    def create(self):
        return 1

    def set_math_mode(self, handle, mode):
        assert (handle, mode) == (1, 16)

    def set_stream(self, handle, stream):
        assert (handle, stream) == (1, 7)

    def gemm(self, handle, ta, tb, m, n, k, *given):
        alpha, a, a_type, lda, sa, b, b_type, ldb, sb, beta, c, c_type, ldc, sc, count, compute, algo = given
        assert handle == 1 and algo == -1 and a_type == b_type and compute == {1: 70}.get(a_type, 68)
        assert lda >= max(1, k if ta else m) and ldb >= max(1, n if tb else k) and ldc >= max(1, m)
        total = np.float64 if a_type == 1 else np.float32
        alpha, beta = at(alpha, (1,), (1,), total)[0], at(beta, (1,), (1,), total)[0]
        first = at(a, (count, m, k), (sa, lda, 1) if ta else (sa, 1, lda), _TYPES[a_type]).astype(total)
        second = at(b, (count, k, n), (sb, ldb, 1) if tb else (sb, 1, ldb), _TYPES[b_type]).astype(total)
        result = at(c, (count, m, n), (sc, 1, ldc), _TYPES[c_type])
        assert beta == 0
        result[...] = (alpha * (first @ second)).astype(result.dtype)
        self.asked.append((m, n, k, count))


@pytest.fixture
def gpu():
    made = EmulatedGpu()
    made.libraries = Libraries(Blas(), None, lambda: 7)
    return made


def asked(gpu):
    return gpu.libraries._blas.asked


@pytest.mark.parametrize("op", ["matmul", "fused_matmul", "fused_linear"])
def test_samples_by_cublas(gpu, op, monkeypatch):
    monkeypatch.setattr(products, "_LEAST_FUSED", dict.fromkeys((2, 4, 8), 1))
    products._gemm.cache_clear()
    for sample in get_op(op).samples():
        if sample.attrs.get("activation") in (None, "none", "relu"):
            inputs = [narrowed(x) for x in sample.inputs]
            found = on_gpu(op, inputs, sample.attrs, gpu=gpu)
            same(found, by_reference(op, inputs, sample.attrs), rtol=1e-5, atol=1e-5)
    assert asked(gpu)
    products._gemm.cache_clear()


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32, np.float64], ids=str)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_every_form_by_cublas(gpu, dtype, ta, tb):
    for lead, rows, depth, columns in (((), 5, 7, 3), ((4,), 5, 7, 3), ((), 1, 7, 3), ((), 5, 7, 1), ((), 5, 1, 3)):
        a = _RNG.integers(-4, 5, (*lead, *((depth, rows) if ta else (rows, depth)))).astype(dtype)
        b = _RNG.integers(-4, 5, ((columns, depth) if tb else (depth, columns))).astype(dtype)
        attrs = {"transpose_a": ta, "transpose_b": tb}
        (wanted,) = by_reference("matmul", (a.astype(np.float64), b.astype(np.float64)), attrs)
        same(on_gpu("matmul", (a, b), attrs, gpu=gpu), (wanted.astype(dtype),))
    assert len(asked(gpu)) == 5


def test_what_cublas_cannot_do_is_computed_by_own_kernels(gpu):
    attrs = {"transpose_a": False, "transpose_b": False}
    a, b = (_RNG.standard_normal(shape).astype(np.float32) for shape in ((2, 1, 3, 4), (5, 4, 2)))
    same(on_gpu("matmul", (a, b), attrs, gpu=gpu), (a @ b,), rtol=1e-5, atol=1e-5)
    integers = a.astype(np.int32), b.astype(np.int32)
    same(on_gpu("matmul", integers, attrs, gpu=gpu), (integers[0] @ integers[1],))
    assert gpu.launched and not asked(gpu)


def test_missing_libraries_are_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy_backends", None)
    monkeypatch.setitem(sys.modules, "cudnn", None)
    monkeypatch.setattr(cudnn_graphs, "installed", lambda: True)
    assert libraries.cudnn_version() == 0
    found = libraries.of_device(lambda: 7)
    assert (found.multiplies, found.graphs) == (False, None)
    gpu = EmulatedGpu()
    gpu.libraries = found
    a = np.ones((2, 3), np.float32)
    same(on_gpu("matmul", (a, a), {"transpose_a": False, "transpose_b": True}, gpu=gpu), (a @ a.T,))


def test_a_cublas_that_does_not_load_is_none(monkeypatch):
    """Own kernels compute products, as without it."""

    def load():
        raise DeviceError("cuBLAS cannot be loaded: libcublas.so.13: cannot open shared object file")

    monkeypatch.setattr(libraries, "load", load)
    libs = SimpleNamespace(cublas=None)
    for name, module in {"cupy_backends": libs, "cupy_backends.cuda": libs, "cupy_backends.cuda.libs": libs}.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert libraries._cublas() is None


def test_threads_take_turns_with_the_handle():
    """A product of one thread is not launched on the stream of another, whose launches are recorded perhaps."""
    streams, wrong = threading.local(), []

    class Slow:
        now = None

        def create(self):
            return 1

        def set_math_mode(self, *_):
            pass

        def set_stream(self, _, stream):
            self.now = stream
            time.sleep(0.002)  # ctypes lets other threads run

        def gemm(self, *_):
            wrong.append(self.now != streams.mine)

    made, gpu = Libraries(Slow(), None, lambda: streams.mine), EmulatedGpu()
    a = gpu.upload(np.ones((2, 2), np.float32))
    product = libraries.gemm_of(products.product_of((2, 2), (2, 2), (2, 2)))

    def work(stream):
        streams.mine = stream
        for _ in range(5):
            made.gemm(product, a, a, a)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == [False] * 15


def test_the_version_of_cudnn(monkeypatch):
    monkeypatch.setattr(cudnn_graphs, "installed", lambda: True)
    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace(backend_version=lambda: 91900))
    with installed(EmulatedGpu()):
        assert mge.get_cudnn_version() == 91900
    monkeypatch.setattr(cudnn_graphs, "installed", lambda: False)
    assert libraries.cudnn_version() == 0


# ---------------------------------------------------------------- cuDNN


class Tensor:
    numbers = iter(range(1, 1 << 30))

    def __init__(self, dim=None, stride=None, make=None):
        self.dim, self.stride, self.make, self.uid = dim, stride, make, next(self.numbers)
        self.type = None

    def set_output(self, value):
        assert value
        return self

    def set_data_type(self, value):
        self.type = value
        return self

    def set_dim(self, value):
        self.dim = value
        return self

    def set_stride(self, value):
        self.stride = value
        return self

    def get_uid(self):
        return self.uid


class Pygraph:
    """A graph of convolutions that is computed by the references, from and to main memory."""

    def __init__(self, **types):
        self.inputs, self.last, self.filtered = [], None, None

    def tensor(self, name, dim, stride, data_type):
        self.inputs.append(Tensor(dim, stride))
        self.inputs[-1].type = data_type
        return self.inputs[-1]

    def _made(self, make):
        self.last = Tensor(make=make)
        return self.last

    def _geometry(self, x, given):
        pads = tuple(zip(given["pre_padding"], given["post_padding"], strict=True))
        return {"stride": tuple(given["stride"]), "padding": pads, "dilation": tuple(given["dilation"])}

    def conv_fprop(self, image, weight, **given):
        def make(of):
            groups = image.dim[1] // weight.dim[1]
            return conv.convolution(of(image), of(weight), **self._geometry(image, given), groups=groups)

        return self._made(make)

    def conv_dgrad(self, loss, filter, **given):
        def make(of):
            size, groups = tuple(out.dim[2:]), out.dim[1] // filter.dim[1]
            return conv.backward_data(of(loss), of(filter), size=size, **self._geometry(loss, given), groups=groups)

        out = self._made(make)
        return out

    def conv_wgrad(self, image, loss, **given):
        def make(of):
            kernel, groups = tuple(out.dim[2:]), image.dim[1] // out.dim[1]
            geometry = self._geometry(image, given)
            return conv.backward_weight(of(image), of(loss), kernel=kernel, **geometry, groups=groups)

        out = self._made(make)
        return out

    def bias(self, x, b):
        return self._made(lambda of: of(x) + of(b))

    add = bias

    def relu(self, x):
        return self._made(lambda of: np.maximum(of(x), 0))

    def validate(self):
        """Nothing."""

    build_operation_graph = check_support = build_plans = validate

    def create_execution_plans(self, modes):
        assert modes == ["A", "FALLBACK"]

    def deselect_numeric_notes(self, notes):
        self.filtered = notes

    def get_workspace_size(self):
        return 64

    def get_execution_plan_count(self):
        return 4

    def build_plan_at_index(self, index):
        if index == 1:
            raise Cudnn.cudnnGraphNotSupportedError("no plan")
        self.plan = index

    def execute(self, given, workspace, handle):
        assert handle == 3 and workspace

        def of(tensor):
            if tensor.make is not None:
                return tensor.make(of)
            return at(given[tensor.uid], tensor.dim, tensor.stride, tensor.type).astype(np.float64)

        out = at(given[self.last.uid], self.last.dim, self.last.stride, self.last.type)
        out[...] = self.last.make(of).astype(out.dtype)


class Cudnn:
    class cudnnGraphNotSupportedError(Exception):  # noqa: N801
        pass

    class data_type:  # noqa: N801
        FLOAT, HALF, BFLOAT16 = np.dtype(np.float32), np.dtype(np.float16), bfloat16

    class heur_mode:  # noqa: N801
        A, FALLBACK = "A", "FALLBACK"

    class numerical_note:  # noqa: N801
        NONDETERMINISTIC, TENSOR_CORE, DOWN_CONVERT_INPUTS = "different", "tensor cores", "converted"

    pygraph = Pygraph

    def __init__(self):
        self.streams = []

    def backend_version(self):
        return 91900

    def create_handle(self):
        return 3

    def set_stream(self, handle, stream):
        self.streams.append((handle, stream))


@pytest.fixture
def with_cudnn(monkeypatch, tmp_path):
    monkeypatch.setenv("MEGENGINE_CUDA_CACHE", str(tmp_path))
    monkeypatch.setattr(cudnn_graphs, "installed", lambda: True)
    made = EmulatedGpu()
    made.libraries = Libraries(Blas(), cudnn_graphs.Graphs(Cudnn(), lambda: 7), lambda: 7)
    return made


_GEOMETRY = {"stride": (2, 1), "padding": ((0, 1), (1, 0)), "dilation": (1, 2), "groups": 2}


def _whole(dtype, *shape):
    return _RNG.integers(-3, 4, shape).astype(dtype)


def calls(dtype):
    x, w, b = _whole(dtype, 2, 4, 7, 8), _whole(dtype, 6, 2, 3, 2), _whole(dtype, 6)
    (y,) = by_reference("conv2d", (x.astype(np.float64), w.astype(np.float64)), _GEOMETRY)
    ct = _whole(dtype, *y.shape)
    yield "conv2d", (x, w), _GEOMETRY, (0,)
    yield "conv2d", (x, w, b), _GEOMETRY, (0,)
    yield "fused_conv2d", (x, w, b, ct), {**_GEOMETRY, "activation": "relu"}, (0, 3)
    yield "conv2d_backward_data", (ct, w), {**_GEOMETRY, "size": x.shape[2:]}, (0,)
    yield "conv2d_backward_weight", (x, ct), {**_GEOMETRY, "kernel": w.shape[2:]}, (0, 1)
    transposed = {**_GEOMETRY, "output_padding": (1, 0)}
    yield "conv_transpose2d", (ct, w, _whole(dtype, 4)), transposed, (0,)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, bfloat16], ids=str)
def test_convolutions_by_cudnn(with_cudnn, dtype):
    for op, inputs, attrs, activations in calls(dtype):
        (wanted,) = by_reference(op, [x.astype(np.float64) for x in inputs], attrs)
        wanted, problem = wanted.astype(dtype), problem_of(op, inputs, attrs)
        assert cudnn_graphs.reason_against(problem) is None
        with installed(with_cudnn) as gpu:
            before = len(gpu.launched)
            found = convolution._by_cudnn(problem, *map(gpu.upload, inputs)).numpy()
            own = {kernel for _, kernel in gpu.launched[before:]}
            assert own <= ({"finish_layer"} if dtype == np.float32 else set()), "an own kernel was launched"
            same((found,), (wanted,))
            last = [
                np.ascontiguousarray(np.moveaxis(x, 1, -1)) if i in activations else x for i, x in enumerate(inputs)
            ]
            found = convolution._by_cudnn_last(problem, *map(gpu.upload, last)).numpy()
            finishing = {"biased.cu"} if dtype == np.float32 else set()  # float32 is computed in two
            assert {file for file, _ in gpu.launched[before:]} <= {"channels.cu", *finishing}
        same((found,), (wanted if op.endswith("weight") else np.moveaxis(wanted, 1, -1),))


def test_float32_stays_float32_by_cudnn(with_cudnn):
    (op, inputs, attrs, _), *_ = calls(np.float32)
    graph = with_cudnn.libraries.graphs.of(problem_of(op, inputs, attrs), last=False)
    assert graph.graph.filtered == ["different", "tensor cores", "converted"]


def test_few_channels_of_halves_are_padded_for_cudnn(with_cudnn):
    x, w, b = _whole(np.float16, 2, 3, 9, 9), _whole(np.float16, 8, 3, 3, 3), _whole(np.float16, 8)
    attrs = {"stride": (2, 2), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1, "activation": "relu"}
    (wanted,) = by_reference("fused_conv2d", [v.astype(np.float64) for v in (x, w, b)], attrs)
    with installed(with_cudnn) as gpu:
        arrays = [gpu.upload(np.ascontiguousarray(np.moveaxis(x, 1, -1))), gpu.upload(w), gpu.upload(b)]
        found = convolution._by_cudnn_last(problem_of("fused_conv2d", (x, w, b), attrs), *arrays).numpy()
    same((found,), (np.moveaxis(wanted, 1, -1).astype(np.float16),))
    assert [kernel for _, kernel in gpu.launched] == ["channels_padded", "channels_last"]
    ((problem, _, _),) = with_cudnn.libraries.graphs._graphs
    assert problem.inputs[0].shape == (2, 8, 9, 9)


@pytest.mark.parametrize("last", [False, True])
def test_float32_layers_without_a_graph_of_their_own_are_made_in_two(with_cudnn, monkeypatch, last):
    def refuse(*_):
        raise Cudnn.cudnnGraphNotSupportedError("no engine")

    monkeypatch.setattr(Pygraph, "bias", refuse)
    for op, inputs, attrs, activations in calls(np.float32):
        if len(inputs) > 2:
            (wanted,) = by_reference(op, inputs, attrs)
            with installed(with_cudnn) as gpu:
                before = len(gpu.launched)
                turned = last and (lambda x: np.ascontiguousarray(np.moveaxis(x, 1, -1)))
                arrays = [gpu.upload(turned(x) if turned and i in activations else x) for i, x in enumerate(inputs)]
                found = convolution._by_cudnn(problem_of(op, inputs, attrs), *arrays, last=last).numpy()
                assert {file for file, _ in gpu.launched[before:]} <= {"channels.cu", "biased.cu"}
            same((found,), (np.moveaxis(wanted, 1, -1) if last else wanted,))


def test_a_graph_that_cudnn_lacks_is_asked_for_once(with_cudnn, monkeypatch):
    (op, inputs, attrs, _), *_ = calls(np.float16)
    built = []

    def refuse(graph):
        built.append(graph)
        raise Cudnn.cudnnGraphNotSupportedError("no engine")

    monkeypatch.setattr(Pygraph, "check_support", refuse)
    problem = problem_of(op, inputs, attrs)
    with installed(with_cudnn) as gpu:
        for _ in range(2):
            convolution._by_cudnn(problem, *map(gpu.upload, inputs))
    assert len(built) == 1 and gpu.launched


def _timed(gpu, monkeypatch, problem, inputs, times):
    """The plan that is taken, and those that were timed, in their order."""
    graph, seen = gpu.libraries.graphs.of(problem, last=False), []
    monkeypatch.setattr(gpu, "milliseconds", lambda work: seen.append(graph.graph.plan) or times[graph.graph.plan])
    with installed(gpu):
        for _ in range(2):
            convolution._by_cudnn(problem, *map(gpu.upload, inputs))
    return graph.graph.plan, list(dict.fromkeys(seen))


def test_the_fastest_plan_is_kept_where_plans_are_timed(with_cudnn, monkeypatch):
    monkeypatch.setattr(plan_choices.Tuning, "plans", 2)
    (op, inputs, attrs, _), *_ = calls(np.float16)
    problem, times = problem_of(op, inputs, attrs), {0: 3.0, 2: 1.0, 3: 0.5}
    # plan 1 is refused, and counts for none
    assert _timed(with_cudnn, monkeypatch, problem, inputs, times) == (2, [0, 2])
    graphs = with_cudnn.libraries.graphs
    for kind, wanted in (("", (2, [])), ("another", (0, [0, 2]))):  # the next process
        with_cudnn.libraries.graphs = cudnn_graphs.Graphs(graphs._cudnn, lambda: 7, kind)
        assert _timed(with_cudnn, monkeypatch, problem, inputs, {**times, 2: 3.5}) == wanted


def test_a_damaged_file_of_plans_is_written_anew(with_cudnn, monkeypatch):
    monkeypatch.setattr(plan_choices.Tuning, "plans", 2)
    (op, inputs, attrs, _), *_ = calls(np.float16)
    problem = problem_of(op, inputs, attrs)
    file = Path(with_cudnn.libraries.graphs._choices._path)
    for text in (b"", b"[1]", b'{"a": -1, "b": "c"}'):
        compiler.store(str(file), text)
        if not text:
            file.write_bytes(b"damaged")
        with_cudnn.libraries.graphs = cudnn_graphs.Graphs(with_cudnn.libraries.graphs._cudnn, lambda: 7)
        assert _timed(with_cudnn, monkeypatch, problem, inputs, {0: 3.0, 2: 1.0})[0] == 2


def test_large_gradients_of_float32_are_timed_unasked():
    def of(op, dtype, batch):
        x, w, y = (TensorSpec(s, dtype) for s in ((batch, 64, 56, 56), (64, 64, 3, 3), (batch, 64, 56, 56)))
        given = {"backward_data": ((y, w), x), "backward_weight": ((x, y), w)}.get(op.partition("_")[2], ((x, w), y))
        return plan_choices.plans_timed(Problem(op, given[0], given[1:], {}))

    for op in ("conv2d_backward_data", "conv2d_backward_weight"):
        assert of(op, np.float32, 32) == 16 and of(op, np.float32, 1) == 0 and of(op, np.float16, 32) == 0
    assert of("conv2d", np.float32, 32) == 0


def test_reasons_against_cudnn(monkeypatch):
    x, w = _whole(np.float32, 1, 4, 5, 5), _whole(np.float32, 4, 1, 3, 3)
    problem = problem_of("conv2d", (x, w), {**_GEOMETRY, "groups": 4})
    monkeypatch.setattr(cudnn_graphs, "installed", lambda: False)
    assert "not installed" in cudnn_graphs.reason_against(problem)
    monkeypatch.setattr(cudnn_graphs, "installed", lambda: True)
    assert "depthwise" in cudnn_graphs.reason_against(problem)
    wide = problem_of("conv2d", (_whole(np.float64, 1, 4, 5, 5), _whole(np.float64, 4, 2, 3, 3)), _GEOMETRY)
    assert "float64" in cudnn_graphs.reason_against(wide)
