"""Losses of three small networks in training, for comparison with MegEngine.

The networks are written for MegEngine and run unchanged with either package. As a script, run by the Python of a real
MegEngine 1.13: `python curves.py OUT.npz` writes its losses.
"""

import sys

import numpy as np

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.autodiff import GradManager
from megengine.optimizer import SGD, Adam

STEPS = 30


class Convolutions(M.Module):
    """Convolutions, batch norms in training, pooling."""

    def __init__(self):
        super().__init__()
        self.body = M.Sequential(
            M.Conv2d(1, 8, 3, padding=1), M.BatchNorm2d(8), M.ReLU(), M.MaxPool2d(2), M.Conv2d(8, 16, 3, groups=2)
        )
        self.norm, self.head = M.BatchNorm2d(16), M.Linear(16, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.body(x)))
        return self.head(F.mean(x, [2, 3]))


class Recurrent(M.Module):
    """A long short-term memory, spelled out: MegEngine's own LSTM and LSTMCell crash when trained on a CPU."""

    def __init__(self):
        super().__init__()
        self.gates, self.head = M.Linear(5 + 12, 48), M.Linear(12, 4)

    def forward(self, x):
        h = c = F.zeros((x.shape[0], 12))
        for t in range(6):
            z = self.gates(F.concat([x[:, t], h], 1))
            i, f, g, o = (z[:, 12 * k : 12 * k + 12] for k in range(4))
            c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
            h = F.sigmoid(o) * F.tanh(c)
        return self.head(h)


class Transformer(M.Module):
    """One block: attention with two heads, layer norms, two linear layers with GELU."""

    def __init__(self):
        super().__init__()
        self.into, self.qkv, self.out = M.Linear(5, 16), M.Linear(16, 48), M.Linear(16, 16)
        self.norm1, self.norm2 = M.LayerNorm(16), M.LayerNorm(16)
        self.up, self.down, self.head = M.Linear(16, 32), M.Linear(32, 16), M.Linear(16, 4)

    def forward(self, x):
        x = self.into(x)
        n, t, c = 32, 6, 16
        q, k, v = (
            F.transpose(F.reshape(p, (n, t, 2, c // 2)), (0, 2, 1, 3)) for p in F.split(self.qkv(self.norm1(x)), 3, 2)
        )
        weights = F.softmax(F.matmul(q, k, transpose_b=True) * (c // 2) ** -0.5, -1)
        mixed = F.reshape(F.transpose(F.matmul(weights, v), (0, 2, 1, 3)), (n, t, c))
        x = x + self.out(mixed)
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(F.mean(x, 1))


CASES = {
    "convolutions": (Convolutions, (1, 8, 8), lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3)),
    "recurrent": (Recurrent, (6, 5), lambda p: Adam(p, lr=0.02)),
    "transformer": (Transformer, (6, 5), lambda p: Adam(p, lr=0.003, weight_decay=1e-3)),
}


def batches(shape, random):
    """Noisy copies of four patterns, and which pattern each is."""
    patterns = random.standard_normal((4, *shape))
    for _ in range(STEPS):
        labels = random.randint(0, 4, 32)
        yield (
            (patterns[labels] + 0.7 * random.standard_normal((32, *shape))).astype(np.float32),
            labels.astype(np.int32),
        )


def losses(name):
    """The loss of each step, from weights that NumPy draws."""
    make, shape, optimizer_of = CASES[name]
    random = np.random.RandomState(17)  # the same numbers in every NumPy
    net = make()
    net.train()
    for path, p in sorted(net.named_parameters()):
        scale = 1.0 if path.endswith("weight") and p.ndim == 1 else 0.0
        value = random.standard_normal(p.shape) * (0.4 / max(p.shape[-1], 1) ** 0.5 if p.ndim > 1 else 0.1) + scale
        p._reset(mge.Parameter(value.astype(np.float32)))
    optimizer = optimizer_of(list(net.parameters()))
    manager = GradManager().attach(list(net.parameters()))
    found = []
    for x, y in batches(shape, random):
        with manager:
            loss = F.nn.cross_entropy(net(mge.tensor(x)), mge.tensor(y))
            manager.backward(loss)
        optimizer.step().clear_grad()
        found.append(float(loss.numpy()))
    return found


if __name__ == "__main__":
    np.savez(sys.argv[1], **{name: losses(name) for name in CASES})
