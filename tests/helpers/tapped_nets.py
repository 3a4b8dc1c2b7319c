"""A network whose values pass through a function, `tap`, which says what an edit behind it should do.

While `expected` runs, eagerly, each tap gives the value that a `Meaning` has for it, computed by NumPy. So the values
of an edited graph are known without the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import megengine.functional as F
import megengine.module as M
import megengine.traced_module as tm
from megengine import Tensor

_hearing: list[Callable[[str, Any], Any]] = []


@tm.wrap
def tap(x: Any, name: str) -> Any:
    """The value itself, or what is expected behind an edit."""
    return _hearing[-1](name, x) if _hearing else x


class Inner(M.Module):
    """A dict with a tuple as result; two graphs if it is called with two gains."""

    def __init__(self, n: int, key: str) -> None:
        super().__init__()
        self.key, self.conv = key, M.Conv2d(n, n, 1)
        self.act = M.Sequential(M.Conv2d(n, n, 1), M.ReLU())

    def forward(self, x: Any, gain: float = 1.0) -> Any:
        a = tap(self.conv(x), f"{self.key}a")
        b = tap(self.act(a) * gain, f"{self.key}b")
        return {"sum": tap(a + b, f"{self.key}c"), "pair": (b, a)}


class Middle(M.Module):
    """Calls one module twice."""

    def __init__(self, n: int, key: str) -> None:
        super().__init__()
        self.key, self.inner = key, Inner(n, f"{key}i")

    def forward(self, x: Any) -> Any:
        first = self.inner(x)
        y = tap(first["sum"] - first["pair"][1], f"{self.key}d")
        return tap(self.inner(y)["pair"][0] + y, f"{self.key}e"), first["sum"]


class TappedNet(M.Module):
    """Nested and shared modules, one under two names, one with two graphs; the result is a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle, self.other = M.Conv2d(3, 4, 1), Middle(4, "m"), Middle(4, "o")
        self.inner, self.again = Inner(4, "n"), self.middle

    def forward(self, x: Any, z: Any) -> Any:
        p, q = self.middle(tap(self.stem(x), "s"))
        u, v = self.again(tap(p * 0.5 + q, "t"))
        first = self.inner(self.other(u)[0])["sum"]
        low, high = self.inner(first, 0.5)["pair"]
        y = tap(low + high + v + z, "u")
        return {"y": tap(F.mean(y, axis=(2, 3)), "v"), "parts": [tap(y * 2, "w"), (first,)]}


@dataclass(frozen=True)
class Stage:
    """A value that an edit put behind a tap: a function of taps and of other stages."""

    name: str
    function: Callable[..., np.ndarray]
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Meaning:
    """What the edits so far mean. Values are named by their taps, stages, or extra inputs."""

    stages: dict[str, tuple[Stage, ...]] = field(default_factory=dict)  # by tap, in their order
    heads: dict[str, str] = field(default_factory=dict)  # tap -> the value that goes on in its place
    results: tuple[str, ...] | None = None  # None: those of the network
    extra: tuple[str, ...] = ()  # results behind them
    inputs: tuple[tuple[str, np.ndarray], ...] = ()
    layers: dict[str, Any] = field(default_factory=dict)

    def tap_of(self, value: str) -> str:
        return next((tap for tap, stages in self.stages.items() if value in [s.name for s in stages]), value)

    def redirected(self, old: str, new: str) -> Meaning:
        """Whatever uses a value uses another one."""

        def other(names: Sequence[str]) -> tuple[str, ...]:
            return tuple(new if name == old else name for name in names)

        stages = {
            tap: tuple(s if s.name == new else replace(s, operands=other(s.operands)) for s in behind)
            for tap, behind in self.stages.items()
        }
        heads = {**self.heads, self.tap_of(old): self.heads.get(self.tap_of(old), self.tap_of(old))}
        heads = dict(zip(heads, other(list(heads.values())), strict=True))
        results = None if self.results is None else other(self.results)
        return replace(self, stages=stages, heads=heads, results=results, extra=other(self.extra))

    def with_stage(self, old: str, stage: Stage) -> Meaning:
        """A stage right behind a value, in place of which it goes on."""
        tap = self.tap_of(old)
        behind = self.stages.get(tap, ())
        at = 0 if old == tap else 1 + [s.name for s in behind].index(old)
        changed = replace(self, stages={**self.stages, tap: (*behind[:at], stage, *behind[at:])})
        return changed.redirected(old, stage.name)


def expected(net: TappedNet, inputs: Sequence[np.ndarray], meaning: Meaning) -> list[np.ndarray]:
    """The results of an edited graph, in the order of its outputs."""
    last: dict[str, Any] = dict(meaning.inputs)
    first = dict(last)  # of a module that is called twice the first call gives what becomes an output

    def keep(name: str, value: np.ndarray) -> None:
        last[name] = value
        first.setdefault(name, value)

    def hear(name: str, x: Any) -> Any:
        keep(name, x.numpy())
        for stage in meaning.stages.get(name, ()):
            keep(stage.name, stage.function(*(last[o] for o in stage.operands)).astype(np.float32))
        return Tensor(np.ascontiguousarray(last[meaning.heads.get(name, name)]))

    before = {path: _exchanged(net, path, layer) for path, layer in meaning.layers.items()}
    _hearing.append(hear)
    try:
        made = net(*map(Tensor, inputs))
    finally:
        _hearing.pop()
        for path, layer in before.items():
            _exchanged(net, path, layer)
    results = [made["parts"][0].numpy(), made["parts"][1][0].numpy(), made["y"].numpy()]  # keys in their order
    if meaning.results is not None:
        results = [first[name] for name in meaning.results]
    return results + [first[name] for name in meaning.extra]


def _exchanged(net: Any, path: str, layer: Any) -> Any:
    """Put a layer at a path; returns the one that was there."""
    *way, name = path.split(".")
    for part in way:
        net = getattr(net, part)
    before = getattr(net, name)
    setattr(net, name, layer)
    return before
