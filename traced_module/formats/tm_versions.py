"""What changed between versions of MegEngine, for the calls and layers that its files hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megengine.core.pytree import TreeDef
from megengine.dispatch.public import public_functions
from megengine.module import Module
from megengine.traced_module.expr import Arguments
from megengine.traced_module.tracing.calls import signature_of

LONGEST_NAME = 1000  # of nodes, layers and functions in a file
ORIGINS = "_provenance"  # of a graph: id of an expression -> where it comes from; MegEngine makes nothing of it

# op of a file -> our attributes from those it stored
OPDEFS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"GetVarShape": lambda stored: {}}

# functions that were found elsewhere in older versions
_MOVED: Mapping[str, str] = {
    "megengine.functional.elemwise.square": "megengine.functional.math.square",
}


def current_name(qualified: str) -> str:
    """The name under which a function is found today."""
    if qualified in public_functions:
        return qualified
    moved = _MOVED.get(qualified)
    if moved in public_functions:
        return moved
    _, _, name = qualified.rpartition(".")
    candidates = [q for q in public_functions if q.startswith("megengine.functional.") and q.endswith(f".{name}")]
    same_family = qualified.startswith("megengine.functional.")
    return candidates[0] if same_family and len(candidates) == 1 else qualified


_SAYS_NOTHING = (None, "default", "cross_correlation")


def upgrade_call(qualified: str, arguments: Arguments, version: str) -> Arguments:
    """Arguments as the function takes them today: trailing ones that say nothing and are unknown are left out."""
    structure, constants = arguments
    if qualified not in public_functions:
        return arguments
    signature = signature_of(public_functions[qualified].function)
    kinds = [p.kind for p in signature.parameters.values()]
    if any(k in (2, 4) for k in kinds):  # *args, **kwargs take anything
        return arguments
    args, kwargs = structure.children
    positional = sum(k in (0, 1) for k in kinds)
    values = dict(constants)
    keep = list(args.children)
    while len(keep) > positional and values.get(sum(c.num_leaves for c in keep) - 1, ...) in _SAYS_NOTHING:
        keep.pop()
    dropped = sum(c.num_leaves for c in args.children) - sum(c.num_leaves for c in keep)
    if not dropped:
        return arguments
    first = sum(c.num_leaves for c in keep)
    kept = tuple((i if i < first else i - dropped, v) for i, v in constants if not first <= i < first + dropped)
    return TreeDef(structure.kind, structure.aux, (TreeDef(args.kind, args.aux, tuple(keep)), kwargs)), kept


_LAYER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "Conv2d": {"padding_mode": "zeros", "output_padding": 0},
    "BatchNorm2d": {"freeze": False, "track_running_stats": True, "affine": True},
    "BatchNorm1d": {"freeze": False, "track_running_stats": True, "affine": True},
}


def upgrade_layer(layer: Module) -> None:
    """Attributes that a layer of an older version did not store get the value that older versions behaved by."""
    have = object.__getattribute__(layer, "__dict__")
    for kind in type(layer).__mro__:
        for name, value in _LAYER_DEFAULTS.get(kind.__name__, {}).items():
            have.setdefault(name, value)
