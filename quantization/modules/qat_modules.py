"""Modules of quantization-aware training: float parameters, values rounded as the quantized module will have them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

from megengine import functional as F
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import CalibrationError, OptionError
from megengine.dispatch import apply, get_op
from megengine.dispatch.apply import active_interposers
from megengine.logger import get_logger
from megengine.module import Module
from megengine.ops.norm import running_average
from megengine.ops.simulation import grid_of, with_value
from megengine.quantization.modules.arithmetic import (
    Product,
    constants,
    form_of,
    pair,
    rescaled,
    stored_result,
    to_stored,
)
from megengine.quantization.modules.gradients import exact_product
from megengine.quantization.modules.layer_rules import BATCH_NORMS, LAYER_RULES, LayerRule, placed
from megengine.quantization.modules.qconfigs import QConfig
from megengine.quantization.modules.rounding import fake_quant_bias
from megengine.quantization.ranges import MinMaxObserver, QParams, QParamsModuleMixin
from megengine.tensor import Tensor
from megengine.traced_module.tracing.deferred import Deferring

_log = get_logger(__name__)


class QATModule(Module):
    """Base of the layers that are trained with rounded values; a float layer becomes one by `from_float_module`.

    `with_weight` and `with_act` say what a kind of layer quantizes. A user's own kind derives from this class and
    from its float class, and calls `apply_quant_weight`, `apply_quant_bias` and `apply_quant_activation` in `forward`.
    """

    with_weight = True
    with_act = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # of the float class, where there is one
        self._forget()

    def _forget(self) -> None:
        self.act_observer = self.act_fake_quant = None
        self.weight_observer = self.weight_fake_quant = None

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._forget()
        super().__setstate__(state)

    def __repr__(self) -> str:
        return f"QAT.{super().__repr__()}"

    @classmethod
    def from_float_module(cls, float_module: Module) -> QATModule:
        """The QAT form of a float layer. Parameters are shared with it, hooks are copied."""
        module = cls.__new__(cls)
        module.__dict__.update(float_module.__dict__)
        for hooks in ("_forward_hooks", "_forward_pre_hooks"):
            module.__dict__[hooks] = OrderedDict(getattr(float_module, hooks))
        module._forget()
        return module

    def set_qconfig(self, qconfig: QConfig) -> None:
        """Make observers and fake quantizers anew. Raises OptionError if qconfig is not a QConfig."""
        if not isinstance(qconfig, QConfig):
            raise OptionError(f"set_qconfig: expected a QConfig, got {type(qconfig).__name__}")
        for kind, wanted in (("act", self.with_act), ("weight", self.with_weight)):
            for name in _names_of(kind):
                factory = getattr(qconfig, name) if wanted else None
                setattr(self, name, None if factory is None else factory())

    def set_fake_quant(self, enable: bool) -> None:
        """Round (True) or compute in float (False)."""
        for part in (self.weight_fake_quant, self.act_fake_quant):
            if part is not None:
                part.enable() if enable else part.disable()

    def set_observer(self, enable: bool) -> None:
        """Let observers look at values (True) or keep what they have (False)."""
        for part in (self.weight_observer, self.act_observer):
            if part is not None:
                part.enable() if enable else part.disable()

    def _apply_fakequant_with_observer(self, target: Tensor, fake_quant: Any, observer: Any) -> Tensor:
        """A value observed and rounded: MegEngine's name, which layers of one's own call for further values."""
        if observer is not None:
            target = observer(target)
        if fake_quant is None or not fake_quant.enabled:
            return target
        return fake_quant(target, _known(observer, "tensor") if observer is not None else None)

    def apply_quant_weight(self, target: Tensor) -> Tensor:
        """The weight observed and rounded; carries its qparams."""
        return self._apply_fakequant_with_observer(target, self.weight_fake_quant, self.weight_observer)

    def apply_quant_activation(self, target: Tensor) -> Tensor:
        """The result observed and rounded; carries its qparams."""
        return self._apply_fakequant_with_observer(target, self.act_fake_quant, self.act_observer)

    def apply_quant_bias(self, target: Tensor | None, inp: Tensor, w_qat: Tensor) -> Tensor | None:
        """The bias rounded to steps of s_inp * s_w where both are known."""
        return None if target is None else fake_quant_bias(target, inp, w_qat)

    def get_weight_qparams(self) -> QParams | None:
        """Scale and zero point of the weight; None for layers without one. Raises CalibrationError if unknown."""
        return _qparams("weight", self.weight_observer, self.weight_fake_quant) if self.with_weight else None

    def get_activation_qparams(self) -> QParams | None:
        """Scale and zero point of the result; None for layers that do not round it. Raises as for the weight."""
        return _qparams("activation", self.act_observer, self.act_fake_quant) if self.with_act else None

    def known_qparams(self) -> dict[str, QParams]:
        """The qparams of weight and result ("weight", "act") as far as they are known."""
        known = {}
        for kind in ("weight", "act"):
            source = _source(*self._parts_of(kind))
            with suppress(CalibrationError):
                if source is not None:
                    known[kind] = source.get_qparams()
        return known

    def take_qparams(self, qparams: Mapping[str, QParams]) -> None:
        """Give qparams to the observers and fake quantizers that start from some."""
        for kind, known in qparams.items():
            for part in self._parts_of(kind):
                if hasattr(part, "set_qparams"):
                    part.set_qparams(known)

    def quantizing_parts(self) -> dict[str, Module | None]:
        """Observers and fake quantizers by their names."""
        return {name: getattr(self, name) for kind in ("weight", "act") for name in _names_of(kind)}

    def _parts_of(self, kind: str) -> tuple[Any, Any]:
        observer, fake_quant = (getattr(self, name) for name in _names_of(kind))
        return observer, fake_quant

    def get_weight_dtype(self) -> QuantizedDType | None:
        """Quantized dtype of the weight; None for layers without one."""
        qparams = self.get_weight_qparams()
        return None if qparams is None else qparams.dtype

    def get_activation_dtype(self) -> QuantizedDType | None:
        """Quantized dtype of the result; None for layers that do not round it."""
        qparams = self.get_activation_qparams()
        return None if qparams is None else qparams.dtype


def _names_of(kind: str) -> tuple[str, str]:
    return f"{kind}_observer", f"{kind}_fake_quant"


def _source(observer: Any, fake_quant: Any) -> QParamsModuleMixin | None:
    """What knows the qparams: the observer, or a fake quantizer that learns them."""
    return next((part for part in (observer, fake_quant) if isinstance(part, QParamsModuleMixin)), None)


def _qparams(what: str, observer: Any, fake_quant: Any) -> QParams:
    source = _source(observer, fake_quant)
    if source is None:
        raise CalibrationError(f"there is neither an observer nor a learnt scale of the {what}; set a qconfig")
    return _known(source, what)


def _known(source: QParamsModuleMixin, what: str) -> QParams:
    """The qparams of an observer; of one that saw nothing those of the empty range, with a warning.

    There is none where a graph asks for the shapes that its layers give, as it does at each edit.
    """
    if not isinstance(source, MinMaxObserver) or source.has_seen:
        return source.get_qparams()
    if not any(isinstance(i, Deferring) for i in active_interposers()):
        _log.warning(
            "%s: no value of the %s was observed, so its scale is the smallest one and results are wrong; run batches "
            "in training mode or after enable_observer, or load a state dict",
            type(source).__name__,
            what,
        )
    return source.empty_qparams()


class WeightedQAT(QATModule):
    """A convolution or linear layer, with or without batch norm and ReLU; `rule` says which."""

    rule: ClassVar[LayerRule]

    @property
    def layer(self) -> Any:
        """The module that holds weight, bias and geometry."""
        return getattr(self, self.rule.part) if self.rule.part else self

    @property
    def product(self) -> Product:
        """Op and geometry."""
        return product_of(self.rule.op, self.layer)

    def set_qconfig(self, qconfig: QConfig) -> None:
        """Make observers and fake quantizers anew; observers per channel look along the weight's output channels."""
        super().set_qconfig(qconfig)
        if self.product.transposed and getattr(self.weight_observer, "channel_axis", None) is not None:
            raise OptionError("a transposed convolution has no scales per channel; use a qconfig without channel_axis")

    def parameters_for(self, inp: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weight and bias as they are multiplied and added: folded, rounded."""
        weight, bias = self.folded()
        w = self.apply_quant_weight(flat_groups(weight))
        return w, self.apply_quant_bias(bias, inp, w)

    def folded(self) -> tuple[Tensor, Tensor | None]:
        """Float weight and bias that the quantized layer will have."""
        return self.layer.weight, self.layer.bias

    def affine(self, inp: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        """Inp * w + b: with the integer kernels where both are on grids, else in float."""
        x_dtype, w_dtype = grid_of(inp), grid_of(w)
        if x_dtype is None or w_dtype is None:
            y = apply(self.product.op, inp, w, **self.product.attrs)
        else:
            y = exact_product(self.product, inp, w, x_dtype, w_dtype)
        return y if b is None else y + b

    def before_activation(self, inp: Tensor) -> Tensor:
        """The result before ReLU and rounding."""
        inp = padded(self.layer, inp)
        return self.affine(inp, *self.parameters_for(inp))

    def forward(self, inp: Tensor) -> Tensor:
        """As the float layer, rounded; the result carries its qparams."""
        inp = padded(self.layer, inp)
        w, b = self.parameters_for(inp)
        y = self.affine(inp, w, b)
        return self.rounded(inp, w, b, F.relu(y) if self.rule.relu else y)

    def rounded(self, inp: Tensor, w: Tensor, b: Tensor | None, y: Tensor) -> Tensor:
        """Y observed and rounded, to exactly the integers that the quantized layer gives."""
        out = self.apply_quant_activation(y)
        source, w_dtype, target = (grid_of(t) for t in (inp, w, out))
        if source is None or w_dtype is None or target is None:
            return out
        weight = to_stored(w, w_dtype)
        if form_of(self.product, weight.numpy(), relu=self.rule.relu) == "products":
            return out
        bias = None if b is None else b.numpy()
        c = constants(self.product, weight, bias, source, relu=self.rule.relu, target=target)
        q = stored_result(self.product, to_stored(inp, source), c, target, relu=self.rule.relu)
        return with_value(out, apply("dequantize", q))


def product_of(op: str, layer: Any) -> Product:
    """Op and geometry of a float, QAT or quantized layer."""
    if get_op(op).rows:
        return Product(op)
    h, w = (0, 0) if _pads_apart(layer) else pair(layer.padding)
    extra = pair(getattr(layer, "output_padding", 0))
    return Product(op, pair(layer.stride), ((h, h), (w, w)), pair(layer.dilation), layer.groups, extra)


def _pads_apart(layer: Any) -> bool:
    return getattr(layer, "padding_mode", "zeros") != "zeros"


def padded(layer: Any, inp: Tensor) -> Tensor:
    """The input of a product, with borders that are not zeros: these are copies of elements, on the same grid."""
    if not _pads_apart(layer):
        return inp
    out, _ = layer._padded(inp)
    if not isinstance(inp.dtype, QuantizedDType) and grid_of(inp) is not None:
        out.qparams = inp.qparams
    return out


def flat_groups(weight: Tensor) -> Tensor:
    """A grouped weight (G, O/G, I/G, kh, kw) as [O, I/G, kh, kw]; others as they are."""
    return weight.reshape(-1, *weight.shape[-3:]) if len(weight.shape) == 5 else weight


class BnQAT(WeightedQAT):
    """A layer whose batch norm is folded into its weights.

    In training (Krishnamoorthi 2018, section 3.2.2) weights are folded with the running variance, so that their range
    is steady; the result is scaled to the batch's variance, and mean and bias are the batch's. Running statistics
    are updated as the batch norm does (variance by n - 1). In evaluation everything is folded.
    """

    bn: Any

    def fold_weight_bias(self, bn_mean: Tensor | None, bn_var: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weight and bias with a batch norm of these statistics (None: the running ones) multiplied in."""
        mean = self.bn.running_mean if bn_mean is None else bn_mean
        factor = self._factor(self.bn.running_var if bn_var is None else bn_var)
        return self._scaled_weight(factor), self._shifted_bias(mean, factor)

    def _shifted_bias(self, mean: Tensor, factor: Tensor) -> Tensor:
        shift = (self._bias_or_zero() - self._channels(mean)) * factor
        return shift + self._channels(self.bn.bias) if self.bn.affine else shift

    def _factor(self, var: Tensor) -> Tensor:
        deviation = F.sqrt(self._channels(var) + self.bn.eps)
        return (self._channels(self.bn.weight) if self.bn.affine else 1.0) / deviation

    def _channels(self, value: Any) -> Any:
        """A tensor of one value per channel in the shape that broadcasts over the result."""
        shape = (1, -1) if self.product.rows else (1, -1, 1, 1)
        return value.reshape(shape) if isinstance(value, Tensor) else value

    def _scaled_weight(self, factor: Tensor) -> Tensor:
        weight, g = self.layer.weight, getattr(self.layer, "groups", 1)
        if self.product.transposed:
            return weight * (factor.reshape(g, 1, -1, 1, 1) if g > 1 else factor.reshape(1, -1, 1, 1))
        inner = 3 if weight.ndim > 2 else 1
        return weight * factor.reshape(*weight.shape[:-inner], *(1,) * inner)

    def folded(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias folded with the running statistics."""
        weight, bias = self.fold_weight_bias(None, None)
        return weight, bias.reshape(-1) if self.product.rows else bias

    def get_batch_mean_var(self, inp: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (by n) of each channel of inp, in the shape of the running statistics."""
        axes = [i for i in range(inp.ndim) if i != 1]
        mean = F.mean(inp, axes, keepdims=True)
        return mean, F.mean((inp - mean) ** 2, axes, keepdims=True)

    def update_running_mean_and_running_var(
        self, bn_mean: Tensor, bn_var: Tensor, num_elements_per_channel: int
    ) -> None:
        """Move the running statistics towards those of a batch."""
        unbiased = bn_var * (num_elements_per_channel / max(num_elements_per_channel - 1, 1))
        for running, new in ((self.bn.running_mean, bn_mean), (self.bn.running_var, unbiased)):
            running._reset(running_average(running, new, self.bn.momentum))

    def _training_result(self, inp: Tensor, *, approx: bool = True) -> Tensor:
        inp = padded(self.layer, inp)
        if not approx or (self.bn.affine and np.any(self.bn.weight.numpy() == 0)):
            # weights folded with a factor 0 tell nothing of the statistics
            y = apply(self.product.op, inp, flat_groups(self.layer.weight), **self.product.attrs)
            weight, bias = self.fold_weight_bias(*self._batch_statistics(y + self._bias_or_zero()))
            w = self.apply_quant_weight(flat_groups(weight))
            return self.affine(inp, w, self.apply_quant_bias(bias, inp, w))
        running = self.bn.running_var.detach()
        factor = self._factor(running)
        w = self.apply_quant_weight(flat_groups(self._scaled_weight(factor)))
        y = self.affine(inp, w, None)
        mean, var = self._batch_statistics(y / factor + self._bias_or_zero())
        scale = F.sqrt(self._channels(running) + self.bn.eps) / F.sqrt(var + self.bn.eps)
        return y * scale + self._shifted_bias(mean, self._factor(var))

    def _bias_or_zero(self) -> Any:
        return 0.0 if self.layer.bias is None else self._channels(self.layer.bias)

    def _batch_statistics(self, y: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = self.get_batch_mean_var(y)
        if self.bn.track_running_stats:
            self.update_running_mean_and_running_var(mean, var, y.size // y.shape[1])
        return mean, var

    @property
    def _uses_batch(self) -> bool:
        return self.training and self.bn.training and not self.bn.freeze

    def before_activation(self, inp: Tensor, *, approx: bool = True) -> Tensor:
        """The result before ReLU and rounding; `approx=False` convolves twice and folds the batch's own statistics."""
        return self._training_result(inp, approx=approx) if self._uses_batch else super().before_activation(inp)

    def forward(self, inp: Tensor) -> Tensor:
        """As the float layer, rounded; the result carries its qparams."""
        if not self._uses_batch:
            return super().forward(inp)
        y = self._training_result(inp)
        return self.apply_quant_activation(F.relu(y) if self.rule.relu else y)


class ElemwiseQAT(QATModule):
    """An elementwise function, its result rounded."""

    with_weight = False

    def forward(self, *inps: Tensor) -> Tensor:
        """Operands broadcast."""
        return self.apply_quant_activation(super().forward(*inps))


class BatchNormQAT(QATModule):
    """A batch norm that is part of no layer; its result is rounded where its input is."""

    with_weight = False

    @classmethod
    def _not_in_megengine(cls) -> tuple[str, ...]:
        return "act_observer", "act_fake_quant"

    def forward(self, inp: Tensor) -> Tensor:
        """As the float layer; observed always, since a calibration rounds nothing.

        Without a range the result stays real: state dicts of MegEngine, where these layers are float, hold none.
        """
        y = super().forward(inp)
        observer = self.act_observer
        if isinstance(observer, MinMaxObserver) and not observer.enabled and not observer.has_seen:
            return y
        rounded = self.apply_quant_activation(y)
        return y if grid_of(inp) is None else rounded


class BatchMatMulQAT(QATModule):
    """Products of matrices with rounded weights, the result rounded; the bias stays a float."""

    weight: Tensor

    def forward(self, inp: Tensor) -> Tensor:
        """[batch, in, N] -> [batch, out, N]."""
        return self.apply_quant_activation(batch_product(self, self.apply_quant_weight(self.weight), inp))


def batch_product(layer: Any, weight: Tensor, inp: Tensor) -> Tensor:
    """What a BatchMatMulActivation computes, with another weight."""
    out = F.matmul(weight, inp)
    out = out if layer.bias is None else out + layer.bias
    return F.relu(out) if layer.nonlinear_mode == "relu" else out


class ConcatQAT(QATModule):
    """A concatenation whose inputs are brought to one scale."""

    def forward(self, inps: Any, axis: int = 0) -> Tensor:
        """Tensors one after the other."""
        out = self.apply_quant_activation(super().forward(inps, axis))
        target, sources = grid_of(out), [grid_of(t) for t in inps]
        known = [s for s in sources if s is not None]
        if target is None or len(known) < len(sources):
            return out
        parts = [rescaled(to_stored(t, s), target) for t, s in zip(inps, known, strict=True)]
        return with_value(out, apply("dequantize", apply("concat", *parts, axis=axis)))


class QuantStubQAT(QATModule):
    """Rounds the network's input."""

    with_weight = False

    def forward(self, inp: Tensor) -> Tensor:
        """Float32, any shape."""
        return self.apply_quant_activation(inp)


class DequantStubQAT(QATModule):
    """Where values become float again."""

    with_weight = with_act = False

    def forward(self, inp: Tensor) -> Tensor:
        """The same values, which count as real numbers from here on."""
        out = with_value(inp, inp)
        out.qparams = None
        return out


_KINDS = {
    **dict.fromkeys(BATCH_NORMS, BatchNormQAT),
    "BatchMatMulActivation": BatchMatMulQAT,
    "Elemwise": ElemwiseQAT,
    "Concat": ConcatQAT,
    "QuantStub": QuantStubQAT,
    "DequantStub": DequantStubQAT,
}


def _qat_class(rule: LayerRule) -> type[QATModule]:
    """The class of a row: its behaviour, then the float class."""
    if not rule.layer:
        return placed(type(rule.name, (_KINDS[rule.name], rule.float_class), {}), "qat", rule)
    kind = BnQAT if rule.part else WeightedQAT
    names = {"rule": rule, f"{rule.calc}_qat": kind.before_activation}
    plain = (CLASSES[r.name] for r in LAYER_RULES if r.layer == rule.layer and r.name in CLASSES)
    base = kind if rule.part else next(plain, kind)  # as in MegEngine: ConvRelu2d is a Conv2d, ConvBnRelu2d no ConvBn2d
    return placed(type(rule.name, (base, rule.float_class), names), "qat", rule)


CLASSES: dict[str, type[QATModule]] = {}
"""QAT classes by name."""
for _rule in LAYER_RULES:
    CLASSES[_rule.name] = _qat_class(_rule)
