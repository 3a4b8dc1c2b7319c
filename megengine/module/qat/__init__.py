"""QAT layers, by MegEngine's names and in its modules: `megengine.module.qat.conv.Conv2d`."""

from megengine.quantization.modules.layer_rules import provide_homes
from megengine.quantization.modules.qat_modules import CLASSES, QATModule

globals().update(CLASSES, **provide_homes(__name__, {**CLASSES, "QATModule": QATModule}))
__all__ = sorted([*CLASSES, "QATModule"])
