"""One op on a tape, and its gradient rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megengine.core.errors import GradientError
from megengine.dispatch.record import NoRule, ZeroGradient
from megengine.tensor import Tensor


class Context:
    """One op on a tape, as its vjp rule sees it: `needs` says which inputs want a gradient."""

    __slots__ = ("attrs", "inputs", "name", "needs", "outputs", "vjp")

    def __init__(
        self,
        inputs: tuple,
        outputs: tuple,
        attrs: dict[str, Any],
        needs: tuple[bool, ...],
        name: str = "",
        vjp: Callable[..., Any] | NoRule | None = None,
    ) -> None:
        self.inputs, self.outputs, self.attrs, self.needs = inputs, outputs, attrs, needs
        self.name, self.vjp = name, vjp


def pull_back(entry: Context, cts: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Cotangents of an entry's inputs from those of its outputs."""
    if isinstance(entry.vjp, ZeroGradient):
        return [None] * len(entry.inputs)
    if isinstance(entry.vjp, NoRule):
        raise GradientError(f"{entry.name} has no gradient: {entry.vjp.reason}; detach its input")
    assert entry.vjp is not None
    try:
        grads = entry.vjp(entry, *cts)
    except Exception as exc:
        exc.add_note(f"while computing the gradient of {entry.name}")
        raise
    return grads if isinstance(grads, tuple) else (grads,)
