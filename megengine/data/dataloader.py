"""Batches of a data set, one after the other."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Iterator, Sized
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np

from megengine.core.effectless import warn_once
from megengine.core.errors import ArgumentError, OptionError
from megengine.data import workers
from megengine.data.collator import Collator
from megengine.data.dataset import StreamDataset
from megengine.data.sampler import MapSampler, Sampler, SequentialSampler, StreamSampler
from megengine.data.transform import PseudoTransform
from megengine.dispatch.refusal import constructor
from megengine.tensor import Tensor


class DataLoader:
    """Iterating gives batches of NumPy arrays: items of `dataset` by `sampler`, transformed, joined by `collator`.

    `num_workers` processes make batches ahead, in the order of the sampler; 0 makes them in this process. Random
    numbers in workers follow from `megengine.random.seed`, whatever their number. A batch that takes more than
    `timeout` seconds (0: any time), an error in a worker, and its end raise WorkerError, a RuntimeError. Workers are
    forked on Linux, unless `multiprocessing.set_start_method` was called.

    A StreamDataset takes a StreamSampler (by default with batches of one) and is read once to its end, by one worker
    at most; the last batch may be shorter. With `parallel_stream` each worker reads the whole stream, in turns.
    With `preload` batches hold tensors, and one batch is made and copied to the device ahead.

    >>> for x, y in DataLoader(ArrayDataset(pictures, labels), RandomSampler(...)):  # doctest: +SKIP
    """

    @constructor
    def __init__(
        self,
        dataset: Any,
        sampler: Sampler | None = None,
        transform: Any = None,
        collator: Any = None,
        num_workers: int = 0,
        timeout: float = 0,
        preload: bool = False,
        parallel_stream: bool = False,
    ) -> None:
        if not hasattr(dataset, "__getitem__") or isinstance(dataset, (str, bytes)):
            raise ArgumentError(f"DataLoader: dataset is a {type(dataset).__name__}; expected something with items")
        if transform is not None and not hasattr(transform, "apply_batch") and not callable(transform):
            raise ArgumentError(f"DataLoader: transform is a {type(transform).__name__}; expected a Transform")
        if collator is not None and not hasattr(collator, "apply"):
            raise ArgumentError(f"DataLoader: collator is a {type(collator).__name__}; expected a Collator")
        if not isinstance(num_workers, numbers.Integral):
            raise ArgumentError(f"DataLoader: num_workers is {num_workers!r}; expected an integer of at least 0")
        if num_workers < 0 or timeout < 0:
            raise OptionError(f"DataLoader: num_workers={num_workers}, timeout={timeout}; expected at least 0")
        self.dataset, self.transform = dataset, PseudoTransform() if transform is None else transform
        self.sampler = _sampler_for(dataset, sampler)
        self.collator = Collator() if collator is None else collator
        self.num_workers, self.timeout, self.preload = num_workers, timeout, preload
        self.parallel_stream = parallel_stream
        self._passes = itertools.count()
        for name in ("timeout", "parallel_stream"):
            if getattr(self, name) and not num_workers:
                warn_once(f"DataLoader({name}=...)", "with num_workers=0 all is read in this process")

    def __len__(self) -> int:
        if isinstance(self.dataset, StreamDataset):
            raise ArgumentError("DataLoader: the batches of a StreamDataset have no number; iterate over them")
        return len(cast(Sized, self.sampler))  # samplers of data sets with items have a length

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        return _tensors_ahead(batches) if self.preload else batches

    def _batches(self) -> Iterator[Any]:
        make = partial(_maker, self.dataset, self.transform, self.collator)
        if self.num_workers:
            alone = isinstance(self.dataset, StreamDataset) and not self.parallel_stream
            crew = workers.Crew(1 if alone else int(self.num_workers), self.timeout, next(self._passes))
            yield from workers.batches(make, iter(self.sampler), crew)
            return
        batch_of = make()
        for indices in self.sampler:
            batch = batch_of(indices)
            if not batch:
                return
            yield batch[0]


def _maker(dataset: Any, transform: Any, collator: Any) -> workers.Make:
    """Makes batches of indices, in the process that calls it: [batch], or [] where a stream has ended."""
    items = iter(dataset) if isinstance(dataset, StreamDataset) else None
    together = hasattr(transform, "apply_batch")

    def batch_of(indices: list[Any]) -> list[Any]:
        batch = [dataset[i] for i in indices] if items is None else list(islice(items, len(indices)))
        if not batch and items is not None:
            return []
        return [collator.apply(transform.apply_batch(batch) if together else list(map(transform, batch)))]

    return batch_of


def _tensors_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches as tensors of the default device; each is asked for before the one in front of it is used."""
    waiting = None
    for batch in batches:
        if waiting is not None:
            yield waiting[0]
        waiting = [_tensors(batch)]
    if waiting is not None:
        yield waiting[0]


def _tensors(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _tensors(part) for key, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(_tensors, batch))
    return Tensor(batch) if isinstance(batch, np.ndarray) else batch


def _sampler_for(dataset: Any, sampler: Any) -> Sampler:
    """The sampler, or the usual one of the data set. Raises ArgumentError for one that does not fit it."""
    streams = isinstance(dataset, StreamDataset)
    if sampler is None:
        return StreamSampler() if streams else SequentialSampler(dataset)
    if not isinstance(sampler, Sampler):
        raise ArgumentError(f"DataLoader: sampler is a {type(sampler).__name__}; expected a Sampler")
    if isinstance(sampler, MapSampler) if streams else isinstance(sampler, StreamSampler):
        expected = "a StreamSampler" if streams else "one that gives its indices, such as SequentialSampler"
        raise ArgumentError(
            f"DataLoader: the sampler of a {type(dataset).__name__} is a {type(sampler).__name__}; expected {expected}"
        )
    return sampler


__all__ = ["DataLoader"]
