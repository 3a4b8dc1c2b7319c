"""Networks made at random, by code that runs under this package and under MegEngine 1.13 alike.

`network(seed)` gives (module, list of input arrays); the listing of its traced graph must be the same in both.
"""

import random
from collections import OrderedDict

import numpy as np

import megengine as mge
import megengine.functional as F
import megengine.module as M

SHAPE = (2, 4, 6, 6)


class Calls(M.Module):
    """A forward that makes the calls of a program: each step takes two of the values so far and makes another one."""

    def __init__(self, rng, depth):
        super().__init__()
        self.conv = M.Conv2d(4, 4, 3, padding=1)
        self.norm = M.BatchNorm2d(4)
        self.relu = M.ReLU()
        self.pool = M.AvgPool2d(3, stride=1, padding=1)
        self.same = M.Identity()
        self.seq = M.Sequential(M.Conv2d(4, 4, 1), M.ReLU(), M.BatchNorm2d(4))
        self.named = M.Sequential(OrderedDict([("first", M.Conv2d(4, 4, 1)), ("act", M.ReLU())]))
        self.blocks = [M.Conv2d(4, 4, 1), M.Sequential(M.ReLU(), M.Conv2d(4, 4, 1)), M.ReLU()]
        self.table = {"b": M.Conv2d(4, 4, 1), "a": M.ReLU()}
        self.weight = mge.Parameter(np.ones((1, 4, 1, 1), "float32"))
        self.kernel = mge.Parameter(np.ones((4, 4, 1, 1), "float32") * 0.1)
        self.bias = mge.Tensor(np.zeros((1, 4, 1, 1), "float32"))
        self.nothing = None
        self.proj = M.Conv2d(4, 4, 1)
        self.children_of = []
        if depth > 0:
            self.inner = Calls(rng, depth - 1)
            self.both = TwoInputs()
            self.parts = Parts()
            self.maker = Makes()
            self.children_of = [Calls(rng, 0), Calls(rng, 0)]
        names = [n for n in STEPS if depth > 0 or n not in DEEP]
        self.program = [(rng.choice(names), rng.random(), rng.random()) for _ in range(rng.randint(2, 9))]

    def forward(self, x):
        values = [x]
        for name, first, second in self.program:
            a = values[int(first * len(values))]
            b = values[int(second * len(values))]
            values.append(STEPS[name](self, a, b))
        return values[-1]


class TwoInputs(M.Module):
    def __init__(self):
        super().__init__()
        self.act = M.Sigmoid()

    def forward(self, left, right, scale=2, flag=True):
        total = left + right * scale
        return self.act(total) if flag else total


class Parts(M.Module):
    """A tuple and a dict as results."""

    def __init__(self):
        super().__init__()
        self.conv = M.Conv2d(4, 4, 1)

    def forward(self, x):
        y = self.conv(x)
        low, high = F.split(y, 2, axis=1)
        return {"low": low, "pair": (high, y)}


class Makes(M.Module):
    """Tensors that are made inside."""

    def forward(self, x):
        ones = F.ones((2, 4, 1, 1), dtype="float32")
        return x + ones * mge.tensor(np.array([0.5], "float32")) + F.zeros_like(x)


def proj_if_there(s, a, b):
    return s.proj(a) if s.proj is not None else a


def over_list(s, a, b):
    for block in s.blocks:
        a = block(a)
    return a


def backwards(s, a, b):
    return s.blocks[-1](s.blocks[0](a))


def over_dict(s, a, b):
    for key in sorted(s.table):
        a = s.table[key](a)
    return a


def over_items(s, a, b):
    for key, layer in s.table.items():
        a = layer(a) * len(key)
    return a


def over_values(s, a, b):
    for layer in s.table.values():
        a = layer(a)
    return a


def enumerated(s, a, b):
    for i, child in enumerate(s.children_of):
        a = child(a) * (i + 1)
    return a


def parts(s, a, b):
    found = s.parts(a)
    return F.concat([found["low"], found["pair"][0]], axis=1) + found["pair"][1]


def reshaped(s, a, b):
    n, c = a.shape[0], a.shape[1]
    return a.reshape(n, c, -1).reshape(2, 4, 6, 6)


def flattened(s, a, b):
    return F.flatten(a, 1).reshape(a.shape)


def statistics(s, a, b):
    mean = F.mean(a, axis=(2, 3), keepdims=True)
    return (a - mean) / F.sqrt(F.mean((a - mean) ** 2, axis=[2, 3], keepdims=True) + 1e-5)


def sliced(s, a, b):
    return F.concat([a[:, :2], b[:, 2:]], 1)


def stacked(s, a, b):
    return F.stack([a, b], axis=0).sum(axis=0)


def assigned(s, a, b):
    y = a + 0
    y[:, 0] = b[:, 1]
    return y * 2


def in_place(s, a, b):
    y = a * 1.5
    y += b
    y *= 2
    return y


STEPS = {
    "conv": lambda s, a, b: s.conv(a),
    "norm": lambda s, a, b: s.norm(a),
    "conv norm relu": lambda s, a, b: F.relu(s.norm(s.conv(a))),
    "relu layer": lambda s, a, b: s.relu(a),
    "pool": lambda s, a, b: s.pool(a),
    "same": lambda s, a, b: s.same(a),
    "seq": lambda s, a, b: s.seq(a),
    "seq twice": lambda s, a, b: s.seq(s.seq(a)),
    "named": lambda s, a, b: s.named(a),
    "part of named": lambda s, a, b: s.named.first(a),
    "part of seq": lambda s, a, b: s.seq[0](a),
    "list": over_list,
    "backwards": backwards,
    "dict": over_dict,
    "items": over_items,
    "values": over_values,
    "if there": proj_if_there,
    "if nothing": lambda s, a, b: a if s.nothing is None else b,
    "add": lambda s, a, b: a + b,
    "mul": lambda s, a, b: a * b,
    "radd": lambda s, a, b: 1 + a,
    "rsub": lambda s, a, b: 1.0 - a,
    "div": lambda s, a, b: a / 2,
    "pow": lambda s, a, b: a**2,
    "neg": lambda s, a, b: -a,
    "compare": lambda s, a, b: F.where(a > b, a, b),
    "maximum": lambda s, a, b: F.maximum(a, 0),
    "clip": lambda s, a, b: F.clip(a, -1, 1),
    "clip words": lambda s, a, b: F.clip(a, upper=1.0, lower=-1.0),
    "sigmoid": lambda s, a, b: F.sigmoid(a),
    "softmax": lambda s, a, b: F.softmax(a, axis=1),
    "gelu": lambda s, a, b: F.gelu(a),
    "leaky": lambda s, a, b: F.leaky_relu(a, 0.2),
    "exp": lambda s, a, b: F.exp(F.minimum(a, 1)),
    "weight": lambda s, a, b: a * s.weight + s.bias,
    "kernel": lambda s, a, b: F.conv2d(a, s.kernel),
    "weight of layer": lambda s, a, b: F.conv2d(a, s.conv.weight, s.conv.bias, padding=1),
    "max pool": lambda s, a, b: F.max_pool2d(a, kernel_size=3, stride=1, padding=1),
    "transposed": lambda s, a, b: a.transpose(0, 1, 3, 2),
    "F transposed": lambda s, a, b: F.transpose(a, (0, 1, 3, 2)),
    "reshaped": reshaped,
    "flattened": flattened,
    "statistics": statistics,
    "sliced": sliced,
    "stacked": stacked,
    "expand": lambda s, a, b: F.squeeze(F.expand_dims(a, 1), axis=1),
    "astype": lambda s, a, b: a.astype("float16").astype("float32"),
    "mean method": lambda s, a, b: a - a.mean(axis=1, keepdims=True),
    "argmax": lambda s, a, b: a + F.argmax(b, axis=1, keepdims=True).astype("float32"),
    "assigned": assigned,
    "in place": in_place,
    "broadcast": lambda s, a, b: a + F.broadcast_to(s.bias, (2, 4, 6, 6)),
    "pad": lambda s, a, b: F.nn.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1)))[:, :, 1:-1, 1:-1],
    "interpolate": lambda s, a, b: F.nn.interpolate(a, size=(6, 6), mode="bilinear", align_corners=False),
    "matmul": lambda s, a, b: F.matmul(a, b.transpose(0, 1, 3, 2)),
    # of deeper ones
    "inner": lambda s, a, b: s.inner(a),
    "inner twice": lambda s, a, b: s.inner(s.inner(a)) + a,
    "layer of inner": lambda s, a, b: s.inner.conv(a),
    "both": lambda s, a, b: s.both(a, b + 1),
    "both words": lambda s, a, b: s.both(right=a, left=b + 1),
    "parts": parts,
    "maker": lambda s, a, b: s.maker(a),
    "children": enumerated,
}
DEEP = {"inner", "inner twice", "layer of inner", "both", "both words", "parts", "maker", "children"}


def network(seed):
    rng = random.Random(seed)
    net = Calls(rng, rng.randint(0, 2))
    net.eval()
    return net, [np.random.RandomState(seed % 2**32).uniform(-1, 1, SHAPE).astype("float32")]
