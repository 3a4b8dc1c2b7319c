"""Passes: named transforms of a graph, and the manager that runs and checks them."""

from collections.abc import Sequence
from typing import Any

from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.passes.module_passes import optimize, passes_named
from megengine.traced_module.passes.op_passes import (
    constant_value,
    drop_identities,
    fold_batch_norm,
    fold_constants,
    mark,
    only_user,
)
from megengine.traced_module.passes.pass_manager import (
    Pass,
    PassManager,
    get_registered_pass,
    register_pass,
    registered_passes,
)

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
    "mark",
    "only_user",
    "optimize",
    "passes_named",
    "register_pass",
    "registered_passes",
    "run_passes",
]
