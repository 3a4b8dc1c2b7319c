"""Training of a network with exact quantization, by epochs: it can be stopped and go on to the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.autodiff import GradManager
from megengine.core.errors import OptionError
from megengine.core.text import counted
from megengine.optimizer import Adam
from megengine.quantization.pipeline.graph_qat import QATGraph
from megengine.tensor import Tensor

Arrays = Sequence[np.ndarray]
Loss = Callable[[Any, np.ndarray], Tensor]
Score = Callable[[Sequence[np.ndarray], np.ndarray], float]


RATE = 3e-4  # of Adam: of 1e-3, 3e-4 and 1e-4 the one that keeps 8 bits and learns 4


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Settings of training.

    Args:
        epochs: passes over the data.
        lr: rate of Adam at the start; it falls to 0 as a cosine.
        batch: samples of a step.
        freeze_from: epoch from which ranges and statistics of batch norms stand still.
        seed: of the order of the samples.
    """

    epochs: int = 2
    lr: float = RATE
    batch: int = 32
    freeze_from: int = 1
    seed: int = 0


def cross_entropy(outputs: Any, targets: np.ndarray) -> Tensor:
    """Of the first result with labels [N], or with probabilities [N, classes]."""
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    if targets.ndim == 1:
        return F.nn.cross_entropy(logits, Tensor(targets))
    return -(F.logsoftmax(logits, axis=1) * Tensor(targets)).sum() * (1 / len(targets))


def top1(outputs: Sequence[np.ndarray], targets: np.ndarray) -> float:
    """Share of samples whose largest result is the label, or the likeliest class."""
    labels = targets if targets.ndim == 1 else targets.argmax(1)
    return float(np.mean(outputs[0].reshape(len(labels), -1).argmax(1) == labels))


class Training:
    """A network that is trained with Adam, and the best state so far by a score.

    `state()` and `restore()` keep all that training needs: it goes on to the same bits. `best` is the best score,
    `best_epoch` the number of epochs behind it, 0 before training.

    Args:
        network: what `prepare_qat` gives, with its ranges known.
        plan: settings.
        loss: of the results and the targets of a batch.
        score: of all results and targets of held-out samples; larger is better.
    """

    def __init__(
        self, network: QATGraph, plan: TrainingPlan, *, loss: Loss = cross_entropy, score: Score = top1
    ) -> None:
        self.network, self.plan, self.loss, self.score = network, plan, loss, score
        self.epoch, self.best_epoch, self.best_state = 0, 0, network.state_dict()
        self.best, self.best_loss = -np.inf, np.inf
        self._parameters = list(network.parameters())
        self._optimizer = Adam(self._parameters, lr=plan.lr)

    def run_epoch(
        self, inputs: Arrays, targets: np.ndarray, *, progress: Callable[[int, int], None] | None = None
    ) -> float:
        """Train on all samples once, in an order by seed and epoch; the mean loss.

        `inputs` are arrays of samples, one for each input of the network.
        """
        plan, network, count = self.plan, self.network.train(), len(targets)
        network.observing = network.norms_moving = self.epoch < plan.freeze_from
        order = np.random.default_rng([plan.seed, self.epoch]).permutation(count)
        steps, total, manager = -(-count // plan.batch), 0.0, GradManager().attach(self._parameters)
        for step in range(steps):
            share = (self.epoch * steps + step) / (plan.epochs * steps)
            self._optimizer.param_groups[0]["lr"] = plan.lr * 0.5 * (1 + float(np.cos(np.pi * share)))
            part = order[step * plan.batch : (step + 1) * plan.batch]
            for piece in self._pieces(part):
                with manager:
                    loss = self.loss(network(*(Tensor(x[piece]) for x in inputs)), targets[piece])
                    manager.backward(loss * (len(piece) / len(part)))
                total += float(loss.item()) * len(piece) / count
            self._optimizer.step().clear_grad()
            if progress is not None:
                progress(step + 1, steps)
        self.epoch += 1
        return total

    def _pieces(self, part: np.ndarray) -> list[np.ndarray]:
        """The samples of a step in pieces of the batch that the network takes."""
        size = self.network.batch_size or len(part)
        return [part[i : i + size] for i in range(0, len(part) - len(part) % size, size)]

    def evaluate(self, inputs: Arrays, targets: np.ndarray) -> float:
        """The score of the integer network on samples; the state is kept if it is the best so far.

        Of two equal scores, which are likely on few samples, that with the smaller loss is better.
        """
        score, loss = self._judged(inputs, targets)
        if (score, -loss) > (self.best, -self.best_loss):
            self.best, self.best_loss = score, loss
            self.best_epoch, self.best_state = self.epoch, self.network.state_dict()
        return score

    def score_of(self, inputs: Arrays, targets: np.ndarray) -> float:
        """The score of the integer network on samples. Raises OptionError if they are too few for its batch."""
        return self._judged(inputs, targets)[0]

    def scored(self, count: int) -> int:
        """How many of so many samples a score takes: whole batches, where the network's is fixed."""
        return count - count % (self.network.batch_size or 1)

    def _judged(self, inputs: Arrays, targets: np.ndarray) -> tuple[float, float]:
        """Score and mean loss on samples."""
        network = self.network.eval()
        if len(targets) < (least := network.batch_size or 1):
            raise OptionError(
                f"score: the network takes {counted(least, 'sample')} at once, there are "
                f"{counted(len(targets), 'sample')}; give more samples, or a network whose batch is open"
            )
        results: list[list[np.ndarray]] = []
        size = network.batch_size or self.plan.batch
        loss = 0.0
        for i in range(0, self.scored(len(targets)), size):
            part = slice(i, i + size)
            outputs = network(*(Tensor(x[part]) for x in inputs))
            loss += float(self.loss(outputs, targets[part]).item()) * len(targets[part])
            results.append([y.numpy() for y in (outputs if isinstance(outputs, tuple) else (outputs,))])
        seen = sum(len(one[0]) for one in results)
        return self.score([np.concatenate(parts) for parts in zip(*results, strict=True)], targets[:seen]), loss / seen

    def state(self) -> dict[str, Any]:
        """What `restore` takes: plain values and arrays, which `megengine.save` writes."""
        return {
            "plan": asdict(self.plan),
            "epoch": self.epoch,
            "best": (self.best, self.best_loss),
            "best_epoch": self.best_epoch,
            "best_state": self.best_state,
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state. Raises OptionError if it was made with other settings, which it names."""
        other = [
            f"{k} {state['plan'].get(k)}, now {v}" for k, v in asdict(self.plan).items() if state["plan"].get(k) != v
        ]
        if other:
            raise OptionError(f"resume: training began with other settings ({'; '.join(other)}); give the same ones")
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.best_epoch, self.best_state = state["epoch"], state["best_epoch"], state["best_state"]
        self.best, self.best_loss = state["best"]

    def best_network(self) -> QATGraph:
        """The network in its best state."""
        self.network.load_state_dict(self.best_state)
        return self.network
