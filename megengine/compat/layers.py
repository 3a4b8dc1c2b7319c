"""Op classes of normalisation, recurrent networks, quantization, training and random numbers."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from megengine import functional as F
from megengine import random
from megengine.compat.opdef import OpDef, choice, integers, word_of
from megengine.core.errors import OptionError
from megengine.quantization.modules import lsq_forward, tqt_forward
from megengine.tensor import Tensor

FWD_MODE = choice("BatchNorm.FwdMode", "TRAINING INFERENCE")
NONLINE_MODE = choice("RNN.NonlineMode", "IDENTITY RELU TANH")


class BatchNorm(OpDef):
    """Batch normalisation; in training it takes and gives moving statistics."""

    ParamDim, FwdMode = choice("BatchNorm.ParamDim", "DIM_11HW DIM_1CHW DIM_1C11 DIM_111C"), FWD_MODE
    param_dim: str = ParamDim.DIM_11HW
    fwd_mode: str = FWD_MODE.TRAINING
    epsilon: float = 1e-4
    avg_factor: float = 1.0
    scale: float = 1.0
    bias: float = 0.0

    def run(
        self, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor | None = None, variance: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """(new mean, new variance, batch mean, batch 1 / deviation, nothing, result), as MegEngine gives them."""
        if self.param_dim != "DIM_1C11":
            raise OptionError(f"BatchNorm: param_dim is {self.param_dim!r}; expected DIM_1C11, for [N,C,H,W]")
        nothing = F.zeros(0)
        if self.fwd_mode == "INFERENCE":
            if mean is None or variance is None:
                raise OptionError("BatchNorm: INFERENCE needs five tensors; mean and variance are the last two")
            y = F.nn.batch_norm(x, mean, variance, scale, bias, training=False, eps=self.epsilon)
            return nothing, nothing, nothing, nothing, nothing, y
        batch, square = (F.mean(v, axis=(0, 2, 3), keepdims=True) for v in (x, x * x))
        spread = square - batch * batch
        inverse = 1 / F.sqrt(spread + self.epsilon)
        y = (x - batch) * inverse * scale + bias
        if mean is None or variance is None:
            return batch, inverse, nothing, y
        count = x.size // batch.size
        unbiased = spread * (count / max(count - 1, 1))
        moved = [
            old * (1 - self.avg_factor) + new * self.avg_factor for old, new in ((mean, batch), (variance, unbiased))
        ]
        return (*(m.detach() for m in moved), batch, inverse, nothing, y)


class BatchNormBackward(BatchNorm):
    """The gradients of a batch normalisation."""

    def run(self, *inputs: Tensor) -> Any:
        """Refused: they are computed where a gradient is asked for."""
        raise OptionError("BatchNormBackward: gradients of batch_norm come from GradManager.backward")


def _statistics(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    mean = F.mean(x, axis=axes)
    square = F.mean(x * x, axis=axes)
    return mean, 1 / F.sqrt(square - mean * mean + eps)


class LayerNorm(OpDef):
    """Normalisation over the last axes."""

    affine: bool = True
    eps: float = 1e-5
    normalized_dim: int = 1
    normalized_size: int = 1

    def run(self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        """(result, mean, 1 / deviation)."""
        shape = tuple(x.shape[x.ndim - self.normalized_dim :])
        y = F.nn.layer_norm(x, shape, self.affine, weight, bias, self.eps)
        return y, *_statistics(x, tuple(range(x.ndim - self.normalized_dim, x.ndim)), self.eps)


class GeneralNorm(OpDef):
    """Normalisation over the axes from `axis_start` to before `axis_end`."""

    affine: bool = True
    eps: float = 1e-5
    axis_start: int = 0
    axis_end: int = 0

    def run(self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        """(result, mean, 1 / deviation)."""
        axes = tuple(range(self.axis_start, self.axis_end))
        y = F.nn.general_norm(x, axes, self.affine, weight, bias, self.eps)
        return y, *_statistics(x, axes, self.eps)


class GroupNorm(OpDef):
    """Normalisation over groups of channels."""

    Format = choice("GroupNorm.Format", "NCHW NHWC")
    affine: bool = True
    eps: float = 1e-5
    group: int = 1
    format: str = Format.NCHW

    def run(self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        """(result, mean, variance) of each group."""
        y = F.nn.group_norm(x, self.group, self.affine, weight, bias, self.eps)
        parts = F.reshape(x, (x.shape[0], self.group, -1))
        return y, F.mean(parts, axis=2), F.var(parts, axis=2)


class InstanceNorm(GroupNorm):
    """Normalisation over the pixels of each channel."""


class LRN(OpDef):
    """Local response normalisation over channels."""

    n: int = 5
    k: float = 2.0
    alpha: float = 1e-4
    beta: float = 0.75

    def run(self, x: Tensor) -> Tensor:
        """Of [N,C,H,W]."""
        return F.nn.local_response_norm(x, self.n, self.k, self.alpha, self.beta)


class Dropout(OpDef):
    """Elements set to 0 at random, the others scaled."""

    random: ClassVar[bool] = True
    drop_prob: float = 0.0
    seed: int = 0
    handle: int = 0

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(result, the mask that it is the product with)."""
        mask = F.dropout(F.ones_like(x), self.drop_prob)
        return x * mask, mask


class RNNCell(OpDef):
    """One step of a recurrent cell: a function of two linear maps."""

    NonlineMode = NONLINE_MODE
    nonlineMode: str = NONLINE_MODE.IDENTITY  # noqa: N815

    def run(
        self, x: Tensor, weight_ih: Tensor, bias_ih: Tensor, h: Tensor, weight_hh: Tensor, bias_hh: Tensor
    ) -> Tensor:
        """The new state."""
        y = F.linear(x, weight_ih) + bias_ih + F.linear(h, weight_hh) + bias_hh
        word = word_of(self.nonlineMode)
        return y if word == "IDENTITY" else getattr(F, word.lower())(y)


class LSTMCell(OpDef):
    """One step of an LSTM; gates are input, forget, cell, output."""

    def run(
        self,
        x: Tensor,
        weight_ih: Tensor,
        bias_ih: Tensor,
        h: Tensor,
        weight_hh: Tensor,
        bias_hh: Tensor,
        c: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(new state, new cell, gates one after the other)."""
        gates = F.linear(x, weight_ih) + bias_ih + F.linear(h, weight_hh) + bias_hh
        i, f, g, o = parts = F.split(gates, 4, axis=-1)
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
        return F.sigmoid(o) * F.tanh(c), c, F.reshape(F.concat(parts), gates.shape)


class _Packed(OpDef):
    def run(self, *inputs: Tensor) -> Any:
        """Refused: its weights are packed in an order of MegEngine's own."""
        raise OptionError(f"{self!r}: its weights are packed for MegEngine's kernel; use {self.instead}")

    instead: ClassVar[str] = ""


class RNN(_Packed):
    """A recurrent network over a sequence, with packed weights."""

    instead: ClassVar[str] = "megengine.module.RNN"
    NonlineMode, FwdMode = NONLINE_MODE, FWD_MODE
    num_layers: int = 1
    bidirectional: bool = False
    bias: bool = True
    hidden_size: int = 128
    dropout: float = 0.0
    nonlineMode: str = NONLINE_MODE.IDENTITY  # noqa: N815
    fwd_mode: str = FWD_MODE.TRAINING


class LSTM(_Packed):
    """An LSTM over a sequence, with packed weights."""

    instead: ClassVar[str] = "megengine.module.LSTM"
    FwdMode = FWD_MODE
    num_layers: int = 1
    bidirectional: bool = False
    bias: bool = True
    hidden_size: int = 128
    proj_size: int = 0
    dropout: float = 0.0
    fwd_mode: str = FWD_MODE.TRAINING


class MultiHeadAttn(_Packed):
    """Attention with packed weights."""

    instead: ClassVar[str] = "megengine.functional.nn.multi_head_attention"
    AttnMaskType = choice("MultiHeadAttn.AttnMaskType", "NO_MASK DEFAULT_MASK CUDNN_STYLE_MASK USER_DEFINED_MASK")
    TensorCombinationType = choice("MultiHeadAttn.TensorCombinationType", "NONE ONLY_MASK ONLY_BIASKV ALL")
    num_heads: int = 1
    embeding_size: int = 0
    k_size: int = 0
    v_size: int = 0
    qproj_size: int = 0
    kproj_size: int = 0
    vproj_size: int = 0
    oproj_size: int = 0
    qbias: bool = False
    kbias: bool = False
    vbias: bool = False
    obias: bool = False
    sm_scaler: float = 1.0
    input_order: int = 0
    attn_mask_type: str = AttnMaskType.NO_MASK
    tensor_combination_type: str = TensorCombinationType.NONE
    add_zero_attn: bool = False
    need_weights: bool = False
    reslink: bool = False
    training: bool = True
    seed: int = 0
    attn_prob: float = 0.0
    out_prob: float = 0.0
    handle: int = 0


# ---------------------------------------------------------------- quantization


class FakeQuant(OpDef):
    """Values that quantized ones stand for, with scale and zero point as tensors."""

    qmin: int = -(2**31)
    qmax: int = 2**31 - 1

    def run(self, x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        """float32; the gradient passes where nothing is clamped."""
        t = x / scale
        rounded = t + (F.round(t) - t).detach() + zero_point
        return (F.clip(rounded, self.qmin, self.qmax) - zero_point) * scale.detach()


class LSQ(OpDef):
    """Fake quantization with a learnt step."""

    qmin: int = -(2**31)
    qmax: int = 2**31 - 1

    def run(self, x: Tensor, scale: Tensor, zero_point: Tensor, grad_scale: Tensor) -> Tensor:
        """The step gets a gradient too, times `grad_scale`."""
        return lsq_forward(self.qmin, self.qmax, x, scale, zero_point, grad_scale)


class TQT(OpDef):
    """Fake quantization whose scale is a learnt power of two."""

    qmin: int = -(2**31)
    qmax: int = 2**31 - 1

    def run(self, x: Tensor, scale: Tensor) -> Tensor:
        """The exponent gets a gradient too."""
        return tqt_forward(self.qmin, self.qmax, x, scale)


class LAMBUpdate(OpDef):
    """A step of the LAMB optimizer for one parameter."""

    beta_1: float = 1.0
    beta_2: float = 1.0
    step: float = 1.0
    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0
    bias_correction: bool = True
    always_adapt: bool = False

    def run(self, m: Tensor, v: Tensor, parameter: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(new first moment, new second moment, new parameter)."""
        m = self.beta_1 * m + (1 - self.beta_1) * grad
        v = self.beta_2 * v + (1 - self.beta_2) * grad * grad
        fix = [1 - beta**self.step if self.bias_correction else 1.0 for beta in (self.beta_1, self.beta_2)]
        change = (m / fix[0]) / (F.sqrt(v / fix[1]) + self.eps) + self.weight_decay * parameter
        ratio: Any = 1.0
        if self.always_adapt or self.weight_decay > 0:
            ours, theirs = (float(np.linalg.norm(t.numpy())) for t in (parameter, change))
            ratio = ours / theirs if ours > 0 and theirs > 0 else 1.0
        return m, v, parameter - self.lr * ratio * change


# ---------------------------------------------------------------- random numbers

_handles: dict[int, random.RNG] = {}


def new_rng_handle(comp_node: Any = "", seed: int = 0) -> int:
    """A number that stands for a generator of its own, for the ops below."""
    handle = max(_handles, default=0) + 1
    _handles[handle] = random.RNG(seed)
    return handle


def delete_rng_handle(handle: int) -> None:
    """Forget a generator."""
    _handles.pop(handle, None)


class _Random(OpDef):
    random: ClassVar[bool] = True

    @property
    def rng(self) -> Any:
        """The generator of the handle; without one that of the process, or a new one from the seed."""
        seed, handle = (getattr(self, name) for name in ("seed", "handle"))
        if handle in _handles:
            return _handles[handle]
        return random.RNG(seed) if seed else random


class UniformRNG(_Random):
    """Numbers from 0 to 1; the shape is a tensor."""

    seed: int = 0
    dtype: Any = np.dtype(np.float32)
    handle: int = 0

    def run(self, shape: Tensor) -> Tensor:
        """Of `dtype`."""
        return self.rng.uniform(0, 1, tuple(integers("UniformRNG", shape))).astype(self.dtype)


class GaussianRNG(_Random):
    """Numbers of a normal distribution; the shape is a tensor."""

    seed: int = 0
    mean: float = 0.0
    std: float = 1.0
    dtype: Any = np.dtype(np.float32)
    handle: int = 0

    def run(self, shape: Tensor) -> Tensor:
        """Of `dtype`."""
        return self.rng.normal(self.mean, self.std, tuple(integers("GaussianRNG", shape))).astype(self.dtype)


class GammaRNG(_Random):
    """Numbers of gamma distributions, one for each element of the parameters."""

    seed: int = 0
    handle: int = 0

    def run(self, shape: Tensor, scale: Tensor) -> Tensor:
        """Of the shape of the parameters."""
        return self.rng.gamma(shape, scale)


class BetaRNG(_Random):
    """Numbers of beta distributions, one for each element of the parameters."""

    seed: int = 0
    handle: int = 0

    def run(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """Of the shape of the parameters."""
        return self.rng.beta(alpha, beta)


class PoissonRNG(_Random):
    """Numbers of Poisson distributions, one for each element of the parameter."""

    seed: int = 0
    handle: int = 0

    def run(self, lam: Tensor) -> Tensor:
        """Of the shape of the parameter."""
        return self.rng.poisson(lam)


class PermutationRNG(_Random):
    """The numbers below n in a random order; n is a tensor."""

    seed: int = 0
    dtype: Any = np.dtype(np.int32)
    handle: int = 0

    def run(self, count: Tensor) -> Tensor:
        """Of `dtype`."""
        return self.rng.permutation(integers("PermutationRNG", count)[0]).astype(self.dtype)


class ShuffleRNG(_Random):
    """Rows in a random order."""

    seed: int = 0
    handle: int = 0

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, where each came from)."""
        order = self.rng.permutation(x.shape[0])
        return x[order], order
