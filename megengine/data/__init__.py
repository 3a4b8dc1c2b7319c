"""Batches of data: data sets, samplers, transforms, and a loader that reads them, in worker processes too."""

from functools import partial

from megengine.core import absent
from megengine.data import dataset, transform
from megengine.data.collator import Collator
from megengine.data.dataloader import DataLoader
from megengine.data.sampler import (
    Infinite,
    MapSampler,
    RandomSampler,
    ReplacementSampler,
    Sampler,
    SequentialSampler,
    StreamSampler,
)

__getattr__ = partial(absent.part_or_error, __name__)


__all__ = [
    "Collator",
    "DataLoader",
    "Infinite",
    "MapSampler",
    "RandomSampler",
    "ReplacementSampler",
    "Sampler",
    "SequentialSampler",
    "StreamSampler",
    "dataset",
    "transform",
]
