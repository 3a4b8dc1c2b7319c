"""The layer table of the project: which import names may import which."""

# folders at the root that links inside megengine/ give their import names
LINKED = ("kernels", "traced_module", "quantization", "cli")

# The longest matching prefix wins; a module imports only modules of its own layer or a lower one.
LAYERS = {
    "megengine._early": 0,
    "megengine.core": 0,
    "megengine.kernels": 1,
    "megengine.tensor": 2,
    "megengine.autodiff": 2,
    "megengine.device": 2,
    "megengine.dispatch": 2,
    "megengine.random": 2,
    "megengine.logger": 2,
    "megengine.ops": 3,
    "megengine.functional": 4,
    "megengine.module": 4,
    "megengine.models": 4,
    "megengine.optimizer": 4,
    "megengine.amp": 4,
    "megengine.data": 4,
    "megengine.hub": 4,
    "megengine.serialization": 4,
    "megengine.distributed": 4,
    "megengine.dtr": 4,
    "megengine.config": 4,
    "megengine.utils": 4,
    "megengine.tools": 4,
    "megengine.traced_module": 5,
    "megengine.jit": 6,
    "megengine.plan": 6,
    "megengine.lite": 6,
    "megengine.quantization": 7,
    "megengine.compat": 7,
    "megengine.convert": 8,
    "megengine.cli": 8,
}

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


def layer_of(name: str) -> int | None:
    """The layer of an import name, or None for a name outside the table (the face `megengine` itself)."""
    best = max((p for p in LAYERS if name == p or name.startswith(p + ".")), key=len, default=None)
    return None if best is None else LAYERS[best]


def is_face(name: str) -> bool:
    return name == "megengine" or any(name == f or name.startswith(f + ".") for f in FACES)
