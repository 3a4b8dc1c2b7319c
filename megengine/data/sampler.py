"""Samplers: the order of the items of a data set, and the size of batches."""

from __future__ import annotations

import itertools
import math
import numbers
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from megengine import random
from megengine.core.errors import ArgumentError, MissingMethodError, MissingNameError, OptionError
from megengine.core.exports import own_names
from megengine.core.text import counted
from megengine.dispatch.refusal import constructor


class Sampler(ABC):
    """Base: iterating gives batches of indices. Subclass it with `__init__` and `__iter__`."""

    @abstractmethod
    def __init__(self) -> None: ...

    def __iter__(self) -> Iterator[list[int]]:
        raise MissingMethodError(f"{type(self).__name__} has no __iter__; define it in the subclass")


def _positive(name: str, argument: str, value: Any) -> int:
    if not isinstance(value, numbers.Integral) or value < 1:
        raise ArgumentError(f"{name}: {argument} is {value!r}; expected an integer of at least 1")
    return int(value)


class StreamSampler(Sampler):
    """Batches of `batch_size` consecutive numbers without end: the items of a StreamDataset that form a batch."""

    @constructor
    def __init__(self, batch_size: int = 1) -> None:
        self.batch_size = _positive("StreamSampler", "batch_size", batch_size)

    def sample(self) -> Iterator[int]:
        """0, 1, 2, ..."""
        return itertools.count()

    def batch(self) -> Iterator[list[int]]:
        """The numbers of `sample()`, together."""
        numbers = iter(self.sample())
        while batch := list(itertools.islice(numbers, self.batch_size)):
            yield batch

    def __iter__(self) -> Iterator[list[int]]:
        return self.batch()


class MapSampler(Sampler):
    """Batches of `batch_size` indices, in the order of `sample()`; the last one may be shorter, or dropped.

    With a seed each sampler gives its own order, that of MegEngine 1.13; else it comes from `megengine.random.seed`. Of
    `world_size` parts of the data, `rank` (from 0) gets every `world_size`-th index; the first ones fill up the last.
    Parts without a seed take 0 for it, as in MegEngine, so that all ranks draw the same order.
    """

    @constructor
    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_samples: int | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        name = type(self).__name__
        if not hasattr(dataset, "__len__") or isinstance(dataset, (str, bytes)):
            raise ArgumentError(f"{name}: dataset is a {type(dataset).__name__}; expected something with a length")
        if not isinstance(drop_last, (bool, np.bool_)):
            raise ArgumentError(f"{name}: drop_last is {drop_last!r}; expected True or False")
        self.num_samples = len(dataset) if num_samples is None else _positive(name, "num_samples", num_samples)
        size, place = 1 if world_size is None else world_size, 0 if rank is None else rank
        if not all(isinstance(n, numbers.Integral) for n in (size, place)) or not 0 <= place < size:
            raise ArgumentError(f"{name}: world_size={world_size!r}, rank={rank!r}; expected 0 <= rank < world_size")
        self.world_size, self.rank = int(size), int(place)
        self.dataset, self.drop_last = dataset, bool(drop_last)
        self.batch_size = _positive(name, "batch_size", batch_size)
        self.rng = np.random.RandomState(seed or 0) if seed is not None or self.world_size > 1 else None

    def _take(self, indices: Sequence[int] | None) -> None:
        """Give these indices instead of all."""
        if indices is not None and (isinstance(indices, (str, bytes)) or not hasattr(indices, "__len__")):
            name = type(self).__name__
            raise ArgumentError(f"{name}: indices is a {type(indices).__name__}; expected a sequence of integers")
        self.indices = indices
        if indices is not None:
            self.num_samples = len(indices)

    def _generator(self) -> np.random.Generator | np.random.RandomState:
        return random.generator() if self.rng is None else self.rng

    def sample(self) -> list[int]:
        """Indices of one pass, in order."""
        raise MissingMethodError(f"{type(self).__name__} has no sample; define it in the subclass")

    def __len__(self) -> int:
        full, rest = divmod(math.ceil(self.num_samples / self.world_size), self.batch_size)
        return full + bool(rest and not self.drop_last)

    def scatter(self, indices: Sequence[int]) -> list[int]:
        """The part of `rank` of the indices."""
        whole = list(indices)
        return (whole + whole[: -len(whole) % self.world_size])[self.rank :: self.world_size]

    def batch(self) -> Iterator[list[int]]:
        """The part of `rank` of `sample()`, cut into batches."""
        indices = self.scatter(self.sample())  # a `sample` of one's own may give any number of them
        for at in range(0, len(indices), self.batch_size):
            batch = indices[at : at + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batch())


class SequentialSampler(MapSampler):
    """The indices of a data set in order, or those of `indices`."""

    @constructor
    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        indices: Sequence[int] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, None, world_size, rank)
        self._take(indices)

    def sample(self) -> list[int]:
        """The indices in order."""
        return list(range(self.num_samples)) if self.indices is None else list(self.indices)


class RandomSampler(MapSampler):
    """The indices of a data set (or those of `indices`), each once, in a new order at each pass.

    Parts of one data set are parts of one order: that of `seed`, which must be the same for every rank, or of 0.
    """

    @constructor
    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        indices: Sequence[int] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, None, world_size, rank, seed)
        self._take(indices)

    def sample(self) -> list[int]:
        """The indices in random order."""
        order = self._generator().permutation(self.num_samples).tolist()
        return order if self.indices is None else [self.indices[i] for i in order]


class ReplacementSampler(MapSampler):
    """`num_samples` indices drawn with replacement, with probabilities in proportion to `weights`."""

    @constructor
    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_samples: int | None = None,
        weights: Sequence[float] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, num_samples, world_size, rank, seed)
        shares = None if weights is None else np.asarray(weights, np.float64)
        if shares is not None and (shares.shape != (len(dataset),) or shares.min() < 0 or not shares.sum() > 0):
            raise OptionError(
                f"ReplacementSampler: weights are {shares.shape}; expected {counted(len(dataset), 'number')} >= 0"
            )
        self.weights = None if shares is None else shares / shares.sum()

    def sample(self) -> list[int]:
        """Indices drawn one by one, as many as make parts of equal length."""
        count = self.num_samples + -self.num_samples % self.world_size
        return self._generator().choice(len(self.dataset), count, p=self.weights).tolist()


class Infinite(MapSampler):
    """The batches of a sampler again and again; other attributes (`batch_size`, `drop_last`, ...) are the sampler's.

    Its length is `sys.maxsize`, the largest that Python allows.
    """

    @constructor
    def __init__(self, sampler: Iterable[list[int]]) -> None:
        self.sampler = sampler

    def __getattr__(self, name: str) -> Any:
        if name == "sampler" or name.startswith("__"):  # not made yet
            raise MissingNameError(f"Infinite has no attribute {name!r}")
        return getattr(self.sampler, name)

    def __len__(self) -> int:
        return sys.maxsize

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            before = 0
            for batch in self.sampler:
                before += 1
                yield batch
            if not before:
                raise OptionError("Infinite: the sampler gives no batch; the data set is empty or drop_last drops all")


__all__ = own_names(globals())
