"""Steps that move elements, and arithmetic that broadcasts: the reference's values, nothing written past the end."""

import numpy as np
import pytest

import megengine.functional  # noqa: F401
from megengine.core.dtype import QuantizedDType, quint8, storage_of
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer, reference_runner
from megengine.kernels import _core
from megengine.kernels.native import empty_for_step, from_step, to_step
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family

DTYPES = {"f4": np.dtype("f4"), "u1": np.dtype("u1"), "i8": np.dtype("i8"), "f2": np.dtype("f2"), "q": quint8(0.5, 7)}
GUARD = 64
MOVES = [
    ("transpose", [(3, 5)], {"perm": (1, 0)}),
    ("transpose", [(2, 3, 4, 5)], {"perm": (0, 2, 3, 1)}),
    ("transpose", [(2, 35, 4, 33)], {"perm": (3, 1, 0, 2)}),
    ("transpose", [(67, 33)], {"perm": (1, 0)}),
    ("transpose", [(3, 130)], {"perm": (1, 0)}),
    ("transpose", [(2, 3, 4, 2, 3)], {"perm": (0, 2, 1, 4, 3)}),
    ("transpose", [(1, 1, 1)], {"perm": (2, 0, 1)}),
    ("slice", [(7,)], {"starts": (5,), "stops": (1,), "steps": (-2,)}),
    ("slice", [(2, 9, 6, 5)], {"starts": (0, 1, 0, 4), "stops": (2, 9, 5, None), "steps": (1, 3, 2, -1)}),
    ("slice", [(2, 8, 6, 5)], {"starts": (0, 4, 0, 0), "stops": (2, 8, 6, 5), "steps": (1, 1, 1, 1)}),
    ("broadcast_to", [(3, 1)], {"shape": (2, 3, 4)}),
    ("broadcast_to", [(1, 5, 1, 1)], {"shape": (2, 5, 3, 4)}),
    ("broadcast_to", [()], {"shape": (2, 2)}),
    ("broadcast_to", [(1, 5, 1)], {"shape": (3, 5, 2)}),
    ("fused_repeat", [(2, 3, 4, 5)], {"counts": (1, 1, 2, 3)}),
    ("fused_repeat", [(2, 37, 4)], {"counts": (2, 3, 1)}),
    ("fused_rearrange", [(2, 28, 3, 4)], {"parts": (2, 4, 7, 3, 4), "perm": (0, 2, 1, 3, 4), "shape": (2, 28, 3, 4)}),
    (
        "fused_rearrange",
        [(1, 12, 3, 5)],
        {"parts": (1, 3, 2, 2, 3, 5), "perm": (0, 1, 4, 2, 5, 3), "shape": (1, 3, 6, 10)},
    ),
    ("concat", [(2, 3), (2, 1), (2, 4)], {"axis": 1}),
    ("concat", [(1, 3, 4, 5), (2, 3, 4, 5)], {"axis": 0}),
    ("concat", [(1, 3, 4, 5), (1, 3, 4, 1)], {"axis": -1}),
    ("split", [(2, 6, 3, 4)], {"sections": (1, 5), "axis": 1}),
    ("split", [(5, 4)], {"sections": (2, 2, 1), "axis": 0}),
    ("pad", [(3, 4)], {"widths": ((1, 0), (0, 2)), "mode": "constant", "value": 2.0}),
    ("pad", [(1, 3, 4, 5)], {"widths": ((0, 0), (2, 1), (1, 1), (0, 3)), "mode": "constant", "value": 0.0}),
    ("pad", [(5,)], {"widths": ((4, 3),), "mode": "reflect", "value": 0.0}),
    ("pad", [(1, 3, 4, 5)], {"widths": ((0, 0), (2, 1), (3, 0), (0, 4)), "mode": "reflect", "value": 0.0}),
    ("pad", [(1, 3, 4, 5)], {"widths": ((0, 0), (2, 1), (7, 0), (0, 9)), "mode": "edge", "value": 0.0}),
    ("copy", [(2, 3, 4, 5)], {"device": "cpu0"}),
]
MOVES += [  # matrices of few rows, which lie one behind the other
    ("transpose", [(3, rows, columns)], {"perm": (0, 2, 1)})
    for rows in (2, 3, 4, 5, 7, 8, 9, 15)
    for columns in (15, 16, 17, 58)
]


def array_of(shape, dtype, seed=0):
    values = np.random.default_rng(seed).integers(0, 100, shape)
    return values.astype(storage_of(dtype) if isinstance(dtype, QuantizedDType) else dtype)


def run_step(kernel, problem, arrays):
    """Every output in its logical shape; canaries around each."""
    step = kernel.make_step(problem, {}, 1)
    outs, memories = [], []
    for spec in problem.outputs:
        like = empty_for_step(spec)
        memory = np.full(like.nbytes + 2 * GUARD, 0xA5, np.uint8)
        outs.append(memory[GUARD : GUARD + like.nbytes].view(like.dtype).reshape(like.shape))
        memories.append(memory)
    _core.run_step(step, [*map(to_step, arrays), *outs])
    for memory in memories:
        assert (memory[:GUARD] == 0xA5).all() and (memory[-GUARD:] == 0xA5).all()
    return [from_step(out) for out in outs]


def problem_of(op, arrays, dtype, attrs):
    specs = [TensorSpec(a.shape, dtype) for a in arrays]
    outputs = infer(op, specs, attrs)
    return Problem(op, specs, [outputs] if isinstance(outputs, TensorSpec) else list(outputs), attrs)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(("op", "shapes", "attrs"), MOVES, ids=lambda v: str(v)[:40])
def test_moves(op, shapes, attrs, dtype):
    arrays = [array_of(s, dtype, i) for i, s in enumerate(shapes)]
    problem = problem_of(op, arrays, dtype, attrs)
    kernel = next(k for k in family(op).kernels if k.name == f"own_strided_{op}")
    assert kernel.usable(problem) is None
    want = reference_runner(get_op(op), problem, False)
    got = run_step(kernel, problem, arrays)
    expected = want(*arrays) if len(got) > 1 else [reference_runner(get_op(op), problem, True)(*arrays)]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_not_moved():
    kernel = next(k for k in family("pad").kernels if k.name == "own_strided_pad")
    x = array_of((3, 4), DTYPES["f4"])
    empty = problem_of("pad", [x[:0]], DTYPES["f4"], {"widths": ((0, 0), (1, 0)), "mode": "constant", "value": 0.0})
    assert kernel.usable(empty) == "no elements"


SHAPES = [
    ((4, 5), (5,)),
    ((4, 1), (1, 5)),
    ((2, 33, 4, 5), (33, 1, 1)),
    ((2, 3, 4, 5), (2, 1, 4, 5)),
    ((2, 3, 4, 5), (1, 3, 1, 5)),
    ((), (2, 3)),
    ((3, 1, 7), (2, 1, 5, 1)),
    ((6, 17), (6, 17)),
]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "maximum", "minimum"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
def test_broadcasting(op, shapes, swapped):
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s).astype("f4") for s in (shapes[::-1] if swapped else shapes)]
    for a in arrays:
        a.reshape(-1)[::7] = np.nan
    problem = problem_of(op, arrays, DTYPES["f4"], {})
    kernel = next(k for k in family(op).kernels if k.name == "own_elementwise")
    got = run_step(kernel, problem, arrays)[0]
    np.testing.assert_array_equal(got, reference_runner(get_op(op), problem, True)(*arrays))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    ("channels", "pixels"),
    [
        *((1, 5), (2, 40), (3, 70), (4, 64), (5, 4100), (7, 31), (9, 70), (12, 2100), (15, 16)),
        *((16, 17), (24, 130), (67, 63), (24, 700)),
    ],
)
def test_layouts(channels, pixels, dtype):
    """Every tile and rest of a transposed matrix, from rows to channels-last and back."""
    x = array_of((2, channels, pixels), dtype)
    there, back = (np.full(x.nbytes + GUARD, 0xA5, np.uint8) for _ in range(2))
    for source, target, to_channels_last in ((x, there, True), (there[: x.nbytes], back, False)):
        step = _core.layout_step(x.itemsize, 2, channels, pixels, to_channels_last, threads=3)
        _core.run_step(step, [source.view(np.uint8), target[: x.nbytes]])
        assert (target[x.nbytes :] == 0xA5).all()
    wanted = np.ascontiguousarray(x.transpose(0, 2, 1))
    np.testing.assert_array_equal(there[: x.nbytes], wanted.view(np.uint8).ravel())
    np.testing.assert_array_equal(back[: x.nbytes], x.view(np.uint8).ravel())
