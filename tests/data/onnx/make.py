"""Makes the .onnx files of this folder with PyTorch's two exporters, and expected.npz with PyTorch's outputs.

Run where torch, onnxscript and onnx are installed: python tests/data/onnx/make.py
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).parent


def conv(cin, cout, size=3, stride=1, groups=1, act=nn.ReLU):
    layers = [nn.Conv2d(cin, cout, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(cout)]
    return nn.Sequential(*layers, *([act()] if act else []))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b = conv(3, 8, stride=2), conv(8, 8), conv(8, 8, act=None)
        self.down, self.c, self.head = conv(8, 16, 1, 2, act=None), conv(8, 16, stride=2, act=None), nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(x + self.b(self.a(x)))
        x = F.relu(self.down(x) + self.c(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.wide, self.deep = conv(3, 8, stride=2, act=nn.Hardswish), conv(8, 16, 1), conv(16, 16, 5, 1, 16)
        self.less, self.more, self.narrow = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1), conv(16, 8, 1, act=None)
        self.last, self.head = conv(8, 16, 1, act=nn.SiLU), nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        y = self.deep(self.wide(x))
        y = y * F.hardsigmoid(self.more(F.relu(self.less(y.mean((2, 3), keepdim=True)))))
        x = self.last(x + self.narrow(y))
        return self.head(x.mean((2, 3)))


class Shuffle(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv(3, 8, stride=2)
        self.branch = nn.Sequential(conv(4, 4, 1), conv(4, 4, 3, 1, 4, act=None), conv(4, 4, 1))
        self.last, self.head = conv(8, 16, 1), nn.Linear(16, 10)

    def forward(self, x):
        x = F.max_pool2d(self.stem(x), 3, 2, 1)
        left, right = x.chunk(2, 1)
        x = torch.cat([left, self.branch(right)], 1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.head(self.last(x).mean((2, 3)))


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 + 4 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(8 + 4 * i, 4, 3, 1, 1) for i in range(3))
        self.head = nn.Linear(20, 10)

    def forward(self, x):
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, layer(F.relu(norm(x)))], 1)
        return self.head(F.avg_pool2d(x, 2).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = conv(3, 8), conv(8, 8), conv(8, 8), conv(24, 8)
        self.up, self.out = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(8, 3, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = F.interpolate(self.c(F.max_pool2d(b, 2)), size=b.shape[2:], mode="bilinear", align_corners=False)
        wide = F.interpolate(b + c, scale_factor=2, mode="nearest")
        return self.out(self.d(torch.cat([a, self.up(b), wide], 1)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.place = nn.Conv2d(3, 16, 8, 8), nn.Parameter(torch.randn(1, 16, 16) / 5)
        self.first, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.second, self.wide, self.narrow = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.place
        n, t, c = x.shape
        q, k, v = self.qkv(self.first(x)).reshape(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        attention = F.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1) @ v
        x = x + self.out(attention.transpose(1, 2).reshape(n, t, c))
        x = x + self.narrow(F.gelu(self.wide(self.second(x))))
        return self.head(x.mean(1))


def main():
    torch.manual_seed(0)
    x = torch.randn(1, 3, 32, 32)
    expected = {"x": x.numpy()}
    for kind in (Residual, SqueezeExcite, Shuffle, Dense, UNet, Transformer):
        net, name = kind().eval(), kind.__name__.lower()
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):  # statistics as after training
                nn.init.normal_(layer.running_mean, 0, 0.1)
                nn.init.uniform_(layer.running_var, 0.5, 1.5)
        expected[name] = net(x).detach().numpy()
        torch.onnx.export(net, (x,), HERE / f"{name}_script.onnx", dynamo=False)
        torch.onnx.export(net, (x,), HERE / f"{name}_dynamo.onnx", dynamo=True, external_data=False)
        bare(HERE / f"{name}_dynamo.onnx")
    np.savez_compressed(HERE / "expected.npz", **expected)


def bare(path):
    """Without the stack traces that the new exporter stores: they name the paths of the machine."""
    import onnx

    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
    for item in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        del item.metadata_props[:]
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    onnx.save(model, path)


if __name__ == "__main__":
    main()
