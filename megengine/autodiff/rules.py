"""Gradient rules as recipes: what a rule does, found out by giving it tensors that have no values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megengine.autodiff.context import Context, pull_back
from megengine.core import hooks
from megengine.dispatch import Op
from megengine.dispatch.apply import interpose, no_interposers
from megengine.dispatch.notes import SpecNotes, valueless
from megengine.tensor import Tensor


def learn(op: Op, inputs: tuple, outputs: tuple, attrs: dict[str, Any], needs: tuple, cts: tuple) -> tuple | None:
    """(constants, ops, places of the gradients) of a gradient rule, with places as `Notes` count them.

    It holds for all tensors of these specs. None for a rule that reads a value, or fails: it is called each time.
    """
    groups = [tuple(map(valueless, group)) for group in (inputs, outputs, cts)]
    notes = SpecNotes([t for group in groups for t in group])
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


def _recipe(notes: SpecNotes, grads: Sequence[Tensor | None], needs: Sequence[bool]) -> tuple | None:
    wanted = [g if need else None for g, need in zip(grads, needs, strict=True)]
    made = {id(g): g for g in wanted if g is not None}
    notes.constants += [g for number, g in made.items() if number not in notes.places()]
    notes.keep(made.values())
    if not notes.can_be_kept():
        return None
    places = notes.places()
    return tuple(notes.constants), notes.written(), tuple(None if g is None else places[id(g)] for g in wanted)
