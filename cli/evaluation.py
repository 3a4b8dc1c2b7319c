"""Accuracy of a quantized network and of its float original, and the likeness of their results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from megengine.quantization.checks.analysis import Agreement

Network = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one network on labelled pictures: accuracy, and likeness to the float network.

    `top1` and `top5` are the shares whose label is first, or among the first five, `agreement` the share with the float
    network's first class; `sqnr` is in dB over all logits, `cosine` the mean between logit vectors.
    """

    top1: float
    top5: float
    agreement: float
    sqnr: float
    cosine: float
    count: int

    def describe(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite SQNR (no error at all) is None."""
        return {key: None if isinstance(v, float) and not np.isfinite(v) else v for key, v in asdict(self).items()}


def logits_of(network: Network, inputs: Iterable[np.ndarray], step: Callable[[], None] = lambda: None) -> np.ndarray:
    """float32 [pictures, classes]."""
    rows = []
    for x in inputs:
        rows.append(np.asarray(network(x), np.float32).reshape(len(x), -1))
        step()
    return np.concatenate(rows)


def score(logits: np.ndarray, reference: np.ndarray, labels: Sequence[tuple[int, ...]]) -> Score:
    """Compare logits [pictures, classes] with the float network's.

    `labels` are the ids that count as right, for each picture.

    Example:
        >>> score(np.eye(3), np.eye(3), [(0,), (1,), (0,)]).agreement
        1.0
    """
    order = np.argsort(-logits, axis=1, kind="stable")
    first = [int(row[0]) in ids for row, ids in zip(order, labels, strict=True)]
    five = [bool(set(row[:5].tolist()) & set(ids)) for row, ids in zip(order, labels, strict=True)]
    agreement = Agreement()
    agreement.update(reference, logits)
    a, b = reference.astype(np.float64), logits.astype(np.float64)
    products, lengths = (a * b).sum(1), np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return Score(
        float(np.mean(first)),
        float(np.mean(five)),
        float((logits.argmax(1) == reference.argmax(1)).mean()),
        agreement.sqnr_db,
        float((products / np.maximum(lengths, 1e-30)).mean()),
        len(labels),
    )
