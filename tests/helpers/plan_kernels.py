"""The kernels of plans alone: equal to the references at every level, in one part and in three."""

import numpy as np

from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.kernels import _core, isa
from megengine.kernels.native import empty_for_step, from_step, to_step
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family


def draw(shape, dtype="f4"):
    rng = np.random.default_rng(shape)
    return rng.standard_normal(shape).astype(dtype) if dtype[0] == "f" else rng.integers(-9, 9, shape).astype(dtype)


def problem_of(op, arrays, attrs):
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    out = infer(op, specs, attrs)
    return Problem(op, specs, [out] if isinstance(out, TensorSpec) else out, attrs)


def run(problem, arrays, threads):
    """Outputs of the plan's kernel, or None where it leaves the problem to another layout."""
    kernel = next(iter(family(problem.op).for_plan(problem, {})), None)
    if kernel is None:
        return None
    enter, leave = (np.asarray, np.asarray) if kernel.in_rows else (to_step, from_step)
    outs = []
    for spec in problem.outputs:
        like = np.empty(spec.shape, spec.dtype) if kernel.in_rows else empty_for_step(spec)
        memory = np.full(like.nbytes + 64, 0xA5, np.uint8)
        outs.append((memory, memory[: like.nbytes].view(like.dtype).reshape(like.shape)))
    _core.run_step(kernel.make_step(problem, {}, threads), [*map(enter, arrays), *(o for _, o in outs)])
    assert all((memory[-64:] == 0xA5).all() for memory, _ in outs)
    return [leave(o) for _, o in outs]


def check(op, arrays, attrs, *, left_out=False):
    """Equal to the reference at every level, in one part and in three."""
    problem = problem_of(op, arrays, attrs)
    want = get_op(op).reference(*arrays, **attrs)
    for level in isa.available():
        with isa.capped(level):
            for threads in (1, 3):
                got = run(problem, arrays, threads)
                if got is None:
                    assert left_out
                    return
                for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
                    np.testing.assert_array_equal(a, b)
