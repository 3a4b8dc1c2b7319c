"""MegEngine's path of devices and dtypes."""

# ruff: noqa: F401

from functools import partial

from megengine.compat.refusals import find
from megengine.core.dtype import bfloat16
from megengine.core.dtype import bfloat16 as pybfloat16
from megengine.core.tensor.dtype import get_scale, get_zero_point, intb1, intb2, intb4, is_dtype_equal, is_quantize
from megengine.core.tensor.dtype import intb1 as pyintb1
from megengine.core.tensor.dtype import intb2 as pyintb2
from megengine.core.tensor.dtype import intb4 as pyintb4
from megengine.device import (
    CompNode,
    DeviceType,
    get_cuda_driver_version,
    get_cuda_version,
    get_cudnn_version,
    get_tensorrt_version,
    set_prealloc_config,
    what_is_xpu,
)

__getattr__ = partial(find, __name__)
