"""Plans that are divided at ops whose number of results depends on values."""

import pickle
import threading

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import tensor
from megengine.core.errors import ShapeError
from megengine.plan import compile as compile_plan
from megengine.plan import load
from megengine.plan.segmented_plan import KEPT, Segment
from megengine.traced_module import trace_module


class Rows(M.Module):
    def forward(self, x):
        y = F.exp(x) + 1
        rows = y[x[:, 0] > 0]
        return F.softmax(rows, axis=1), y


def example(count, rows=30):
    x = np.random.default_rng(count).standard_normal((rows, 4)).astype(np.float32)
    x[:, 0] = np.where(np.arange(rows) < count, 1, -1)
    return x


@pytest.fixture
def plan():
    return compile_plan(trace_module(Rows(), tensor(example(1))))


def test_parts_are_native_and_said(plan):
    assert {s.kernel for s in plan.steps} & {"reference"} == set()
    assert [s.kernel for s in plan.steps if s.op == "nonzero"] == ["between plans"]
    assert "divided at 1 op" in plan.describe()
    assert plan.arena_bytes > 0
    rows = plan.profile(example(3), repeat=2)
    assert {info.op for info, _ in rows} >= {"nonzero", "softmax"}


def test_plans_behind_a_cut_are_kept_for_the_lengths_used_last(plan):
    for count in [*range(KEPT + 6), 3]:
        x = example(count)
        for got, want in zip(plan(x), Rows()(tensor(x)), strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)
    assert max(len(stage.plans) for stage in plan._stages if isinstance(stage, Segment)) == KEPT


def test_files_hold_the_graph(plan, tmp_path):
    plan.save(tmp_path / "net.mgt")
    for a, b in zip(load(tmp_path / "net.mgt")(example(5)), plan(example(5)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_pickle_holds_the_graph(plan):
    made = pickle.loads(pickle.dumps(plan))
    for got, wanted in zip(made(example(3)), plan(example(3)), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_threads_may_share_a_plan(plan):
    wanted = {n: plan(example(n))[0] for n in range(8)}
    wrong = []

    def run(n):
        wrong.extend(n for _ in range(20) if not np.array_equal(plan(example(n))[0], wanted[n]))

    threads = [threading.Thread(target=run, args=(n,)) for n in wanted]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_other_shapes_are_refused(plan):
    with pytest.raises(ShapeError, match=r"has shape \(2, 4\); expected"):
        plan(example(1, rows=2))
