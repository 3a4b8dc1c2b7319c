"""The base of data sets of pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from megengine.core.errors import ArgumentError, MissingMethodError, UnsupportedError
from megengine.data.dataset.meta_dataset import Dataset
from megengine.dispatch.refusal import constructor

__all__ = ["VisionDataset"]


class VisionDataset(Dataset):
    """Base of data sets of pictures in a folder: `order` says what the parts of an item are, `("image",)` by default.

    A subclass names the parts that it can give in `supported_order`; UnsupportedError is raised for any other.
    """

    @constructor
    def __init__(
        self,
        root: str | bytes | os.PathLike[str] | None,
        *,
        order: Sequence[str] | None = None,
        supported_order: Sequence[str] | None = None,
    ) -> None:
        self.root = os.path.expanduser(root) if isinstance(root, (str, bytes)) else root
        self.order = ("image",) if order is None else order
        kind = type(self).__name__
        if not isinstance(self.order, Sequence):
            raise ArgumentError(f"{kind}: order is {order!r}; expected a sequence of names")
        supported = self.order if supported_order is None else supported_order
        for name in self.order:
            if name not in supported:
                raise UnsupportedError(f"{kind}: order names {name!r}; supported are {', '.join(supported)}")

    def __getitem__(self, index: int) -> Any:
        raise MissingMethodError(f"{type(self).__name__} has no __getitem__; define it in the subclass")

    def __len__(self) -> int:
        raise MissingMethodError(f"{type(self).__name__} has no __len__; define it in the subclass")
