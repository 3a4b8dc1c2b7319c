"""`optimize` by MegEngine's name: passes of this package, and classes under `register_pass`."""

from __future__ import annotations

from collections.abc import Sequence

from megengine.traced_module._passes.pass_base import as_pass
from megengine.traced_module.passes import module_passes
from megengine.traced_module.traced import TracedModule


def optimize(module: TracedModule, enabled_pass: str | Sequence[str] = ("FuseConvBn",)) -> TracedModule:
    """A copy of a traced module after some passes, by name; the module itself stays as it is.

    Raises OptionError for an unknown name, with the nearest one.
    """
    names = [enabled_pass] if isinstance(enabled_pass, str) else enabled_pass
    return module_passes.optimize(module, [as_pass(name) for name in names])
