"""Classifiers of pictures."""

from zoo_parts import conv_bn, net_of, picture

import megengine.functional as F
import megengine.module as M
from megengine.tensor import Parameter


class AlexNet(M.Module):
    def __init__(self):
        super().__init__()
        self.features = M.Sequential(
            M.Conv2d(3, 8, 11, stride=4, padding=2),
            M.ReLU(),
            M.LocalResponseNorm(),
            M.MaxPool2d(3, 2),
            M.Conv2d(8, 12, 5, padding=2, groups=2),
            M.ReLU(),
            M.MaxPool2d(3, 2),
            M.Conv2d(12, 12, 3, padding=1),
            M.ReLU(),
        )
        self.classifier = M.Sequential(M.Dropout(0.5), M.Linear(108, 16), M.ReLU(), M.Dropout(0.5), M.Linear(16, 10))

    def forward(self, x):
        x = self.features(x)
        return self.classifier(F.flatten(x, 1))


class VGG(M.Module):
    def __init__(self, plan=(4, "M", 8, 8, "M")):
        super().__init__()
        layers, channels = [], 3
        for item in plan:
            if item == "M":
                layers.append(M.MaxPool2d(2))
            else:
                layers += [M.Conv2d(channels, item, 3, padding=1), M.BatchNorm2d(item), M.ReLU()]
                channels = item
        self.features = M.Sequential(*layers)
        self.head = M.Linear(channels * 16, 10)

    def forward(self, x):
        x = self.features(x)
        x = x.reshape(x.shape[0], -1)
        return self.head(x)


class BasicBlock(M.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = M.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = M.BatchNorm2d(cout)
        self.conv2 = M.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = M.BatchNorm2d(cout)
        self.downsample = M.Identity() if stride == 1 and cin == cout else conv_bn(cin, cout, 1, stride)

    def forward(self, x):
        identity = x
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        identity = self.downsample(identity)
        x += identity
        return F.relu(x)


class Bottleneck(M.Module):
    """With groups as in ResNeXt, with squeeze and excitation where asked for."""

    def __init__(self, cin, width, cout, stride=1, groups=1, se=False):
        super().__init__()
        self.reduce = conv_bn(cin, width, 1)
        self.conv = conv_bn(width, width, 3, stride, groups=groups)
        self.expand = conv_bn(width, cout, 1)
        self.se = SqueezeExcite(cout) if se else None
        self.shortcut = conv_bn(cin, cout, 1, stride) if stride > 1 or cin != cout else None

    def forward(self, x):
        y = self.expand(F.relu(self.conv(F.relu(self.reduce(x)))))
        if self.se is not None:
            y = self.se(y)
        if self.shortcut is not None:
            x = self.shortcut(x)
        return F.relu(y + x)


class SqueezeExcite(M.Module):
    def __init__(self, channels, ratio=4, gate=F.sigmoid):
        super().__init__()
        self.fc1 = M.Conv2d(channels, max(channels // ratio, 1), 1)
        self.fc2 = M.Conv2d(max(channels // ratio, 1), channels, 1)
        self.gate = gate

    def forward(self, x):
        s = F.avg_pool2d(x, (x.shape[2], x.shape[3]))
        return x * self.gate(self.fc2(F.relu(self.fc1(s))))


class ResNet(M.Module):
    def __init__(self, blocks):
        super().__init__()
        self.stem = M.Sequential(M.Conv2d(3, 8, 7, 2, 3, bias=False), M.BatchNorm2d(8), M.ReLU(), M.MaxPool2d(3, 2, 1))
        self.num_stages = len(blocks)
        for i, stage in enumerate(blocks):
            setattr(self, f"layer{i + 1}", M.Sequential(*stage))
        self.fc = M.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        outputs = {}
        for i in range(self.num_stages):
            x = getattr(self, f"layer{i + 1}")(x)
            outputs[f"res{i + 1}"] = x
        x = F.flatten(F.avg_pool2d(x, x.shape[-2:]), 1)
        outputs["logits"] = self.fc(x)
        return outputs


class MobileNetV1(M.Module):
    def __init__(self):
        super().__init__()
        self.convs = [conv_bn(3, 8, 3, 2, act=M.ReLU)]
        for cin, cout, stride in ((8, 16, 1), (16, 16, 2)):
            self.convs += [conv_bn(cin, cin, 3, stride, groups=cin, act=M.ReLU), conv_bn(cin, cout, 1, act=M.ReLU)]
        self.pool = M.AdaptiveAvgPool2d(1)
        self.fc = M.Linear(16, 10)

    def forward(self, x):
        for conv in self.convs:
            x = conv(x)
        return self.fc(F.squeeze(self.pool(x), (2, 3)))


class InvertedResidual(M.Module):
    """Of MobileNetV2, V3 and EfficientNet."""

    def __init__(self, cin, cout, stride, expand, act=M.ReLU6, se=None, kernel=3):
        super().__init__()
        hidden = cin * expand
        self.use_shortcut = stride == 1 and cin == cout
        layers = [] if expand == 1 else [conv_bn(cin, hidden, 1, act=act)]
        layers.append(conv_bn(hidden, hidden, kernel, stride, groups=hidden, act=act))
        if se is not None:
            layers.append(SqueezeExcite(hidden, gate=se))
        layers.append(conv_bn(hidden, cout, 1))
        self.conv = M.Sequential(*layers)

    def forward(self, x):
        return x + self.conv(x) if self.use_shortcut else self.conv(x)


class MobileNetV2(M.Module):
    def __init__(self, blocks, act=M.ReLU6):
        super().__init__()
        self.stem = conv_bn(3, 8, 3, 2, act=act)
        self.blocks = M.Sequential(*blocks)
        self.classifier = M.Sequential(M.Dropout(0.2), M.Linear(12, 10))

    def forward(self, x):
        x = self.blocks(self.stem(x))
        return self.classifier(x.mean(axis=3).mean(axis=2))


def channel_shuffle(x, groups):
    n, c, h, w = x.shape
    x = F.reshape(x, (n, groups, c // groups, h, w))
    return F.reshape(F.transpose(x, (0, 2, 1, 3, 4)), (n, c, h, w))


class ShuffleUnit(M.Module):
    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        self.branch = M.Sequential(
            conv_bn(half, half, 1, act=M.ReLU), conv_bn(half, half, 3, groups=half), conv_bn(half, half, 1, act=M.ReLU)
        )

    def forward(self, x):
        left, right = F.split(x, 2, axis=1)
        return channel_shuffle(F.concat([left, self.branch(right)], axis=1), 2)


class ShuffleNetV2(M.Module):
    def __init__(self):
        super().__init__()
        self.first = conv_bn(3, 8, 3, 2, act=M.ReLU)
        self.stages = M.Sequential(ShuffleUnit(8), ShuffleUnit(8))
        self.fc = M.Linear(8, 10, bias=False)

    def forward(self, x):
        x = self.stages(self.first(x))
        x = F.mean(x, axis=(2, 3), keepdims=True)
        return self.fc(F.flatten(x, 1))


class DenseLayer(M.Module):
    def __init__(self, cin, growth):
        super().__init__()
        self.norm, self.conv = M.BatchNorm2d(cin), M.Conv2d(cin, growth, 3, padding=1, bias=False)

    def forward(self, xs):
        x = F.concat(xs, 1) if len(xs) > 1 else xs[0]
        return self.conv(F.relu(self.norm(x)))


class DenseNet(M.Module):
    def __init__(self, growth=4, depth=3):
        super().__init__()
        self.stem = M.Conv2d(3, 8, 3, 2, 1)
        self.layers = [DenseLayer(8 + i * growth, growth) for i in range(depth)]
        self.transition = M.Sequential(M.Conv2d(8 + depth * growth, 8, 1), M.AvgPool2d(2))
        self.fc = M.Linear(8, 10)

    def forward(self, x):
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(features))
        x = self.transition(F.concat(features, axis=1))
        return self.fc(F.mean(x, (2, 3)))


class Fire(M.Module):
    def __init__(self, cin, squeeze, expand):
        super().__init__()
        self.squeeze = M.Conv2d(cin, squeeze, 1)
        self.expand1x1, self.expand3x3 = M.Conv2d(squeeze, expand, 1), M.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return F.concat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)


class SqueezeNet(M.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = M.Conv2d(3, 8, 3, 2)
        self.pool = M.MaxPool2d(3, 2)
        self.fires = M.Sequential(Fire(8, 4, 6), Fire(12, 4, 6))
        self.last = M.Conv2d(12, 10, 1)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.last(self.pool(self.fires(x)))
        return F.softmax(F.adaptive_avg_pool2d(x, 1).reshape(-1, 10))


class Inception(M.Module):
    def __init__(self, cin):
        super().__init__()
        self.branches = {
            "1x1": conv_bn(cin, 4, 1, act=M.ReLU),
            "3x3": M.Sequential(conv_bn(cin, 3, 1, act=M.ReLU), conv_bn(3, 4, 3, act=M.ReLU)),
            "5x5": M.Sequential(conv_bn(cin, 2, 1, act=M.ReLU), conv_bn(2, 4, 5, act=M.ReLU)),
            "pool": M.Sequential(M.MaxPool2d(3, 1, 1), conv_bn(cin, 4, 1, act=M.ReLU)),
        }

    def forward(self, x):
        return F.concat([branch(x) for branch in self.branches.values()], axis=1)


class GoogLeNet(M.Module):
    """With an auxiliary classifier."""

    def __init__(self):
        super().__init__()
        self.stem = conv_bn(3, 8, 7, 2, act=M.ReLU)
        self.inception3a, self.inception3b = Inception(8), Inception(16)
        self.aux = M.Linear(16, 10)
        self.fc = M.Linear(16, 10)

    def forward(self, x):
        x = self.inception3a(self.stem(x))
        aux = self.aux(F.mean(x, [2, 3]))
        x = self.inception3b(F.max_pool2d(x, 3, 2, 1))
        return self.fc(F.mean(x, [2, 3])), aux


class RepVGGBlock(M.Module):
    def __init__(self, channels):
        super().__init__()
        self.rbr_dense, self.rbr_1x1 = conv_bn(channels, channels, 3), conv_bn(channels, channels, 1)
        self.rbr_identity = M.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(self.rbr_dense(x) + self.rbr_1x1(x) + self.rbr_identity(x))


class RepVGG(M.Module):
    def __init__(self):
        super().__init__()
        self.stage0 = conv_bn(3, 8, 3, 2, act=M.ReLU)
        self.stage1 = M.Sequential(*[RepVGGBlock(8) for _ in range(2)])
        self.gap, self.linear = M.AdaptiveAvgPool2d(1), M.Linear(8, 10)

    def forward(self, x):
        out = self.gap(self.stage1(self.stage0(x)))
        return self.linear(F.flatten(out, start_axis=1))


class GhostModule(M.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.cout = cout
        self.primary = conv_bn(cin, (cout + 1) // 2, 1, act=M.ReLU)
        self.cheap = conv_bn((cout + 1) // 2, (cout + 1) // 2, 3, groups=(cout + 1) // 2, act=M.ReLU)

    def forward(self, x):
        x1 = self.primary(x)
        return F.concat([x1, self.cheap(x1)], axis=1)[:, : self.cout]


class GhostNet(M.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv_bn(3, 8, 3, 2, act=M.HSwish)
        self.ghosts = [GhostModule(8, 7), GhostModule(7, 9)]
        self.fc = M.Linear(9, 10)

    def forward(self, x):
        x = self.stem(x)
        for ghost in self.ghosts:
            x = ghost(x)
        return self.fc(F.mean(x, axis=-1).mean(-1))


class CSPStage(M.Module):
    """Cross-stage partial network with Mish-like activations written by hand."""

    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        self.part1, self.part2 = conv_bn(channels, half, 1), conv_bn(channels, half, 1)
        self.blocks = [conv_bn(half, half, 3), conv_bn(half, half, 3)]
        self.merge = conv_bn(2 * half, channels, 1)

    @staticmethod
    def mish(x):
        return x * F.tanh(F.log(1 + F.exp(F.minimum(x, 20.0))))

    def forward(self, x):
        left, right = self.mish(self.part1(x)), self.mish(self.part2(x))
        for block in self.blocks:
            right = right + self.mish(block(right))
        return self.mish(self.merge(F.concat((left, right), axis=1)))


class CSPDarknet(M.Module):
    """Starts by moving 2x2 patches to channels (Focus)."""

    def __init__(self):
        super().__init__()
        self.stem = conv_bn(12, 8, 3, act=M.SiLU)
        self.dark = M.Sequential(CSPStage(8), conv_bn(8, 8, 3, 2, act=M.SiLU), CSPStage(8))

    def forward(self, x):
        patches = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
        return self.dark(self.stem(F.concat(patches, axis=1)))


class ConvNeXtBlock(M.Module):
    def __init__(self, dim):
        super().__init__()
        self.dwconv = M.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = M.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.pwconv2 = M.Linear(dim, 4 * dim), M.Linear(4 * dim, dim)
        self.gamma = Parameter(F.full((dim,), 0.5))

    def forward(self, x):
        shortcut = x
        x = self.dwconv(x).transpose(0, 2, 3, 1)
        x = self.pwconv2(F.gelu(self.pwconv1(self.norm(x))))
        return shortcut + (self.gamma * x).transpose(0, 3, 1, 2)


class ConvNeXt(M.Module):
    def __init__(self):
        super().__init__()
        self.downsample_layers = [M.Conv2d(3, 8, 4, 4), M.Sequential(M.GroupNorm(2, 8), M.Conv2d(8, 12, 2, 2))]
        self.stages = [M.Sequential(ConvNeXtBlock(8)), M.Sequential(ConvNeXtBlock(12), ConvNeXtBlock(12))]
        self.norm, self.head = M.LayerNorm(12), M.Linear(12, 10)

    def forward(self, x):
        for down, stage in zip(self.downsample_layers, self.stages, strict=True):
            x = stage(down(x))
        return self.head(self.norm(x.mean(axis=[-2, -1])))


NETS = {
    "alexnet": net_of(AlexNet, picture(67)),
    "vgg": net_of(VGG, picture(16)),
    "resnet": net_of(lambda: ResNet([[BasicBlock(8, 8)], [BasicBlock(8, 16, 2), BasicBlock(16, 16)]]), picture(32)),
    "resnext": net_of(
        lambda: ResNet([[Bottleneck(8, 8, 16, groups=4)], [Bottleneck(16, 8, 16, 2, groups=4)]]), picture(32)
    ),
    "se_resnet": net_of(
        lambda: ResNet([[Bottleneck(8, 4, 16, se=True)], [Bottleneck(16, 4, 16, 2, se=True)]]), picture(32)
    ),
    "mobilenet_v1": net_of(MobileNetV1, picture(32)),
    "mobilenet_v2": net_of(
        lambda: MobileNetV2(
            [InvertedResidual(8, 8, 1, 1), InvertedResidual(8, 12, 2, 3), InvertedResidual(12, 12, 1, 2)]
        ),
        picture(32),
    ),
    "mobilenet_v3": net_of(
        lambda: MobileNetV2(
            [
                InvertedResidual(8, 8, 1, 1, M.ReLU, F.hsigmoid),
                InvertedResidual(8, 12, 2, 3, M.HSwish, F.hsigmoid, kernel=5),
            ],
            M.HSwish,
        ),
        picture(32),
    ),
    "efficientnet": net_of(
        lambda: MobileNetV2(
            [
                InvertedResidual(8, 12, 2, 4, M.SiLU, F.sigmoid, kernel=5),
                InvertedResidual(12, 12, 1, 2, M.SiLU, F.sigmoid),
            ],
            M.SiLU,
        ),
        picture(32),
    ),
    "shufflenet": net_of(ShuffleNetV2, picture(16)),
    "densenet": net_of(DenseNet, picture(16)),
    "squeezenet": net_of(SqueezeNet, picture(33)),
    "googlenet": net_of(GoogLeNet, picture(24)),
    "repvgg": net_of(RepVGG, picture(16)),
    "ghostnet": net_of(GhostNet, picture(16)),
    "cspdarknet": net_of(CSPDarknet, picture(16)),
    "convnext": net_of(ConvNeXt, picture(16)),
}
