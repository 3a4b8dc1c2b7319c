"""Own float kernels at every instruction set: near NumPy, the same bits everywhere, nothing written past the end."""

import ml_dtypes
import numpy as np
import pytest

from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.kernels import _core, isa, memory, pooling
from megengine.kernels.native import empty_for_step, from_step, to_step
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family

POOL = {"kernel": (3, 3), "stride": (2, 2), "padding": ((1, 1), (0, 1))}
CHANNELS = [1, 7, 8, 15, 16, 17, 33]
CASES = {
    "max_pool2d": POOL,
    "avg_pool2d": {**POOL, "count_include_pad": False},
    "relu6": {},
    "clip": {"lo": -0.5, "hi": 0.25},
    "add": {},
    "concat": {"axis": 1},
}


def run(op, attrs, arrays, threads=1):
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    problem = Problem(op, specs, [infer(op, specs, attrs)], attrs)
    kernel = family(op).select(problem, {}, step=True)
    assert kernel is not None and kernel.name in (f"own_{op}", "own_elementwise")
    step = kernel.make_step(problem, {}, threads)
    shape = empty_for_step(problem.outputs[0]).shape
    buffer = np.full(int(np.prod(shape)) + 32, 77, np.float32)
    out = buffer[: buffer.size - 32]
    _core.run_step(step, [*map(to_step, arrays), out])
    assert (buffer[-32:] == 77).all()
    return out.reshape(shape).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("op", CASES)
def test_every_level_gives_the_reference_and_the_same_bits(op, channels):
    rng = np.random.default_rng(channels)
    count = 2 if op in ("add", "concat") else 1
    arrays = [rng.standard_normal((2, channels, 9, 8)).astype(np.float32) * 4 for _ in range(count)]
    want = get_op(op).reference(*(a.astype(np.float64) for a in arrays), **CASES[op])
    results = []
    for level in isa.available():
        with isa.capped(level):
            results += [run(op, CASES[op], arrays), run(op, CASES[op], arrays, threads=3)]
    np.testing.assert_allclose(results[0], want, rtol=1e-5, atol=1e-5)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("images", [1, 3])
def test_one_value_per_channel(op, images):
    rng = np.random.default_rng(images)
    x = rng.standard_normal((3, 17, 5, 6)).astype(np.float32)
    b = rng.standard_normal((images, 17, 1, 1)).astype(np.float32)
    want = get_op(op).reference(x, b)
    for level in isa.available():
        with isa.capped(level):
            np.testing.assert_array_equal(run(op, {}, [x, b]), want)


def test_not_a_number_is_kept():
    x = np.full((1, 16, 3, 3), np.nan, np.float32)
    assert np.isnan(run("relu6", {}, [x])).all()
    assert np.isnan(run("max_pool2d", POOL, [x])).all()


def test_cap_names_are_checked():
    with pytest.raises(ValueError, match="unknown instruction set 'avx3'; expected one of .*; did you mean 'avx2'"):
        isa.set_cap("avx3")


@pytest.mark.parametrize(
    ("mode", "corners"), [("nearest", False), ("linear", False), ("linear", True), ("cubic", False)]
)
@pytest.mark.parametrize(
    ("shape", "size"),
    [((2, 5, 6, 7), (9, 3)), ((1, 17, 4, 4), (8, 8)), ((2, 3, 5), (11,)), ((1, 2, 3, 4, 5), (4, 2, 7))],
)
def test_pictures_in_other_sizes_have_the_bits_of_the_reference(shape, size, mode, corners):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    attrs = {"size": size, "mode": mode, "corners": corners}
    spec = TensorSpec(shape, x.dtype)
    problem = Problem("resize", [spec], [infer("resize", [spec], attrs)], attrs)
    for level in isa.available():
        with isa.capped(level):
            for threads in (1, 3):
                out = empty_for_step(problem.outputs[0])
                step = family("resize").for_plan(problem, {})[0].make_step(problem, {}, threads)
                _core.run_step(step, [to_step(x), out])
                wanted = get_op("resize").reference(x, **attrs, in_specs=[spec], out_specs=problem.outputs)
                np.testing.assert_array_equal(from_step(out), wanted)


WINDOWS = {
    "volume": ((2, 3, 5, 7, 37), (2, 3, 2), (2, 1, 2), ((0, 1), (1, 1), (1, 0)), (1, 2, 1)),
    "volume side by side": ((1, 2, 4, 6, 33), (2, 2, 2), (2, 2, 2), ((0, 0),) * 3, (1, 1, 1)),
    "row": ((3, 2, 61), (3,), (1,), ((1, 2),), (1,)),
    "row, far apart": ((1, 2, 40), (4,), (3,), ((4, 4),), (3,)),
    "window beyond the axis": ((1, 1, 1, 1), (2, 2), (1, 1), ((1, 1), (1, 1)), (2, 2)),
}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("kind", ["largest", "mean of all", "mean of those inside"])
@pytest.mark.parametrize("case", WINDOWS)
def test_windows_of_planes_have_the_bits_of_the_reference(case, kind, dtype):
    shape, *geometry = WINDOWS[case]
    attrs = dict(zip(("kernel", "stride", "padding", "dilation"), geometry, strict=True))
    attrs |= {"largest": kind == "largest", "count_include_pad": kind == "mean of all"}
    x = np.random.default_rng(5).standard_normal(shape).astype(dtype)
    x.ravel()[:1] = np.nan if x.size > 1 and kind == "largest" else 0.5
    with np.errstate(invalid="ignore"):  # no element inside
        want = get_op("pool").reference(x.astype(np.float32), **attrs).astype(dtype)
    rows = np.expand_dims(x, 0) if x.ndim == 4 else x
    specs = [TensorSpec(rows.shape, x.dtype)], [TensorSpec((*rows.shape[: rows.ndim - x.ndim], *want.shape), x.dtype)]
    problem = Problem("pool", *specs, attrs)
    for level in isa.available():
        for threads in (1, 3):
            with isa.capped(level):
                kernel = family("pool").select(problem, {}, step=True)
                out = np.full(want.size + 8, 77, memory.bits(x).dtype)
                _core.run_step(kernel.make_step(problem, {}, threads), [memory.bits(rows), out[: want.size]])
            got = out[: want.size].view(dtype).reshape(want.shape)
            np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
            assert (out[want.size :] == 77).all()


def test_long_rows_of_halves_are_pooled_in_float32():
    attrs = {"kernel": (2,), "stride": (2,), "padding": ((0, 0),), "dilation": (1,)}
    attrs |= {"largest": False, "count_include_pad": False}
    specs = [[TensorSpec((1, 1, n), ml_dtypes.bfloat16)] for n in (8194, 4097)]
    reason = pooling.own_pool.usable(Problem("pool", *specs, attrs))
    assert reason == "rows of 8194 numbers; expected at most 4096 for means in bfloat16"
    assert pooling.own_pool.usable(Problem("pool", *specs, {**attrs, "largest": True})) is None


def test_wrong_tables_of_neighbours_are_refused():
    with pytest.raises(ValueError, match="an index is outside of its axis"):
        _core.resize_step(1, 1, [3], [1], [[3]], [[1.0]], 1, 0, False)
    with pytest.raises(ValueError, match="as many weights as indices expected"):
        _core.resize_step(1, 1, [3], [1], [[2]], [[]], 1, 0, False)
    with pytest.raises(ValueError, match="at least one axis expected"):
        _core.resize_step(1, 1, [], [], [], [], 1, 0, False)
    with pytest.raises(ValueError, match="one index for each number that is picked"):
        _core.resize_step(1, 1, [3], [2], [[1, 2]], [[0.5, 0.5]], 1, 4, False)
    with pytest.raises(ValueError, match="bfloat16 with channels at its end has several axes"):
        _core.resize_step(1, 2, [3], [2], [[1, 2]], [[0.5, 0.5]], 1, 0, True)


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        *(((1, 2, 3, n), (5, m)) for n in (1, 15, 16, 17, 33) for m in (1, 15, 16, 17, 40)),
        *(((2, 3, n), (m,)) for n, m in ((7, 3), (7, 50), (100, 40), (1, 9))),
        ((2, 19, 6, 5), (4, 12)),
        ((1, 2, 3, 4, 50), (4, 2, 21)),
    ],
)
def test_sums_of_neighbours_in_both_layouts_and_of_halves(shape, size, mode, level):
    rng, attrs = np.random.default_rng(4), {"size": size, "mode": mode, "corners": False}
    for dtype in (np.dtype(np.float32), np.dtype("bfloat16")):
        x = rng.standard_normal(shape).astype(dtype)
        wide = x.astype(np.float32)
        spec = TensorSpec(shape, wide.dtype)
        out_spec = infer("resize", [spec], attrs)
        want = get_op("resize").reference(wide, **attrs, in_specs=[spec], out_specs=[out_spec]).astype(dtype)
        for front in ((), (1,))[: 1 + (len(shape) == 4)]:  # with an axis in front pictures lie in rows
            specs = [TensorSpec((*front, *s), dtype) for s in (shape, want.shape)]
            problem = Problem("resize", specs[:1], specs[1:], attrs)
            with isa.capped(level):
                step = family("resize").select(problem, {}, step=True).make_step(problem, {}, 2)
                taken, out = to_step(x.reshape(specs[0].shape)), empty_for_step(specs[1])
                guarded = np.full(out.size + 32, 7, dtype)
                _core.run_step(step, [memory.bits(taken), memory.bits(guarded[: out.size])])
            out[...] = guarded[: out.size].reshape(out.shape)
            got = from_step(out).reshape(want.shape)
            np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
            assert (guarded[out.size :] == 7).all()


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 4, 5), (2, 3, 7), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_nearest_neighbours_are_picked_as_they_are(shape, dtype):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.dtype(dtype))
    x.flat[3] = np.nan
    for size in ([2 * n for n in shape[2:]], [3 * n - 1 for n in shape[2:]], [max(1, n // 2) for n in shape[2:]]):
        attrs = {"size": tuple(size), "mode": "nearest", "corners": False}
        spec = TensorSpec(shape, x.dtype)
        problem = Problem("resize", [spec], [infer("resize", [spec], attrs)], attrs)
        for threads in (1, 3):
            out = empty_for_step(problem.outputs[0])
            step = family("resize").for_plan(problem, {})[0].make_step(problem, {}, threads)
            _core.run_step(step, [memory.bits(to_step(x)), memory.bits(out)])
            wanted = get_op("resize").reference(x, **attrs, in_specs=[spec], out_specs=problem.outputs)
            np.testing.assert_array_equal(from_step(out).astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("shape", [(2, 37, 9, 23), (3, 1, 7, 5), (2, 1100, 2, 3), (1, 8, 1, 1)])
def test_one_number_a_channel_reaches_every_picture(shape):
    rng = np.random.default_rng(1)
    x, factor = rng.standard_normal(shape), rng.standard_normal((1, shape[1], 1, 1))
    rows = rng.standard_normal((shape[0], 1, 1, shape[3]))
    for level in isa.available():
        with isa.capped(level):
            for other in (factor, rows):
                arrays = [a.astype(np.float32) for a in (x, other)]
                np.testing.assert_array_equal(run("add", {}, arrays), arrays[0] + arrays[1])
                np.testing.assert_array_equal(run("add", {}, arrays, threads=2), arrays[0] + arrays[1])


@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [
        ((2, 1, 7, 33), (5, 1), (1, 1), ((2, 2), (0, 0))),
        ((1, 1, 70, 40), (3, 3), (2, 2), ((1, 0), (0, 1))),
        ((1, 1, 3, 1100), (1, 4), (1, 1), ((0, 0), (1, 2))),
        ((1, 1, 1, 1), (1, 1), (1, 1), ((0, 0), (0, 0))),
    ],
)
def test_pictures_of_one_channel_have_the_bits_of_the_reference(op, shape, kernel, stride, padding):
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    attrs = {"kernel": kernel, "stride": stride, "padding": padding}
    for inside in (False, True)[: 1 + (op == "avg_pool2d")]:
        attrs |= {"count_include_pad": inside} if op == "avg_pool2d" else {}
        want = get_op(op).reference(x, **attrs)
        problem = Problem(op, [TensorSpec(shape, x.dtype)], [TensorSpec(want.shape, x.dtype)], attrs)
        for level in isa.available():
            for threads in (1, 3):
                with isa.capped(level):
                    step = family(op).select(problem, {}, step=True).make_step(problem, {}, threads)
                    out = np.full(want.size + 8, 77, np.float32)
                    _core.run_step(step, [x, out[: want.size]])
                np.testing.assert_array_equal(out[: want.size].reshape(want.shape), want)
                assert (out[want.size :] == 77).all()


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize(
    ("shape", "counts"),
    [
        ((2, 3, 4, 5), (1, 1, 2, 3)),
        ((1, 2, 3, 4, 33), (1, 1, 1, 2, 2)),
        ((2, 37, 4), (2, 3, 1)),
        *(((3, n), (1, 2)) for n in (1, 7, 8, 9, 15, 16, 17, 31, 33)),
        ((2, 40), (1, 1)),
        ((1, 16, 3, 2), (2, 1, 1, 1)),
    ],
)
def test_repeated_elements_are_copied_as_they_are(shape, counts, level):
    for dtype in ("float32", "bfloat16", "int64", "int8"):
        x = np.random.default_rng(1).integers(-99, 99, shape).astype(np.dtype(dtype))
        attrs, spec = {"counts": counts}, TensorSpec(shape, x.dtype)
        out_spec = infer("fused_repeat", [spec], attrs)
        problem = Problem("fused_repeat", [spec], [out_spec], attrs)
        out = empty_for_step(out_spec)
        guarded = np.full(out.size + 32, 7, out.dtype)
        with isa.capped(level):
            step = family("fused_repeat").for_plan(problem, {})[0].make_step(problem, {}, 3)
            _core.run_step(step, [memory.bits(to_step(x)), memory.bits(guarded[: out.size])])
        out[...] = guarded[: out.size].reshape(out.shape)
        want = get_op("fused_repeat").reference(x, **attrs)
        np.testing.assert_array_equal(from_step(out).astype("f8"), want.astype("f8"))
        assert (guarded[out.size :] == 7).all()


def test_when_elements_are_repeated_one_by_one():
    spec = TensorSpec((2, 3, 4, 5), np.dtype(np.int8))
    problem = Problem("fused_repeat", [spec], [spec], {"counts": (1, 1, 2, 2)})
    assert dict(family("fused_repeat").explain(problem, step=True))["own_repeat"].startswith("runs of 3 bytes")
