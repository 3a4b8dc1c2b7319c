"""Data sets: what has a length and gives an item for a number."""

from __future__ import annotations

from typing import Any

from megengine.core import absent
from megengine.core.errors import MissingMethodError, ShapeError


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


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)


__all__ = ["ArrayDataset", "Dataset"]
