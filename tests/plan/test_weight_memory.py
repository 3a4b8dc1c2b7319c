"""Memory of packed weights: pieces of one another's chunks, given back, on large pages."""

import re
from pathlib import Path

import numpy as np
import pytest

import megengine as mge
import megengine.module as M
from megengine import plan
from megengine.kernels import _core
from megengine.traced_module import trace_module

_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _plan(rng, columns, depth):
    layer = M.Linear(depth, columns)
    layer.weight[...] = rng.standard_normal((columns, depth)).astype(np.float32)
    x = mge.tensor(rng.standard_normal((2, depth)).astype(np.float32))
    made = plan.compile(trace_module(layer, x))
    return made, x, x.numpy() @ layer.weight.numpy().T


def test_plans_that_end_leave_the_weights_of_the_others_alone():
    rng = np.random.default_rng(0)
    alive = []
    for _ in range(120):
        alive.append(_plan(rng, int(rng.integers(1, 400)), int(rng.integers(1, 1600))))  # up to 2.5 MB
        if len(alive) > 6:
            del alive[int(rng.integers(len(alive)))]
    for made, x, expected in alive:
        np.testing.assert_allclose(made(x)[0], expected, rtol=1e-3, atol=1e-3)


def _pages_of(kind):
    return int(re.search(rf"^{kind}: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)[1]) / 1024


@pytest.mark.skipif(not _THP.exists() or "[never]" in _THP.read_text(), reason="no large pages")
def test_weights_lie_on_large_pages_and_are_given_back():
    large = _pages_of("AnonHugePages")
    probe = np.ones(16 << 20, np.float32)  # NumPy asks for large pages, too
    if _pages_of("AnonHugePages") - large < probe.nbytes / 2**20 - 4:
        pytest.skip("the system gives no large pages")
    del probe
    weights, bias = np.ones((1024, 1024), np.float32), np.zeros(1024, np.float32)
    large, everything = _pages_of("AnonHugePages"), _pages_of("Rss")
    steps = [_core.linear_step(2, weights, bias, False, "none", None, 1) for _ in range(8)]  # 4 MB each
    assert _pages_of("AnonHugePages") - large > 24, "MB on large pages; 32 expected"
    steps.clear()
    assert _pages_of("Rss") - everything < 8, "MB that are left"
