"""Networks of modules from which single layers are left in float: of every kind of convolution and product."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import megengine.functional as F
import megengine.module as M

LAYERS = (M.Conv1d, M.Conv2d, M.Conv3d, M.ConvTranspose2d, M.ConvTranspose3d, M.Linear, M.LSTM)


class Chain(M.Module):
    """Layers by name; `forward` is a function of the network and its input."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.call = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.call(self, x)


def _pictures(net, x):
    x = F.relu6(net.c(F.relu(net.b(F.relu(net.a(x))))))
    return net.fc(F.mean(x, axis=(2, 3)))


def pictures(**window):
    stem, middle = M.Conv2d(3, 8, 3, padding=1), M.Conv2d(8, 12, 3, stride=2, padding=1, **window)
    return Chain(_pictures, a=stem, b=middle, c=M.Conv2d(12, 16, 1), fc=M.Linear(16, 10))


def _inverted(net, x):
    x = F.relu6(net.stem(x))
    x = x + net.project(F.relu6(net.depth(F.relu6(net.expand(x)))))
    x = F.hswish(net.head(x))
    return net.fc(F.flatten(F.avg_pool2d(x, x.shape[-1]), 1))


def inverted():
    expand, depth, project = M.Conv2d(16, 32, 1), M.Conv2d(32, 32, 3, padding=1, groups=32), M.Conv2d(32, 16, 1)
    stem, head = M.Conv2d(3, 16, 3, stride=2, padding=1), M.Conv2d(16, 24, 1)
    return Chain(_inverted, stem=stem, expand=expand, depth=depth, project=project, head=head, fc=M.Linear(24, 5))


def _residual(net, x):
    x = F.relu(net.norm(net.a(x)))
    return net.last(F.max_pool2d(F.relu(net.c(F.relu(net.b(x))) + x), 2))


def residual():
    a, b, c = M.Conv2d(3, 8, 3, padding=1), M.Conv2d(8, 8, 3, padding=1), M.Conv2d(8, 8, 3, padding=1)
    return Chain(_residual, a=a, norm=M.BatchNorm2d(8), b=b, c=c, last=M.Conv2d(8, 4, 3, padding=1))


def _sequence(net, x):
    return net.fc(F.mean(net.c(F.sigmoid(net.b(F.relu(net.a(x))))), axis=2))


def sequence():
    grouped = M.Conv1d(16, 16, 3, padding=2, dilation=2, groups=4)
    return Chain(_sequence, a=M.Conv1d(4, 16, 5, padding=2), b=grouped, c=M.Conv1d(16, 8, 1), fc=M.Linear(8, 3))


def _volume(net, x):
    return net.d(F.relu(net.c(F.relu(net.b(F.relu(net.a(x)))))))


def volume():
    a, b = M.Conv3d(2, 8, 3, padding=1), M.Conv3d(8, 8, 3, stride=2, padding=1)
    return Chain(_volume, a=a, b=b, c=M.ConvTranspose3d(8, 4, 2, stride=2), d=M.Conv3d(4, 3, 1))


def _decoder(net, x):
    x = F.relu(net.a(x))
    y = F.concat([x, F.relu(net.up(F.relu(net.b(x))))], 1)
    return net.last(F.relu(net.wide(y)))


def decoder():
    a, b = M.Conv2d(3, 8, 3, stride=2, padding=1), M.Conv2d(8, 16, 3, stride=2, padding=1)
    up, wide = M.ConvTranspose2d(16, 8, 4, stride=2, padding=1), M.ConvTranspose2d(16, 8, 2, stride=2)
    return Chain(_decoder, a=a, b=b, up=up, wide=wide, last=M.Conv2d(8, 2, 1))


def perceptron():
    layers = {"a": M.Linear(20, 64), "b": M.Linear(64, 64), "c": M.Linear(64, 7)}
    return Chain(lambda net, x: net.c(F.relu(net.b(F.gelu(net.a(x))))), **layers)


_WIDTH, _HEADS = 16, 2


def _attention(net, x):
    n, t, width = x.shape

    def heads(y):
        return F.transpose(F.reshape(y, (n, t, _HEADS, _WIDTH // _HEADS)), (0, 2, 1, 3))

    y = net.norm(x)
    q, k, v = (heads(layer(y)) for layer in (net.q, net.k, net.v))
    rates = F.softmax(F.matmul(q, k, transpose_b=True) * 0.35, -1)
    x = x + net.out(F.reshape(F.transpose(F.matmul(rates, v), (0, 2, 1, 3)), (n, t, width)))
    return x + net.narrow(F.gelu(net.wide(net.second(x))))


def attention():
    names = {name: M.Linear(_WIDTH, _WIDTH) for name in ("q", "k", "v", "out")}
    wide, narrow = M.Linear(_WIDTH, 4 * _WIDTH), M.Linear(4 * _WIDTH, _WIDTH)
    norms = {"norm": M.LayerNorm(_WIDTH), "second": M.LayerNorm(_WIDTH)}
    return Chain(_attention, **names, **norms, wide=wide, narrow=narrow)


def tagger():
    layers = {"a": M.Linear(6, 12), "steps": M.LSTM(12, 10, batch_first=False), "fc": M.Linear(10, 5)}
    return Chain(lambda net, x: net.fc(net.steps(F.relu(net.a(x)))[0]), **layers)


def _gated(net, x):
    x = F.silu(net.stem(x))
    gate = F.sigmoid(net.widen(F.relu(net.squeeze(F.mean(x, axis=(2, 3), keepdims=True)))))
    return F.softmax(net.fc(F.mean(F.relu(net.b(x * gate)), (2, 3))), -1)


def gated():
    squeeze, widen = M.Conv2d(16, 4, 1), M.Conv2d(4, 16, 1)
    stem, b = M.Conv2d(3, 16, 3, stride=2, padding=1), M.Conv2d(16, 8, 3, padding=1)
    return Chain(_gated, stem=stem, squeeze=squeeze, widen=widen, b=b, fc=M.Linear(8, 4))


@dataclass(frozen=True)
class Case:
    """A network, and the shape of its input for a batch."""

    make: Any
    shape: Any

    def data(self, batch, count, seed=0):
        """Inputs of the network."""
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(self.shape(batch)).astype(np.float32) for _ in range(count)]

    def layers(self):
        """Paths of the layers that can stay in float."""
        return [path for path, module in self.make().named_modules() if isinstance(module, LAYERS)]


def _of(*sample):
    return lambda batch: (batch, *sample)


CASES = {
    "plain": Case(pictures, _of(3, 12, 12)),
    "grouped": Case(lambda: pictures(groups=4), _of(3, 12, 12)),
    "dilated": Case(lambda: pictures(dilation=2), _of(3, 13, 11)),
    "inverted": Case(inverted, _of(3, 16, 16)),
    "residual": Case(residual, _of(3, 12, 12)),
    "sequence": Case(sequence, _of(4, 20)),
    "volume": Case(volume, _of(2, 6, 6, 6)),
    "decoder": Case(decoder, _of(3, 16, 16)),
    "perceptron": Case(perceptron, _of(20)),
    "attention": Case(attention, _of(7, _WIDTH)),
    "tagger": Case(tagger, lambda batch: (9, batch, 6)),
    "gated": Case(gated, _of(3, 12, 12)),
}
