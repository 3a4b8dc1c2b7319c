"""MobileNetV2 (Sandler et al. 2018)."""

from __future__ import annotations

import megengine.functional as F
import megengine.module as M
from megengine.models.building import builder
from megengine.tensor import Tensor

# expansion, channels, repeats, first stride
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _conv_bn_relu6(cin: int, cout: int, size: int, stride: int = 1, groups: int = 1) -> M.Sequential:
    conv = M.Conv2d(cin, cout, size, stride, size // 2, groups=groups, bias=False)
    return M.Sequential(conv, M.BatchNorm2d(cout), M.ReLU6())


class InvertedResidual(M.Module):
    """Widen, convolve each channel, narrow; added to the input where shapes allow."""

    def __init__(self, cin: int, cout: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = cin * expansion
        layers = [] if expansion == 1 else [_conv_bn_relu6(cin, wide, 1)]
        layers.append(_conv_bn_relu6(wide, wide, 3, stride, groups=wide))
        layers += [M.Conv2d(wide, cout, 1, bias=False), M.BatchNorm2d(cout)]
        self.conv = M.Sequential(*layers)
        self.residual = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        """[N,cin,H,W] -> [N,cout,H/stride,W/stride]."""
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(M.Module):
    """Stem, inverted residuals, a wide 1x1 convolution, mean over the picture, classifier."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        layers: list[M.Module] = [_conv_bn_relu6(3, 32, 3, 2)]
        cin = 32
        for expansion, channels, repeats, stride in _STAGES:
            for i in range(repeats):
                layers.append(InvertedResidual(cin, channels, 1 if i else stride, expansion))
                cin = channels
        layers.append(_conv_bn_relu6(cin, 1280, 1))
        self.features = M.Sequential(*layers)
        self.classifier = M.Sequential(M.Dropout(0.2), M.Linear(1280, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        """[N,3,H,W] -> [N,num_classes]."""
        x = F.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(F.flatten(x, 1))


@builder
def mobilenet_v2(num_classes: int = 1000) -> MobileNetV2:
    """MobileNetV2 of width 1, 3,504,872 parameters."""
    return MobileNetV2(num_classes)
