"""MegEngine's path of `apply` and of what its interpreter offers."""

# ruff: noqa: F401

from functools import partial

from megengine.compat.opdef import apply
from megengine.compat.refusals import find
from megengine.compat.runtime import (
    AsyncError,
    _from_dlpack,
    _to_dlpack,
    add_backward_callback,
    full_sync,
    get_auto_format_convert,
    get_option,
    is_tracing_module,
    pop_scope,
    pop_scope_with_type,
    push_scope,
    push_scope_with_type,
    record_scope,
    set_auto_format_convert,
    set_option,
    split_cpp,
    stop_step,
    sync,
)
from megengine.compat.tensors import (
    Const,
    astype_cpp,
    getitem_cpp,
    make_shape_tuple,
    matmul_cpp,
    reshape_cpp,
    setitem_cpp,
    transpose_cpp,
)
from megengine.compat.tensors import astensor1d as astensor1d_cpp
from megengine.compat.tensors import convert_inputs as convert_inputs_cpp
from megengine.compat.tensors import convert_single_value as convert_single_value_cpp
from megengine.compat.tensors import get_convert_inputs as _get_convert_inputs
from megengine.compat.tensors import matmul_cpp as batched_matmul_cpp
from megengine.compat.tensors import set_convert_inputs as _set_convert_inputs
from megengine.functional.helpers import (
    adaptive_pool2d_cpp,
    broadcast_cpp,
    dtype_promotion,
    expand_dims_cpp,
    get_device,
    pixel_shuffle_cpp,
    squeeze_cpp,
)
from megengine.jit import TraceError
from megengine.tensor import Tensor

__getattr__ = partial(find, __name__)
