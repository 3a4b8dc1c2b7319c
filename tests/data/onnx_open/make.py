"""Makes the ONNX files of this folder: networks whose sizes follow from those of their inputs.

Run where torch and onnx are installed: python tests/data/onnx_open/make.py
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).parent


class Windows(nn.Module):
    """Attention in shifted windows, with padding to whole ones and a bias for each relative position."""

    def __init__(self):
        super().__init__()
        self.stem, self.qkv, self.table = nn.Conv2d(3, 8, 1), nn.Linear(8, 24), nn.Parameter(torch.randn(49, 2))

    def forward(self, x):
        x = self.stem(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        x = F.pad(x, (0, 0, 0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4))
        high, wide = x.shape[1:3]
        x = torch.roll(x, (-2, -2), (1, 2)).view(b, high // 4, 4, wide // 4, 4, c)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(x).reshape(x.shape[0], 16, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        row, column = at[:, :, None] - at[:, None] + 3
        bias = self.table[(row * 7 + column).reshape(-1)].view(16, 16, 2).permute(2, 0, 1)
        y = ((q @ k.transpose(-1, -2) / 2 + bias[None]).softmax(-1) @ v).transpose(1, 2).reshape(-1, 4, 4, c)
        y = y.view(b, high // 4, wide // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, high, wide, c)
        return torch.roll(y, (2, 2), (1, 2))[:, :h, :w].contiguous()


class Pyramid(nn.Module):
    """Resizes to the sizes of other values, by factors, and back."""

    def __init__(self):
        super().__init__()
        self.first, self.less = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)

    def forward(self, x):
        a = self.first(x)
        b = self.less(a)
        top = b + F.interpolate(self.less(b), size=b.shape[2:], mode="nearest")
        wide = F.interpolate(F.interpolate(b, scale_factor=2.0, mode="bicubic"), scale_factor=0.5)
        top = F.interpolate(top, size=a.shape[2:], mode="bilinear", align_corners=False)
        return a + top + F.interpolate(wide, size=a.shape[2:], mode="bilinear", align_corners=True)


class Separator(nn.Module):
    """A signal filled up to whole steps, an LSTM between strided convolutions, and the signal's length again."""

    def __init__(self):
        super().__init__()
        self.down, self.gates, self.run = nn.Conv1d(1, 8, 8, stride=4), nn.Conv1d(8, 16, 1), nn.LSTM(8, 8)
        self.up = nn.ConvTranspose1d(8, 1, 8, stride=4)

    def forward(self, x):
        length = x.shape[-1]
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        x = F.pad((x - mean) / (deviation + 1e-3), (0, (4 - length % 4) % 4 + 4))
        y = F.glu(self.gates(F.relu(self.down(x))), 1)
        y = y + self.run(y.permute(2, 0, 1))[0].permute(1, 2, 0)
        return self.up(y)[..., :length] * deviation + mean


class Borders(nn.Module):
    """Every kind of padding, up to multiples of eight, before a strided convolution."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)

    def forward(self, x):
        h, w = x.shape[2:]
        x = F.pad(F.pad(x, (0, (8 - w % 8) % 8, 0, (8 - h % 8) % 8)), (1, 2, 2, 1), mode="reflect")
        return self.conv(F.pad(F.pad(x, (1, 0, 0, 1), mode="replicate"), (1, 1, 1, 1), mode="circular"))


class Best(nn.Module):
    """The better half of the rows, their places, a step of three from the second row on, and the rows in reverse."""

    def forward(self, x):
        values, places = torch.topk(x[..., 0], x.shape[1] // 2, 1)
        best = torch.gather(x, 1, places[..., None].expand(-1, -1, 8)) * values[..., None]
        return torch.cat([best, x[:, 1::3].repeat_interleave(2, 1), x.flip(1)], 1)


PICTURES = (2, 3, 16, 24), {0: "n", 2: "h", 3: "w"}
ROWS, SIGNALS = ((2, 9, 8), {0: "n", 1: "t"}), ((2, 1, 64), {0: "n", 2: "t"})
NETS = {Windows: PICTURES, Pyramid: PICTURES, Separator: SIGNALS, Borders: PICTURES, Best: ROWS}


def main():
    torch.manual_seed(0)
    for kind, (shape, axes) in NETS.items():
        path = HERE / f"{kind.__name__.lower()}.onnx"
        options = {"dynamo": False, "input_names": ["x"], "dynamic_axes": {"x": axes}, "opset_version": 17}
        torch.onnx.export(kind().eval(), (torch.randn(*shape),), path, **options)


if __name__ == "__main__":
    main()
