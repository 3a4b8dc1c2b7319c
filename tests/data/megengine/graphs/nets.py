"""Nets behind the artifacts in this folder; public API only."""

import numpy as np

import megengine as mge
import megengine.functional as F
import megengine.module as M


class PlainBlock(M.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = M.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.bn1 = M.BatchNorm2d(cout)
        self.conv2 = M.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.bn2 = M.BatchNorm2d(cout)
        self.relu = M.ReLU()
        if stride != 1 or cin != cout:
            self.down = M.Sequential(M.Conv2d(cin, cout, 1, stride=stride, bias=False), M.BatchNorm2d(cout))
        else:
            self.down = M.Identity()

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y = y + self.down(x)
        return self.relu(y)


class ResPlain(M.Module):
    """conv / bn / relu as separate modules, residual adds, list of blocks"""

    def __init__(self):
        super().__init__()
        self.stem = M.Sequential(M.Conv2d(3, 16, 3, padding=1, bias=False), M.BatchNorm2d(16), M.ReLU())
        self.stages = [PlainBlock(16, 16), PlainBlock(16, 32, 2), PlainBlock(32, 32)]
        self.pool = M.AvgPool2d(8)
        self.fc = M.Linear(32, 10)

    def forward(self, x):
        x = self.stem(x)
        for s in self.stages:
            x = s(x)
        x = F.flatten(self.pool(x), 1)
        return self.fc(x)


class QBlock(M.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = M.ConvBnRelu2d(cin, cout, 3, stride=stride, padding=1)
        self.conv2 = M.ConvBn2d(cout, cout, 3, padding=1)
        self.proj = M.ConvBn2d(cin, cout, 1, stride=stride) if stride != 1 or cin != cout else None
        self.add_relu = M.Elemwise("FUSE_ADD_RELU")

    def forward(self, x):
        y = self.conv2(self.conv1(x))
        if self.proj is not None:
            x = self.proj(x)
        return self.add_relu(y, x)


class ResFused(M.Module):
    """fused quantizable modules with quant/dequant stubs"""

    def __init__(self):
        super().__init__()
        self.quant = M.QuantStub()
        self.stem = M.ConvBnRelu2d(3, 16, 3, padding=1)
        self.block1 = QBlock(16, 16)
        self.block2 = QBlock(16, 32, 2)
        self.dequant = M.DequantStub()
        self.fc = M.Linear(32, 10)
        self.fc.disable_quantize()  # stays float, after the dequant stub

    def forward(self, x):
        x = self.stem(self.quant(x))
        x = self.block2(self.block1(x))
        x = F.avg_pool2d(self.dequant(x), 8)
        x = F.flatten(x, 1)
        return self.fc(x)


class Scale(M.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = mge.Parameter(np.linspace(0.5, 1.5, n, dtype="float32"))
        self.offset = mge.Tensor(np.full((1,), 0.25, dtype="float32"))

    def forward(self, x):
        return x * self.weight.reshape(1, -1, 1, 1) + self.offset


class CallMix(M.Module):
    """same function twice, same module twice, nested Sequential, list and dict of
    modules, tensor methods, F functions, parameter getattr, constants, getitem/setitem"""

    def __init__(self):
        super().__init__()
        self.relu = M.ReLU()
        self.shared = M.Conv2d(8, 8, 3, padding=1)
        self.head = M.Conv2d(4, 8, 1)
        self.nest = M.Sequential(
            M.Sequential(M.Conv2d(8, 8, 1), M.ReLU()),
            M.Sequential(M.Sequential(M.BatchNorm2d(8)), M.Sigmoid()),
        )
        self.branches = [M.Conv2d(8, 4, 1), M.MaxPool2d(3, 1, 1), Scale(8)]
        self.table = {"left": M.Conv2d(8, 4, 1), "right": M.Conv2d(8, 4, 3, padding=1)}
        self.scale = Scale(8)
        self.gain = mge.Parameter(np.array([2.0], dtype="float32"))

    def forward(self, x):
        x = self.relu(self.head(x))
        x = self.shared(x)
        x = F.relu(x)
        x = self.shared(x)
        x = F.relu(x)
        x = self.nest(x)
        a = self.branches[0](x)
        b = self.branches[1](x)
        c = self.branches[2](b)
        for k in ("left", "right"):
            a = a + self.table[k](c)
        x = F.concat([a, b[:, :4]], axis=1)
        x = self.scale(x)
        x = x * self.gain + mge.tensor(np.array([0.125], dtype="float32"))
        y = x.transpose(0, 2, 3, 1).reshape(x.shape[0], -1, 8)
        z = y.sum(axis=1, keepdims=True)
        p, q = F.split(y, 2, axis=2)
        w = F.softmax(p, axis=-1) * F.exp(-F.abs(q))
        w[:, 0] = 1.0
        return w, z.astype("float32"), F.clip(x[..., ::2], lower=-1.0, upper=1.0)


class Inner(M.Module):
    def __init__(self):
        super().__init__()
        self.fc = M.Linear(6, 6)

    def forward(self, x, y=None, *, alpha=1.0):
        out = self.fc(x) * alpha
        if y is not None:
            out = out + y
        return out


class MultiIO(M.Module):
    """several inputs, keyword and default arguments, one submodule called three
    times, dict and nested tuple outputs"""

    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.norm = M.LayerNorm(6)
        self.drop = M.Dropout(0.3)

    def forward(self, a, b):
        u = self.inner(a, b, alpha=0.5)
        v = self.inner(u, y=b, alpha=0.5)
        w = self.norm(self.inner(y=u, x=v, alpha=0.5))
        s = F.matmul(w, v.transpose(0, 2, 1)) / 6**0.5
        s = F.softmax(s, axis=-1)
        return {"attn": self.drop(s), "pair": (u - v, [F.mean(w, axis=-1), F.argmax(s, axis=-1)])}


class TwoStructures(M.Module):
    """one submodule called under two argument structures: MegEngine 1.13.0 fails to
    trace this (TypeError while it builds the submodule); no file here"""

    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, a, b):
        return self.inner(a) + self.inner(a, b, alpha=0.5)
