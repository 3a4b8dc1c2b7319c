"""Ten thousand iterations of training, and of changing shapes, leave memory where it was."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import optimizer as optim
from megengine.autodiff import GradManager
from megengine.tensor import tensor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to read the size of the process"),
]


def resident() -> int:
    """Bytes of the process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_training_does_not_grow():
    net = M.Sequential(M.Linear(16, 32), M.ReLU(), M.Linear(32, 4))
    rule, manager = optim.Adam(net.parameters(), lr=1e-3), GradManager().attach(net.parameters())
    x, y = np.ones((8, 16), np.float32), np.arange(8, dtype=np.int32) % 4

    def steps(count):
        for _ in range(count):
            with manager:
                manager.backward(F.cross_entropy(net(tensor(x)), tensor(y)))
            rule.step().clear_grad()

    steps(1000)
    before = resident()
    steps(10_000)
    assert resident() - before < 4 << 20


def test_changing_shapes_do_not_grow():
    net = M.Sequential(M.Conv2d(2, 4, 3, padding=1), M.BatchNorm2d(4), M.ReLU()).eval()
    sizes = np.random.default_rng(0).integers(4, 24, (20_000, 2))

    def run(part):
        for h, w in part:
            net(tensor(np.zeros((1, 2, h, w), np.float32)))

    run(sizes[:10_000])
    before = resident()
    run(sizes[10_000:])
    assert resident() - before < 8 << 20
