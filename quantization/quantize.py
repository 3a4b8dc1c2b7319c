"""MegEngine's path of the functions that turn modules into QAT modules and integer modules."""

from megengine.quantization.modules.conversion import (
    _get_quantable_module_names,
    apply_easy_quant,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    hook_qat_module,
    propagate_qconfig,
    quantize,
    quantize_qat,
    reset_qconfig,
)
from megengine.quantization.modules.int_modules import QuantizedModule
from megengine.quantization.modules.qat_modules import QATModule
from megengine.quantization.modules.qconfigs import QConfig, ema_fakequant_qconfig

__all__ = [
    "QATModule",
    "QConfig",
    "QuantizedModule",
    "_get_quantable_module_names",
    "apply_easy_quant",
    "disable_fake_quant",
    "disable_observer",
    "ema_fakequant_qconfig",
    "enable_fake_quant",
    "enable_observer",
    "hook_qat_module",
    "propagate_qconfig",
    "quantize",
    "quantize_qat",
    "reset_qconfig",
]
