"""Integer layers on the emulated GPU equal the specification in every value, in every form of computing them."""

import dataclasses

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, problem_of, same
from emulated_gpu import ORDERS, EmulatedGpu, LaunchError

from megengine.core.dtype import quantized
from megengine.dispatch import get_op
from megengine.kernels.cuda import int_layers
from megengine.kernels.cuda.int_layout import to_first, to_last
from megengine.kernels.cuda.runtime import installed
from megengine.kernels.reference import integer
from megengine.tensor import Tensor

f32 = np.float32
OLD, NEW = 75, 90  # compute capabilities without and with the tensor-core kernel
SMALL = int_layers.RULED[-1]
WIDE = next(tile for tile in int_layers.TILES if tile.warp_channels == 64)


def grid(rng, name: str, scale: float = 0.05):
    """A dtype with a random zero point; 16 bits have 0."""
    dtype = quantized(name, scale)
    return dtype if name == "qint16" else quantized(name, scale, int(rng.integers(dtype.qmin, dtype.qmax + 1)))


def values(rng, dtype, shape):
    return Tensor._wrap(rng.integers(dtype.qmin, dtype.qmax + 1, shape).astype(dtype.storage), dtype)


def channels_of(rng, acc, o: int):
    """b, M and B of sums [N,O,...]: a pixel of every second channel is a tie, and products are exact in every fifth."""
    M = (rng.uniform(0.5, 2, o) * 60 / max(1.0, float(np.abs(acc).max()))).astype(f32)
    M[::5] = f32(0.5) ** rng.integers(3, 9)
    b, B = rng.integers(-500, 500, o).astype(np.int32), rng.uniform(-3, 3, o).astype(f32)
    B[::5] = 0
    picked = acc.swapaxes(0, 1).reshape(o, -1)[:, rng.integers(acc[:, 0].size)]
    aimed = rng.integers(-3, 4, o).astype(f32) + f32(0.5) - (picked + b).astype(f32) * M
    B[1::2] = aimed[1::2]
    return b, M, B


def case(seed, *, n=1, h=6, w=5, c=8, o=8, kernel=(3, 3), stride=(1, 1), pad=(1, 1, 1, 1), dilation=(1, 1), groups=1,
         x="quint8", y="quint8", r=None):  # fmt: skip
    """Inputs and attributes of a convolution."""
    rng = np.random.default_rng(seed)
    x_type, y_type = grid(rng, x), "float32" if y == "float32" else grid(rng, y)
    xs = values(rng, x_type, (n, c, h, w))
    weight = rng.integers(-128, 128, (o, c // groups, *kernel)).astype(np.int8)
    where = {"stride": stride, "padding": (pad[:2], pad[2:]), "dilation": dilation, "groups": groups}
    acc = integer.conv_acc(np.asarray(xs._storage()), weight, z_x=x_type.zero_point, **where)
    lo, hi = (0, 0) if y == "float32" else (y_type.qmin - y_type.zero_point, y_type.qmax - y_type.zero_point)
    lo = max(lo, 0) if rng.integers(2) and hi >= 0 else lo
    inputs = [xs, weight, *channels_of(rng, acc, o)]
    if r:
        inputs.append(values(rng, grid(rng, r), acc.shape))
    ratio = float(integer.cut16(rng.uniform(0.1, 1.5)))
    return inputs, {**where, "lo": lo, "hi": hi, "ratio": ratio if r else 0.0, "dtype": y_type}


def computed(inputs, attrs, form=None, order=ORDERS[0], architecture=NEW):
    """The result of qconv2d on the emulated GPU, in a form, or the one that is chosen."""
    problem = problem_of("qconv2d", inputs, attrs)
    with installed(EmulatedGpu(architecture=architecture, order=order)) as gpu:
        arrays = [gpu.upload(np.asarray(v._storage()) if isinstance(v, Tensor) else v) for v in inputs]
        if form is None:
            return (gpu.download(int_layers.KERNELS["qconv2d"][0].run(problem, *arrays)),)
        pitch = max(form.channels * (attrs["groups"] // form.joined), arrays[0].shape[1])
        x = to_last(arrays[0], pitch, 77)
        return (
            gpu.download(to_first(int_layers.layer_last(problem, form, x, *arrays[1:5], *map(to_last, arrays[5:])))),
        )


def chosen(inputs, attrs, architecture=NEW):
    problem = problem_of("qconv2d", inputs, attrs)
    pitch = int_layers.useful_pitch(problem)
    itemsize = problem.inputs[0].dtype.itemsize
    return int_layers.form_of(int_layers.geometry(problem), itemsize, pitch, architecture)


def random_case(seed):
    """Any geometry: grouped, depthwise, dilated, asymmetric padding, residuals, float results."""
    rng = np.random.default_rng([seed, 5])
    pick = lambda *of: of[rng.integers(len(of))]  # noqa: E731
    kernel = (int(pick(1, 1, 3, 3, 2, 5)), int(pick(1, 1, 3, 3, 2, 5)))
    dilation = (int(pick(1, 1, 2)), int(pick(1, 1, 2)))
    h, w = (int(rng.integers((k - 1) * d + 1, (k - 1) * d + 8)) for k, d in zip(kernel, dilation, strict=True))
    pad = tuple(int(rng.integers(0, kernel[i // 2] + 1)) for i in range(4))
    groups = int(pick(1, 1, 1, 2, 4, 8))
    c, o = groups * int(rng.integers(1, 21)), groups * int(rng.integers(1, 11))
    if rng.integers(4) == 0:
        groups = o = c
    y = pick("quint8", "quint8", "qint8", "qint8", "float32")
    r = None if y == "float32" else pick(None, "quint8", "qint8")
    stride = (int(pick(1, 1, 2)), int(pick(1, 1, 2, 3)))
    n, x = int(rng.integers(1, 3)), pick("quint8", "qint8")
    return case(seed, n=n, h=h, w=w, c=c, o=o, kernel=kernel, stride=stride, pad=pad, dilation=dilation, groups=groups,
                x=x, y=y, r=r)  # fmt: skip


@pytest.mark.parametrize("architecture", [OLD, NEW])
@pytest.mark.parametrize("op", ["qconv2d", "qlinear"])
def test_samples(op, architecture):
    for sample in get_op(op).samples():
        inputs = [narrowed(v) for v in sample.inputs]
        same(on_gpu(op, inputs, sample.attrs, gpu=EmulatedGpu(architecture=architecture)),
             by_reference(op, inputs, sample.attrs))  # fmt: skip


@pytest.mark.parametrize("part", range(10))
def test_random_convolutions(part):
    for seed in range(part * 20, part * 20 + 20):
        inputs, attrs = random_case(seed)
        want = by_reference("qconv2d", inputs, attrs)
        for architecture in (OLD, NEW) if seed % 2 else (NEW,):
            same(computed(inputs, attrs, architecture=architecture), want)


# channels, groups and what tensor cores make of them: bytes copied at once, groups computed as one
TAKEN = [(3, 1, 4, 1), (4, 1, 4, 1), (8, 1, 8, 1), (16, 1, 16, 1), (24, 1, 8, 1), (20, 1, 4, 1), (32, 8, 16, 8),
         (64, 4, 16, 4), (12, 4, 4, 4)]  # fmt: skip


@pytest.mark.parametrize(("c", "groups", "grain", "joined"), TAKEN)
def test_tensor_cores_take_channels(c, groups, grain, joined):
    inputs, attrs = case(c, c=c, o=16 if c != 12 else 12, groups=groups)
    form = chosen(inputs, attrs)
    assert (form.kernel, form.grain, form.joined) == ("cuda_conv_mma", grain, joined)
    same(computed(inputs, attrs), by_reference("qconv2d", inputs, attrs))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("c", "grain"), [(1, 8), (3, 8), (4, 8), (7, 16)])
def test_pairs_of_pixels(c, grain, order):
    """Windows of steps of two over few channels, whatever the padding and the width of the window."""
    for pad, width in ((0, 3), (1, 3), (2, 5), (3, 7), (1, 4), (2, 6)):
        inputs, attrs = case(c + pad, h=5, w=10, c=c, kernel=(3, width), stride=(1 + pad % 2, 2), pad=(1, 1, pad, pad))
        form = chosen(inputs, attrs)
        assert (form.pair, form.grain) == (2, grain)
        same(computed(inputs, attrs, order=order), by_reference("qconv2d", inputs, attrs))


@pytest.mark.parametrize("how", [{"w": 9}, {"stride": (2, 1)}, {"dilation": (1, 2)}, {"c": 16}, {"kernel": (3, 2)}])
def test_other_windows_take_pixels_one_by_one(how):
    inputs, attrs = case(4, **{"w": 10, "c": 3, "stride": (2, 2)} | how)
    assert chosen(inputs, attrs).pair == 1
    same(computed(inputs, attrs), by_reference("qconv2d", inputs, attrs))


@pytest.mark.parametrize("tile", int_layers.TILES, ids=lambda t: t.name)
@pytest.mark.parametrize("around", [-1, 0, 1])
def test_tiles(tile, around):
    """Pixels and channels around the size of a tile, and depths of one step and several."""
    o, depth = tile.channels + 8 * around, (16, 64, 80)[around + 1]
    inputs, attrs = case(
        around + 9, h=tile.pixels + around, w=1, c=depth, o=o, kernel=(3, 1), pad=(1, 1, 0, 0), r="qint8"
    )
    form = dataclasses.replace(chosen(inputs, attrs), tile=tile)
    same(computed(inputs, attrs, form), by_reference("qconv2d", inputs, attrs))


@pytest.mark.parametrize("tile", int_layers.TILES, ids=lambda t: t.name)
@pytest.mark.parametrize("r", ["quint8", "qint8"])
def test_tiles_of_single_pixels_with_residuals(tile, r):
    """They are read before the products, by the pixels and channels that there are."""
    inputs, attrs = case(5, h=tile.pixels - 3, w=1, c=80, o=tile.channels + 24, kernel=(1, 1), pad=(0, 0, 0, 0), r=r)
    form = dataclasses.replace(chosen(inputs, attrs), tile=tile)
    assert form.point
    for order in ORDERS:
        same(computed(inputs, attrs, form, order), by_reference("qconv2d", inputs, attrs))


@pytest.mark.parametrize("tile", [int_layers.TILES[2], SMALL, WIDE], ids=lambda t: t.name)
@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_threads(tile, order):
    inputs, attrs = case(3, n=2, h=9, w=7, c=48, o=40, r="quint8", y="qint8")
    want = by_reference("qconv2d", inputs, attrs)
    same(computed(inputs, attrs, dataclasses.replace(chosen(inputs, attrs), tile=tile), order), want)
    same(computed(inputs, attrs, order=order, architecture=OLD), want)


OTHERS = [("qint16", "qint16", "qint16"), ("qint16", "quint8", "qint8"), ("quint8", "qint16", "qint16"),
          ("qint16", "float32", None), ("qint8", "qint32", None)]  # fmt: skip


@pytest.mark.parametrize("groups", [1, 16])
@pytest.mark.parametrize(("x", "y", "r"), OTHERS)
def test_other_types(x, y, r, groups):
    inputs, attrs = case(4, c=16, o=32 if groups == 1 else 16, groups=groups, x=x, y=y, r=r)
    if y == "qint32":  # a float32 holds these ends
        attrs |= {"lo": -(1 << 24), "hi": 1 << 24}
    if r == "qint8" and x == "qint16":  # a type of results and residuals each
        assert chosen(inputs, attrs).tile is None
    for architecture in (OLD, NEW):
        same(computed(inputs, attrs, architecture=architecture), by_reference("qconv2d", inputs, attrs))


def test_sums_of_16_bits_leave_32():
    x, y = quantized("qint16", 1.0), quantized("qint16", 1e4)
    inputs = [Tensor._wrap(np.full((1, 512, 1, 1), 32767, np.int16), x), np.full((16, 512, 1, 1), 127, np.int8),
              np.full(16, 9, np.int32), np.full(16, 1e-5, f32), np.zeros(16, f32)]  # fmt: skip
    assert 32767 * 127 * 512 > 2**30
    attrs = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "lo": -32768, "hi": 32767,
             "ratio": 0.0, "dtype": y}  # fmt: skip
    same(computed(inputs, attrs), by_reference("qconv2d", inputs, attrs))


@pytest.mark.parametrize("k", [1, 3, 4, 40, 64, 100])
@pytest.mark.parametrize("rows", [0, 1, 33])
def test_linear(rows, k):
    rng = np.random.default_rng([rows, k])
    dtype = grid(rng, "qint8")
    x, w = values(rng, dtype, (rows, k)), rng.integers(-128, 128, (19, k)).astype(np.int8)
    M = np.full(19, 0.01, f32)
    attrs = {"lo": -128 - dtype.zero_point, "hi": 127 - dtype.zero_point, "ratio": 0.0, "dtype": dtype}
    inputs = [x, w, np.arange(19, dtype=np.int32), M, M * 7]
    same(on_gpu("qlinear", inputs, attrs), by_reference("qlinear", inputs, attrs))


@pytest.mark.parametrize("architecture", [OLD, NEW])
def test_pictures_of_three_channels_in_plans(architecture):
    """x [N,H,W,3] is made wider for tensor cores; other kernels take it as it is."""
    inputs, attrs = case(5, n=2, c=3, o=24)
    problem = problem_of("qconv2d", inputs, attrs)
    with installed(EmulatedGpu(architecture=architecture)) as gpu:
        x, *more = [gpu.upload(np.asarray(v._storage()) if isinstance(v, Tensor) else v) for v in inputs]
        found = gpu.download(to_first(int_layers.conv_last(problem, to_last(x), *more)))
        assert ("cuda_widen" in [kernel for _, kernel in gpu.launched]) == (architecture == NEW)
    same((found,), by_reference("qconv2d", inputs, attrs))


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 3, 5])
def test_depthwise_windows(width, stride, dilation):
    """Programs of known widths and strides, and the one for all others."""
    inputs, attrs = case(7, n=2, h=9, w=11, c=12, o=12, groups=12, kernel=(3, width), stride=(1, stride),
                         pad=(1, 1, 2, 1), dilation=(1, dilation), x="qint8", y="qint8", r="quint8")  # fmt: skip
    form = chosen(inputs, attrs)
    assert form.kernel == "cuda_depthwise"
    assert (form.columns != (0, 0)) == (width > 1 and stride < 3 and dilation == 1)
    same(computed(inputs, attrs), by_reference("qconv2d", inputs, attrs))


def test_parts_of_other_arrays():
    """x and the residual may begin at any address."""
    inputs, attrs = case(6, c=16, o=16, r="quint8")
    problem = problem_of("qconv2d", inputs, attrs)
    with installed(EmulatedGpu()) as gpu:
        x, *more = [gpu.upload(np.asarray(v._storage()) if isinstance(v, Tensor) else v) for v in inputs]
        parts = []
        for whole in (to_last(x), to_last(more[4])):
            room = gpu.empty((whole.size + 3,), np.uint8)
            part = type(x)(gpu, room.owner, room.address + 3, whole.shape, whole.dtype)
            gpu.copy_within(part, whole)
            parts.append(part)
        found = gpu.download(to_first(int_layers.conv_last(problem, parts[0], *more[:4], parts[1])))
    same((found,), by_reference("qconv2d", inputs, attrs))


def test_weights_of_four_bits():
    rng = np.random.default_rng(1)
    inputs, attrs = case(8, c=16, o=16)
    inputs[1] = values(rng, quantized("qint4", 0.1), inputs[1].shape)
    same(computed(inputs, attrs), by_reference("qconv2d", inputs, attrs))


def test_weights_are_packed_once():
    inputs, attrs = case(1)
    problem = problem_of("qconv2d", inputs, attrs)
    with installed(EmulatedGpu()) as gpu:
        arrays = [gpu.upload(np.asarray(v._storage()) if isinstance(v, Tensor) else v) for v in inputs]
        for wanted in (1, 1, 2):
            int_layers.KERNELS["qconv2d"][0].run(problem, *arrays)
            assert [kernel for _, kernel in gpu.launched].count("cuda_pack") == wanted
            if wanted == 1 and len(gpu.launched) > 7:
                arrays[2] = gpu.upload(inputs[2])  # another bias: other constants


# ---------------------------------------------------------------- planted mistakes

HALF_UP = ("ROUND", "[](float t) { return (int)floorf(t + 0.5f); }")
FMA = ("SCALE_AND_SHIFT", "__fmaf_rn")
NO_BARRIER = ("BARRIER()", "(void)0")
GEOMETRIES = {"tensor cores": {"c": 16, "o": 16}, "tiles": {"c": 6, "o": 17}, "each": {"c": 6, "o": 5},
              "depthwise": {"c": 8, "o": 8, "groups": 8}}  # fmt: skip


def forget():
    int_layers._launch.cache_clear()
    int_layers.prepared.cache_clear()


def plant(monkeypatch, macro):
    made = int_layers._program

    def planted(*args, **kwargs):
        unit = made(*args, **kwargs)
        return dataclasses.replace(unit, macros=(*unit.macros, macro))

    monkeypatch.setattr(int_layers, "_program", planted)
    forget()


@pytest.fixture
def restored():
    yield
    forget()


@pytest.mark.parametrize("mistake", [HALF_UP, FMA], ids=["half up", "fma"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_planted_rounding_is_seen(monkeypatch, restored, geometry, mistake):
    plant(monkeypatch, mistake)
    differ = 0
    for seed in range(6):
        inputs, attrs = case(seed, h=4, w=4, **GEOMETRIES[geometry])
        found = computed(inputs, attrs, architecture=NEW if geometry == "tensor cores" else OLD)
        differ += not np.array_equal(found[0], by_reference("qconv2d", inputs, attrs)[0])
    assert differ


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("geometry", ["tensor cores", "tiles"])
def test_missing_barrier_is_seen(monkeypatch, restored, geometry, order):
    plant(monkeypatch, NO_BARRIER)
    inputs, attrs = case(2, **GEOMETRIES[geometry])
    with pytest.raises(LaunchError):
        computed(inputs, attrs, order=order, architecture=NEW if geometry == "tensor cores" else OLD)


def test_tiles_fit():
    """In a block of any GPU with tensor cores of 8 bits, and as often as they ask in a multiprocessor of Hopper."""
    assert all(tile.shared <= 99 << 10 and tile.threads <= 256 for tile in int_layers.TILES)
    assert all(tile.blocks * (tile.shared + 1024) <= 228 << 10 for tile in int_layers.TILES)
    assert all(tile.shared <= 48 << 10 for tile in int_layers.RULED)
