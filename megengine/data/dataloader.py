"""Batches of a data set, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from itertools import islice
from typing import Any, cast

from megengine.core.effectless import warn_once
from megengine.core.errors import ArgumentError, OptionError
from megengine.data.collator import Collator
from megengine.data.dataset import StreamDataset
from megengine.data.sampler import MapSampler, Sampler, SequentialSampler, StreamSampler
from megengine.data.transform import PseudoTransform
from megengine.dispatch.refusal import constructor


class DataLoader:
    """Iterating gives batches of NumPy arrays: items of `dataset` by `sampler`, transformed, joined by `collator`.

    A StreamDataset takes a StreamSampler (by default with batches of one) and is read once to its end; the last batch
    may be shorter. All is read in this process: `num_workers`, `timeout`, `preload` and `parallel_stream` have no
    effect, as a warning says.

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
        if num_workers < 0 or timeout < 0:
            raise OptionError(f"DataLoader: num_workers={num_workers}, timeout={timeout}; expected at least 0")
        self.dataset, self.transform = dataset, PseudoTransform() if transform is None else transform
        self.sampler = _sampler_for(dataset, sampler)
        self.collator = Collator() if collator is None else collator
        self.num_workers, self.timeout, self.preload = num_workers, timeout, preload
        self.parallel_stream = parallel_stream
        for name in ("num_workers", "timeout", "preload", "parallel_stream"):
            if getattr(self, name):
                warn_once(f"DataLoader({name}=...)", "all is read in this process")

    def __len__(self) -> int:
        if isinstance(self.dataset, StreamDataset):
            raise ArgumentError("DataLoader: the batches of a StreamDataset have no number; iterate over them")
        return len(cast(Sized, self.sampler))  # samplers of data sets with items have a length

    def __iter__(self) -> Iterator[Any]:
        transform: Any = self.transform
        together = hasattr(transform, "apply_batch")
        for items in self._batches():
            yield self.collator.apply(transform.apply_batch(items) if together else list(map(transform, items)))

    def _batches(self) -> Iterator[list[Any]]:
        if not isinstance(self.dataset, StreamDataset):
            yield from ([self.dataset[i] for i in indices] for indices in self.sampler)
            return
        items = iter(self.dataset)
        for indices in self.sampler:
            batch = list(islice(items, len(indices)))
            if batch:
                yield batch
            if len(batch) < len(indices):
                return


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
