"""Networks with pictures, boxes or points as results: segmentation, detection, generators, super-resolution."""

import numpy as np
from zoo_parts import conv_bn, net_of, picture, values

import megengine.functional as F
import megengine.module as M
from megengine.tensor import Parameter, Tensor


class DoubleConv(M.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.double_conv = M.Sequential(conv_bn(cin, cout, act=M.ReLU), conv_bn(cout, cout, act=M.ReLU))

    def forward(self, x):
        return self.double_conv(x)


class UNet(M.Module):
    def __init__(self):
        super().__init__()
        self.down = [DoubleConv(3, 4), DoubleConv(4, 8), DoubleConv(8, 16)]
        self.up = [M.ConvTranspose2d(16, 8, 2, 2), M.ConvTranspose2d(8, 4, 2, 2)]
        self.merge = [DoubleConv(16, 8), DoubleConv(8, 4)]
        self.out = M.Conv2d(4, 2, 1)

    def forward(self, x):
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            if len(skips) < len(self.down):
                x = F.max_pool2d(x, 2)
        for up, merge, skip in zip(self.up, self.merge, skips[-2::-1], strict=True):
            x = merge(F.concat([skip, up(x)], axis=1))
        return self.out(x)


class FPN(M.Module):
    def __init__(self):
        super().__init__()
        self.stages = [conv_bn(3, 6, 3, 2, act=M.ReLU), conv_bn(6, 8, 3, 2, act=M.ReLU), conv_bn(8, 10, 3, 2)]
        self.laterals = [M.Conv2d(c, 8, 1) for c in (6, 8, 10)]
        self.outputs = {f"p{i}": M.Conv2d(8, 8, 3, padding=1) for i in range(3)}

    def forward(self, x):
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        top = self.laterals[-1](features[-1])
        results = {"p2": self.outputs["p2"](top)}
        for i in (1, 0):
            size = features[i].shape[2:]
            top = self.laterals[i](features[i]) + F.vision.interpolate(
                top, size=size, mode="bilinear", align_corners=False
            )
            results[f"p{i}"] = self.outputs[f"p{i}"](top)
        return results


class DetectionHead(M.Module):
    """As RetinaNet's: two towers of shared layers over all levels, decoded boxes."""

    def __init__(self, channels=8, classes=3, anchors=2):
        super().__init__()
        self.classes, self.anchors = classes, anchors
        self.cls_tower = M.Sequential(M.Conv2d(channels, channels, 3, 1, 1), M.ReLU())
        self.box_tower = M.Sequential(M.Conv2d(channels, channels, 3, 1, 1), M.ReLU())
        self.score = M.Conv2d(channels, anchors * classes, 3, 1, 1)
        self.delta = M.Conv2d(channels, anchors * 4, 3, 1, 1)

    def permuted(self, x, width):
        n, _, h, w = x.shape
        x = F.transpose(F.reshape(x, (n, self.anchors, width, h, w)), (0, 3, 4, 1, 2))
        return F.reshape(x, (n, -1, width))

    def forward(self, features):
        scores = [self.permuted(self.score(self.cls_tower(f)), self.classes) for f in features]
        deltas = [self.permuted(self.delta(self.box_tower(f)), 4) for f in features]
        return scores, deltas


class RetinaNet(M.Module):
    def __init__(self):
        super().__init__()
        self.backbone = FPN()
        self.head = DetectionHead()
        self.anchor = Tensor(np.float32([[2, 2, 4, 4]]))

    def forward(self, image, im_info=None):
        pyramid = self.backbone(image)
        scores, deltas = self.head([pyramid[k] for k in ("p0", "p1", "p2")])
        scores, deltas = F.concat(scores, axis=1), F.concat(deltas, 1)
        centre = self.anchor[:, :2] + deltas[..., :2] * self.anchor[:, 2:]
        half = F.exp(F.clip(deltas[..., 2:], upper=4.0)) * self.anchor[:, 2:] / 2
        boxes = F.concat([centre - half, centre + half], axis=-1)
        best, index = F.topk(F.sigmoid(scores).max(axis=-1), 5, descending=True)
        return {"boxes": boxes, "scores": F.sigmoid(scores), "best": (best, [index])}


class FCOSHead(M.Module):
    """A learnt scale for each level; centerness."""

    def __init__(self, channels=4):
        super().__init__()
        self.tower = conv_bn(channels, channels, 3, act=M.ReLU)
        self.box, self.ctr = M.Conv2d(channels, 4, 3, padding=1), M.Conv2d(channels, 1, 3, padding=1)
        self.scale_list = Parameter([1.0, 2.0])

    def forward(self, levels):
        boxes, centers = [], []
        for i, level in enumerate(levels):
            y = self.tower(level)
            boxes.append(F.relu(self.box(y) * self.scale_list[i]) * (8 * 2**i))
            centers.append(self.ctr(y))
        return boxes, centers


class Decoupled(M.Module):
    """YOLOX: outputs of all levels with a grid added."""

    def __init__(self):
        super().__init__()
        self.stems = [conv_bn(3, 6, 3, 2, act=M.SiLU), conv_bn(6, 6, 3, 2, act=M.SiLU)]
        self.reg = [M.Conv2d(6, 4, 1), M.Conv2d(6, 4, 1)]
        self.obj = [M.Conv2d(6, 1, 1), M.Conv2d(6, 1, 1)]

    def forward(self, x):
        outputs = []
        for level, (stem, reg, obj) in enumerate(zip(self.stems, self.reg, self.obj, strict=True)):
            x = stem(x)
            out = F.concat([reg(x), F.sigmoid(obj(x))], 1)
            n, _, h, w = out.shape
            rows = F.broadcast_to(F.arange(h).reshape(1, h, 1), (n, h, w))
            columns = F.broadcast_to(F.arange(w).reshape(1, 1, w), (n, h, w))
            stride = 2 ** (level + 1)
            out[:, 0] = (out[:, 0] + columns) * stride
            out[:, 1] = (out[:, 1] + rows) * stride
            out[:, 2:4] = F.exp(out[:, 2:4]) * stride
            outputs.append(F.transpose(F.flatten(out, 2), (0, 2, 1)))
        return F.concat(outputs, 1)


class ASPP(M.Module):
    """DeepLab's pyramid of dilated convolutions and a pooled picture."""

    def __init__(self, cin=6, cout=4):
        super().__init__()
        self.convs = [M.Conv2d(cin, cout, 3, padding=d, dilation=d, bias=False) for d in (1, 2, 3)]
        self.pool = M.Sequential(M.AdaptiveAvgPool2d(1), M.Conv2d(cin, cout, 1))
        self.project = conv_bn(4 * cout, cout, 1, act=M.ReLU)

    def forward(self, x):
        pooled = F.vision.interpolate(self.pool(x), size=x.shape[2:], mode="nearest")
        return self.project(F.concat([conv(x) for conv in self.convs] + [pooled], axis=1))


class DeepLab(M.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.aspp = conv_bn(3, 6, 3, 2, act=M.ReLU), ASPP()
        self.classifier = M.Conv2d(4, 3, 1)

    def forward(self, x):
        y = self.classifier(self.aspp(self.backbone(x)))
        return F.vision.interpolate(y, scale_factor=2, mode="bilinear")


class Generator(M.Module):
    """DCGAN."""

    def __init__(self):
        super().__init__()
        self.project = M.Linear(6, 8 * 4)
        self.layers = [M.ConvTranspose2d(8, 6, 4, 2, 1, bias=False), M.BatchNorm2d(6), M.ConvTranspose2d(6, 3, 4, 2, 1)]

    def forward(self, z):
        x = F.relu(self.project(z)).reshape(-1, 8, 2, 2)
        up1, norm, up2 = self.layers
        return F.tanh(up2(F.leaky_relu(norm(up1(x)), 0.2)))


class Discriminator(M.Module):
    def __init__(self):
        super().__init__()
        self.main = M.Sequential(M.Conv2d(3, 6, 4, 2, 1), M.LeakyReLU(0.2), M.InstanceNorm(6), M.Conv2d(6, 1, 4))

    def forward(self, real, fake):
        return F.sigmoid(self.main(real)).reshape(-1), F.sigmoid(self.main(fake)).reshape(-1)


class GAN(M.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = Generator(), Discriminator()

    def forward(self, z, real):
        fake = self.generator(z)
        return fake, self.discriminator(real, fake)


class StyleBlock(M.Module):
    """Feature-wise scale and shift (AdaIN), noise, upsampling."""

    def __init__(self):
        super().__init__()
        self.const = Parameter(np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 4, 4, 4))
        self.style = M.Linear(5, 8)
        self.conv = M.Conv2d(4, 4, 3, padding=1)

    def forward(self, w, noise):
        n = w.shape[0]
        x = F.broadcast_to(self.const, (n, 4, 4, 4))
        x = self.conv(F.repeat(F.repeat(x, 2, axis=2), 2, axis=3)) + noise
        mean = x.mean(axis=(2, 3), keepdims=True)
        x = (x - mean) / F.sqrt(((x - mean) ** 2).mean(axis=(2, 3), keepdims=True) + 1e-5)
        scale, shift = F.split(F.expand_dims(self.style(w), [2, 3]), 2, axis=1)
        return x * (scale + 1) + shift


class Hourglass(M.Module):
    """A network inside of itself."""

    def __init__(self, depth, channels):
        super().__init__()
        self.skip, self.low1, self.low3 = (M.Conv2d(channels, channels, 3, padding=1) for _ in range(3))
        self.low2 = Hourglass(depth - 1, channels) if depth > 1 else M.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        low = self.low3(F.relu(self.low2(F.relu(self.low1(F.max_pool2d(x, 2))))))
        return self.skip(x) + F.vision.interpolate(low, scale_factor=2, mode="nearest")


class StackedHourglass(M.Module):
    """Intermediate heat maps fed back."""

    def __init__(self):
        super().__init__()
        self.stem = M.Conv2d(3, 4, 3, padding=1)
        self.glasses = [Hourglass(2, 4), Hourglass(2, 4)]
        self.heads, self.back = [M.Conv2d(4, 2, 1), M.Conv2d(4, 2, 1)], M.Conv2d(2, 4, 1)

    def forward(self, x):
        x, maps = self.stem(x), []
        for i, (glass, head) in enumerate(zip(self.glasses, self.heads, strict=True)):
            y = glass(x)
            maps.append(head(y))
            if i == 0:
                x = x + y + self.back(maps[-1])
        return maps


class SuperResolution(M.Module):
    """EDSR: residual blocks with a factor, pixel shuffle, a long skip."""

    def __init__(self):
        super().__init__()
        self.mean = Tensor(np.float32([0.4, 0.5, 0.6]).reshape(1, 3, 1, 1))
        self.head = M.Conv2d(3, 8, 3, padding=1)
        self.body = [M.Sequential(M.Conv2d(8, 8, 3, 1, 1), M.PReLU(8), M.Conv2d(8, 8, 3, 1, 1)) for _ in range(2)]
        self.tail = M.Sequential(M.Conv2d(8, 12, 3, padding=1), M.PixelShuffle(2))

    def forward(self, x):
        x = self.head(x - self.mean)
        y = x
        for block in self.body:
            y = y + block(y) * 0.1
        return F.clip(self.tail(x + y) + self.mean, 0.0, 1.0)


class ESPCN(M.Module):
    """Pixel shuffle written by hand."""

    def __init__(self, factor=3):
        super().__init__()
        self.factor, self.conv = factor, M.Conv2d(1, factor**2, 3, padding=1)

    def forward(self, x):
        n, _, h, w = x.shape
        r = self.factor
        y = F.tanh(self.conv(x)).reshape(n, r, r, h, w)
        return F.transpose(y, (0, 3, 1, 4, 2)).reshape(n, 1, h * r, w * r)


class AutoEncoder(M.Module):
    """A variational one, with the noise given."""

    def __init__(self):
        super().__init__()
        self.encoder = M.Sequential(M.Linear(12, 8), M.Tanh())
        self.mu, self.logvar = M.Linear(8, 3), M.Linear(8, 3)
        self.decoder = M.Sequential(M.Linear(3, 8), M.Sigmoid(), M.Linear(8, 12))

    def forward(self, x, *, noise):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + F.exp(0.5 * logvar) * noise
        kld = -0.5 * (1 + logvar - mu**2 - F.exp(logvar)).sum(axis=1)
        return self.decoder(z), kld.mean()


class DeformableBlock(M.Module):
    """Offsets and mask from a convolution; regions pooled by RoIAlign."""

    def __init__(self):
        super().__init__()
        self.offset, self.deform = M.Conv2d(4, 27, 3, padding=1), M.DeformableConv2d(4, 4, 3, padding=1)
        self.stem = M.Conv2d(3, 4, 1)

    def forward(self, x, rois):
        x = self.stem(x)
        moved = self.offset(x)
        y = F.relu(self.deform(x, moved[:, :18], F.sigmoid(moved[:, 18:])))
        return F.vision.roi_align(y, rois, (2, 2), spatial_scale=0.5)


class PointNet(M.Module):
    """Points [N, P, 3] through shared layers, a learnt rotation, the largest of each feature."""

    def __init__(self):
        super().__init__()
        self.transform = M.Linear(3, 9)
        self.mlp = M.Sequential(M.Conv1d(3, 8, 1), M.ReLU(), M.Conv1d(8, 12, 1))
        self.segment = M.Conv1d(20 - 5, 4, 1)

    def forward(self, points):
        rotation = self.transform(points.mean(axis=1)).reshape(-1, 3, 3)
        x = F.transpose(F.matmul(points, rotation + F.eye(3)), (0, 2, 1))
        features = self.mlp(x)
        largest = F.max(features, axis=2, keepdims=True)
        both = F.concat([x, F.broadcast_to(largest, features.shape)], axis=1)
        return F.logsoftmax(self.segment(both), axis=1), F.squeeze(largest, 2)


class Volume(M.Module):
    """A convolution over space and time."""

    def __init__(self):
        super().__init__()
        self.conv = M.Conv3d(2, 4, 3, padding=1)
        self.up = M.ConvTranspose3d(4, 2, 2, stride=2)

    def forward(self, x):
        return self.up(F.relu(self.conv(x)))


class Siamese(M.Module):
    """One network for two pictures; distance of normalised embeddings."""

    def __init__(self):
        super().__init__()
        self.embed = M.Sequential(M.Conv2d(1, 4, 3, 2), M.ReLU(), M.AdaptiveAvgPool2d(2))
        self.fc = M.Linear(16, 6)

    def embedding(self, x):
        return F.normalize(self.fc(F.flatten(self.embed(x), 1)), axis=1)

    def forward(self, pair):
        a, b = self.embedding(pair["left"]), self.embedding(pair["right"])
        return {"distance": F.norm(a - b, axis=1), "angle": (a * b).sum(axis=1)}


class SpatialTransformer(M.Module):
    """A predicted 2x3 matrix becomes a grid by which the picture is read."""

    def __init__(self):
        super().__init__()
        self.loc = M.Linear(2 * 8 * 8, 6)
        self.bias = Tensor(np.float32([1, 0, 0, 0, 1, 0]))

    def forward(self, x):
        n, _, h, w = x.shape
        theta = (self.loc(F.flatten(x, 1)) * 0.1 + self.bias).reshape(n, 2, 3)
        ys = F.broadcast_to(F.expand_dims(F.arange(h), 1), (h, w))
        xs = F.broadcast_to(F.expand_dims(F.arange(w), 0), (h, w))
        grid = F.stack([xs, ys, F.ones((h, w))], axis=-1).reshape(1, h * w, 3)
        where = F.matmul(F.broadcast_to(grid, (n, h * w, 3)), theta.transpose(0, 2, 1)).reshape(n, h, w, 2)
        return F.vision.remap(x, where)


def fcos_levels():
    return ([values(2, 4, 8, 8), values(2, 4, 4, 4, seed=1)],)


NETS = {
    "unet": net_of(UNet, picture(16)),
    "fpn": net_of(FPN, picture(16)),
    "retinanet": net_of(RetinaNet, picture(16)),
    "fcos_head": net_of(FCOSHead, fcos_levels),
    "yolox_head": net_of(Decoupled, picture(16)),
    "deeplab": net_of(DeepLab, picture(16)),
    "gan": net_of(GAN, lambda: (values(2, 6), values(2, 3, 8, 8))),
    "style_block": net_of(StyleBlock, lambda: (values(2, 5), values(2, 1, 8, 8))),
    "hourglass": net_of(StackedHourglass, picture(8)),
    "edsr": net_of(SuperResolution, picture(8)),
    "espcn": net_of(ESPCN, picture(5, channels=1)),
    "autoencoder": net_of(AutoEncoder, lambda: (values(2, 12), {"noise": values(2, 3)})),
    "deformable": net_of(
        DeformableBlock, lambda: (values(1, 3, 8, 8), Tensor(np.float32([[0, 1, 1, 12, 14], [0, 3, 0, 8, 9]])))
    ),
    "pointnet": net_of(PointNet, lambda: (values(2, 7, 3),)),
    "volume": net_of(Volume, lambda: (values(1, 2, 3, 4, 5),)),
    "siamese": net_of(Siamese, lambda: ({"left": values(2, 1, 9, 9), "right": values(2, 1, 9, 9, seed=1)},)),
    "spatial_transformer": net_of(SpatialTransformer, picture(8, channels=2)),
}
