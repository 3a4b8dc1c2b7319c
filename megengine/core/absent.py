"""Names of MegEngine that are not here: why, and what to use instead."""

from __future__ import annotations

# beginning of a name -> why it is not here; the longest one counts
REASONS: dict[str, str] = {
    "megengine.functional.": "not written yet",
    "megengine.functional.distributed.": "not written yet",
    "megengine.functional.inplace.": "internal: tensors are values, optimizers write to parameters themselves",
    "megengine.module.": "not written yet",
    "megengine.module.init.": "internal",
    "megengine.module.qat.": "see the page on quantization",
    "megengine.module.quantized.": "see the page on quantization",
    "megengine.optim": "it is called megengine.optimizer",
    "megengine.jit": "traced_module.trace_module captures a model, plan.compile makes it fast; code runs eagerly else",
    "megengine.amp": "mixed precision is not here; parameters and inputs can be float16 or bfloat16 throughout",
    "megengine.data": "any Python iterable of arrays serves: torch.utils.data.DataLoader, or a generator",
    "megengine.distributed": "training runs in one process",
    "megengine.dtr": "memory is not limited by recomputation; use smaller batches and add up gradients",
    "megengine.lite": "megengine.plan runs models",
    "megengine.config": "there are no options of kernels; megengine.functional.debug_param has the strategy",
    "megengine.experimental": "what became useful of it is in megengine.quantization",
    "megengine.version": "it is megengine.__version__",
    "megengine.random.": "not written yet",
    "megengine.check_misc": "there is no installation to check: what is missing says so when it is used",
    "megengine.utils.": "a helper of MegEngine's own tools; models and training do not use it",
    "megengine.utils.comp_graph_tools.": "graphs are those of traced_module.lower, which run and edit themselves",
    "megengine.utils.network.": "graphs are those of traced_module.lower, which insert, replace, rename and erase",
    "megengine.utils.persistent_cache.": "kernels are chosen without a cache of measurements",
    "megengine.utils.profile_analyzer.": "profiles are files for trace viewers, made by megengine.utils.profiler",
}


def reason(name: str) -> str:
    """Why a full name is not here, by the longest beginning in the table; empty if the table does not know it."""
    best = max((p for p in REASONS if name.startswith(p)), key=len, default=None)
    return "" if best is None else REASONS[best]


def missing(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have; it says why if the name is MegEngine's."""
    known = "" if name.startswith("_") or module == "megengine.module" else reason(f"{module}.{name}")
    known = known or REASONS.get(f"{module}.{name}", "")
    return AttributeError(f"module {module!r} has no attribute {name!r}" + (f": {known}" if known else ""))
