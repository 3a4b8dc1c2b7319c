"""MegEngine's path of what tensors can do: here `Tensor` has it itself."""

# ruff: noqa: F401

from functools import partial

from megengine.compat.opdef import apply
from megengine.compat.refusals import find
from megengine.compat.tensors import (
    astensor1d,
    astype_cpp,
    cast_tensors,
    convert_inputs,
    getitem_cpp,
    make_shape_tuple,
    reshape_cpp,
    setitem_cpp,
    transpose_cpp,
)
from megengine.compat.tensors import normalize_axis as _normalize_axis
from megengine.functional.helpers import broadcast_cpp, expand_dims_cpp, squeeze_cpp
from megengine.tensor import Tensor
from megengine.tensor import Tensor as ArrayMethodMixin

__getattr__ = partial(find, __name__)
