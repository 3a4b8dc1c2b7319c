"""Batch norms behind convolutions that stay what they are while a network is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.module import Module
from megengine.quantization.pipeline.straight_through import by_channel
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.ir.expr import Apply, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.passes import constant_value, drop_identities, fold_constants
from megengine.traced_module.passes.layer_uses import only_user

MOMENTUM = 0.9
_BLOCK = 256  # rows: they stay in the cache between the two sums


class TrainedNorm(Module):
    """Weight and bias of a convolution and the batch norm behind it, folded with the running statistics.

    `mean` and `variance` follow those of the batches; no gradient passes through them.
    """

    def __init__(self, conv: Apply, norm: Apply) -> None:
        super().__init__()
        self.groups, self.transposed, self.eps = conv.attrs["groups"], conv.record.transposed, norm.attrs["eps"]
        arrays = [np.array(constant_value(n), np.float32) for n in (*conv.inputs[1:], *norm.inputs[1:])]
        self.weight = Parameter(arrays[0])
        self.conv_bias = Parameter(arrays[1]) if len(conv.inputs) > 2 else None
        gain, shift, mean, variance = (a.reshape(-1) for a in arrays[-4:])
        self.gain, self.shift, self.mean, self.variance = (
            Parameter(gain),
            Parameter(shift),
            Tensor(mean),
            Tensor(variance),
        )

    def factor(self) -> Tensor:
        """By what the convolution's results are multiplied, by channel."""
        return self.gain / F.sqrt(self.variance + self.eps)

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the one layer."""
        factor, w = self.factor(), self.weight
        offset = -self.mean if self.conv_bias is None else self.conv_bias - self.mean
        bias = offset * factor + self.shift
        if not self.transposed:
            return w * factor.reshape(-1, *[1] * (w.ndim - 1)), bias
        i, o, *window = w.shape
        by_group = w.reshape(self.groups, i // self.groups, o, *window)
        by_channel = factor.reshape(self.groups, 1, o, *[1] * len(window))
        return (by_group * by_channel).reshape(w.shape), bias

    def statistics_of(self, y: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance (by n - 1) of the convolution in a batch, from results y * scale of the one layer."""
        count = max(y.size // y.shape[1], 2)
        mean, variance = _moments(by_channel(y))
        mean, variance = mean * scale, variance * (scale * scale)
        factor = self.factor().numpy()
        told = np.abs(factor) > 1e-12  # a factor of 0 tells nothing of the statistics
        safe = np.where(told, factor, 1)
        offset = self.mean.numpy()
        mean = np.where(told, (mean - self.shift.numpy()) / safe + offset, offset)
        variance = np.where(told, variance / (safe * safe) * (count / (count - 1)), self.variance.numpy())
        return mean.astype(np.float32), variance.astype(np.float32)

    def move(self, mean: np.ndarray, variance: np.ndarray, part: float = 1 - MOMENTUM) -> None:
        """Bring the running statistics nearer to these; all the way with part 1."""
        for running, new in ((self.mean, mean), (self.variance, variance)):
            before = running.numpy()
            running._reset(Tensor(before + np.float32(part) * (new - before)))


def _moments(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of [rows, channels] in float64, from sums of blocks in float32."""
    sums, squares = np.zeros((2, rows.shape[1]))
    for i in range(0, len(rows), _BLOCK):
        block = rows[i : i + _BLOCK]
        sums += block.sum(0)
        squares += np.einsum("ij,ij->j", block, block)
    mean = sums / max(len(rows), 1)
    return mean, np.maximum(squares / max(len(rows), 1) - mean * mean, 0)


def with_norms(graph: InternalGraph) -> InternalGraph:
    """A copy in which batch norms stand behind the convolutions that they belong to, and their constants are known."""
    g = graph.clone()
    drop_identities(g)
    fold_constants(g)
    return g


def norms_of(graph: InternalGraph) -> dict[str, TrainedNorm]:
    """The batch norms that alone read a convolution, by the convolution's name."""
    return {conv.output.name: TrainedNorm(conv, norm) for conv, norm in _pairs(graph)}


def _pairs(graph: InternalGraph) -> Iterator[tuple[Apply, Apply]]:
    for norm in graph.exprs():
        if not isinstance(norm, Apply) or norm.op != "batch_norm":
            continue
        conv: Expr = norm.inputs[0].expr
        if (
            not isinstance(conv, Apply)
            or not conv.record.weighted
            or conv.record.rows
            or only_user(conv.output) is not norm
        ):
            continue
        constants: list[Any] = [constant_value(n) for n in (*conv.inputs[1:], *norm.inputs[1:])]
        known = all(c is not None for c in constants)
        if known and only_user(conv.output) is norm and np.all(constants[-1] + norm.attrs["eps"] > 0):
            yield conv, norm
