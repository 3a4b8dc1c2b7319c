"""Initial values of parameters, written in place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.core import _engine
from megengine.core.calls import shown
from megengine.core.dtype import storage_of
from megengine.core.errors import ArgumentError, OptionError, ShapeError, nearest
from megengine.core.limits import refuse_oversized
from megengine.dispatch.refusal import checked
from megengine.kernels import cuda
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.placing import filled, on_gpu
from megengine.ops.common import choice
from megengine.random.rng import draw
from megengine.tensor import Parameter, Tensor


def _write(tensor: Tensor, value: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"tensor is {shown(tensor)}; expected a Parameter or a Tensor, which takes the new values")
    dtype = storage_of(tensor.dtype)
    if value.dtype != dtype:
        value = cuda.elementwise.cast(value, dtype) if type(value) is DeviceArray else value.astype(dtype)
    tensor._reset(Tensor._wrap(value, tensor.dtype, tensor.spec.device))


def _device(tensor: Any) -> str:
    return tensor.spec.device if isinstance(tensor, Tensor) else "cpu0"


@checked
def fill_(tensor: Tensor, val: float) -> None:
    """Every element `val`."""
    device = _device(tensor)
    if on_gpu(device):
        _write(tensor, filled(tensor.shape, storage_of(tensor.dtype), val, device))
    else:
        _write(tensor, np.full(tensor.shape, val))


@checked
def zeros_(tensor: Tensor) -> None:
    """Every element 0."""
    fill_(tensor, 0)


@checked
def ones_(tensor: Tensor) -> None:
    """Every element 1."""
    fill_(tensor, 1)


@checked
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> None:
    """Uniform in [a, b)."""
    _write(tensor, draw(tensor.shape, normal=False, scale=b - a, shift=a, device=_device(tensor)))


@checked
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> None:
    """Normal with this mean and standard deviation."""
    if std < 0:
        raise OptionError(f"normal_: std is {std}; expected at least 0")
    _write(tensor, draw(tensor.shape, normal=True, scale=std, shift=mean, device=_device(tensor)))


_LINEAR = ("linear", "sigmoid", *(f"{kind}{n}d" for kind in ("conv", "conv_transpose") for n in (1, 2, 3)))


@checked
def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Recommended gain of a nonlinearity (He et al. 2015; 5/3 for tanh)."""
    choice("calculate_gain", "nonlinearity", nonlinearity, ("tanh", "relu", "leaky_relu", *_LINEAR))
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    return {"tanh": 5 / 3, "relu": math.sqrt(2)}.get(nonlinearity, 1.0)


@checked
def calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """Inputs and outputs per unit of a weight; one of five or more axes is a grouped convolution's, groups first."""
    shape = tensor.shape
    if len(shape) < 2:
        raise ShapeError(f"fan in and out of shape {shape}; expected at least two axes")
    if len(shape) >= 5:
        shape = shape[1:]
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


@checked
def calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    """Fan in or fan out by name, in any case."""
    name = mode.lower() if isinstance(mode, str) else mode
    if name not in ("fan_in", "fan_out"):
        hint = nearest(mode, ["fan_in", "fan_out"]) if isinstance(mode, str) else ""
        raise OptionError(f"fan mode is {mode!r}; expected fan_in or fan_out{hint}")
    return calculate_fan_in_and_fan_out(tensor)[name == "fan_out"]


@checked
def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> None:
    """Glorot and Bengio 2010, uniform."""
    limit = gain * math.sqrt(6 / sum(calculate_fan_in_and_fan_out(tensor)))
    uniform_(tensor, -limit, limit)


@checked
def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> None:
    """Glorot and Bengio 2010, normal."""
    normal_(tensor, 0.0, gain * math.sqrt(2 / sum(calculate_fan_in_and_fan_out(tensor))))


@checked
def msra_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> None:
    """He et al. 2015, uniform."""
    limit = calculate_gain(nonlinearity, a) * math.sqrt(3 / calculate_correct_fan(tensor, mode))
    uniform_(tensor, -limit, limit)


@checked
def msra_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> None:
    """He et al. 2015, normal."""
    normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(calculate_correct_fan(tensor, mode)))


def parameter(shape: tuple[int, ...]) -> Parameter:
    """A float32 parameter of zeros, whose memory is not touched before it is written."""
    refuse_oversized("a parameter", shape, 4)
    tensor = Parameter(0.0)
    tensor._reset(_engine.filled(shape, np.dtype(np.float32), None, tensor.spec.device))
    return tensor
