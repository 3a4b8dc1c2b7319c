"""Passes: named transforms of a graph, and the manager that runs and checks them."""

from collections.abc import Sequence
from typing import Any

from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.passes.drop_identities import drop_identities
from megengine.traced_module.passes.fold_batch_norm import fold_batch_norm
from megengine.traced_module.passes.fold_constants import fold_constants
from megengine.traced_module.passes.layer_uses import only_user
from megengine.traced_module.passes.module_passes import optimize, passes_named
from megengine.traced_module.passes.pass_manager import (
    Pass,
    PassManager,
    get_registered_pass,
    register_pass,
    registered_passes,
)
from megengine.traced_module.patterns import constant_value

DEFAULT_PASSES = registered_passes("ops")


def run_passes(
    graph: InternalGraph,
    passes: Sequence[Pass] = DEFAULT_PASSES,
    *,
    check_with: Sequence[Any] | None = None,
    tolerance: float = 1e-4,
) -> list[str]:
    """Run passes of graphs of ops in order; see `PassManager`. Returns the names of those that changed the graph."""
    return PassManager(passes, check_with, tolerance).run(graph)


__all__ = [
    "DEFAULT_PASSES",
    "Pass",
    "PassManager",
    "constant_value",
    "drop_identities",
    "fold_batch_norm",
    "fold_constants",
    "get_registered_pass",
    "only_user",
    "optimize",
    "passes_named",
    "register_pass",
    "registered_passes",
    "run_passes",
]
