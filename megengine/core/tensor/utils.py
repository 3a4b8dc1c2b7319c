"""MegEngine's path of helpers for operators."""

# ruff: noqa: F401

from functools import partial

from megengine.autodiff import Function
from megengine.compat.opdef import apply
from megengine.compat.refusals import find
from megengine.compat.subgraphs import OPERATORS, interpret_subgraph, subgraph, subgraph_fn
from megengine.compat.tensors import (
    Const,
    as_device,
    astensor1d,
    astype_cpp,
    cast_tensors,
    convert_inputs,
    convert_single_value,
    get_convert_inputs,
    isscalar,
    make_shape_tuple,
    result_type,
    set_convert_inputs,
)
from megengine.compat.tensors import astensor1d as astensor1d_cpp
from megengine.compat.tensors import convert_inputs as convert_inputs_cpp
from megengine.compat.tensors import convert_single_value as convert_single_value_cpp
from megengine.compat.tensors import normalize_axis as _normalize_axis
from megengine.core.tensor.dtype import is_dtype_equal, is_quantize
from megengine.functional.helpers import dtype_promotion, get_device
from megengine.tensor import Tensor

_opr_map = OPERATORS  # MegEngine's name
__getattr__ = partial(find, __name__)
