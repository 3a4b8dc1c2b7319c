"""Integer layers, by MegEngine's names and in its modules: `megengine.module.quantized.conv.Conv2d`."""

from megengine.quantization.modules.int_modules import CLASSES, QuantizedModule
from megengine.quantization.modules.layer_rules import provide_homes

globals().update(CLASSES, **provide_homes(__name__, {**CLASSES, "QuantizedModule": QuantizedModule}))
__all__ = sorted([*CLASSES, "QuantizedModule"])
