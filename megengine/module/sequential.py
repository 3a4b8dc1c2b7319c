"""Layers one after the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from megengine.core.calls import shown
from megengine.core.errors import ArgumentError
from megengine.module.module import Module
from megengine.module.settings import set_as_edit


class Sequential(Module):
    """Layers one after the other; given as modules, or as one ordered dict of them.

    >>> net = Sequential(Linear(4, 8), ReLU())  # doctest: +SKIP
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        named = len(args) == 1 and isinstance(args[0], dict)
        entries = args[0].items() if named else ((str(i), m) for i, m in enumerate(args))
        self.layer_keys: list[str] = []
        for key, module in entries:
            if not callable(module):
                raise ArgumentError(f"Sequential: layer {key!r} is {shown(module)}; expected a Module")
            setattr(self, key, module)
            self.layer_keys.append(key)

    def __getitem__(self, idx: int | slice | str) -> Any:
        if isinstance(idx, slice):
            return Sequential(OrderedDict((k, getattr(self, k)) for k in self.layer_keys[idx]))
        return getattr(self, idx if isinstance(idx, str) else self.layer_keys[idx])

    def __setitem__(self, idx: int, module: Module) -> None:
        key = self.layer_keys[idx]
        if not set_as_edit(self, key, module, Module):
            setattr(self, key, module)

    def __delitem__(self, idx: int | slice) -> None:
        gone = self.layer_keys[idx] if isinstance(idx, slice) else [self.layer_keys[idx]]
        left = [key for key in self.layer_keys if key not in gone]
        if set_as_edit(self, "layer_keys", left, Module):
            return  # the layers stay: an edit can be undone
        for key in gone:
            delattr(self, key)
        self.layer_keys = left

    def __len__(self) -> int:
        return len(self.layer_keys)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layer_values)

    @property
    def layer_values(self) -> list[Any]:
        """The layers in order."""
        return [getattr(self, k) for k in self.layer_keys]

    def forward(self, inp: Any) -> Any:
        """Through every layer in turn."""
        for layer in self.layer_values:  # all are read before the first is called: traced graphs show it
            inp = layer(inp)
        return inp
