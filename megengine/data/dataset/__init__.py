"""Data sets, which have a length and an item for each index; and streams, which give one item after the other."""

from functools import partial

from megengine.core import absent
from megengine.data.dataset.meta_dataset import ArrayDataset, ConcatDataset, Dataset, StreamDataset
from megengine.data.dataset.vision import (
    CIFAR10,
    CIFAR100,
    COCO,
    MNIST,
    Cityscapes,
    ImageFolder,
    ImageNet,
    Objects365,
    PascalVOC,
    VisionDataset,
)

__getattr__ = partial(absent.part_or_error, __name__)

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COCO",
    "MNIST",
    "ArrayDataset",
    "Cityscapes",
    "ConcatDataset",
    "Dataset",
    "ImageFolder",
    "ImageNet",
    "Objects365",
    "PascalVOC",
    "StreamDataset",
    "VisionDataset",
]
