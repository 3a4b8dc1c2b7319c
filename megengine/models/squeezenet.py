"""SqueezeNet 1.1 (Iandola et al. 2016), as its authors' Caffe network."""

from __future__ import annotations

import megengine.functional as F
import megengine.module as M
from megengine.models.building import builder
from megengine.tensor import Tensor


class Fire(M.Module):
    """A narrow 1x1 convolution, then 1x1 and 3x3 ones side by side."""

    def __init__(self, cin: int, narrow: int, wide: int) -> None:
        super().__init__()
        self.squeeze1x1 = M.Conv2d(cin, narrow, 1)
        self.expand1x1 = M.Conv2d(narrow, wide, 1)
        self.expand3x3 = M.Conv2d(narrow, wide, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N,cin,H,W] -> [N,2*wide,H,W]."""
        x = F.relu(self.squeeze1x1(x))
        return F.concat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], axis=1)


class SqueezeNet(M.Module):
    """Convolution, eight fire modules with three poolings between, 1x1 classifier, mean over the picture."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = M.Conv2d(3, 64, 3, 2, 1)
        self.pool = M.MaxPool2d(3, 2)
        self.fire2, self.fire3 = Fire(64, 16, 64), Fire(128, 16, 64)
        self.fire4, self.fire5 = Fire(128, 32, 128), Fire(256, 32, 128)
        self.fire6, self.fire7 = Fire(256, 48, 192), Fire(384, 48, 192)
        self.fire8, self.fire9 = Fire(384, 64, 256), Fire(512, 64, 256)
        self.dropout = M.Dropout(0.5)
        self.conv10 = M.Conv2d(512, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N,3,H,W] -> [N,num_classes]; H and W 227 in the original."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(self.fire3(self.fire2(x)))
        x = self.pool(self.fire5(self.fire4(x)))
        x = self.fire9(self.fire8(self.fire7(self.fire6(x))))
        x = F.relu(self.conv10(self.dropout(x)))
        return F.flatten(F.adaptive_avg_pool2d(x, 1), 1)


@builder
def squeezenet1_1(num_classes: int = 1000) -> SqueezeNet:
    """SqueezeNet 1.1, 1,235,496 parameters."""
    return SqueezeNet(num_classes)
