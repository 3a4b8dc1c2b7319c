"""ResNet (He et al. 2015), with the stride on the 3x3 convolution of a bottleneck as torchvision has it."""

from __future__ import annotations

import megengine.functional as F
import megengine.module as M
from megengine.models.building import builder
from megengine.tensor import Tensor


def _conv(cin: int, cout: int, size: int, stride: int = 1) -> M.Conv2d:
    return M.Conv2d(cin, cout, size, stride, size // 2, bias=False)


def _shortcut(cin: int, cout: int, stride: int) -> M.Module | None:
    if stride == 1 and cin == cout:
        return None
    return M.Sequential(_conv(cin, cout, 1, stride), M.BatchNorm2d(cout))


class BasicBlock(M.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, cin: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _conv(cin, width, 3, stride)
        self.bn1 = M.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = M.BatchNorm2d(width)
        self.downsample = _shortcut(cin, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N,cin,H,W] -> [N,width,H/stride,W/stride]."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(y + shortcut)


class Bottleneck(M.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut."""

    expansion = 4

    def __init__(self, cin: int, width: int, stride: int = 1) -> None:
        super().__init__()
        cout = width * self.expansion
        self.conv1 = _conv(cin, width, 1)
        self.bn1 = M.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = M.BatchNorm2d(width)
        self.conv3 = _conv(width, cout, 1)
        self.bn3 = M.BatchNorm2d(cout)
        self.downsample = _shortcut(cin, cout, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N,cin,H,W] -> [N,4*width,H/stride,W/stride]."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(y + shortcut)


class ResNet(M.Module):
    """Stem, four stages, mean over the picture, classifier."""

    def __init__(self, block: type[BasicBlock | Bottleneck], depths: tuple[int, ...], num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = M.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = M.BatchNorm2d(64)
        self.maxpool = M.MaxPool2d(3, 2, 1)
        cin = 64
        for i, depth in enumerate(depths):
            width, blocks = 64 * 2**i, []
            for j in range(depth):
                blocks.append(block(cin, width, 2 if i and not j else 1))
                cin = width * block.expansion
            setattr(self, f"layer{i + 1}", M.Sequential(*blocks))
        self.fc = M.Linear(cin, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N,3,H,W] -> [N,num_classes]."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.flatten(F.adaptive_avg_pool2d(x, 1), 1))


@builder
def resnet18(num_classes: int = 1000) -> ResNet:
    """ResNet-18, 11,689,512 parameters."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


@builder
def resnet50(num_classes: int = 1000) -> ResNet:
    """ResNet-50, 25,557,032 parameters."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)
