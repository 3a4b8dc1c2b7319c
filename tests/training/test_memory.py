"""Ten thousand iterations of training, and thousands of shapes never seen before, leave memory where it was."""

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


def shapes_that_never_come_again(count):
    pairs = np.stack(np.meshgrid(np.arange(4, 40), np.arange(4, 160)), -1).reshape(-1, 2)
    return np.random.default_rng(0).permutation(pairs)[:count].tolist()


def convolutions():
    layers = [M.Conv2d(3, 8, 3, padding=1), M.BatchNorm2d(8), M.ReLU(), M.MaxPool2d(2), M.Conv2d(8, 16, 3, padding=1)]
    return M.Sequential(*layers)


def test_new_shapes_in_evaluation_do_not_grow():
    net, shapes = convolutions().eval(), shapes_that_never_come_again(5500)

    def run(part):
        for h, w in part:
            net(tensor(np.zeros((1, 3, h, w), np.float32)))

    run(shapes[:2500])  # until every cache is full
    before = resident()
    run(shapes[2500:])
    assert resident() - before < 8 << 20


def test_new_shapes_in_training_do_not_grow():
    net, shapes = convolutions(), shapes_that_never_come_again(3000)
    rule, manager = optim.SGD(net.parameters(), lr=1e-3, momentum=0.9), GradManager().attach(net.parameters())

    def run(part):
        for h, w in part:
            with manager:
                manager.backward(net(tensor(np.zeros((1, 3, h, w), np.float32))).sum())
            rule.step().clear_grad()

    run(shapes[:1500])
    before = resident()
    run(shapes[1500:])
    assert resident() - before < 8 << 20


def test_ten_thousand_steps_of_a_convolutional_network_do_not_grow():
    net = convolutions()
    rule, manager = optim.Adam(net.parameters(), lr=1e-3), GradManager().attach(net.parameters())
    x = np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype(np.float32)

    def steps(count):
        for _ in range(count):
            with manager:
                manager.backward((net(tensor(x)) ** 2).mean())
            rule.step().clear_grad()

    steps(1000)
    before = resident()
    steps(10_000)
    assert resident() - before < 4 << 20
