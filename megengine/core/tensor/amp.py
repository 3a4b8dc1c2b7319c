"""MegEngine's path of settings of mixed precision, which have no effect."""

from megengine.amp import enabled, high_prec_dtype, low_prec_dtype

__all__ = ["enabled", "high_prec_dtype", "low_prec_dtype"]
