"""Training on real labelled data until unseen pictures are recognised."""

import gzip
import io
from pathlib import Path

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import optimizer as optim
from megengine import random
from megengine.autodiff import GradManager
from megengine.cli import assets
from megengine.serialization import load
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


class Block(M.Module):
    """An inverted residual: widened, filtered depthwise, narrowed; added to its input where the shapes agree."""

    def __init__(self, inputs, outputs, stride, widening):
        super().__init__()
        wide = inputs * widening
        self.adds = stride == 1 and inputs == outputs
        self.body = M.Sequential(
            *(M.Conv2d(inputs, wide, 1, bias=False), M.BatchNorm2d(wide), M.Elemwise("relu6")),
            *(M.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), M.BatchNorm2d(wide), M.Elemwise("relu6")),
            *(M.Conv2d(wide, outputs, 1, bias=False), M.BatchNorm2d(outputs)),
        )

    def forward(self, x):
        return x + self.body(x) if self.adds else self.body(x)


class MiniMobileNet(M.Module):
    """MobileNetV2 for pictures of 28x28."""

    def __init__(self, classes):
        super().__init__()
        blocks = [(16, 16, 1, 2), (16, 24, 2, 4), (24, 24, 1, 4), (24, 32, 2, 4), (32, 32, 1, 4)]
        self.stem = M.Sequential(M.Conv2d(1, 16, 3, 2, 1, bias=False), M.BatchNorm2d(16), M.Elemwise("relu6"))
        self.blocks = M.Sequential(*[Block(*sizes) for sizes in blocks])
        self.head = M.Sequential(M.Conv2d(32, 128, 1, bias=False), M.BatchNorm2d(128), M.Elemwise("relu6"))
        self.fc = M.Linear(128, classes)

    def forward(self, x):
        return self.fc(F.mean(self.head(self.blocks(self.stem(x))), [2, 3]))


def turned(pictures, rng):
    """Every batch moved by up to two pixels, every second picture of it seen in a mirror."""
    moved = np.roll(pictures, rng.integers(-2, 3, 2), (2, 3))
    mirrored = rng.random(len(moved)) < 0.5
    return np.where(mirrored[:, None, None, None], moved[..., ::-1], moved)


@pytest.fixture
def silhouettes(monkeypatch):
    """Pictures [N,1,28,28] and labels of the package animal-mnist (MIT), every picture once."""
    asset = assets.PipAsset(
        "animal_mnist",
        "animal-mnist==0.4",
        "animal_mnist-0.4-py3-none-any.whl",
        "aeebf3d9de4552d6fd2d5701424e1a5b9020f8e5115d68df9db252f2f53ce2ce",
        "animal_mnist/data/Animal_MNIST/",
        ".gz",
        "silhouettes of animals",
    )
    monkeypatch.setitem(assets.PIP_ASSETS, asset.name, asset)
    try:
        files = {path.name: path for path in assets.pip_asset(asset.name)}
    except assets.AssetError as error:
        pytest.skip(f"animal-mnist cannot be had: {error}")
    pictures, labels = (
        np.asarray(load(io.BytesIO(gzip.decompress(files[f"animal_{what}_version_3.gz"].read_bytes()))))
        for what in ("data", "label")
    )
    _, once = np.unique(pictures.reshape(len(pictures), -1), axis=0, return_index=True)
    return pictures[once].reshape(-1, 1, 28, 28), labels[once].reshape(-1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_silhouettes_of_animals(silhouettes):
    """8,000 to learn from, the rest (no twin among them) never seen: 96 in 100 are right.

    97.4 % with AVX2, 96.8 % with AVX512-BF16: sums add in another order. The standard error of 1,716 pictures is 0.4 %.
    """
    pictures, labels = silhouettes
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = (pictures[order] / 127.5 - 1).astype(np.float32), labels[order].astype(np.int32)
    random.seed(0)
    net = MiniMobileNet(int(y.max()) + 1)
    rule = optim.Adam(net.parameters(), lr=0.004)
    plan = optim.MultiStepLR(rule, [6, 9], gamma=0.2)
    train(net, rule, x[:8000], y[:8000], epochs=10, batch=64, plan=plan, change=turned)
    reached = accuracy(net, x[8000:], y[8000:])
    assert reached >= 0.96, f"{100 * reached:.1f} % of the silhouettes are right; expected 96 %"
