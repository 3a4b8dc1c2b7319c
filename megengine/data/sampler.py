"""Samplers: in which order the items of a data set come, and how many together."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from megengine import random
from megengine.core.errors import ArgumentError, MissingMethodError, MissingNameError, OptionError


class Sampler:
    """Base: iterating gives batches of indices."""

    def __iter__(self) -> Iterator[list[int]]:
        raise MissingMethodError(f"{type(self).__name__} has no __iter__; define it in the subclass")


class MapSampler(Sampler):
    """Batches of `batch_size` indices, in the order of `sample()`; the last one may be shorter, or dropped.

    With a seed each sampler gives its own order, else the order comes from `megengine.random.seed`. Of `world_size`
    parts of the data, `rank` (from 0) gets every `world_size`-th index; the first ones fill up the last parts.
    """

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
        if not hasattr(dataset, "__len__") or not isinstance(batch_size, numbers.Integral) or batch_size < 1:
            raise ArgumentError(
                f"{name}: dataset is a {type(dataset).__name__}, batch_size={batch_size!r}; "
                "expected something with a length, and an integer of at least 1"
            )
        if isinstance(batch_size, bool) or not isinstance(drop_last, (bool, np.bool_)):
            raise ArgumentError(
                f"{name}: batch_size={batch_size!r}, drop_last={drop_last!r}; expected a number, a boolean"
            )
        if num_samples is not None and num_samples < 1:
            raise OptionError(f"{name}: num_samples is {num_samples}; expected at least 1")
        self.world_size, self.rank = 1 if world_size is None else int(world_size), 0 if rank is None else int(rank)
        if not 0 <= self.rank < self.world_size:
            raise OptionError(f"{name}: world_size={world_size}, rank={rank}; expected 0 <= rank < world_size")
        self.dataset, self.batch_size, self.drop_last = dataset, int(batch_size), bool(drop_last)
        self.num_samples = len(dataset) if num_samples is None else int(num_samples)
        self.rng = None if seed is None else np.random.default_rng(seed)

    def _generator(self) -> np.random.Generator:
        return random.generator() if self.rng is None else self.rng

    def sample(self) -> list[int]:
        """Indices of one pass, in order."""
        raise MissingMethodError(f"{type(self).__name__} has no sample; define it in the subclass")

    def __len__(self) -> int:
        full, rest = divmod(math.ceil(self.num_samples / self.world_size), self.batch_size)
        return full + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        indices = list(self.sample())
        indices += indices[: -len(indices) % self.world_size]
        indices = indices[self.rank :: self.world_size]
        for at in range(len(self)):
            yield indices[at * self.batch_size : (at + 1) * self.batch_size]


class SequentialSampler(MapSampler):
    """The indices of a data set in order, or those of `indices`."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        indices: Sequence[int] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        count = None if indices is None else len(indices)
        super().__init__(dataset, batch_size, drop_last, count, world_size, rank)
        self.indices = indices

    def sample(self) -> list[int]:
        """The indices in order."""
        return list(range(self.num_samples)) if self.indices is None else list(self.indices)


class RandomSampler(MapSampler):
    """The indices of a data set (or those of `indices`), each once, in a new order at each pass.

    Parts of one data set need one seed, so that they are parts of one order.
    """

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
        count = None if indices is None else len(indices)
        super().__init__(dataset, batch_size, drop_last, count, world_size, rank, seed)
        if self.world_size > 1 and seed is None:
            raise OptionError("RandomSampler: world_size is above 1; expected a seed, the same for every rank")
        self.indices = indices

    def sample(self) -> list[int]:
        """The indices in random order."""
        order = self._generator().permutation(self.num_samples).tolist()
        return order if self.indices is None else [self.indices[i] for i in order]


class ReplacementSampler(MapSampler):
    """`num_samples` indices drawn with replacement, with probabilities in proportion to `weights`."""

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
        given = None if weights is None else np.asarray(weights, np.float64)
        if given is not None and (given.shape != (len(dataset),) or given.min() < 0 or not given.sum() > 0):
            raise OptionError(f"ReplacementSampler: weights are {given.shape}; expected {len(dataset)} numbers >= 0")
        self.weights = None if given is None else given / given.sum()

    def sample(self) -> list[int]:
        """Indices drawn one by one."""
        return self._generator().choice(len(self.dataset), self.num_samples, p=self.weights).tolist()


class Infinite(Sampler):
    """The batches of a sampler again and again; other attributes (`batch_size`, `drop_last`, ...) are the sampler's.

    Its length is the largest that Python knows, `sys.maxsize`.
    """

    def __init__(self, sampler: Sampler) -> None:
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


__all__ = ["Infinite", "MapSampler", "RandomSampler", "ReplacementSampler", "Sampler", "SequentialSampler"]
