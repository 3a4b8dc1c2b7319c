"""AdaRound: every weight is rounded down or up, whichever the layer's results want, and learns which.

A weight of w steps becomes floor(w) + h(v) (Nagel et al. 2020). h is a sigmoid that is stretched and clipped, so that
it reaches 0 and 1. Adam lessens the squared error of the results and a regularizer, 1 - |2 h - 1|^beta of every weight:
h wanders at first, and is drawn to 0 or 1 as beta falls. The error of a layer's results is e C e^T for the errors e of
an output channel and the mean products C of its inputs, so no data is read while a layer learns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

LOW, HIGH = -0.1, 1.1  # what the sigmoid is stretched to
STEPS = 400
RATE = 0.05
STRENGTH = 12.0  # of the regularizer, where the error of a weight that is rounded at random counts 1
WARM = 0.1  # part of the steps without regularizer
BETA = (20.0, 2.0)  # at the first and the last step
DECAY = (0.9, 0.999)  # of the means of gradients and of their squares, in Adam
RANDOM = 1 / 12  # squared error of a number that is rounded at random


@dataclass(slots=True)
class SoftRounding:
    """Weights between two integers, which learn the one to become.

    Args:
        steps: real weights in steps of their scale, float32 of any shape.
        lowest, highest: bounds of the integers.
        total: steps of learning.

    Example:
        >>> weights = SoftRounding(np.array([0.3, -1.5, 9.0], np.float32), -8, 7, total=10)
        >>> weights.soft().round(3).tolist()
        [0.3, -1.5, 7.0]
    """

    steps: np.ndarray
    lowest: int
    highest: int
    total: int
    done: int = 0
    floor: np.ndarray = field(init=False)
    v: np.ndarray = field(init=False)
    sigmoid: np.ndarray = field(init=False)
    mean: np.ndarray = field(init=False)
    power: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        steps = np.clip(self.steps, self.lowest, self.highest)
        self.floor = np.minimum(np.floor(steps), np.float32(self.highest - 1))
        part = (np.clip(steps - self.floor, 0, 1) - LOW) / (HIGH - LOW)
        self.v = np.log(part / (1 - part)).astype(np.float32)
        self.sigmoid = _sigmoid(self.v)
        self.mean, self.power = np.zeros_like(self.v), np.zeros_like(self.v)

    def soft(self) -> np.ndarray:
        """The weights as they are now, in steps, float32."""
        return self.floor + np.clip(self._h(), 0, 1)

    def integers(self) -> np.ndarray:
        """What they become, float32."""
        return self.floor + (self.v >= 0)

    def _h(self) -> np.ndarray:
        """Before it is clipped."""
        return np.float32(HIGH - LOW) * self.sigmoid + np.float32(LOW)

    def learn(self, gradient: np.ndarray) -> None:
        """One step of Adam by the gradient of the error with respect to `soft`."""
        self.done += 1
        h = self._h()
        slope = np.float32(HIGH - LOW) * self.sigmoid * (1 - self.sigmoid) * ((h > 0) & (h < 1))
        gradient = (gradient + self._pull(h)) * slope
        first, second = DECAY
        self.mean += np.float32(1 - first) * (gradient - self.mean)
        self.power += np.float32(1 - second) * (gradient * gradient - self.power)
        size = RATE * np.sqrt(1 - second**self.done) / (1 - first**self.done)
        self.v -= np.float32(size) * self.mean / (np.sqrt(self.power) + np.float32(1e-12))
        self.sigmoid = _sigmoid(self.v)

    def _pull(self, h: np.ndarray) -> np.ndarray | float:
        """The gradient of the regularizer, with the beta of the step."""
        share = (self.done / self.total - WARM) / (1 - WARM)
        if share <= 0:
            return 0.0
        beta = BETA[1] + (BETA[0] - BETA[1]) * 0.5 * (1 + np.cos(np.pi * min(share, 1.0)))
        centred = 2 * np.clip(h, 0, 1) - 1
        return np.float32(-2 * STRENGTH * beta) * np.sign(centred) * np.abs(centred) ** np.float32(beta - 1)


def adaround(steps: np.ndarray, c: np.ndarray, lowest: int, highest: int, nearest: np.ndarray) -> np.ndarray:
    """Integers next to real numbers of steps [groups, rows, K] that lessen the error e c e^T of every row.

    Args:
        c: positive definite, float64 [groups, K, K].
        lowest, highest: bounds of the integers.
        nearest: integers to keep in rows where nothing better is found.

    Example:
        >>> both = np.array([[[1.01, 1.0], [1.0, 1.01]]])  # two inputs much alike: the sum of their weights counts
        >>> adaround(np.array([[[0.4, 0.4]]]), both, -127, 127, np.array([[[0.0, 0.0]]])).sum()
        np.float64(1.0)
    """
    variance = np.einsum("gkk->gk", c).mean(axis=1)
    slope = (c * (2 / (RANDOM * variance))[:, None, None]).astype(np.float32)
    wanted = steps.astype(np.float32)
    weights = SoftRounding(wanted, lowest, highest, STEPS)
    for _ in range(STEPS):
        weights.learn((weights.soft() - wanted) @ slope)
    found = weights.integers().astype(np.float64)
    return np.where(_error(found - steps, c) < _error(nearest - steps, c), found, nearest)


def _error(e: np.ndarray, c: np.ndarray) -> np.ndarray:
    return ((e @ c) * e).sum(axis=2, keepdims=True)


def _sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))
