"""Batches of data: data sets, samplers, transforms, and a loader that reads them in this process."""

from typing import Any

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


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)


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
