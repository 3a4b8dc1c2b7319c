"""Eager calls of elementwise ops that NumPy has in many steps: the reference's values for every layout of operands."""

import numpy as np
import pytest

import megengine.functional  # noqa: F401
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.kernels import elementwise, isa
from megengine.kernels.problem import Problem

RNG = np.random.default_rng(0)
BIG = RNG.uniform(-4, 4, (2, 24, 20, 36)).astype("f4")
LAST = np.ascontiguousarray(BIG[::-1].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
OPERANDS = {
    "rows": (BIG, BIG[::-1].copy()),
    "channels last": (LAST, LAST * 2),
    "one channels last": (BIG, LAST),
    "channels last and channels": (LAST, BIG[0, :, :1, :1]),
    "a column and channels last": (BIG[:, :, :, :1], LAST),
    "views": (BIG[:, ::-1, 1:, ::2], BIG[:, :, :-1, 1::2]),
    "a number": (BIG.reshape(-1), np.float32(0.75)),
    "both grow": (BIG[0].reshape(24, 1, 720), BIG[1, 0, :, :1] * np.ones(720, "f4")),
}


@pytest.mark.parametrize("op", ["pow", "atan2", "mod", "floor_div", "where"])
@pytest.mark.parametrize("operands", OPERANDS.values(), ids=OPERANDS)
def test_calls_equal_the_reference(op, operands):
    arrays = [np.asarray(a) for a in operands]
    if op == "where":
        arrays = [arrays[0] > 0, *arrays]
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    problem = Problem(op, specs, [infer(op, specs, {})], {})
    kernel = elementwise.own_elementwise_call
    assert kernel.usable(problem) is None
    with np.errstate(all="ignore"):
        want = get_op(op).reference(*arrays)
    for level in isa.available():
        with isa.capped(level):
            np.testing.assert_array_equal(kernel.run(problem, *arrays), want)


def test_channels_last_stays():
    specs = [TensorSpec(LAST.shape, LAST.dtype)] * 2
    problem = Problem("pow", specs, specs[:1], {})
    assert elementwise.own_elementwise_call.run(problem, LAST, LAST).strides == LAST.strides


@pytest.mark.parametrize(("op", "size"), [("where", 100), ("mod", 100), ("pow", 0)])
def test_few_elements_are_left_to_the_reference(op, size):
    arrays = [np.ones(size, "?")] * (op == "where") + [np.ones(size, "f4")] * 2
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    assert elementwise.own_elementwise_call.usable(Problem(op, specs, [infer(op, specs, {})], {}))
