"""What a recorded update of a GPU asks its optimizer at each replay: the rates and counts of that step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megengine.kernels.updates import NativeUpdate
from megengine.tensor import Parameter, Tensor


class RecordedUpdate:
    """The update of `parameters` of one group, which one launch makes, with the same count of steps.

    `options` is the group as the optimizer keeps it: a changed rate holds for the next replay. `twin` makes the update
    of a state and a group.
    """

    def __init__(self, optimizer: Any, twin: Callable[..., NativeUpdate], options: dict[str, Any], of: NativeUpdate):
        self.optimizer, self.options, self._twin, self._of = optimizer, options, twin, of
        self.parameters: list[Parameter] = []
        self._states: list[dict[str, Any]] = []
        self._members: list[int] = []

    def remember(self) -> None:
        """Keep what the launch is made of: the states of the parameters, and all parameters of the optimizer."""
        self._states = [dict(self.optimizer._state[p]) for p in self.parameters]
        self._members = self._all()

    def _all(self) -> list[int]:
        return [id(p) for group in self.optimizer.param_groups for p in group["params"]]

    def _update(self) -> tuple[NativeUpdate, dict[str, Any]]:
        rate = self.options["lr"]
        group = {**self.options, "lr": rate.item() if isinstance(rate, Tensor) else rate}
        return self._twin(self.optimizer, self.optimizer._state[self.parameters[0]], group), group

    def scalars(self) -> tuple[float, ...]:
        """The decay and the scalars of the next step, which is counted."""
        self._count(1)
        update, group = self._update()
        return self.optimizer._gradient_decay(group), *update.scalars

    def _count(self, by: int) -> None:
        for p in self.parameters:
            state = self.optimizer._state[p]
            if "step" in state:
                state["step"] += by

    def holds(self) -> bool:
        """Whether a step would update the same parameters by the same rule, in the same memory of states."""
        own = self.optimizer._state
        for p, before in zip(self.parameters, self._states, strict=True):
            if p not in own or any(own[p].get(name) is not value for name, value in before.items()):
                return False
        if self._all() != self._members:
            return False
        update, _ = self._update()
        return (update.rule, update.states) == (self._of.rule, self._of.states)

    def undo(self) -> None:
        """Take back the count of the step that was recorded."""
        self._count(-1)
