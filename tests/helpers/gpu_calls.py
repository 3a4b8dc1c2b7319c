"""Calls, networks and training on a device: the same work on the processor and on a GPU, to be compared."""

from collections.abc import Callable

import numpy as np
from cuda_checks import parts

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import jit, optimizer
from megengine.autodiff import GradManager
from megengine.core.pytree import flatten, unflatten
from megengine.dispatch import apply
from megengine.tensor import Tensor

WIDE = (np.dtype(np.float64), np.dtype(np.complex128))


def tensors(inputs, device) -> list[Tensor]:
    """Inputs of a sample, arrays or tensors, on a device."""
    return [Tensor._wrap(*parts(x), device) for x in inputs]


def results(out) -> tuple:
    """The results of a call as a tuple."""
    return out if isinstance(out, tuple) else (out,)


def called(name, inputs, attrs, device) -> list[np.ndarray]:
    """The results of an op on a device, in main memory."""
    return [one.numpy() for one in results(apply(name, *tensors(inputs, device), **attrs))]


def signless(name, arrays) -> list[np.ndarray]:
    """Results without the signs that an op may choose: those of singular vectors."""
    return [np.abs(a) for a in arrays] if name == "svd" else list(arrays)


def near(have, want, *, rtol=2e-5, atol=2e-5) -> None:
    """Floats within a tolerance, all else equal; dtypes and shapes are equal."""
    assert have.dtype == want.dtype and have.shape == want.shape, (have.dtype, want.dtype, have.shape, want.shape)
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(have, want)
        return
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(have.astype(wide), want.astype(wide), rtol=rtol, atol=atol)


def gradients(op, inputs, attrs, device, seed=0) -> list[np.ndarray | None]:
    """Gradients of all floating inputs for cotangents that are drawn from a seed; of `signless` results."""
    rng = np.random.default_rng(seed)
    given = tensors(inputs, device)
    moving = [t for t in given if t.numpy().dtype.kind == "f"]
    gm = GradManager().attach(moving)
    with gm:
        outs = [o for o in results(apply(op, *given, **attrs)) if o.numpy().dtype.kind == "f"]
        signs = [np.sign(o.numpy()) if op.name == "svd" else 1 for o in outs]
        drawn = [rng.standard_normal(o.shape) * sign for o, sign in zip(outs, signs, strict=True)]
        cts = [Tensor(ct, dtype=o.dtype, device=device) for o, ct in zip(outs, drawn, strict=True)]
        gm.backward(outs, cts)
    return [None if t.grad is None else t.grad.numpy() for t in moving]


def moved(value, device):
    """A tensor, or the tensors of nested arguments, on a device."""
    found, nesting = flatten(value)
    return unflatten(nesting, [x.to(device) if isinstance(x, Tensor) else x for x in found])


def move(net: M.Module, device: str) -> M.Module:
    """The network with its parameters and buffers on a device, in place."""
    for tensor in (*net.parameters(), *net.buffers()):
        tensor._reset(tensor.to(device))
    return net


def leaves(value) -> list[np.ndarray]:
    """Arrays of a nested result, dicts by sorted keys."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value.numpy()]


class Block(M.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = M.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = M.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = M.BatchNorm2d(cout), M.BatchNorm2d(cout)
        self.short = M.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


def small_resnet() -> M.Module:
    """Three blocks for pictures, and the mean of each of 32 channels."""
    blocks = (Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1))
    return M.Sequential(M.Conv2d(3, 16, 3, 1, 1), *blocks, M.AdaptiveAvgPool2d(1))


class Learner:
    """The small network with its optimizer on a device, from the same weights and pictures everywhere."""

    def __init__(self, device: str, *, batch: int = 16) -> None:
        mge.random.seed(7)
        self.net = small_resnet()
        self.head = M.Linear(32, 10)
        for module in (self.net, self.head):
            move(module.train(), device)
        self.parameters = [*self.net.parameters(), *self.head.parameters()]
        self.gm = GradManager().attach(self.parameters)
        self.sgd = optimizer.SGD(self.parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)
        rng = np.random.default_rng(1)
        labels = rng.integers(0, 10, batch)
        pictures = rng.standard_normal((batch, 3, 16, 16)) * 0.5 + labels[:, None, None, None] * 0.2
        self.x = mge.tensor(pictures.astype(np.float32), device=device)
        self.y = mge.tensor(labels.astype(np.int32), device=device)

    def step(self) -> Tensor:
        """One step; the loss stays on the device."""
        return self._step(self.x, self.y)

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        with self.gm:
            loss = F.nn.cross_entropy(self.head(F.flatten(self.net(x), 1)), y)
            self.gm.backward(loss)
        self.sgd.step().clear_grad()
        return loss

    def replayed(self) -> Callable[[], Tensor]:
        """A function that makes one step, which is recorded and replayed."""
        traced = jit.trace(self._step, replay=True)
        return lambda: traced(self.x, self.y)
