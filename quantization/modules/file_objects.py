"""What files may hold of this package: QAT and quantized layers, observers, fake quantizers, parameters."""

from megengine.module import Module
from megengine.quantization.modules import fake_quant, int_modules, qat_modules
from megengine.quantization.ranges import LSQParams, QParams, QuantMode, observers
from megengine.serialization.objects import OBJECTS, module_of, object_of

MODULES: tuple[type[Module], ...] = (
    *qat_modules.CLASSES.values(),
    *int_modules.CLASSES.values(),
    *(getattr(fake_quant, name) for name in ("FakeQuantize", "LSQ", "TQT")),
    *(kind for kind in vars(observers).values() if isinstance(kind, type) and issubclass(kind, observers.Observer)),
)


def register() -> None:
    """Enter them into the table of objects that files are read into."""
    for kind in MODULES:
        OBJECTS[f"{kind.__module__}.{kind.__qualname__}"] = module_of(kind)
    for kind in (QParams, LSQParams):
        OBJECTS[f"{kind.__module__}.{kind.__qualname__}"] = object_of(kind)
    OBJECTS["megengine.quantization.utils.QuantMode"] = lambda record: QuantMode(record.args[0])
