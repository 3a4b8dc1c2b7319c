"""Learning rates that change by epoch, and limits on gradients."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import numpy as np

from megengine.core.errors import OptionError
from megengine.optimizer.optimizer import Optimizer
from megengine.tensor import Tensor


class LRScheduler:
    """Sets the learning rate of every group when `step()` is called; subclasses say which, in `get_lr()`."""

    def __init__(self, optimizer: Optimizer, current_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise OptionError(f"{type(self).__name__}: got a {type(optimizer).__name__}; expected an Optimizer")
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            if current_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise OptionError(
                    f"{type(self).__name__}: resumed at epoch {current_epoch}, but a group has no initial_lr; "
                    "load the optimizer's state first"
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.current_epoch = current_epoch
        self.step()

    def get_lr(self) -> list[float]:
        """The learning rate of each group in the current epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr; define it in the subclass")

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, or to `epoch`."""
        self.current_epoch = self.current_epoch + 1 if epoch is None else epoch
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict()` gave."""
        unknown = sorted(state_dict.keys() - self.state_dict().keys())
        if unknown:
            raise OptionError(f"{type(self).__name__}: unknown state {unknown}")
        self.__dict__.update(state_dict)


class MultiStepLR(LRScheduler):
    """Multiplies the learning rate by `gamma` at each milestone (epochs in rising order)."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, current_epoch: int = -1
    ) -> None:
        self.milestones = list(milestones)
        if self.milestones != sorted(self.milestones):
            raise OptionError(f"MultiStepLR: milestones are {self.milestones}; expected rising order")
        self.gamma = gamma
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Base * gamma ** (milestones passed)."""
        return [base * self.gamma ** bisect_right(self.milestones, self.current_epoch) for base in self.base_lrs]


def _gradients(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    items = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    return [t for t in items if t.grad is not None]


def clip_grad_norm(tensors: Tensor | Iterable[Tensor], max_norm: float, ord: float = 2.0) -> float:
    """Scale gradients so that their joint norm is at most `max_norm`. Returns the norm before."""
    if max_norm < 0 or ord <= 0:
        raise OptionError(f"clip_grad_norm: max_norm={max_norm}, ord={ord}; expected max_norm >= 0 and ord > 0")
    owners = _gradients(tensors)
    if not owners:
        return 0.0
    norms = [np.linalg.norm(t.grad.numpy().astype(np.float64).reshape(-1), ord) for t in owners]  # type: ignore[union-attr]
    total = float(np.linalg.norm(norms, ord))
    if total > max_norm:
        for t in owners:
            _set(t, t.grad.numpy() * np.float32(max_norm / (total + 1e-6)))  # type: ignore[union-attr]
    return total


def clip_grad_value(tensors: Tensor | Iterable[Tensor], lower: float, upper: float) -> None:
    """Limit every element of the gradients to [lower, upper]."""
    if lower > upper:
        raise OptionError(f"clip_grad_value: lower={lower} is above upper={upper}")
    for t in _gradients(tensors):
        _set(t, np.clip(t.grad.numpy(), lower, upper))  # type: ignore[union-attr]


def _set(owner: Tensor, value: np.ndarray) -> None:
    owner.grad = Tensor._wrap(np.asarray(value, owner.grad.numpy().dtype), owner.dtype, owner.device)  # type: ignore[union-attr]
