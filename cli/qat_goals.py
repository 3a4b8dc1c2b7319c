"""What `mge-quantize qat` trains towards: labels, the float network's classes, or its results as they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import megengine.functional as F
from megengine.cli.report import decibel
from megengine.core.errors import OptionError
from megengine.core.text import counted, share_of
from megengine.quantization import QATGraph
from megengine.quantization.pipeline.qat_training import Loss, Score, cross_entropy, top1
from megengine.tensor import Tensor

MOST_DB = 200.0  # of results that are equal in every value


@dataclass(frozen=True, slots=True)
class Goal:
    """The targets of all samples, their loss and score, and both in words.

    Args:
        targets: labels int32 [N], probabilities float32 [N, classes], or results float32 [N, numbers].
        loss: of the network's results and targets of a batch.
        score: of all results and targets; larger is better.
        what: what the score is.
        shown: a score of so many samples as text.
    """

    targets: np.ndarray
    loss: Loss
    score: Score
    what: str
    shown: Callable[[float, int], str]


def by_labels(
    labels: np.ndarray, network: QATGraph, inputs: Sequence[np.ndarray], option: str, named: Callable[[int], str]
) -> Goal:
    """The labels [N]. Raises OptionError unless the first result is [samples, classes]; `option` and `named` tell which
    label does not fit it.
    """
    first = _float_results(network, [x[: network.batch_size or 1] for x in inputs])[0]
    if first.ndim != 2:
        raise OptionError(
            f"{option}: the first result has the shape (samples, {', '.join(map(str, first.shape[1:]))}); expected "
            "(samples, classes). Without --labels the float network's results are learnt"
        )
    if labels.max(initial=0) >= first.shape[1]:
        at = int((labels >= first.shape[1]).argmax())
        raise OptionError(
            f"{option}: {named(at)} has class {labels[at]}, and the network gives {counted(first.shape[1], 'class')}; "
            f"expected whole numbers from 0 to {first.shape[1] - 1}"
        )
    return Goal(labels, cross_entropy, top1, "top-1", share_of)


def by_results(network: QATGraph, inputs: Sequence[np.ndarray]) -> Goal:
    """The float network's classes, where its only result is [N, classes]; else all results that are numbers.

    Each of several results counts as much as the others, whatever its power. Raises OptionError if there is none with a
    row for each sample.
    """
    found = _float_results(network, inputs)
    rows = [i for i, y in enumerate(found) if _has_rows(y, len(inputs[0]))]
    if not rows:
        raise OptionError(
            "qat: the network has no float result with one row for each sample "
            f"({', '.join(str(y.shape) for y in found)} of {counted(len(inputs[0]), 'sample')}); cut it before "
            "what chooses (edit --keep NODE), and train that"
        )
    if len(found) == 1 and found[0].ndim == 2 and found[0].shape[1] > 1:
        return Goal(_softmax(found[0]), cross_entropy, top1, "agreement with the float network", share_of)
    factors = {i: _factor(found[i]) for i in rows}
    targets = np.concatenate([_flat(found[i]) * factors[i] for i in rows], axis=1).astype(np.float32)

    def loss(outputs: Any, wanted: np.ndarray) -> Tensor:
        made = outputs if isinstance(outputs, tuple) else (outputs,)
        parts = [F.reshape(made[i], (len(wanted), -1)) * factors[i] for i in rows]
        return ((F.concat(parts, axis=1) - Tensor(wanted)) ** 2).sum() * (1 / (len(wanted) * len(rows)))

    def score(outputs: Sequence[np.ndarray], wanted: np.ndarray) -> float:
        made = np.concatenate([_flat(outputs[i]) * factors[i] for i in rows], axis=1)
        noise, power = np.sum((made - wanted.astype(np.float64)) ** 2), np.sum(wanted.astype(np.float64) ** 2)
        return MOST_DB if noise == 0 else float(min(MOST_DB, 10 * np.log10(max(power, 1e-300) / noise)))

    return Goal(targets, loss, score, "SQNR of the results", lambda value, _: f"{decibel(value)} dB")


def _float_results(network: QATGraph, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All results of the float network, batches behind each other; a batch that is not full is left out."""
    network.eval().fake_quantizing = False
    size, results = network.batch_size or 32, []
    for i in range(0, len(inputs[0]) - len(inputs[0]) % (network.batch_size or 1), size):
        outputs = network(*(Tensor(x[i : i + size]) for x in inputs))
        results.append([np.asarray(y.numpy()) for y in (outputs if isinstance(outputs, tuple) else (outputs,))])
    network.fake_quantizing = True
    return [_joined(parts) for parts in zip(*results, strict=True)]


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """A result over all batches; only the first batch's where their sizes differ, which has too few rows."""
    return np.concatenate(parts) if len({(y.ndim, y.shape[1:]) for y in parts}) == 1 and parts[0].ndim else parts[0]


def _has_rows(y: np.ndarray, count: int) -> bool:
    return y.dtype.kind == "f" and y.ndim > 0 and len(y) == count and y.size > 0 and bool(np.isfinite(y).all())


def _factor(y: np.ndarray) -> float:
    """What makes the squares of a sample sum up to 1 on average."""
    power = float(np.sum(y.astype(np.float64) ** 2)) / len(y)
    return 1 / max(power, 1e-30) ** 0.5


def _flat(y: np.ndarray) -> np.ndarray:
    return y.reshape(len(y), -1).astype(np.float64)


def _softmax(y: np.ndarray) -> np.ndarray:
    powers = np.exp(y.astype(np.float64) - y.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True)).astype(np.float32)
