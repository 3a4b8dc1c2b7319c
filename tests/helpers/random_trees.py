"""Networks of random shape: nested containers, shared parts, several results, keywords, functions, methods, items.

Every value that a step takes or makes is float32[2, 4, 3], so that any step fits behind any other one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.traced_module as tm

SHAPE = (2, 4, 3)


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, SHAPE).astype(np.float32)


@tm.wrap
def halves(x, *, swap=False):
    """Two results, in a dict."""
    low, high = x * 0.25, x * 0.75
    return {"low": high, "high": low} if swap else {"low": low, "high": high}


@tm.wrap
def turned(x, y=None, scale=1.0):
    return x[::-1] * scale + (0 if y is None else y)


class Own(M.Module):
    """A layer of the user's: it is not traced if it is registered, and is traced else."""

    def __init__(self, level):
        super().__init__()
        self.level, self.gain = level, mge.Parameter(np.full((1, 4, 1), level, np.float32))

    def forward(self, x):
        return x * self.gain - 0.1


@tm.register_as_builtin
class Kept(Own):
    pass


class Tree(M.Module):
    """A forward that follows a program: each step takes two of the values so far and makes another one."""

    def __init__(self, rng: random.Random, depth: int, shared: list[M.Module]) -> None:
        super().__init__()

        def pick(*kinds):
            return rng.choice(kinds)()

        self.layer = pick(lambda: M.Linear(3, 3), lambda: Kept(0.5), lambda: M.Linear(3, 3, bias=False))
        self.conv = M.Conv1d(4, 4, rng.choice([1, 3]), padding=0)
        if self.conv.kernel_size == 3 or self.conv.kernel_size == (3,):
            self.conv = M.Conv1d(4, 4, 3, padding=1)
        self.many = [M.Linear(3, 3), pick(M.ReLU, M.Sigmoid), M.Sequential(M.Linear(3, 3), M.Identity())]
        self.table = {"b": M.Linear(3, 3), "a": pick(M.Tanh, M.ReLU6)}
        self.weight = mge.Parameter(values(rng.randrange(99)))
        self.vector = mge.Tensor(np.linspace(-1, 1, 3).astype(np.float32))
        self.drop = M.Dropout(0.5)
        self.head = shared[0] if shared and rng.random() < 0.6 else pick(lambda: Own(0.3), lambda: Kept(0.7))
        self.tied = M.Linear(3, 3)
        if rng.random() < 0.5 and isinstance(self.layer, M.Linear):
            self.tied.weight = self.layer.weight
        self.parts: list[Tree] = []
        if depth:
            self.inner = Tree(rng, depth - 1, shared)
            self.parts = [Tree(rng, 0, shared), self.inner if rng.random() < 0.5 else Tree(rng, 0, shared)]
            self.results = Results(rng.choice(("tuple", "list", "dict", "nested")))
            self.inputs = Inputs()
        shared.append(self.head)
        names = list(STEPS) if depth else [n for n in STEPS if n not in DEEP]
        self.program = [(rng.choice(names), rng.random(), rng.random()) for _ in range(rng.randint(1, 4 + depth))]

    def forward(self, x, y=None, *, twice=False):
        made = [x] if y is None else [x, y]
        for name, first, second in self.program:
            made.append(STEPS[name](self, made[int(first * len(made))], made[int(second * len(made))]))
        return made[-1] * 2 if twice else made[-1]


class Results(M.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer = kind, M.Linear(3, 3)

    def forward(self, x):
        y = self.layer(x)
        return {
            "tuple": lambda: (y, x),
            "list": lambda: [y, x * 2],
            "dict": lambda: {"z": y, "a": x + 1},
            "nested": lambda: {"p": [y, (x,)], "q": F.relu(y)},
        }[self.kind]()


class Inputs(M.Module):
    def forward(self, pair, *, table, flag=True):
        return pair[0] - pair[1] * table["k"] if flag else pair[1]


def of_results(s, a, b):
    found = s.results(a)
    kind = s.results.kind
    if kind == "dict":
        return found["z"] + found["a"]
    return found["p"][0] * found["p"][1][0] if kind == "nested" else found[0] - found[1]


def assigned(s, a, b):
    y = a + 0
    y[:, 1] = b[:, 0]
    y[0, 2:] = 0.5
    return y


def masked(s, a, b):
    y = a * 1
    y[a > b] = 0.25
    return y


def in_place(s, a, b):
    y = a * 0.5
    y += b
    y *= 0.5
    return y


def unrolled(s, a, b):
    rows = [a[i] * (i + 1) * 0.5 for i in range(2)]
    return F.stack(rows)


def over_parts(s, a, b):
    for i, part in enumerate(s.parts):
        a = part(a, twice=bool(i))
    return a


def over_table(s, a, b):
    for key, layer in s.table.items():
        a = layer(a) + len(key) * 0.1
    return a


def counted(s, a, b):
    flat = a.reshape(a.shape[0], -1)
    return flat.reshape(a.shape[0], a.shape[1], 3) * (1 / a.shape[1])


def topmost(s, a, b):
    top, where = F.topk(a, 2, descending=True)
    return F.concat([top, where.astype("float32")[:, :, :1]], axis=2)


STEPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "relu": lambda s, a, b: F.relu(a),
    "add": lambda s, a, b: a + b,
    "subtract": lambda s, a, b: 1 - a * 0.5,
    "product": lambda s, a, b: a * b,
    "largest": lambda s, a, b: F.maximum(a, b),
    "choice": lambda s, a, b: F.where(a > b, a, b),
    "clip": lambda s, a, b: F.clip(a, upper=1.0, lower=-1.0),
    "softmax": lambda s, a, b: F.softmax(a, axis=-1),
    "halves": lambda s, a, b: halves(a)["high"] - halves(b, swap=True)["high"],
    "turned": lambda s, a, b: turned(a, scale=0.5) + turned(b, a),
    "layer": lambda s, a, b: s.layer(a),
    "layer twice": lambda s, a, b: s.layer(s.layer(a)) + s.layer(b),
    "tied": lambda s, a, b: s.tied(a),
    "conv": lambda s, a, b: s.conv(a),
    "drop": lambda s, a, b: s.drop(a),
    "head": lambda s, a, b: s.head(a),
    "many": lambda s, a, b: s.many[2](s.many[1](s.many[0](a))),
    "last of many": lambda s, a, b: s.many[-1](a),
    "part of sequential": lambda s, a, b: s.many[2][0](a),
    "table": over_table,
    "weight": lambda s, a, b: a * s.weight + s.vector,
    "weight of layer": lambda s, a, b: F.linear(a, s.tied.weight),
    "literal": lambda s, a, b: a + mge.tensor(np.array([0.5, -0.5, 0.25], np.float32)),
    "made": lambda s, a, b: a * F.full((4, 1), 0.5) + F.zeros_like(b) + F.ones((2, 1, 1)),
    "arange": lambda s, a, b: a + F.arange(3, dtype="float32"),
    "items": lambda s, a, b: F.concat([a[:, :2], b[:, 2:]], axis=1),
    "list of items": lambda s, a, b: a[:, [3, 1, 0, 2]],
    "flip": lambda s, a, b: a[:, ::-1],
    "split": lambda s, a, b: F.concat(F.split(a, 2, axis=1)[::-1], axis=1),
    "transposed": lambda s, a, b: F.matmul(a, b.transpose(0, 2, 1))[:, :, :3],
    "mean": lambda s, a, b: a - a.mean(axis=1, keepdims=True),
    "largest of": lambda s, a, b: a + F.argmax(b, axis=2, keepdims=True).astype("float32"),
    "half": lambda s, a, b: a.astype("float16").astype("float32"),
    "squeezed": lambda s, a, b: F.squeeze(F.expand_dims(a, 1), axis=1),
    "broadcast": lambda s, a, b: a + F.broadcast_to(s.vector, (2, 4, 3)),
    "assigned": assigned,
    "masked": masked,
    "in place": in_place,
    "unrolled": unrolled,
    "counted": counted,
    "topmost": topmost,
    "same": lambda s, a, b: a,
    "parts": over_parts,
    "inner": lambda s, a, b: s.inner(a),
    "inner with both": lambda s, a, b: s.inner(a, b),
    "inner by name": lambda s, a, b: s.inner(y=a, x=b, twice=True),
    "inner twice": lambda s, a, b: s.inner(s.inner(a)),
    "layer of inner": lambda s, a, b: s.inner.layer(a) + s.inner.weight,
    "results": of_results,
    "inputs": lambda s, a, b: s.inputs([a, b], table={"k": a}) + s.inputs((b, a), table={"k": 0.5}, flag=False),
}
DEEP = {
    *("parts", "inner", "inner with both", "inner by name", "inner twice", "layer of inner", "results", "inputs"),
}


class Top(M.Module):
    """Several inputs and nested results around a tree."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.body = Tree(rng, rng.randint(0, 2), [])
        self.takes, self.gives = (
            rng.choice(("one", "two", "nested", "word")),
            rng.choice(("one", "tuple", "dict", "deep")),
        )

    def forward(self, x, y=None, scale=0.5):
        a, b = (x["a"], x["b"][0]) if self.takes == "nested" else (x, x if y is None else y)
        z = self.body(a, b) if self.takes == "two" else self.body(a * scale) + b
        low, high = F.split(z, 2, axis=1)
        return {
            "one": lambda: z,
            "tuple": lambda: (z, a),
            "dict": lambda: {"z": z, "low": low, "again": z},
            "deep": lambda: {"parts": [low, (high, {"z": z})], "nothing": None},
        }[self.gives]()

    def arguments(self, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a call, tensors with random values."""
        a, b = mge.tensor(values(seed)), mge.tensor(values(seed + 100))
        return {
            "one": ((a,), {}),
            "two": ((a, b), {}),
            "nested": (({"a": a, "b": [b]},), {}),
            "word": ((a,), {"scale": 0.75, "y": b}),
        }[self.takes]


def tree(seed: int) -> Top:
    mge.random.seed(seed % 1000)
    return Top(random.Random(seed)).eval()
