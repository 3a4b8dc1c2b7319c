"""Gradient rules as recipes: the ops of a rule, recorded on tensors without values."""

from __future__ import annotations

from typing import Any

from megengine.autodiff.context import Context, pull_back
from megengine.autodiff.fusing import fuse
from megengine.core import hooks
from megengine.dispatch import Op
from megengine.dispatch.apply import interpose, no_interposers
from megengine.dispatch.notes import Notes, without_value
from megengine.kernels.cuda.placing import on_gpu
from megengine.tensor import Tensor


def learn(op: Op, inputs: tuple, outputs: tuple, attrs: dict[str, Any], needs: tuple, cts: tuple) -> tuple | None:
    """The recipe of a gradient rule, which gives a gradient or None for each input (`Notes.recipe`).

    It holds for all tensors of these specs. None for a rule that reads a value, or fails: it is called each time.
    """
    groups = [tuple(map(without_value, group)) for group in (inputs, outputs, cts)]
    notes = Notes([t for group in groups for t in group])
    token = hooks.active.set(None)
    try:
        with no_interposers(), interpose(notes):
            grads = pull_back(Context(groups[0], groups[1], dict(attrs), needs, op.name, op.vjp), groups[2])
    except Exception:  # the rule raises it again when it is called
        return None
    finally:
        hooks.active.reset(token)
    if len(grads) != len(needs) or not all(g is None or isinstance(g, Tensor) for g in grads):
        return None
    wanted = [g if need else None for g, need in zip(grads, needs, strict=True)]
    kept = {id(g): g for g in wanted if g is not None}.values()
    notes.keep(kept)
    if any(on_gpu(t.spec.device) for t in (*inputs, *outputs)):
        fuse(notes, kept)
    return notes.recipe(wanted)
