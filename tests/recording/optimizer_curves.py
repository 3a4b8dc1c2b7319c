"""Losses of a small network in training by every optimizer, with schedules and limits of gradients, for comparison with MegEngine.

As a script, run by the Python of a real MegEngine 1.13: `python optimizer_curves.py OUT.npz` writes its losses. Its LAMB
raises TypeError when it is made.
"""

import math
import sys

import numpy as np

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.optimizer as optim
from megengine.autodiff import GradManager

STEPS = 50


class Cosine(optim.LRScheduler):
    """Half a wave down to 0."""

    def __init__(self, optimizer, length, current_epoch=-1):
        self.length = length
        super().__init__(optimizer, current_epoch)

    def get_lr(self):
        return [lr * (1 + math.cos(math.pi * self.current_epoch / self.length)) / 2 for lr in self.base_lrs]


class WarmUp(optim.LRScheduler):
    """A rise over five steps, then the square root's fall."""

    def get_lr(self):
        step = self.current_epoch + 1
        return [lr * min(step / 5, (5 / step) ** 0.5) for lr in self.base_lrs]


def norm(parameters):
    """Limit the norm of all gradients."""
    return optim.clip_grad_norm(parameters, 0.5)


def value(parameters):
    """Limit each gradient."""
    optim.clip_grad_value(parameters, -0.02, 0.03)


def two_groups(net, **options):
    """The head learns faster, and biases do not decay."""
    biases = [p for name, p in net.named_parameters() if name.endswith("bias")]
    others = [p for name, p in net.named_parameters() if not name.endswith("bias")]
    return optim.SGD([{"params": others}, {"params": biases, "lr": 0.2, "weight_decay": 0.0}], **options)


# name -> (optimizer of a network, schedule of an optimizer, limit of gradients)
CASES = {
    "SGD": (lambda net: optim.SGD(net.parameters(), lr=0.1), None, None),
    "SGD, momentum": (lambda net: optim.SGD(net.parameters(), lr=0.05, momentum=0.9), None, None),
    "SGD, nesterov, decay": (
        lambda net: optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
        None,
        None,
    ),
    "SGD, groups": (lambda net: two_groups(net, lr=0.05, momentum=0.8, weight_decay=1e-2), None, None),
    "SGD, steps": (
        lambda net: optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        lambda o: optim.MultiStepLR(o, [15, 30, 40], gamma=0.3),
        None,
    ),
    "SGD, cosine, norm": (
        lambda net: optim.SGD(net.parameters(), lr=0.3, momentum=0.9),
        lambda o: Cosine(o, STEPS),
        norm,
    ),
    "SGD, value": (lambda net: optim.SGD(net.parameters(), lr=0.3), None, value),
    "Adam": (lambda net: optim.Adam(net.parameters(), lr=0.01), None, None),
    "Adam, options": (
        lambda net: optim.Adam(net.parameters(), lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=1e-2),
        None,
        None,
    ),
    "Adam, warm up, norm": (lambda net: optim.Adam(net.parameters(), lr=0.03), WarmUp, norm),
    "AdamW": (lambda net: optim.AdamW(net.parameters(), lr=0.01), None, None),
    "AdamW, decay, cosine": (
        lambda net: optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.3),
        lambda o: Cosine(o, STEPS),
        None,
    ),
    "Adagrad": (lambda net: optim.Adagrad(net.parameters(), lr=0.05), None, None),
    "Adagrad, options": (
        lambda net: optim.Adagrad(net.parameters(), lr=0.1, lr_decay=0.05, eps=1e-4, weight_decay=1e-2),
        None,
        None,
    ),
    "Adadelta": (lambda net: optim.Adadelta(net.parameters(), lr=1.0), None, None),
    "Adadelta, options": (
        lambda net: optim.Adadelta(net.parameters(), lr=2.0, rho=0.8, eps=1e-4, weight_decay=1e-2),
        None,
        None,
    ),
}


class Net(M.Module):
    """Two layers with a norm between them."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = M.Linear(8, 16), M.LayerNorm(16), M.Linear(16, 4)

    def forward(self, x):
        return self.last(F.tanh(self.norm(self.first(x))))


def losses(name):
    """The loss of each step, from weights that NumPy draws, and the learning rates that a schedule gave."""
    make, schedule, limit = CASES[name]
    random = np.random.RandomState(23)  # the same numbers in every NumPy
    net = Net()
    for _, p in sorted(net.named_parameters()):
        p.set_value((random.standard_normal(p.shape) * 0.4 + (p is net.norm.weight)).astype(np.float32))
    optimizer = make(net)
    plan = None if schedule is None else schedule(optimizer)
    manager = GradManager().attach(net.parameters())
    patterns, found = random.standard_normal((4, 8)), []
    for _ in range(STEPS):
        labels = random.randint(0, 4, 16)
        x = (patterns[labels] + 0.5 * random.standard_normal((16, 8))).astype(np.float32)
        with manager:
            loss = F.nn.cross_entropy(net(mge.tensor(x)), mge.tensor(labels.astype(np.int32)))
            manager.backward(loss)
        if limit is not None:
            limit(list(net.parameters()))
        optimizer.step().clear_grad()
        if plan is not None:
            plan.step()
        found.append(float(loss.numpy()))
    rates = [] if plan is None else [group["lr"] for group in optimizer.param_groups]
    return np.array(found + rates, np.float32)


if __name__ == "__main__":
    mge.config.async_level = 0
    np.savez_compressed(sys.argv[1], **{name: losses(name) for name in CASES})  # type: ignore[arg-type]
