"""Data sets of pictures: those of published files, and pictures in folders."""

from functools import partial

from megengine.core import absent
from megengine.data.dataset.vision.cifar import CIFAR10, CIFAR100
from megengine.data.dataset.vision.cityscapes import Cityscapes
from megengine.data.dataset.vision.coco import COCO
from megengine.data.dataset.vision.folder import ImageFolder
from megengine.data.dataset.vision.imagenet import ImageNet
from megengine.data.dataset.vision.meta_vision import VisionDataset
from megengine.data.dataset.vision.mnist import MNIST
from megengine.data.dataset.vision.objects365 import Objects365
from megengine.data.dataset.vision.voc import PascalVOC

__getattr__ = partial(absent.part_or_error, __name__)

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COCO",
    "MNIST",
    "Cityscapes",
    "ImageFolder",
    "ImageNet",
    "Objects365",
    "PascalVOC",
    "VisionDataset",
]
