"""The layer table of the project: which import names may import which."""

# folders at the root that links inside megengine/ give their import names
LINKED = ("kernels", "traced_module", "quantization", "cli")

# From the lowest level to the highest; packages of one level do not import each other. The longest prefix wins.
LEVELS = (
    ("megengine._early",),
    ("megengine.core", "megengine.logger"),
    ("megengine.kernels", "megengine.config", "megengine.dtr"),
    ("megengine.device", "megengine.core._engine"),
    ("megengine.tensor",),
    ("megengine.dispatch", "megengine.distributed"),
    ("megengine.autodiff", "megengine.random", "megengine.optimizer"),
    ("megengine.ops",),
    ("megengine.functional",),
    ("megengine.module",),
    ("megengine.serialization", "megengine.amp"),
    ("megengine.utils", "megengine.models"),
    ("megengine.hub", "megengine.jit", "megengine.data", "megengine.traced_module"),
    ("megengine.plan", "megengine.convert"),
    ("megengine.quantization",),
    ("megengine.convert.c",),
    ("megengine.compat",),
    ("megengine.convert.mge",),
    ("megengine.cli",),
)
LAYERS = {package: level for level, packages in enumerate(LEVELS) for package in packages}

# Re-exports only: they may import any layer, and nothing imports them.
FACES = (
    "megengine.module.qat",
    "megengine.module.quantized",
    "megengine.functional.quantized",
    # MegEngine's paths of what is in megengine.compat and elsewhere
    "megengine.core._config",
    "megengine.core._imperative_rt",
    "megengine.core._trace_option",
    "megengine.core.autodiff",
    "megengine.core.ops",
    "megengine.core.tensor.amp",
    "megengine.core.tensor.array_method",
    "megengine.core.tensor.megbrain_graph",
    "megengine.core.tensor.raw_tensor",
    "megengine.core.tensor.utils",
    "megengine.core.tensor_factory",
    "megengine.quantization.fake_quant",
    "megengine.quantization.observer",
    "megengine.quantization.qconfig",
    "megengine.quantization.quantize",
    "megengine.quantization.utils",
    "megengine.traced_module.expr",
    "megengine.traced_module.fake_quant",
    "megengine.traced_module.node",
    "megengine.traced_module.traced_module",
)


def package_of(name: str) -> str | None:
    """The entry of the table for an import name, or None for a name outside it (the face `megengine` itself)."""
    return max((p for p in LAYERS if name == p or name.startswith(p + ".")), key=len, default=None)


def is_face(name: str) -> bool:
    return name == "megengine" or any(name == f or name.startswith(f + ".") for f in FACES)
