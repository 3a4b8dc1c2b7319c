"""Random tensors from one process-wide state, `seed(value)` starts it anew; `RNG` objects have states of their own."""

from functools import partial

from megengine.core import absent
from megengine.random.rng import RNG, beta, gamma, generator, normal, permutation, poisson, seed, shuffle, uniform

__all__ = ["RNG", "beta", "gamma", "generator", "normal", "permutation", "poisson", "seed", "shuffle", "uniform"]

__getattr__ = partial(absent.refuse, __name__)
