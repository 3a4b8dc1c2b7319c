"""EfficientNet-Lite0 (Tan and Le 2019; the Lite variant has ReLU6 and no squeeze-and-excitation)."""

from __future__ import annotations

import megengine.functional as F
import megengine.module as M
from megengine.models.building import builder
from megengine.tensor import Tensor

# kernel, expansion, channels, repeats, first stride
_STAGES = (
    (3, 1, 16, 1, 1),
    (3, 6, 24, 2, 2),
    (5, 6, 40, 2, 2),
    (3, 6, 80, 3, 2),
    (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)
# epsilon of TensorFlow's batch normalisation in this network
_EPS = 1e-3


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class SameConv2d(M.Conv2d):
    """Convolution padded as TensorFlow's SAME: the output has ceil(size / stride), the odd row goes to the end."""

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with other weights."""
        (kh, kw), (sh, sw) = self.kernel_size, self.stride
        height, width = inp.spec.shape[2:]  # numbers also while tracing: padding belongs to the layer
        padding = (_same(height, kh, sh), _same(width, kw, sw))
        return F.conv2d(inp, weight, bias, self.stride, padding, self.dilation, self.groups)


def _conv_bn(cin: int, cout: int, size: int, stride: int = 1, groups: int = 1) -> list[M.Module]:
    return [SameConv2d(cin, cout, size, stride, groups=groups, bias=False), M.BatchNorm2d(cout, eps=_EPS)]


class MBConv(M.Module):
    """Widen, convolve each channel, narrow; added to the input where shapes allow."""

    def __init__(self, cin: int, cout: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = cin * expansion
        self.expand = M.Sequential(*_conv_bn(cin, wide, 1), M.ReLU6()) if expansion > 1 else M.Identity()
        self.depthwise = M.Sequential(*_conv_bn(wide, wide, size, stride, wide), M.ReLU6())
        self.project = M.Sequential(*_conv_bn(wide, cout, 1))
        self.residual = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        """[N,cin,H,W] -> [N,cout,ceil(H/stride),ceil(W/stride)]."""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class EfficientNetLite0(M.Module):
    """Stem, seven stages of MBConv, a wide 1x1 convolution, mean over the picture, classifier."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.stem = M.Sequential(*_conv_bn(3, 32, 3, 2), M.ReLU6())
        blocks, cin = [], 32
        for size, expansion, channels, repeats, stride in _STAGES:
            for i in range(repeats):
                blocks.append(MBConv(cin, channels, size, 1 if i else stride, expansion))
                cin = channels
        self.blocks = M.Sequential(*blocks)
        self.head = M.Sequential(*_conv_bn(cin, 1280, 1), M.ReLU6())
        self.dropout = M.Dropout(0.2)
        self.fc = M.Linear(1280, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N,3,H,W] -> [N,num_classes]."""
        x = self.head(self.blocks(self.stem(x)))
        return self.fc(self.dropout(F.flatten(F.adaptive_avg_pool2d(x, 1), 1)))


@builder
def efficientnet_lite0(num_classes: int = 1000) -> EfficientNetLite0:
    """EfficientNet-Lite0, 4,652,008 parameters."""
    return EfficientNetLite0(num_classes)
