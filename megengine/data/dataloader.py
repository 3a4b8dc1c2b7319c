"""Batches of a data set, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megengine.core.effectless import warn_once
from megengine.core.errors import ArgumentError, OptionError
from megengine.data.collator import Collator
from megengine.data.sampler import Sampler, SequentialSampler


class DataLoader:
    """Iterating gives batches of NumPy arrays: items of `dataset` by `sampler`, transformed, joined by `collator`.

    All is read in this process: `num_workers`, `timeout`, `preload` and `parallel_stream` have no effect, as a warning
    says.

    >>> for x, y in DataLoader(ArrayDataset(pictures, labels), RandomSampler(...)):  # doctest: +SKIP
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Sampler | None = None,
        transform: Any = None,
        collator: Any = None,
        num_workers: int = 0,
        timeout: int = 0,
        preload: bool = False,
        parallel_stream: bool = False,
    ) -> None:
        if not hasattr(dataset, "__getitem__"):
            raise ArgumentError(f"DataLoader: dataset is a {type(dataset).__name__}; expected something with items")
        if transform is not None and not hasattr(transform, "apply_batch") and not callable(transform):
            raise ArgumentError(f"DataLoader: transform is a {type(transform).__name__}; expected a Transform")
        if num_workers < 0 or timeout < 0:
            raise OptionError(f"DataLoader: num_workers={num_workers}, timeout={timeout}; expected at least 0")
        if sampler is not None and not isinstance(sampler, Sampler):
            raise ArgumentError(f"DataLoader: sampler is a {type(sampler).__name__}; expected a Sampler")
        self.dataset, self.transform = dataset, transform
        self.sampler = SequentialSampler(dataset) if sampler is None else sampler
        self.collator = Collator() if collator is None else collator
        given = {"num_workers": num_workers, "timeout": timeout, "preload": preload, "parallel_stream": parallel_stream}
        for name in (name for name, value in given.items() if value):
            warn_once(f"DataLoader({name}=...)", "all is read in this process")
        self.num_workers, self.timeout, self.preload = num_workers, timeout, preload

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        apply_batch = getattr(self.transform, "apply_batch", None)
        for indices in self.sampler:
            items = [self.dataset[i] for i in indices]
            if apply_batch is not None:
                items = apply_batch(items)
            elif self.transform is not None:
                items = [self.transform(item) for item in items]
            yield self.collator.apply(items)


__all__ = ["DataLoader"]
