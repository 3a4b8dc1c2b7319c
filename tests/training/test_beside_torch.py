"""Training beside torch from the same initial weights: the losses of every step agree."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import optimizer as optim
from megengine.autodiff import GradManager
from megengine.tensor import tensor

torch = pytest.importorskip("torch")


def digits(n, seed=0):
    """Ten noisy 8x8 patterns."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(99).standard_normal((10, 1, 8, 8))
    labels = rng.integers(0, 10, n)
    pictures = patterns[labels] + 0.5 * rng.standard_normal((n, 1, 8, 8))
    return pictures.astype(np.float32), labels.astype(np.int32)


def copy_weights(ours, theirs):
    """Give the torch layers the weights of ours, layer by layer."""
    for a, b in zip(ours, theirs, strict=True):
        for name in ("weight", "bias"):
            value = getattr(a, name).numpy()
            getattr(b, name).data = torch.from_numpy(value.reshape(getattr(b, name).shape).copy())


def train(net, optimizer, batches, loss_of):
    manager, losses = GradManager().attach(net.parameters()), []
    for x, y in batches:
        with manager:
            loss = loss_of(net(tensor(x)), tensor(y))
            manager.backward(loss)
        optimizer.step().clear_grad()
        losses.append(loss.item())
    return losses


def train_torch(net, optimizer, batches, loss_of):
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(net(torch.from_numpy(x)), torch.from_numpy(y).long())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def mlp():
    ours = M.Sequential(M.Linear(64, 32), M.ReLU(), M.Linear(32, 10))
    theirs = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    copy_weights([ours[0], ours[2]], [theirs[0], theirs[2]])
    return ours, theirs, lambda x: x.reshape(len(x), -1)


class Cnn(M.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn = M.Conv2d(1, 8, 3, padding=1), M.BatchNorm2d(8)
        self.conv2, self.pool = M.Conv2d(8, 16, 3, stride=2, padding=1), M.MaxPool2d(2)
        self.fc = M.Linear(16 * 2 * 2, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv2(F.relu(self.bn(self.conv1(x))))))
        return self.fc(F.flatten(x, 1))


def cnn():
    ours, nn = Cnn(), torch.nn
    theirs = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )
    copy_weights([ours.conv1, ours.bn, ours.conv2, ours.fc], [theirs[0], theirs[1], theirs[3], theirs[7]])
    return ours, theirs, lambda x: x


RULES = [("SGD", {"lr": 0.05, "momentum": 0.9}), ("Adam", {"lr": 0.003}), ("AdamW", {"lr": 0.003})]


@pytest.mark.parametrize(("name", "options"), RULES)
@pytest.mark.parametrize("make", [mlp, cnn])
def test_losses_of_classifiers_agree(make, name, options):
    ours, theirs, prepare = make()
    x, y = digits(320)
    batches = [(prepare(x[i : i + 32]), y[i : i + 32]) for i in range(0, 320, 32)] * 3
    mine = train(ours, getattr(optim, name)(ours.parameters(), **options), batches, F.cross_entropy)
    wanted = train_torch(
        theirs, getattr(torch.optim, name)(theirs.parameters(), **options), batches, torch.nn.functional.cross_entropy
    )
    np.testing.assert_allclose(mine[:10], wanted[:10], rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(mine, wanted, rtol=5e-2, atol=2e-2)
    assert np.mean(mine[-5:]) < 0.5 * np.mean(mine[:5])


class Counter(M.Module):
    """How many ones a sequence holds."""

    def __init__(self):
        super().__init__()
        self.lstm, self.fc = M.LSTM(1, 12), M.Linear(12, 1)

    def forward(self, x):
        return self.fc(self.lstm(x)[1][0][0])[:, 0]


def test_an_lstm_learns_to_count_as_torchs_does():
    ours = Counter()
    lstm, fc = torch.nn.LSTM(1, 12), torch.nn.Linear(12, 1)
    for kind, w in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), ours.lstm._weights()[0], strict=True):
        getattr(lstm, f"{kind}_l0").data = torch.from_numpy(w.numpy().copy())
    copy_weights([ours.fc], [fc])
    rng = np.random.default_rng(3)
    batches = []
    for _ in range(60):
        bits = rng.integers(0, 2, (6, 16, 1)).astype(np.float32)
        batches.append((bits, bits.sum((0, 2))))
    mine = train(ours, optim.Adam(ours.parameters(), lr=0.03), batches, F.loss.square_loss)
    rule, wanted = torch.optim.Adam([*lstm.parameters(), *fc.parameters()], lr=0.03), []
    for x, y in batches:
        rule.zero_grad()
        loss = ((fc(lstm(torch.from_numpy(x))[1][0][0])[:, 0] - torch.from_numpy(y)) ** 2).mean()
        loss.backward()
        rule.step()
        wanted.append(loss.item())
    np.testing.assert_allclose(mine[:20], wanted[:20], rtol=2e-3, atol=1e-4)
    assert np.mean(mine[-5:]) < 0.2 * np.mean(mine[:3])
