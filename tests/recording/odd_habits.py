"""Forms of calls that are odd, but that MegEngine takes: `habits.py` records them."""

import numpy as np
from data_habits import habit
from idioms import values


def gradients(mge, function, *inputs):
    """The result, and the gradients of the sum of its squares."""
    gm = mge.autodiff.GradManager().attach(list(inputs))
    with gm:
        y = function(*inputs)
        gm.backward((y * y).sum())
    return [y, *(x.grad for x in inputs)]


@habit
def one_element_on_an_axis_fits_a_place(mge):
    found = []
    for value in ([2], mge.tensor([2.0]), np.array([2.0])):
        x = mge.tensor(values(2, 3))
        x[0, 1] = value
        x[mge.tensor(1), mge.tensor(0)] = value
        x[1, mge.tensor(2)] = value
        found.append(x)

    def assigned(x, y):
        x, y = x * 1, y * 1
        x[1, 0] = y[2:3]
        return x

    return found, gradients(mge, assigned, mge.tensor(values(2, 3)), mge.tensor(values(4)))


@habit
def lists_beside_tensors_take_their_dtype(mge):
    F, found = mge.functional, []
    for dtype in ("float16", "float32", "int8", "uint8", "int16", "int32"):
        x = mge.tensor([1, 2, 3], dtype=dtype)
        found += [x + [1, 2, 3], [3, 2, 1] - x, F.maximum(x, [2, 2, 2]), x == [1, 0, 3], x * [2]]
    half = mge.tensor([1, 2], dtype="float16")
    return found, half * [0.5, 2], F.minimum([1.5, 1.5], half)


@habit
def several_axes_of_a_softmax(mge):
    F, x = mge.functional, mge.tensor(values(2, 3, 4))
    alone = [F.softmax(x, axis=[1]), F.logsoftmax(x, [-1]), F.logsoftmax(x, (0, 2)), F.logsoftmax(x, [1, 2])]
    return alone, gradients(mge, lambda x: F.logsoftmax(x, [0, 1]), x)


@habit
def an_order_of_axes_that_is_a_tensor(mge):
    x = mge.tensor(values(2, 3, 4))
    return mge.functional.transpose(x, mge.tensor([2, 0, 1])), x.transpose(mge.tensor([1, 0, 2]))


@habit
def more_gradients_than_tensors(mge):
    class Scaled(mge.autodiff.Function):
        def forward(self, x, factor=3.0):
            self.factor = factor
            return x * factor

        def backward(self, ct):
            return ct * self.factor, None

    return gradients(mge, Scaled(), mge.tensor(values(3)))
