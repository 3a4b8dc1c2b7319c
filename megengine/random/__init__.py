"""The process-wide random state."""

from __future__ import annotations

import numpy as np

_state = [np.random.default_rng()]


def seed(value: int) -> None:
    """Start the process-wide generator from `value`."""
    _state[0] = np.random.default_rng(value)


def generator() -> np.random.Generator:
    """The process-wide NumPy generator."""
    return _state[0]
