"""Learning rates that fall at milestones."""

from __future__ import annotations

import numbers
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from megengine.core.errors import ArgumentError, OptionError
from megengine.optimizer.lr_scheduler import LRScheduler
from megengine.optimizer.optimizer import Optimizer


class MultiStepLR(LRScheduler):
    """Multiplies the learning rate by `gamma` at each milestone (epochs in rising order)."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, current_epoch: int = -1
    ) -> None:
        self.milestones = list(milestones)
        if not all(isinstance(m, numbers.Real) for m in self.milestones) or not isinstance(gamma, numbers.Real):
            raise ArgumentError(f"MultiStepLR: milestones {self.milestones}, gamma={gamma!r}; expected numbers")
        if self.milestones != sorted(self.milestones):
            raise OptionError(f"MultiStepLR: milestones are {self.milestones}; expected rising order")
        self.gamma = gamma
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Base * gamma ** (milestones passed)."""
        return [base * self.gamma ** bisect_right(self.milestones, self.current_epoch) for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Milestones, factor and epoch: MegEngine's form. The initial rates are in the optimizer's state."""
        return {name: getattr(self, name) for name in ("milestones", "gamma", "current_epoch")}
