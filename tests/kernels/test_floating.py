"""Own float kernels at every instruction set: near NumPy, the same bits everywhere, nothing written past the end."""

import numpy as np
import pytest

from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.kernels import _core, isa
from megengine.kernels.native import empty_for_step, to_step
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family

POOL = {"kernel": (3, 3), "stride": (2, 2), "padding": ((1, 1), (0, 1))}
CHANNELS = [1, 7, 8, 15, 16, 17, 33]
CASES = {
    "max_pool2d": POOL,
    "avg_pool2d": {**POOL, "count_include_pad": False},
    "mean": {"axis": (2, 3), "keepdims": True},
    "relu6": {},
    "clip": {"lo": -0.5, "hi": 0.25},
    "add": {},
    "softmax": {"axis": 1},
    "concat": {"axis": 1},
}


def run(op, attrs, arrays, threads=1, name=None):
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    problem = Problem(op, specs, [infer(op, specs, attrs)], attrs)
    kernel = family(op).select(problem, {}, step=True)
    assert kernel is not None and kernel.name == (name or f"own_{op}")
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
            np.testing.assert_array_equal(run(op, {}, [x, b], name=f"own_channel_{op}"), want)


def test_not_a_number_is_kept():
    x = np.full((1, 16, 3, 3), np.nan, np.float32)
    assert np.isnan(run("relu6", {}, [x])).all()
    assert np.isnan(run("max_pool2d", POOL, [x])).all()


def test_cap_names_are_checked():
    with pytest.raises(ValueError, match="unknown instruction set 'avx3'; expected one of .*; did you mean 'avx2'"):
        isa.set_cap("avx3")


@pytest.mark.parametrize("op", ["mean", "sum"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 1), 1), ((5, 7), -1), ((2, 3, 31), 2), ((4, 32), (1,)), ((2, 3, 33), (1, 2)), ((97,), None)],
)
def test_rows_are_added_in_one_order(op, shape, axis):
    x = np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)
    attrs = {"axis": axis, "keepdims": False}
    spec = TensorSpec(shape, x.dtype)
    problem = Problem(op, [spec], [infer(op, [spec], attrs)], attrs)
    results = []
    for level in isa.available():
        with isa.capped(level):
            kernel = family(op).for_plan(problem, {})[0]
            assert kernel.name == f"own_row_{op}"
            for threads in (1, 3):
                out = np.full(problem.outputs[0].size + 16, 77, np.float32)
                _core.run_step(kernel.make_step(problem, {}, threads), [x, out[:-16]])
                assert (out[-16:] == 77).all()
                results.append(out[:-16].reshape(problem.outputs[0].shape))
    np.testing.assert_allclose(results[0], get_op(op).reference(x.astype(np.float64), **attrs), rtol=1e-5, atol=1e-6)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_the_channels_of_a_picture_are_a_row():
    x = np.random.default_rng(0).standard_normal((2, 33, 3, 4)).astype(np.float32)
    got = run("mean", {"axis": 1, "keepdims": True}, [x], name="own_row_mean")
    np.testing.assert_allclose(got, x.mean(1, keepdims=True), rtol=1e-5, atol=1e-6)
