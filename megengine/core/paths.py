"""Paths of MegEngine's files that have no file here: importing one gives a module with the names of its home."""

from __future__ import annotations

import importlib
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

_DATA, _JIT = "megengine.data", "megengine.jit"

# path -> the module that has its names; the parent of each is a package or has a path here
PATHS: dict[str, str] = {
    **dict.fromkeys((f"{_DATA}.transform.meta_transform", f"{_DATA}.transform.vision"), f"{_DATA}.transform"),
    f"{_DATA}.transform.vision.functional": f"{_DATA}.transform.functional",
    f"{_DATA}.transform.vision.transform": f"{_DATA}.transform",
    "megengine.distributed.group": "megengine.distributed",
    "megengine.dtr.dtr": "megengine.dtr",
    **{f"{_JIT}.{part}_config": f"{_JIT}.options" for part in ("dtr", "graph_opt", "sublinear_memory")},
    f"{_JIT}.partial_tracing": _JIT,
    "megengine.quantization.internal_fake_quant": "megengine.quantization",
    **{f"megengine.traced_module._passes.{part}_pass": "megengine.traced_module.passes" for part in ("const", "fuse")},
    "megengine.traced_module._passes.fold_scale_pass": "megengine.traced_module.passes",
    "megengine.traced_module.compat": "megengine.traced_module.serialization",
    "megengine.version": "megengine",
}


class Paths:
    """The finder and loader of `PATHS`, for `sys.meta_path`."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The spec of a module at one of the paths, else None."""
        if fullname not in PATHS:
            return None
        return ModuleSpec(fullname, cast(Any, self), is_package=any(p.startswith(f"{fullname}.") for p in PATHS))

    def create_module(self, spec: ModuleSpec) -> None:
        """An empty module, as Python makes it."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the module the public names of its home; later ones are looked up there."""
        home = importlib.import_module(PATHS[module.__name__])
        names = vars(home).get("__all__") or [n for n in vars(home) if n[0] != "_"]
        vars(module).update({n: getattr(home, n) for n in names}, __doc__=home.__doc__, __all__=list(names))
        vars(module)["__getattr__"] = partial(getattr, home)
