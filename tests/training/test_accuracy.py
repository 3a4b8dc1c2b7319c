"""Training on real labelled data until unseen pictures are recognised."""

from pathlib import Path

import numpy as np

import megengine.functional as F
import megengine.module as M
from megengine import optimizer as optim
from megengine import random
from megengine.autodiff import GradManager
from megengine.tensor import tensor

DATA = Path(__file__).parents[1] / "data"


def train(net, rule, x, y, *, epochs, batch, plan=None, change=lambda pictures, rng: pictures):
    """Epochs over shuffled batches, then evaluation mode."""
    manager, rng = GradManager().attach(list(net.parameters())), np.random.default_rng(0)
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for i in range(0, len(x), batch):
            rows = order[i : i + batch]
            with manager:
                loss = F.cross_entropy(net(tensor(change(x[rows], rng))), tensor(y[rows]))
                manager.backward(loss)
            rule.step().clear_grad()
        if plan is not None:
            plan.step()
    net.eval()


def accuracy(net, x, y, batch=500):
    found = [net(tensor(x[i : i + batch])).numpy().argmax(1) for i in range(0, len(x), batch)]
    return (np.concatenate(found) == y).mean()


class Digits(M.Module):
    """Two convolutions, a depthwise one between them."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = M.Conv2d(1, 32, 3, padding=1, bias=False), M.BatchNorm2d(32)
        self.depthwise, self.bn2 = M.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), M.BatchNorm2d(32)
        self.conv2, self.bn3 = M.Conv2d(32, 64, 1, bias=False), M.BatchNorm2d(64)
        self.fc = M.Linear(64 * 16, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.bn3(self.conv2(F.relu(self.bn2(self.depthwise(x)))))), 2)
        return self.fc(F.flatten(x, 1))


def shifted(pictures, rng):
    """Every batch moved by up to a pixel."""
    return np.roll(pictures, rng.integers(-1, 2, 2), (2, 3))


def test_hand_written_digits():
    """1,297 digits to learn from, 500 never seen, of other writers and the same: 98 in 100 are right."""
    with np.load(DATA / "digits.npz") as file:
        images, labels = file["images"], file["labels"]
    order = np.random.default_rng(0).permutation(len(labels))  # the file is sorted by writer
    x, y = (images[order] / 8 - 1).astype(np.float32)[:, None], labels[order].astype(np.int32)
    random.seed(0)
    net = Digits()
    rule = optim.Adam(net.parameters(), lr=0.005)
    plan = optim.MultiStepLR(rule, [8, 11], gamma=0.2)
    train(net, rule, x[:1297], y[:1297], epochs=13, batch=50, plan=plan, change=shifted)
    reached = accuracy(net, x[1297:], y[1297:])
    assert reached >= 0.98, f"{100 * reached:.1f} % of the digits are right; expected 98 %"
