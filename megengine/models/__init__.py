"""Convolutional networks in plain style, and their published weights."""

from functools import partial

from megengine.core import absent
from megengine.models.efficientnet import EfficientNetLite0, efficientnet_lite0
from megengine.models.mobilenet import MobileNetV2, mobilenet_v2
from megengine.models.pretrained import PRETRAINED, Preprocessing, adapt, load_pretrained, load_published, preprocessing
from megengine.models.resnet import ResNet, resnet18, resnet50
from megengine.models.squeezenet import SqueezeNet, squeezenet1_1

__getattr__ = partial(absent.part_or_error, __name__)

__all__ = [
    "PRETRAINED",
    "EfficientNetLite0",
    "MobileNetV2",
    "Preprocessing",
    "ResNet",
    "SqueezeNet",
    "adapt",
    "efficientnet_lite0",
    "load_pretrained",
    "load_published",
    "mobilenet_v2",
    "preprocessing",
    "resnet18",
    "resnet50",
    "squeezenet1_1",
]
