"""Single lines that programs hold: lists as indices, axes of single numbers, arguments by name. `habits.py` records them."""

import numpy as np
from data_habits import habit
from idioms import values


@habit
def lists_are_tuples_of_indices(mge):
    x, y = mge.tensor(np.arange(12, dtype=np.float32).reshape(3, 4)), mge.tensor(values(2, 3, 4))
    pairs = [[[0, 1], [1, 2]], [[0], [1]], [[0, 1], 1], [(0, 1), (1, 2)], [range(2), range(2)], [[[0, 1], [1, 0]]]]
    marks = [[slice(0, 2), 1], [None, 0], [..., 0], [[0, 1], slice(None)], [[True, True, False], [0, 1]]]
    tensors = [
        [mge.tensor([0, 1]), mge.tensor([1, 2])],
        [np.array([0, 1]), np.array([1, 2])],
        [np.int64(0), np.int32(1)],
    ]
    alone = [[0, 1], [True, False, True], [[True, False, True]]]
    return [x[key] for key in pairs + marks + tensors + alone], y[[[0, 1], [1, 2]]], y[[[0, 1], [1, 2], [0, 3]]]


@habit
def lists_are_arrays_where_values_are_set(mge):
    found = []
    for key in ([[0, 1], [1, 2]], [[0], [1]], [0, 2]):
        x = mge.tensor(np.zeros((3, 4), np.float32))
        x[key] = 1
        found.append(x)
    return found


@habit
def a_single_number_has_an_axis_to_reduce(mge):
    F, s = mge.functional, mge.tensor(2.5)
    reduced = [s.sum(0), s.sum(-1), s.mean(0), s.max(0), s.min(-1), s.prod(0), F.var(s, 0), F.std(s, -1)]
    return reduced, F.logsumexp(s, 0), F.norm(s, 1, 0), F.dot(s, s), F.cumsum(s, 0), F.softmax(s).item()


@habit
def axes_are_given_by_name(mge):
    F, x = mge.functional, mge.tensor(values(2, 3))
    return F.transpose(x, pattern=(1, 0)), F.transpose(inp=x, pattern=["x", 1, 0]), x.transpose(1, 0), x.transpose()


@habit
def a_norm_that_counts(mge):
    x = mge.tensor(np.array([[0.0, 1.0], [2.0, 3.0]], np.float32))
    return [mge.functional.norm(x, 0, axis, keep) for axis in (0, 1) for keep in (False, True)]


@habit
def what_quantization_parameters_print(mge):
    return repr(mge.tensor([1.0]).qparams)


@habit
def whole_numbers_in_arrays_beside_half_floats(mge):
    F, half = mge.functional, mge.tensor(np.float16([1, 2, 3]))
    arrays = [np.array([1, 2, 3]), np.int32([1, 2, 3]), np.uint8([1, 2, 3]), np.array([True, False, True]), np.array(2)]
    return [[half * a, a - half, F.maximum(half, a), half == a] for a in arrays], half + np.float32([1, 2, 3])
