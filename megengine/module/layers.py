"""Layers of convolutional networks, with MegEngine's parameters and shapes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar

import numpy as np

from megengine import functional as F
from megengine.core.errors import OptionError
from megengine.module import init
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


class _ConvNd(Module):
    """What convolution and transposed convolution share: geometry, weight, bias, initial values."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
    ) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise OptionError(
                f"{type(self).__name__}: groups={groups} must divide in_channels={in_channels} and "
                f"out_channels={out_channels}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = _pair(kernel_size), _pair(stride)
        self.padding, self.dilation = _pair(padding), _pair(dilation)

    def _make(self, first: int, second: int, bias: bool) -> None:
        g = self.groups
        shape = (first // g, second // g, *self.kernel_size)
        self.weight = Parameter(init.parameter((g, *shape) if g > 1 else shape))
        self.bias = Parameter(init.parameter((1, self.out_channels, 1, 1))) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights as He et al. 2015 (normal, fan in), bias 0."""
        fan_in = int(np.prod(self.kernel_size)) * self.in_channels // self.groups
        init.normal_(self.weight, 0.0, float(np.sqrt(1 / fan_in)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def _module_info_string(self) -> str:
        parts = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        return parts + f", padding={self.padding}, groups={self.groups}, bias={self.bias is not None}"


class Conv2d(_ConvNd):
    """2-D convolution of [N,C,H,W]. Weight [O,C,kh,kw], with groups (G,O/G,C/G,kh,kw); bias (1,O,1,1)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        padding_mode: str = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        if padding_mode not in ("zeros", "reflect", "replicate"):
            raise OptionError(f"Conv2d: padding_mode is {padding_mode!r}; expected zeros, reflect or replicate")
        self.conv_mode, self.compute_mode, self.padding_mode = conv_mode, compute_mode, padding_mode
        self._make(out_channels, in_channels, bias)

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with other weights."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            (h, w), padding = padding, 0
            inp = F.pad(inp, ((0, 0), (0, 0), (h, h), (w, w)), mode=self.padding_mode)
        return F.conv2d(inp, weight, bias, self.stride, padding, self.dilation, self.groups)

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,O,oh,ow]."""
        return self.calc_conv(inp, self.weight, self.bias)


class ConvTranspose2d(_ConvNd):
    """Transposed 2-D convolution. Weight [I,O,kh,kw], with groups (G,I/G,O/G,kh,kw); bias (1,O,1,1)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        self.output_padding = _pair(output_padding)
        self._make(in_channels, out_channels, bias)

    def forward(self, inp: Tensor) -> Tensor:
        """[N,I,H,W] -> [N,O,oh,ow]."""
        args = (self.stride, self.padding, self.output_padding, self.dilation, self.groups)
        return F.conv_transpose2d(inp, self.weight, self.bias, *args)


class Linear(Module):
    """inp [..., in_features] -> [..., out_features]. Weight [out, in], bias [out]."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, compute_mode: str = "default", **kwargs: Any
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(init.parameter((out_features, in_features)))
        self.bias = Parameter(init.parameter((out_features,))) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal weights of variance 1 / in_features, bias 0."""
        init.normal_(self.weight, 0.0, float(np.sqrt(1 / self.in_features)))

    def forward(self, x: Tensor) -> Tensor:
        """Matrix product with the weight, plus bias."""
        return F.linear(x, self.weight, self.bias)

    def _module_info_string(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class BatchNorm2d(Module):
    """Batch normalisation of [N,C,H,W]; parameters and statistics have shape (1,C,1,1)."""

    _axes = 4

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        freeze: bool = False,
        compute_mode: str = "default",
        param_dim: str = "dim_1c11",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats, self.freeze = affine, track_running_stats, freeze
        shape = (1, num_features, *[1] * (self._axes - 2))
        self.weight = Parameter(np.ones(shape, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(shape, np.float32)) if affine else None
        self.running_mean = Tensor(np.zeros(shape, np.float32)) if track_running_stats else None
        self.running_var = Tensor(np.ones(shape, np.float32)) if track_running_stats else None

    def forward(self, inp: Tensor) -> Tensor:
        """Normalise; in training update the running statistics."""
        if len(inp.shape) != self._axes:
            raise OptionError(f"{type(self).__name__}: input has shape {inp.shape}; expected {self._axes} axes")
        training = (self.training and not self.freeze) or not self.track_running_stats
        return F.batch_norm(
            inp,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=training,
            momentum=self.momentum,
            eps=self.eps,
        )

    def _saved(self, tensor: Tensor) -> np.ndarray:
        # NOTE: MegEngine's state dicts hold vectors here, although the tensors are (1,C,1,1).
        return tensor.numpy().reshape(-1).copy()

    def _module_info_string(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}"


class BatchNorm1d(BatchNorm2d):
    """Batch normalisation of [N,C,L] (or [N,C])."""

    _axes = 3

    def forward(self, inp: Tensor) -> Tensor:
        """Normalise; in training update the running statistics."""
        return super().forward(F.expand_dims(inp, 2))[:, :, 0] if len(inp.shape) == 2 else super().forward(inp)


class _Pool(Module):
    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, **kwargs: Any) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding


class MaxPool2d(_Pool):
    """Largest element of each window."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.max_pool2d(inp, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool):
    """Mean of each window."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        mode: str = "average_count_exclude_padding",
        **kwargs: Any,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.mode = mode

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.avg_pool2d(inp, self.kernel_size, self.stride, self.padding, self.mode)


class AdaptiveAvgPool2d(Module):
    """Means over a grid of the given size."""

    def __init__(self, oshp: Any, **kwargs: Any) -> None:
        super().__init__()
        self.oshp = oshp

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.adaptive_avg_pool2d(inp, self.oshp)


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """Largest elements over a grid of the given size."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.adaptive_max_pool2d(inp, self.oshp)


class Dropout(Module):
    """Zero a share of elements in training."""

    def __init__(self, drop_prob: float = 0.0, **kwargs: Any) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape."""
        return F.dropout(inputs, self.drop_prob, self.training)


class Identity(Module):
    """The input itself."""

    def forward(self, x: Any) -> Any:
        """Any value."""
        return x


def _activation(name: str, function: Any) -> type[Module]:
    def forward(self: Module, x: Tensor) -> Tensor:
        return function(x)

    return type(name, (Module,), {"forward": forward, "__doc__": f"`{function.__name__}` as a layer; any shape."})


ReLU = _activation("ReLU", F.relu)
ReLU6 = _activation("ReLU6", F.relu6)
Sigmoid = _activation("Sigmoid", F.sigmoid)
SiLU = _activation("SiLU", F.silu)
GELU = _activation("GELU", F.gelu)
HSwish = _activation("HSwish", F.hswish)
HSigmoid = _activation("HSigmoid", F.hsigmoid)
Tanh = _activation("Tanh", F.tanh)


class LeakyReLU(Module):
    """x where positive, else x times negative_slope."""

    def __init__(self, negative_slope: float = 0.01, **kwargs: Any) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape."""
        return F.leaky_relu(inputs, self.negative_slope)


class Softmax(Module):
    """Softmax along an axis."""

    def __init__(self, axis: int | None = None, **kwargs: Any) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape."""
        return F.softmax(inputs, self.axis)


class Sequential(Module):
    """Layers one after the other; given as modules or as one ordered dict."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = isinstance(args[0], OrderedDict) if len(args) == 1 else False
        entries = args[0].items() if named else ((str(i), m) for i, m in enumerate(args))
        self.layer_keys = []
        for key, module in entries:
            setattr(self, key, module)
            self.layer_keys.append(key)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Sequential(OrderedDict((k, getattr(self, k)) for k in self.layer_keys[index]))
        return getattr(self, self.layer_keys[index])

    def __len__(self) -> int:
        return len(self.layer_keys)

    def __iter__(self):
        return (getattr(self, k) for k in self.layer_keys)

    def forward(self, inp: Any) -> Any:
        """Through every layer in turn."""
        for layer in list(self):  # all are read before the first is called: traced graphs show it
            inp = layer(inp)
        return inp


class Elemwise(Module):
    """One elementwise function of MegEngine's names: ADD, MUL, RELU, FUSE_ADD_RELU, ..."""

    _FUNCTIONS: ClassVar[dict[str, Any]] = {
        "ADD": F.add,
        "SUB": F.sub,
        "MUL": F.mul,
        "TRUE_DIV": F.div,
        "RELU": F.relu,
        "SIGMOID": F.sigmoid,
        "TANH": F.tanh,
        "SILU": F.silu,
        "EXP": F.exp,
        "LOG": F.log,
        "FUSE_ADD_RELU": lambda x, y: F.relu(x + y),
        "FUSE_ADD_SIGMOID": lambda x, y: F.sigmoid(x + y),
        "FUSE_ADD_TANH": lambda x, y: F.tanh(x + y),
        "FUSE_MUL_ADD3": lambda x, y, z: x * y + z,
    }

    def __init__(self, method: str, **kwargs: Any) -> None:
        super().__init__()
        name = getattr(method, "name", method).upper()
        if name not in self._FUNCTIONS:
            raise OptionError(f"Elemwise: unknown method {method!r}; expected one of {sorted(self._FUNCTIONS)}")
        self.method = name

    def forward(self, *inps: Tensor) -> Tensor:
        """Operands broadcast."""
        return self._FUNCTIONS[self.method](*inps)


class Concat(Module):
    """Concatenation as a layer."""

    def forward(self, inps: Any, axis: int = 0) -> Tensor:
        """Tensors one after the other."""
        return F.concat(inps, axis)


class ConvBn2d(Module):
    """Convolution and batch normalisation."""

    _relu = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        padding_mode: str = "zeros",
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        geometry = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.conv = Conv2d(*geometry, conv_mode, compute_mode, padding_mode)
        self.bn = BatchNorm2d(out_channels, eps, momentum, affine, track_running_stats)

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,O,oh,ow]."""
        out = self.bn(self.conv(inp))
        return F.relu(out) if self._relu else out


class ConvBnRelu2d(ConvBn2d):
    """Convolution, batch normalisation and ReLU."""

    _relu = True


class ConvRelu2d(Conv2d):
    """Convolution and ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,O,oh,ow]."""
        return F.relu(super().forward(inp))


class QuantStub(Identity):
    """Marks where the input is quantized."""


class DequantStub(Identity):
    """Marks where the result is dequantized."""
