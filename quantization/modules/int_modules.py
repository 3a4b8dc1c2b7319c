"""Modules that compute with integers: what `quantize` makes of QAT modules, and what MegEngine's files hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from megengine import functional as F
from megengine import module as float_modules
from megengine.core.dtype import QuantizedDType, as_dtype, known_quantized
from megengine.core.errors import CalibrationError, DTypeError, OptionError
from megengine.dispatch import apply
from megengine.kernels.cuda.placing import host
from megengine.module import BatchMatMulActivation, Conv2d, ConvTranspose2d, Elemwise, Module
from megengine.quantization.modules.arithmetic import Constants, constants, rescaled, stored_result, to_stored
from megengine.quantization.modules.layer_rules import BATCH_NORMS, LAYER_RULES, LayerRule, placed
from megengine.quantization.modules.qat_modules import QATModule, batch_product, padded, product_of
from megengine.serialization.arrays import with_metadata
from megengine.tensor import Parameter, Tensor


class QuantizedModule(Module):
    """Base of the layers that run on integers; only for inference.

    The dtype of their result, its scale included, is `output_dtype`.
    """

    output_dtype: QuantizedDType | None

    def __init__(self, dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_dtype(dtype)

    def _set_dtype(self, dtype: Any) -> None:
        self.output_dtype = None if dtype is None else as_dtype(dtype)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__(state)
        if (stated := state.get("output_dtype")) is not None:
            self.output_dtype = as_dtype(stated)
            if isinstance(self.output_dtype, QuantizedDType) and self.output_dtype.axis is not None:
                raise DTypeError(
                    f"{type(self).__name__}: output_dtype is {self.output_dtype}, with scales along an axis; "
                    "the result of a layer has one scale"
                )

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the layer. Raises OptionError in training mode."""
        if self.training:
            raise OptionError(f"{type(self).__name__}: quantized modules are for inference only; call .eval() first")
        return super().__call__(*inputs, **kwargs)

    def __repr__(self) -> str:
        return f"Quantized.{super().__repr__()}"

    @classmethod
    def from_qat_module(cls, qat_module: QATModule) -> QuantizedModule:
        """The integer form of a QAT module. Raises CalibrationError if one of its observers saw nothing."""
        module = cls.__new__(cls)
        module.__dict__.update({name: getattr(qat_module, name) for name in vars(Module())})
        for hooks in ("_forward_hooks", "_forward_pre_hooks"):
            vars(module)[hooks] = OrderedDict(vars(module)[hooks])
        module._take(qat_module)
        return module

    def _take(self, qat_module: QATModule) -> None:
        self.output_dtype = qat_module.get_activation_dtype()

    @property
    def target(self) -> QuantizedDType:
        """`output_dtype`. Raises OptionError where it is missing."""
        if not isinstance(self.output_dtype, QuantizedDType):
            raise OptionError(f"{type(self).__name__}: it has no dtype of its result; give dtype= to the constructor")
        return self.output_dtype

    def _saved(self, tensor: Tensor) -> np.ndarray:
        array, dtype = np.array(tensor.numpy()), tensor.dtype
        if isinstance(dtype, QuantizedDType) and dtype.axis is None:
            return array.view(with_metadata(dtype))
        return array

    def _integers(self, inp: Tensor) -> Tensor:
        if not isinstance(inp.dtype, QuantizedDType):
            raise DTypeError(
                f"{type(self).__name__}: its input is {inp.dtype}; expected a quantized tensor; "
                "put a QuantStub before the layer, or quantize with .astype"
            )
        return inp


@dataclass(slots=True, eq=False)
class _Prepared:
    """Constants of a layer and what they were made for."""

    made_for: tuple
    arrays: tuple
    constants: Constants


class WeightedQuantized(QuantizedModule):
    """A convolution or linear layer on integers, with or without ReLU; `rule` says which."""

    rule: ClassVar[LayerRule]
    weight: Any
    bias: Any
    _prepared: _Prepared | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "_prepared"}

    def _take(self, qat_module: Any) -> None:
        super()._take(qat_module)
        layer = qat_module.layer
        skipped = {*self.__dict__, *qat_module.__dict__} if layer is not qat_module else set(self.__dict__)
        own = {k: v for k, v in layer.__dict__.items() if k not in skipped and not k.endswith(("_observer", "_quant"))}
        self.__dict__.update(own)
        weight, bias = qat_module.folded()
        dtype = qat_module.get_weight_dtype()
        shape = weight.shape if dtype.axis is None else (-1, *weight.shape[-3:]) if weight.ndim == 5 else weight.shape
        stored = to_stored(weight.detach().reshape(*shape), dtype)
        self.weight = Parameter(stored.numpy(), dtype=dtype)
        self.bias = None if bias is None else Parameter(bias.numpy())

    def _constants(self, source: QuantizedDType, *, relu: bool) -> Constants:
        arrays = tuple(None if t is None else t._storage() for t in (self.weight, self.bias))
        key, prepared = (source, self.target, relu), self._prepared
        same = prepared is not None and all(a is b for a, b in zip(arrays, prepared.arrays, strict=True))
        if prepared is None or not same or prepared.made_for != key:
            if not isinstance(self.weight.dtype, QuantizedDType):
                raise DTypeError(
                    f"{type(self).__name__}: its weight is {self.weight.dtype}; expected quantized values, as qint8; "
                    "load the state of a quantized layer, or make the layer with from_qat_module"
                )
            product = product_of(self.rule.op, self)
            bias = None if arrays[1] is None else host(arrays[1])
            made = constants(product, self.weight, bias, source, relu=relu, target=self.target)
            prepared = self._prepared = _Prepared(key, arrays, made)
        return prepared.constants

    def before_activation(self, inp: Tensor, nonlinear_mode: str = "identity") -> Tensor:
        """The quantized result; `nonlinear_mode` is "identity" or "relu"."""
        if nonlinear_mode not in ("identity", "relu"):
            raise OptionError(
                f"{type(self).__name__}: nonlinear_mode is {nonlinear_mode!r}; expected 'identity' or 'relu'"
            )
        relu, x = nonlinear_mode == "relu", padded(self, self._integers(inp))
        c = self._constants(known_quantized(x.dtype), relu=relu)
        return stored_result(product_of(self.rule.op, self), x, c, self.target, relu=relu)

    def forward(self, inp: Tensor) -> Tensor:
        """As the float layer, on quantized tensors. Raises DTypeError for an input that is not quantized."""
        return self.before_activation(inp, nonlinear_mode="relu" if self.rule.relu else "identity")


class _QuantizedConv2d(WeightedQuantized, Conv2d):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        dtype: Any = None,
        padding_mode: str = "zeros",
        **kwargs: Any,
    ) -> None:
        geometry = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, True)
        Conv2d.__init__(self, *geometry, conv_mode, compute_mode, padding_mode, **kwargs)
        self._set_dtype(dtype)


class _QuantizedConvTranspose2d(WeightedQuantized, ConvTranspose2d):
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
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        geometry = (in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation, groups, bias)
        ConvTranspose2d.__init__(self, *geometry, conv_mode=conv_mode, compute_mode=compute_mode, **kwargs)
        self._set_dtype(dtype)


class _QuantizedLinear(WeightedQuantized):
    def __init__(self, dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(dtype, **kwargs)
        self.weight = self.bias = None


class QuantizedBatchMatMul(QuantizedModule, BatchMatMulActivation):
    """Products of quantized matrices, on their real values as in training, so that both give the same integers."""

    weight: Any
    bias: Any

    def __init__(
        self,
        batch: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        nonlinear_mode: str = "identity",
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        BatchMatMulActivation.__init__(self, batch, in_features, out_features, bias, nonlinear_mode, **kwargs)
        self._set_dtype(dtype)

    def _take(self, qat_module: Any) -> None:
        super()._take(qat_module)
        for name in ("batch", "in_features", "out_features", "nonlinear_mode"):
            setattr(self, name, getattr(qat_module, name))
        dtype = qat_module.get_weight_dtype()
        self.weight = Parameter(to_stored(qat_module.weight.detach(), dtype).numpy(), dtype=dtype)
        self.bias = None if qat_module.bias is None else Parameter(qat_module.bias.numpy())

    def calc_bmm_quantized(self, inp: Tensor) -> Tensor:
        """The quantized result."""
        real = batch_product(self, apply("dequantize", self.weight), apply("dequantize", self._integers(inp)))
        return to_stored(real, self.target)

    def forward(self, inp: Tensor) -> Tensor:
        """Quantized [batch, in, N] -> [batch, out, N]. Raises DTypeError for an input that is not quantized."""
        return self.calc_bmm_quantized(inp)


class QuantizedBatchNorm(QuantizedModule):
    """A batch norm of quantized tensors, on their real values as in training; of real tensors it gives real ones."""

    def __init__(self, num_features: int, dtype: Any = None, **options: Any) -> None:
        super().__init__(dtype, num_features=num_features, **options)

    def _take(self, qat_module: Any) -> None:
        parts = {k: v for k, v in vars(qat_module).items() if not k.endswith(("_observer", "_quant"))}
        self.__dict__.update(parts | vars(self))
        try:
            super()._take(qat_module)
        except CalibrationError:  # nobody gave a scale, which it needs for quantized inputs alone
            self.output_dtype = None

    def forward(self, inp: Tensor) -> Tensor:
        """As the float layer in evaluation. Raises OptionError for a quantized input where no scale is known."""
        if not isinstance(inp.dtype, QuantizedDType):
            return super().forward(inp)
        return to_stored(super().forward(apply("dequantize", inp)), self.target)


class QuantizedElemwise(QuantizedModule):
    """An elementwise function: computed on real values, converted to the result's scale.

    `method` is MegEngine's name, with or without the "q" in front that the layer keeps it with.
    """

    def __init__(self, method: Any, dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(dtype, **kwargs)
        name = getattr(method, "name", method)
        self.method = "q" + Elemwise(name.removeprefix("q")).method

    def _take(self, qat_module: Any) -> None:
        super()._take(qat_module)
        self.method = "q" + qat_module.method

    def forward(self, *inps: Tensor) -> Tensor:
        """Quantized operands broadcast. Raises DTypeError for operands that are not quantized."""
        values = [apply("dequantize", self._integers(x)) for x in inps]
        return to_stored(Elemwise(self.method.removeprefix("q")).forward(*values), self.target)


class QuantizedConcat(QuantizedModule):
    """A concatenation of quantized tensors on one scale."""

    def forward(self, inps: Any, axis: int = 0) -> Tensor:
        """Quantized tensors one after the other. Raises DTypeError for those that are not quantized."""
        return F.concat([rescaled(self._integers(x), self.target) for x in inps], axis)


class QuantizedQuantStub(QuantizedModule):
    """Quantizes the network's input."""

    def forward(self, inp: Tensor) -> Tensor:
        """Float32, any shape."""
        return to_stored(inp, self.target)


class QuantizedDequantStub(QuantizedModule):
    """Gives real values."""

    def _take(self, qat_module: Any) -> None:
        """It has no dtype of its own."""

    def forward(self, inp: Tensor) -> Tensor:
        """Any shape -> float32; real values, such as means of quantized tensors, stay as they are."""
        return apply("dequantize", inp) if isinstance(inp.dtype, QuantizedDType) else inp


_KINDS: dict[str, type[QuantizedModule]] = {
    "Conv2d": _QuantizedConv2d,
    "ConvTranspose2d": _QuantizedConvTranspose2d,
    "Linear": _QuantizedLinear,
    "BatchMatMulActivation": QuantizedBatchMatMul,
    **{name: type(name, (QuantizedBatchNorm, getattr(float_modules, name)), {}) for name in BATCH_NORMS},
    "Elemwise": QuantizedElemwise,
    "Concat": QuantizedConcat,
    "QuantStub": QuantizedQuantStub,
    "DequantStub": QuantizedDequantStub,
}


def _quantized_class(rule: LayerRule) -> type[QuantizedModule]:
    """The class of a row. Folded batch norms leave no trace, so those are convolutions and linear layers too."""
    names: dict[str, Any] = {}
    if rule.layer:
        names = {"rule": rule, f"{rule.calc.removesuffix('_bn')}_quantized": WeightedQuantized.before_activation}
    base = _KINDS.get(rule.name) or next(CLASSES[r.name] for r in LAYER_RULES if r.layer == rule.layer)
    return placed(type(rule.name, (base,), names), "quantized", rule)


CLASSES: dict[str, type[QuantizedModule]] = {}
"""Quantized classes by name."""
for _rule in LAYER_RULES:
    CLASSES[_rule.name] = _quantized_class(_rule)
