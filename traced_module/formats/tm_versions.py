"""Changes between versions of MegEngine in the calls and layers of its files."""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from typing import Any

from megengine import module as M
from megengine.core.pytree import TreeDef
from megengine.dispatch.public import public_functions
from megengine.module import Module
from megengine.traced_module.ir.functions import Arguments, signature_of

LONGEST_NAME = 1000  # of nodes, layers and functions in a file
ORIGINS = "_provenance"  # of a graph: id of an expression -> its provenance; MegEngine ignores it
FLOATS = "_left_in_float"  # of a graph: ids of expressions that quantization leaves in float; MegEngine ignores them
METADATA = "_metadata"  # of a graph: its texts about the model; MegEngine ignores them
POINTS = (
    "_points"  # of a module's first graph: its watch and end points; MegEngine runs no module that it read with them
)

# containers among the arguments and results of calls
CONTAINERS: dict[str, type] = {f"{k.__module__}.{k.__name__}": k for k in (tuple, list, dict, slice, OrderedDict)}

# state of a TracedModule that is not a child
BOOKKEEPING = frozenset(
    (
        *("_modules", "name", "training", "quantize_disabled", "_forward_pre_hooks", "_forward_hooks", "_name"),
        *("_short_name", "argdef_graph_map", "argdef_outdef_map", "_is_top", "watch_points", "watch_node_value"),
        *("end_points", "is_qat", "argspec", "dump_info"),
    )
)
# ops of files that are applied here too -> the fields that they are written with; 7 stands for the shape of all axes
OPS = {"GetVarShape": {"axis": 7}}
# functions that moved since an older version
_MOVED = {"megengine.functional.elemwise.square": "megengine.functional.math.square"}


def current_name(qualified: str) -> str:
    """The present name of a function."""
    if qualified in public_functions:
        return qualified
    moved = _MOVED.get(qualified)
    if moved in public_functions:
        return moved
    _, _, name = qualified.rpartition(".")
    candidates = [q for q in public_functions if q.startswith("megengine.functional.") and q.endswith(f".{name}")]
    same_family = qualified.startswith("megengine.functional.")
    return candidates[0] if same_family and len(candidates) == 1 else qualified


_WITHOUT_EFFECT = (None, "default", "cross_correlation")


def upgrade_call(qualified: str, arguments: Arguments, version: str) -> Arguments:
    """Arguments for the present signature: trailing ones that are unknown and have no effect are left out."""
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
    while len(keep) > positional and values.get(sum(c.num_leaves for c in keep) - 1, ...) in _WITHOUT_EFFECT:
        keep.pop()
    dropped = sum(c.num_leaves for c in args.children) - sum(c.num_leaves for c in keep)
    if not dropped:
        return arguments
    first = sum(c.num_leaves for c in keep)
    kept = tuple((i if i < first else i - dropped, v) for i, v in constants if not first <= i < first + dropped)
    return TreeDef(structure.kind, structure.aux, (TreeDef(args.kind, args.aux, tuple(keep)), kwargs)), kept


_GREW = (M.Conv2d, M.ConvTranspose2d, M.Linear, M.Embedding, M.BatchNorm1d, M.BatchNorm2d)  # have new attributes


def upgrade_layer(layer: Module) -> None:
    """Set attributes that a layer of an older version did not store, to the value for the old behaviour.

    That is the default of the constructor's argument of that name.
    """
    have = object.__getattribute__(layer, "__dict__")
    for kind in _GREW:
        for name, value in _defaults(kind) if isinstance(layer, kind) else ():
            have.setdefault(name, value)
    if isinstance(layer, M.Conv2d):
        have.setdefault("output_padding", 0)
    if isinstance(layer, (M.BatchNorm1d, M.BatchNorm2d)):
        have.setdefault("_track_running_stats_saved", have["track_running_stats"])


@functools.cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    """Options of a layer's constructor and their defaults, without sizes and tensors, which all versions stored."""
    options = [p for p in inspect.signature(kind).parameters.values() if p.name not in ("bias", "initial_weight")]
    return tuple((p.name, p.default) for p in options if isinstance(p.default, (bool, str, float, type(None))))
