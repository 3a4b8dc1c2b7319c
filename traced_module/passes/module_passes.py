"""Passes on traced modules by name: layers are replaced by layers, the hierarchy stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from megengine.core.collecting import collect_recent, collection_paused
from megengine.core.errors import GraphError, OptionError, brief
from megengine.dispatch.refusal import kinds_named
from megengine.traced_module.passes.activations import name_activations
from megengine.traced_module.passes.attributes_to_constants import ATTRIBUTES_TO_CONSTANTS
from megengine.traced_module.passes.backward_fold_scale import BACKWARD_FOLD_SCALE
from megengine.traced_module.passes.constants_to_parameters import CONSTANTS_TO_PARAMETERS
from megengine.traced_module.passes.drop_identities import DROP_IDENTITIES, drop_identities
from megengine.traced_module.passes.eliminate_common import ELIMINATE_COMMON
from megengine.traced_module.passes.fix_input_shape import FIX_INPUT_SHAPE
from megengine.traced_module.passes.fold_affine import fold_affine
from megengine.traced_module.passes.fold_batch_norm import fold_batch_norm
from megengine.traced_module.passes.fold_constants import FOLD_CONSTANTS, fold_constants
from megengine.traced_module.passes.fuse_add_mul import FUSE_ADD_MUL
from megengine.traced_module.passes.fuse_bn_conv import FUSE_BN_CONV
from megengine.traced_module.passes.fuse_conv_bn import FUSE_CONV_BN
from megengine.traced_module.passes.norm_elemwise import NORM_ELEMWISE
from megengine.traced_module.passes.pass_manager import (
    Pass,
    PassManager,
    get_registered_pass,
    graph_entered,
    register_pass,
    registered_passes,
)
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.untraced import remedy_for

Passes = str | Pass | Sequence[Any]  # elements: names, passes, MegEngine's passes


CALL_PASSES = (  # in the order of "all"
    DROP_IDENTITIES,
    FUSE_CONV_BN,
    FUSE_BN_CONV,
    FUSE_ADD_MUL,
    BACKWARD_FOLD_SCALE,
    FOLD_CONSTANTS,
    ELIMINATE_COMMON,
    NORM_ELEMWISE,
    ATTRIBUTES_TO_CONSTANTS,
    FIX_INPUT_SHAPE,
    CONSTANTS_TO_PARAMETERS,
    Pass.of_passes("FlodConstant", ATTRIBUTES_TO_CONSTANTS, FOLD_CONSTANTS),  # spelt as in MegEngine
)
OP_PASSES = (
    *(Pass(run.__name__, run) for run in (drop_identities, fold_constants, fold_batch_norm, fold_affine)),
    Pass("name_activations", name_activations, by_name_only=True),
)
for _works_on, _passes in (("calls", CALL_PASSES), ("ops", OP_PASSES)):
    for _one in _passes:
        register_pass(replace(_one, level=_works_on))

DEFAULT = ("FuseConvBn",)


@kinds_named
def optimize(
    module: TracedModule, enabled_pass: Passes | None = None, *, passes: Passes | None = None, check_with: Any = None
) -> TracedModule:
    """A copy of a traced module after some passes; the module itself stays as it is.

    Args:
        module: a traced module, of calls or of ops (what `lower` gives).
        enabled_pass: MegEngine's name of `passes`.
        passes: one or several, in order: names of registered passes, `Pass` objects, and passes written for
            MegEngine (classes or objects). "all" stands for every registered one that fits the module's level and is
            not `by_name_only`. Left out, FuseConvBn runs; on ops, fold_batch_norm.
        check_with: arguments of the module's forward (a tensor, or a sequence of them); if given, outputs are compared
            after each pass, and the guilty one is named.

    Raises:
        OptionError: a pass is unknown, or works on another level; the nearest name is given.
        GraphError: a pass changed what the module computes, or it is no traced module.

    Example:
        >>> optimize(traced, passes=["DropIdentities", Pass.of_rules("mine", rule)])  # doctest: +SKIP
    """
    if not isinstance(module, TracedModule):
        raise GraphError(f"optimize: got {type(module).__name__}; expected a TracedModule; {remedy_for(module)}")
    if passes is not None and enabled_pass is not None:
        raise OptionError("optimize: passes and enabled_pass are two names of one argument; give one of them")
    chosen = passes_named(passes if enabled_pass is None else enabled_pass, _level(module))
    checked, inputs = (None, None) if check_with is None else graph_entered(module, check_with)
    collect_recent()
    with collection_paused():
        optimized = module.clone()
        for graph, before in zip(optimized.graphs, module.graphs, strict=True):
            PassManager(chosen, inputs if before is checked else None).run(graph)
    return optimized


def _level(module: TracedModule) -> str:
    return "calls" if any(graph.of_calls for graph in module.graphs) else "ops"


def passes_named(passes: Passes | None, level: str) -> list[Pass]:
    """The passes that `optimize` runs on graphs of "calls" or "ops". Raises OptionError as it does."""
    if passes is None:
        passes = DEFAULT if level == "calls" else ("fold_batch_norm",)
    if isinstance(passes, str) and passes == "all":
        return [one for one in registered_passes(level) if not one.by_name_only]
    if isinstance(passes, (list, tuple)):
        return [_pass(one, f"passes[{i}]", level) for i, one in enumerate(passes)]
    return [_pass(passes, "passes", level)]


def _pass(one: Any, what: str, level: str) -> Pass:
    if isinstance(one, str):
        return get_registered_pass(one, level)
    if not isinstance(one, Pass) and hasattr(one, "as_pass"):  # a pass written for MegEngine
        one = (one() if isinstance(one, type) else one).as_pass()
    if not isinstance(one, Pass):
        remedy = "; make it one by Pass(name, function)" if callable(one) else ""
        raise OptionError(f"optimize: {what} is {brief(one)}; expected the name of a pass, or a Pass{remedy}")
    if one.level not in ("", level):
        raise OptionError(f"optimize: pass {one.name!r} works on graphs of {one.level}; this module holds {level}")
    return one
