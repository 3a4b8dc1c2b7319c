"""Learning rates that change by epoch."""

from __future__ import annotations

import numbers
from typing import Any

from megengine.core.calls import shown
from megengine.core.errors import ArgumentError, MissingMethodError, StateDictError
from megengine.dispatch.refusal import constructor, explains, own
from megengine.optimizer.optimizer import Optimizer


class LRScheduler:
    """Sets the learning rate of every group when `step()` is called; subclasses say which, in `get_lr()`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if own(cls) and "__init__" in cls.__dict__:
            cls.__init__ = constructor(cls.__init__)

    @constructor
    def __init__(self, optimizer: Optimizer, current_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(f"{type(self).__name__}: optimizer is {shown(optimizer)}; expected an Optimizer")
        if not isinstance(current_epoch, numbers.Real):
            raise ArgumentError(f"{type(self).__name__}: current_epoch is {shown(current_epoch)}; expected a number")
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            if current_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise StateDictError(
                    f"{type(self).__name__}: resumed at epoch {current_epoch}, but a group has no initial_lr; "
                    "load the optimizer's state first"
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.current_epoch = current_epoch
        self.step()

    def get_lr(self) -> list[float]:
        """The learning rate of each group in the current epoch."""
        raise MissingMethodError(f"{type(self).__name__} has no get_lr; define it in the subclass")

    @explains
    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, or to `epoch`."""
        if epoch is not None and not isinstance(epoch, numbers.Real):
            raise ArgumentError(f"{type(self).__name__}: epoch is {shown(epoch)}; expected a number or None (the next)")
        self.current_epoch = self.current_epoch + 1 if epoch is None else epoch
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """All attributes except the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    @explains
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the result of `state_dict()`. A missing or unknown part changes nothing: StateDictError."""
        missing = sorted(self.state_dict().keys() - state_dict.keys())
        unknown = sorted(state_dict.keys() - self.__dict__.keys() | state_dict.keys() & {"optimizer"})
        if missing or unknown:
            raise StateDictError(f"{type(self).__name__}.load_state_dict: missing {missing}, unknown {unknown}")
        self.__dict__.update(state_dict)
