"""The layer table of the project: which import names may import which."""

# folders at the root that links inside megengine/ give their import names
LINKED = ("kernels", "traced_module", "quantization", "cli")

# The longest matching prefix wins; a module imports only modules of its own layer or a lower one.
LAYERS = {
    "megengine._early": 0,
    "megengine.core": 0,
    "megengine.kernels": 1,
    "megengine._engine": 2,
    "megengine.tensor": 3,
    "megengine.autodiff": 3,
    "megengine.device": 3,
    "megengine.dispatch": 3,
    "megengine.random": 3,
    "megengine.logger": 3,
    "megengine.ops": 4,
    "megengine.functional": 5,
    "megengine.module": 5,
    "megengine.models": 5,
    "megengine.optimizer": 5,
    "megengine.amp": 5,
    "megengine.data": 5,
    "megengine.hub": 5,
    "megengine.serialization": 5,
    "megengine.distributed": 5,
    "megengine.dtr": 5,
    "megengine.config": 5,
    "megengine.utils": 5,
    "megengine.tools": 5,
    "megengine.traced_module": 6,
    "megengine.jit": 7,
    "megengine.plan": 7,
    "megengine.lite": 7,
    "megengine.quantization": 8,
    "megengine.compat": 8,
    "megengine.convert": 9,
    "megengine.cli": 9,
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
