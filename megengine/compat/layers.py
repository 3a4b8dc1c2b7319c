"""Op classes of normalisation, recurrent networks, quantization, training and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import functional as F
from megengine import random
from megengine.compat.opdef import choice, integers, op_class, op_like, refused_op, word_of
from megengine.core.errors import OptionError
from megengine.quantization.modules import lsq_forward, tqt_forward
from megengine.tensor import Tensor

_FWD_MODE = choice("BatchNorm.FwdMode", "TRAINING INFERENCE")
_NONLINE_MODE = choice("RNN.NonlineMode", "IDENTITY RELU TANH")
_AFFINE = {"affine": True, "eps": 1e-5}


@op_class(
    param_dim=choice("BatchNorm.ParamDim", "DIM_11HW DIM_1CHW DIM_1C11 DIM_111C"),
    fwd_mode=_FWD_MODE,
    **{"epsilon": 1e-4, "avg_factor": 1.0, "scale": 1.0, "bias": 0.0},
)
def BatchNorm(
    op: Any, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor | None = None, variance: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Batch normalisation; in training it takes and gives moving statistics.

    (new mean, new variance, batch mean, batch 1 / deviation, nothing, result), as MegEngine gives them.
    """
    if op.param_dim != "DIM_1C11":
        raise OptionError(f"BatchNorm: param_dim is {op.param_dim!r}; expected DIM_1C11, for [N,C,H,W]")
    nothing = F.zeros(0)
    if op.fwd_mode == "INFERENCE":
        if mean is None or variance is None:
            raise OptionError("BatchNorm: INFERENCE needs five tensors; mean and variance are the last two")
        y = F.nn.batch_norm(x, mean, variance, scale, bias, training=False, eps=op.epsilon)
        return nothing, nothing, nothing, nothing, nothing, y
    batch, square = (F.mean(v, axis=(0, 2, 3), keepdims=True) for v in (x, x * x))
    spread = square - batch * batch
    inverse = 1 / F.sqrt(spread + op.epsilon)
    y = (x - batch) * inverse * scale + bias
    if mean is None or variance is None:
        return batch, inverse, nothing, y
    count = x.size // batch.size
    unbiased = spread * (count / max(count - 1, 1))
    moved = [old * (1 - op.avg_factor) + new * op.avg_factor for old, new in ((mean, batch), (variance, unbiased))]
    return (*(m.detach() for m in moved), batch, inverse, nothing, y)


refused_op(
    "BatchNormBackward",
    "The gradients of a batch normalisation.",
    "gradients of batch_norm come from GradManager.backward",
    **BatchNorm._defaults,
)


def _statistics(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / deviation."""
    mean = F.mean(x, axis=axes)
    square = F.mean(x * x, axis=axes)
    return mean, 1 / F.sqrt(square - mean * mean + eps)


@op_class(**_AFFINE, normalized_dim=1, normalized_size=1)
def LayerNorm(op: Any, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    """Normalisation over the last axes: (result, mean, 1 / deviation)."""
    shape = tuple(x.shape[x.ndim - op.normalized_dim :])
    y = F.nn.layer_norm(x, shape, op.affine, weight, bias, op.eps)
    return y, *_statistics(x, tuple(range(x.ndim - op.normalized_dim, x.ndim)), op.eps)


@op_class(**_AFFINE, axis_start=0, axis_end=0)
def GeneralNorm(op: Any, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    """Normalisation over the axes from `axis_start` to before `axis_end`: (result, mean, 1 / deviation)."""
    axes = tuple(range(op.axis_start, op.axis_end))
    return F.nn.general_norm(x, axes, op.affine, weight, bias, op.eps), *_statistics(x, axes, op.eps)


@op_class(**_AFFINE, group=1, format=choice("GroupNorm.Format", "NCHW NHWC"))
def GroupNorm(op: Any, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    """Normalisation over groups of channels: (result, mean, variance) of each group."""
    parts = F.reshape(x, (x.shape[0], op.group, -1))
    y = F.nn.group_norm(x, op.group, op.affine, weight, bias, op.eps)
    return y, F.mean(parts, axis=2), F.var(parts, axis=2)


InstanceNorm = op_like(GroupNorm, "InstanceNorm", "Normalisation over the pixels of each channel.")


@op_class(n=5, k=2.0, alpha=1e-4, beta=0.75)
def LRN(op: Any, x: Tensor) -> Tensor:
    """Local response normalisation over the channels of [N,C,H,W]."""
    return F.nn.local_response_norm(x, op.n, op.k, op.alpha, op.beta)


@op_class(drop_prob=0.0, seed=0, handle=0)
def Dropout(op: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Elements set to 0 at random, the others scaled: (result, the mask that it is the product with)."""
    mask = F.dropout(F.ones_like(x), op.drop_prob)
    return x * mask, mask


def _gates(x: Tensor, weight_ih: Tensor, bias_ih: Tensor, h: Tensor, weight_hh: Tensor, bias_hh: Tensor) -> Tensor:
    return F.linear(x, weight_ih) + bias_ih + F.linear(h, weight_hh) + bias_hh


@op_class(nonlineMode=_NONLINE_MODE)
def RNNCell(
    op: Any, x: Tensor, weight_ih: Tensor, bias_ih: Tensor, h: Tensor, weight_hh: Tensor, bias_hh: Tensor
) -> Tensor:
    """The new state of a recurrent cell: a function of two linear maps."""
    y = _gates(x, weight_ih, bias_ih, h, weight_hh, bias_hh)
    word = word_of(op.nonlineMode)
    return y if word == "IDENTITY" else getattr(F, word.lower())(y)


@op_class()
def LSTMCell(
    op: Any, x: Tensor, weight_ih: Tensor, bias_ih: Tensor, h: Tensor, weight_hh: Tensor, bias_hh: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of an LSTM: (new state, new cell, the gates input, forget, cell, output one after the other)."""
    gates = _gates(x, weight_ih, bias_ih, h, weight_hh, bias_hh)
    i, f, g, o = parts = F.split(gates, 4, axis=-1)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    return F.sigmoid(o) * F.tanh(c), c, F.reshape(F.concat(parts), gates.shape)


_PACKED = "its weights are packed for MegEngine's kernel; use"
_LAYERS = {"num_layers": 1, "bidirectional": False, "bias": True, "hidden_size": 128}
refused_op(
    "RNN",
    "A recurrent network over a sequence, with packed weights.",
    f"{_PACKED} megengine.module.RNN",
    **{**_LAYERS, "dropout": 0.0, "nonlineMode": _NONLINE_MODE, "fwd_mode": _FWD_MODE},
)
refused_op(
    "LSTM",
    "An LSTM over a sequence, with packed weights.",
    f"{_PACKED} megengine.module.LSTM",
    **{**_LAYERS, "proj_size": 0, "dropout": 0.0, "fwd_mode": _FWD_MODE},
)
refused_op(
    "MultiHeadAttn",
    "Attention with packed weights.",
    f"{_PACKED} megengine.functional.nn.multi_head_attention",
    num_heads=1,
    embeding_size=0,
    **{f"{name}_size": 0 for name in ("k", "v", "qproj", "kproj", "vproj", "oproj")},
    **dict.fromkeys(("qbias", "kbias", "vbias", "obias"), False),
    **{"sm_scaler": 1.0, "input_order": 0},
    attn_mask_type=choice("MultiHeadAttn.AttnMaskType", "NO_MASK DEFAULT_MASK CUDNN_STYLE_MASK USER_DEFINED_MASK"),
    tensor_combination_type=choice("MultiHeadAttn.TensorCombinationType", "NONE ONLY_MASK ONLY_BIASKV ALL"),
    **{"add_zero_attn": False, "need_weights": False, "reslink": False, "training": True},
    **{"seed": 0, "attn_prob": 0.0, "out_prob": 0.0, "handle": 0},
)

_LIMITS = {"qmin": -(2**31), "qmax": 2**31 - 1}


@op_class(**_LIMITS)
def FakeQuant(op: Any, x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Values (float32) that quantized ones stand for, with scale and zero point as tensors.

    The gradient passes where nothing is clamped.
    """
    t = x / scale
    rounded = t + (F.round(t) - t).detach() + zero_point
    return (F.clip(rounded, op.qmin, op.qmax) - zero_point) * scale.detach()


@op_class(**_LIMITS)
def LSQ(op: Any, x: Tensor, scale: Tensor, zero_point: Tensor, grad_scale: Tensor) -> Tensor:
    """Fake quantization with a learnt step, whose gradient is multiplied by `grad_scale`."""
    return lsq_forward(op.qmin, op.qmax, x, scale, zero_point, grad_scale)


@op_class(**_LIMITS)
def TQT(op: Any, x: Tensor, scale: Tensor) -> Tensor:
    """Fake quantization whose scale is a power of two with a learnt exponent."""
    return tqt_forward(op.qmin, op.qmax, x, scale)


@op_class(
    **dict.fromkeys(("beta_1", "beta_2", "step", "lr", "weight_decay", "eps"), 1.0),
    **{"bias_correction": True, "always_adapt": False},
)
def LAMBUpdate(op: Any, m: Tensor, v: Tensor, parameter: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step of the LAMB optimizer for one parameter: (new first moment, new second moment, new parameter)."""
    m = op.beta_1 * m + (1 - op.beta_1) * grad
    v = op.beta_2 * v + (1 - op.beta_2) * grad * grad
    fix = [1 - beta**op.step if op.bias_correction else 1.0 for beta in (op.beta_1, op.beta_2)]
    change = (m / fix[0]) / (F.sqrt(v / fix[1]) + op.eps) + op.weight_decay * parameter
    ratio: Any = 1.0
    if op.always_adapt or op.weight_decay > 0:
        ours, theirs = (float(np.linalg.norm(t.numpy())) for t in (parameter, change))
        ratio = ours / theirs if ours > 0 and theirs > 0 else 1.0
    return m, v, parameter - op.lr * ratio * change


_handles: dict[int, random.RNG] = {}


def new_rng_handle(comp_node: Any = "", seed: int = 0) -> int:
    """A number that stands for a generator of its own, for the ops below."""
    handle = max(_handles, default=0) + 1
    _handles[handle] = random.RNG(seed)
    return handle


def delete_rng_handle(handle: int) -> None:
    """Forget a generator."""
    _handles.pop(handle, None)


def _generator(op: Any) -> Any:
    """The generator of the handle; without one that of the process, or a new one from the seed."""
    if op.handle in _handles:
        return _handles[op.handle]
    return random.RNG(op.seed) if op.seed else random


@op_class(seed=0, dtype=np.dtype(np.float32), handle=0)
def UniformRNG(op: Any, shape: Tensor) -> Tensor:
    """Numbers of `dtype` from 0 to 1; the shape is a tensor."""
    return _generator(op).uniform(0, 1, tuple(integers("UniformRNG", shape))).astype(op.dtype)


@op_class(seed=0, mean=0.0, std=1.0, dtype=np.dtype(np.float32), handle=0)
def GaussianRNG(op: Any, shape: Tensor) -> Tensor:
    """Numbers of `dtype` of a normal distribution; the shape is a tensor."""
    return _generator(op).normal(op.mean, op.std, tuple(integers("GaussianRNG", shape))).astype(op.dtype)


@op_class(seed=0, handle=0)
def GammaRNG(op: Any, shape: Tensor, scale: Tensor) -> Tensor:
    """Numbers of gamma distributions, one for each element of the parameters."""
    return _generator(op).gamma(shape, scale)


@op_class(seed=0, handle=0)
def BetaRNG(op: Any, alpha: Tensor, beta: Tensor) -> Tensor:
    """Numbers of beta distributions, one for each element of the parameters."""
    return _generator(op).beta(alpha, beta)


@op_class(seed=0, handle=0)
def PoissonRNG(op: Any, lam: Tensor) -> Tensor:
    """Numbers of Poisson distributions, one for each element of the parameter."""
    return _generator(op).poisson(lam)


@op_class(seed=0, dtype=np.dtype(np.int32), handle=0)
def PermutationRNG(op: Any, count: Tensor) -> Tensor:
    """The numbers below n in a random order, of `dtype`; n is a tensor."""
    return _generator(op).permutation(integers("PermutationRNG", count)[0]).astype(op.dtype)


@op_class(seed=0, handle=0)
def ShuffleRNG(op: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in a random order: (rows, where each came from)."""
    order = _generator(op).permutation(x.shape[0])
    return x[order], order
