"""Data sets: what has a length and gives an item for a number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megengine.core import absent
from megengine.core.errors import IndexOutOfRangeError, MissingMethodError, OptionError, ShapeError


class Dataset:
    """Base of data sets: subclass it with `__getitem__` and `__len__`."""

    def __getitem__(self, index: int) -> Any:
        raise MissingMethodError(f"{type(self).__name__} has no __getitem__; define it in the subclass")

    def __len__(self) -> int:
        raise MissingMethodError(f"{type(self).__name__} has no __len__; define it in the subclass")


class ArrayDataset(Dataset):
    """Rows of arrays of one length: item i is a tuple of the i-th row of each. Raises ShapeError otherwise."""

    def __init__(self, *arrays: Any) -> None:
        lengths = [len(a) for a in arrays]
        if len(set(lengths)) != 1:
            raise ShapeError(f"ArrayDataset: arrays have lengths {lengths}; expected one or more of equal length")
        self.arrays = arrays

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(a[index] for a in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])


class ConcatDataset(Dataset):
    """Data sets one after the other. Raises OptionError for none, IndexOutOfRangeError for an item outside."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise OptionError("ConcatDataset: there is no data set; expected one or more")

    def __getitem__(self, index: int) -> Any:
        at = index + len(self) if index < 0 else index
        for dataset in self.datasets:
            if 0 <= at < len(dataset):
                return dataset[at]
            at -= len(dataset)
        raise IndexOutOfRangeError(f"ConcatDataset: item {index} is out of range for {len(self)} items")

    def __len__(self) -> int:
        return sum(map(len, self.datasets))


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)


__all__ = ["ArrayDataset", "ConcatDataset", "Dataset"]
