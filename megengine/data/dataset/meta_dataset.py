"""Data sets, which have a length and an item for each index; and streams, which give one item after the other."""

from __future__ import annotations

import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from megengine.core.errors import ArgumentError, IndexOutOfRangeError, OptionError, ShapeError
from megengine.core.text import counted
from megengine.dispatch.refusal import constructor, explains

__all__ = ["ArrayDataset", "ConcatDataset", "Dataset", "StreamDataset"]


class Dataset(ABC):
    """Base of data sets: subclass it with `__init__`, `__getitem__` and `__len__`."""

    @abstractmethod
    def __init__(self) -> None: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Any: ...

    @abstractmethod
    def __len__(self) -> int: ...


class StreamDataset(Dataset):
    """Base of data sets that are read in their own order: subclass it with `__init__` and `__iter__`."""

    @abstractmethod
    def __init__(self) -> None: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, index: int) -> Any:
        raise ArgumentError(f"{type(self).__name__}: a stream has no item {index!r}; iterate over it")

    def __len__(self) -> int:
        raise ArgumentError(f"{type(self).__name__}: a stream has no length; iterate over it")


class ArrayDataset(Dataset):
    """Rows of arrays of one length: item i is a tuple of the i-th row of each. Raises ShapeError otherwise."""

    @constructor
    def __init__(self, *arrays: Any) -> None:
        without = [a for a in arrays if not hasattr(a, "__len__")]
        if without:
            raise ArgumentError(f"ArrayDataset: got a {type(without[0]).__name__}; expected arrays")
        lengths = [len(a) for a in arrays]
        if len(set(lengths)) != 1:
            raise ShapeError(f"ArrayDataset: arrays have lengths {lengths}; expected one or more of equal length")
        self.arrays = arrays

    @explains
    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(a[index] for a in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])


class ConcatDataset(Dataset):
    """Data sets one after the other. Raises OptionError for none, IndexOutOfRangeError for an item outside."""

    @constructor
    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise OptionError("ConcatDataset: there is no data set; expected one or more")
        wrong = [d for d in self.datasets if isinstance(d, StreamDataset) or not hasattr(d, "__len__")]
        if wrong:
            raise ArgumentError(f"ConcatDataset: got a {type(wrong[0]).__name__}; expected data sets with a length")

    @explains
    def __getitem__(self, index: int) -> Any:
        at = operator.index(index)
        at = at + len(self) if at < 0 else at
        for dataset in self.datasets:
            if 0 <= at < len(dataset):
                return dataset[at]
            at -= len(dataset)
        raise IndexOutOfRangeError(f"ConcatDataset: item {index} is out of range for {counted(len(self), 'item')}")

    def __len__(self) -> int:
        return sum(map(len, self.datasets))

    @property
    def cumulative_sizes(self) -> list[int]:
        """Where each data set ends."""
        return list(itertools.accumulate(map(len, self.datasets)))
