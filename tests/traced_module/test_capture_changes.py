"""Capture: assignments, operators in place and state that a forward changes."""

import numpy as np
import pytest
from capturing import array, module_of, same

import megengine.functional as F
import megengine.module as M
from megengine.tensor import tensor
from megengine.traced_module import (
    SpecializationWarning,
    lower,
    trace_module,
)


def test_assignments_and_in_place_operators():
    def forward(self, x):
        y = x * 1
        y[:, 0] = 0.5
        y[1:] = y[:1] * 2
        z = y
        z += x
        z *= 2
        y[0, 1] += 1
        return y, z, x

    same(module_of(forward), tensor(array(3, 4)))


def test_values_that_are_read_behind_an_assignment_are_those_before_it():
    """What is not computed yet keeps the operands that it had: the tensor is assigned to before its value is read."""
    seen = []

    def forward(self, x):
        y = x * 2
        total, rectified = y + 1, self.act(y)
        low, high = F.split(y, 2)
        y[0] = 5
        y += 1
        late = y * 1
        y[1] = late[1] * 0
        y[y > 5] = 0
        seen.append([v.tolist() for v in (total, rectified, low, high, late, y)])
        return y + total

    module = module_of(forward, act=M.ReLU())
    x = array(2, 3)
    want = module(tensor(x)).numpy()
    with pytest.warns(SpecializationWarning):
        traced = trace_module(module, tensor(x))
    assert seen[0] == seen[1]
    np.testing.assert_array_equal(traced(tensor(x)).numpy(), want)


def test_detached_values_are_values():
    def forward(self, x):
        y = (x * 2).detach()
        return y + x.detach()

    traced = same(module_of(forward), tensor(array(2, 3)))
    assert [e.kind for e in traced.graph.exprs() if e.kind == "Constant"] == []


def test_assignments_have_an_op_level_form():
    def forward(self, x):
        y = x * 2
        y[:, 0] = 1.0
        z = y + x
        z[0] = y[1]
        return y, z

    net = module_of(forward)
    ops = lower(trace_module(net, tensor(array(2, 3))))
    x = tensor(array(2, 3, seed=5))
    for a, b in zip(ops(x), net(x), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_operators_in_place_are_values_of_the_graph():
    def forward(self, x):
        y = x * 2
        z = y
        y += 1
        return z + y

    traced, x = trace_module(module_of(forward), tensor(array(2, 3))), array(2, 3)
    assert [e.outputs[0].name for e in traced.graph._exprs] == ["mul_out", "iadd_out", "add_out"]
    np.testing.assert_allclose(traced(tensor(x)).numpy(), 2 * (2 * x + 1), rtol=1e-6)


def test_arguments_changed_in_place_stay_the_callers():
    def forward(self, x):
        x += 1
        return x * 2

    given = tensor(array(2, 3))
    with pytest.warns(SpecializationWarning, match="change in place of .*x: the graph computes with the new value"):
        traced = trace_module(module_of(forward), given)
    np.testing.assert_array_equal(given.numpy(), array(2, 3))
    np.testing.assert_allclose(traced(given).numpy(), 2 * (array(2, 3) + 1), rtol=1e-6)
    np.testing.assert_array_equal(given.numpy(), array(2, 3))


def test_a_module_may_change_its_argument_that_nobody_uses_again():
    class Adds(M.Module):
        def forward(self, x, y):
            x += y
            return F.relu(x)

    def forward(self, x):
        return self.inner(x * 2, x)

    traced = trace_module(module_of(forward, inner=Adds()), tensor(array(2, 3)))
    np.testing.assert_allclose(traced(tensor(array(2, 3))).numpy(), np.maximum(3 * array(2, 3), 0), rtol=1e-6)


def test_state_that_was_assigned_is_read_as_what_was_computed():
    class Counts(M.Module):
        def __init__(self):
            super().__init__()
            self.total = tensor([1.0])

        def forward(self, x):
            self.total = self.total + x.sum()
            return x * self.total

    net = Counts()
    before = net.total
    traced = trace_module(net, tensor([2.0]))
    assert net.total is before
    np.testing.assert_array_equal(traced(tensor([2.0])).numpy(), [6.0])


def test_state_changed_in_place_is_told_and_given_back():
    class Counts(M.Module):
        def __init__(self):
            super().__init__()
            self.total = tensor([1.0])

        def forward(self, x):
            self.total += x.sum()
            return x * self.total

    net = Counts()
    with pytest.warns(SpecializationWarning, match=r"change in place of Counts\.total"):
        traced = trace_module(net, tensor([2.0]))
    np.testing.assert_array_equal(net.total.numpy(), [1.0])
    np.testing.assert_array_equal(traced(tensor([2.0])).numpy(), [6.0])
    assert len(traced.specializations) == 1
