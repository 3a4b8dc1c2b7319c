"""QConfig and its presets, by MegEngine's names, as settings of the one pipeline."""

from __future__ import annotations

from dataclasses import dataclass, replace

from megengine.quantization.config import QuantConfig
from megengine.quantization.ranges import RangeMethod


@dataclass(frozen=True, slots=True)
class QConfig:
    """How a module is quantized by `quantize_qat`.

    Args:
        config: ranges, weights, profile and exclusions.
        fake_quant: round values in the forward pass from the start (False: only observe, as in calibration).

    Example:
        >>> min_max_fakequant_qconfig.fake_quant
        True
    """

    config: QuantConfig
    fake_quant: bool = True


def _preset(method: str, *, fake_quant: bool = True) -> QConfig:
    config = QuantConfig(
        activations=RangeMethod(method), weights="per_tensor", weight_method="minmax", bias_correction=False
    )
    return QConfig(config, fake_quant)


min_max_fakequant_qconfig = _preset("minmax")
ema_fakequant_qconfig = _preset("ema")
calibration_qconfig = _preset("kl", fake_quant=False)
passive_qconfig = _preset("minmax", fake_quant=False)
per_channel_fakequant_qconfig = QConfig(replace(ema_fakequant_qconfig.config, weights="per_channel"))
