"""Random tensors from one process-wide state, `seed(value)` starts it anew; `RNG` objects have states of their own."""

from functools import partial

from megengine.core import absent, exports
from megengine.random.rng import RNG, beta, gamma, generator, normal, permutation, poisson, seed, shuffle, uniform

__all__ = ["RNG", "beta", "gamma", "generator", "normal", "permutation", "poisson", "seed", "shuffle", "uniform"]

__getattr__ = partial(absent.part_or_error, __name__)
exports.limit_stars(__name__)
