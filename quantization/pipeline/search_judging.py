"""What judges the networks of a search: the agreement that noise leaves, on samples of which the float network is sure.

A network in integers answers as the float one where its noise is smaller than the lead of the largest output. The share
of equal answers among a few dozen samples says little: 45 of 50 may be 79 to 96 %. Each lead beside the measured noise
says how likely the answer stays, and the mean of these is the agreement that is expected. Samples on which two answers
are about as likely are ties that any change may turn, and are left out.

A network that was chosen by some samples looks better on these than on others. So the best one answers samples that
chose nothing, ties among them, and these are counted.
"""

import math
from dataclasses import dataclass

import numpy as np

LEAD = 0.05  # of the largest probability before the second, below which a sample is a tie
FEWEST = 20  # samples without ties; with fewer, ties judge too
SURE = 1.96  # standard deviations, of 95 % confidence


@dataclass(frozen=True, slots=True)
class Judged:
    """How many samples judge: all, and those that are no ties."""

    samples: int
    judging: int

    def interval(self, share: float) -> tuple[float, float]:
        """Where the share of many samples lies with 95 % confidence, by that of those which judge."""
        return interval(share, self.judging)


@dataclass(frozen=True, slots=True)
class Told:
    """What samples that chose nothing tell of the best network.

    Args:
        samples: how many there are, and `same` of them answer as the float network.
        sure: how many are no ties, and `sure_same` of them answer as the float network.
    """

    samples: int
    same: int
    sure: int
    sure_same: int

    @property
    def share(self) -> float:
        """Of samples with the same answer, ties among them; 0 if there is none."""
        return self.same / max(self.samples, 1)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the share of many samples lies with 95 % confidence."""
        return interval(self.share, self.samples)


def interval(share: float, count: int) -> tuple[float, float]:
    """Where the share of many samples lies with 95 % confidence, by that of a few (Wilson's score)."""
    n, z = max(count, 1), SURE
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


class Judge:
    """Compares outputs with those of the float network.

    Args:
        exact: its outputs, sample by sample; the last axis holds the answers.
    """

    def __init__(self, exact: list[np.ndarray]) -> None:
        self.exact = _rows(exact)
        self.first = self.exact.argmax(-1)
        self.second = _without(self.exact, self.first).argmax(-1)
        ties = _lead(_probabilities(self.exact), self.first, self.second) < LEAD
        self.counts = ~ties if int((~ties).sum()) >= FEWEST else np.ones_like(ties)
        self.judged = Judged(len(ties), int(self.counts.sum()))

    def agreement(self, got: list[np.ndarray]) -> tuple[float, float]:
        """The share of samples that is expected to answer as the float network, and that of those which do.

        What the samples that do make unlikely is not expected: then it is the end of their interval.
        """
        y = _rows(got)
        same = float(np.mean((y.argmax(-1) == self.first)[self.counts]))
        if y.shape[-1] < 2:
            return same, same
        leads = _lead(self.exact, self.first, self.second)
        noise = float(np.sqrt(np.mean(np.square(_lead(y, self.first, self.second) - leads))))
        if noise == 0:
            return same, same
        stays = [0.5 * (1 + math.erf(lead / noise / math.sqrt(2))) for lead in leads[self.counts]]
        low, high = self.judged.interval(same)
        return float(np.clip(np.mean(stays), low, high)), same

    def told(self, got: list[np.ndarray]) -> Told:
        """How many samples answer as the float network."""
        same, sure = _rows(got).argmax(-1) == self.first, self.counts
        return Told(len(same), int(same.sum()), int(sure.sum()), int(same[sure].sum()))


def _rows(outputs: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.atleast_1d(y).reshape(-1, np.shape(y)[-1] if np.ndim(y) else 1) for y in outputs])


def _without(y: np.ndarray, places: np.ndarray) -> np.ndarray:
    left = y.copy()
    left[np.arange(len(y)), places] = -np.inf
    return left


def _lead(y: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    rows = np.arange(len(y))
    return y[rows, first] - y[rows, second]


def _probabilities(y: np.ndarray) -> np.ndarray:
    """The outputs where they are probabilities, otherwise their softmax."""
    if (y >= 0).all() and np.allclose(y.sum(-1), 1, atol=1e-3):
        return y
    e = np.exp(y - y.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
