"""Gradient rules as recipes: what a rule does, found out by giving it tensors that have no values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megengine.autodiff.context import Context, pull_back
from megengine.core import hooks
from megengine.dispatch import Op, infer
from megengine.dispatch.apply import interpose, no_interposers
from megengine.dispatch.notes import Notes
from megengine.tensor import Tensor

_LARGEST_CONSTANT = 1 << 12  # elements of what a rule makes of shapes alone: it is kept with the rule


class _SpecNotes(Notes):
    """Ops are not run: a rule that comes to its end so asks for no value."""

    def run(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        """Tensors with the specs of the results."""
        specs = infer(op, [t.spec for t in tensors], attrs)
        return tuple(map(Tensor._deferred, specs)) if isinstance(specs, tuple) else Tensor._deferred(specs)


def learn(op: Op, inputs: tuple, outputs: tuple, attrs: dict[str, Any], needs: tuple, cts: tuple) -> tuple | None:
    """(constants, ops, places of the gradients) of a gradient rule, with places as `Notes` count them.

    It holds for all tensors of these specs. None for a rule that reads a value, or fails: it is called each time.
    """
    groups = [tuple(t if t is None else Tensor._deferred(t.spec) for t in group) for group in (inputs, outputs, cts)]
    notes = _SpecNotes([t for group in groups for t in group])
    token = hooks.active.set(None)
    try:
        with no_interposers(), interpose(notes):
            grads = pull_back(Context(groups[0], groups[1], dict(attrs), needs, op.name, op.vjp), groups[2])
    except Exception:  # whatever it is, the rule raises it again where it is called
        return None
    finally:
        hooks.active.reset(token)
    fits = len(grads) == len(needs) and all(g is None or isinstance(g, Tensor) for g in grads)
    return _recipe(notes, grads, needs) if fits else None


def _recipe(notes: Notes, grads: Sequence[Tensor | None], needs: Sequence[bool]) -> tuple | None:
    wanted = [g if need else None for g, need in zip(grads, needs, strict=True)]
    made = {id(g): g for g in wanted if g is not None}
    notes.constants += [g for number, g in made.items() if number not in notes.places()]
    notes.keep(made.values())
    if any(c._value is None or c.spec.size > _LARGEST_CONSTANT for c in notes.constants):
        return None
    places = notes.places()
    return tuple(notes.constants), notes.written(), tuple(None if g is None else places[id(g)] for g in wanted)
