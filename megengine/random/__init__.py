"""Random tensors from one process-wide state, `seed(value)` starts it anew; `RNG` objects have states of their own."""

from typing import Any

from megengine.core import absent
from megengine.random.rng import RNG, beta, gamma, generator, normal, permutation, poisson, seed, shuffle, uniform

__all__ = ["RNG", "beta", "gamma", "generator", "normal", "permutation", "poisson", "seed", "shuffle", "uniform"]


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)
