"""Calls as the lists of kernels see them."""

import numpy as np

from megengine.core.spec import TensorSpec
from megengine.dispatch import infer
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family


def rows(*shape, seed=0):
    """Normal float32 values, the same for one shape and seed."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def problem_of(op, arrays, attrs):
    """What kernels are asked for a call of these arrays."""
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    found = infer(op, specs, attrs)
    return Problem(op, specs, found if isinstance(found, tuple) else [found], attrs)


def kernel_of(op, arrays, attrs):
    """The kernel that is chosen for the call, and its problem."""
    problem = problem_of(op, arrays, attrs)
    return family(op).candidates(problem)[0], problem
