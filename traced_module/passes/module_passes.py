"""Passes on traced modules by name: layers are replaced by layers, the hierarchy stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megengine.core.collecting import collection_paused
from megengine.tensor import Tensor
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.passes import arithmetic_passes, batch_norm_passes, constant_passes
from megengine.traced_module.passes.pass_manager import (
    Pass,
    PassManager,
    get_registered_pass,
    register_pass,
    registered_passes,
)
from megengine.traced_module.traced import TracedModule


def flod_constants(graph: InternalGraph) -> bool:
    """Tensors of modules become constants, and what depends on constants only becomes one too."""
    changed = constant_passes.attributes_to_constants(graph)
    return constant_passes.fold_constants(graph) or changed


for _one in (  # in the order of "all"
    constant_passes.DROP_IDENTITIES,
    batch_norm_passes.FUSE_CONV_BN,
    batch_norm_passes.FUSE_BN_CONV,
    arithmetic_passes.FUSE_ADD_MUL,
    arithmetic_passes.BACKWARD_FOLD_SCALE,
    constant_passes.FOLD_CONSTANTS,
    constant_passes.ELIMINATE_COMMON,
    arithmetic_passes.NORM_ELEMWISE,
    constant_passes.ATTRIBUTES_TO_CONSTANTS,
    constant_passes.FIX_INPUT_SHAPE,
    Pass("FlodConstant", flod_constants, by_name_only=True),  # spelt as in MegEngine
):
    register_pass(_one)


def optimize(
    module: TracedModule,
    enabled_pass: Sequence[str | Pass] | str = ("FuseConvBn",),
    *,
    check_with: Sequence[Any] | None = None,
) -> TracedModule:
    """A copy of a traced module after some passes; the module itself stays as it is.

    Args:
        module: a traced module.
        enabled_pass: names of registered passes, or passes, in order; "all" for every registered one that is
            not `by_name_only`.
        check_with: inputs; if given, outputs are compared after each pass and the guilty one is named.

    Raises:
        OptionError: a pass is unknown; the nearest name is given.
        GraphError: a pass changed what the module computes.
    """
    if enabled_pass == "all":
        enabled_pass = [one for one in registered_passes() if not one.by_name_only]
    names = [enabled_pass] if isinstance(enabled_pass, str) else enabled_pass
    passes = [one if isinstance(one, Pass) else get_registered_pass(one) for one in names]
    with collection_paused():
        made = module.clone()
    given = None if check_with is None else [x if isinstance(x, Tensor) else Tensor(x) for x in check_with]
    for graph in made.graphs:
        PassManager(passes, given).run(graph)
    return made
