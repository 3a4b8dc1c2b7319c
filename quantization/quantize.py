"""MegEngine's path of the functions that turn modules into QAT modules and integer modules."""

from megengine.quantization.modules.conversion import _get_quantable_module_names as _get_quantable_module_names
from megengine.quantization.modules.conversion import apply_easy_quant as apply_easy_quant
from megengine.quantization.modules.conversion import disable_fake_quant as disable_fake_quant
from megengine.quantization.modules.conversion import disable_observer as disable_observer
from megengine.quantization.modules.conversion import enable_fake_quant as enable_fake_quant
from megengine.quantization.modules.conversion import enable_observer as enable_observer
from megengine.quantization.modules.conversion import hook_qat_module as hook_qat_module
from megengine.quantization.modules.conversion import propagate_qconfig as propagate_qconfig
from megengine.quantization.modules.conversion import quantize as quantize
from megengine.quantization.modules.conversion import quantize_qat as quantize_qat
from megengine.quantization.modules.conversion import reset_qconfig as reset_qconfig
from megengine.quantization.modules.int_modules import QuantizedModule as QuantizedModule
from megengine.quantization.modules.qat_modules import QATModule as QATModule
from megengine.quantization.modules.qconfigs import QConfig as QConfig
from megengine.quantization.modules.qconfigs import ema_fakequant_qconfig as ema_fakequant_qconfig
