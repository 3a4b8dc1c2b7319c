"""Eager calls of native steps: what is packed once stays packed, and follows the memory it came from."""

import numpy as np
import pytest

import megengine.module as M
from megengine.core.spec import TensorSpec
from megengine.kernels import native, onednn, registry
from megengine.kernels.native import StepCache
from megengine.kernels.problem import Problem
from megengine.tensor import tensor


def problem_of(*arrays):
    return Problem("test", [TensorSpec(a.shape, a.dtype) for a in arrays], [], {})


class Made(list):
    def __call__(self, problem, constants, threads):
        self.append({i: a.copy() for i, a in constants.items()})
        return len(self)


def test_views_of_one_memory_share_a_step():
    made = Made()
    cache, weights = StepCache(made), np.arange(6.0)
    for view in (weights.reshape(2, 3), weights.reshape(2, 3), weights.reshape(1, 6)[0].reshape(2, 3)):
        assert cache.get(problem_of(view), {1: view}) == 1
    assert len(made) == 1


def test_other_parts_and_orders_of_one_memory_are_other_constants():
    made = Made()
    cache, weights = StepCache(made), np.arange(8.0).reshape(2, 2, 2)
    views = [weights[0], weights[1], weights[0].T, weights[:, 0]]
    steps = [cache.get(problem_of(v), {0: v}) for v in views]
    assert steps == [1, 2, 3, 4]
    for view, seen in zip(views, made, strict=True):
        np.testing.assert_array_equal(seen[0], view)


def test_a_step_dies_with_the_memory_it_packed():
    cache, weights = StepCache(Made()), np.arange(6.0)
    view = weights.reshape(2, 3)
    cache.get(problem_of(view), {1: view})
    del view
    assert len(cache.steps) == 1
    del weights
    assert not cache.steps


def test_of_many_shapes_the_last_ones_stay_packed():
    made = Made()
    cache, weights = StepCache(made), np.arange(6.0)
    inputs = [np.zeros(n) for n in range(native._PACKED_LIMIT + 1)]
    for x in inputs[:-1]:
        cache.get(problem_of(x), {1: weights})
    cache.get(problem_of(inputs[0]), {1: weights})
    cache.get(problem_of(inputs[-1]), {1: weights})  # the second is the one not used for longest
    assert len(made) == native._PACKED_LIMIT + 1
    for i in (0, *range(2, len(inputs))):
        cache.get(problem_of(inputs[i]), {1: weights})
    assert len(made) == native._PACKED_LIMIT + 1
    cache.get(problem_of(inputs[1]), {1: weights})
    assert len(made) == native._PACKED_LIMIT + 2


def test_remembered_choices_are_bounded(monkeypatch):
    monkeypatch.setattr(registry, "_MEMO_LIMIT", 10)
    relu = registry.family("relu")
    for n in range(1, 40):
        problem = Problem("relu", [TensorSpec((n,), np.dtype(np.float32))], [], {})
        assert relu.candidates(problem, step=True)[0].name == "own_elementwise"
        assert len(relu._memo) <= 10


@pytest.mark.skipif(not onednn.available(), reason=onednn.unavailable_reason())
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_packs_its_weights_once(groups, monkeypatch):
    made = []
    make = onednn._module.conv_step
    monkeypatch.setattr(onednn, "_module", type("Counting", (), {"conv_step": lambda *a: made.append(a) or make(*a)}))
    conv, x = M.Conv2d(36, 6, 3, groups=groups), np.random.default_rng(0).standard_normal((1, 36, 40, 40))
    first = conv(tensor(x)).numpy()
    np.testing.assert_array_equal(conv(tensor(x)).numpy(), first)
    assert len(made) == 1
    conv.bias._reset(conv.bias + 1)
    np.testing.assert_allclose(conv(tensor(x)).numpy(), first + 1, rtol=1e-5, atol=1e-5)
    assert len(made) == 2
