"""Layers one after the other."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from megengine.module.module import Module


class Sequential(Module):
    """Layers one after the other; given as modules or as one ordered dict."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = isinstance(args[0], OrderedDict) if len(args) == 1 else False
        entries = args[0].items() if named else ((str(i), m) for i, m in enumerate(args))
        self.layer_keys = []
        for key, module in entries:
            setattr(self, key, module)
            self.layer_keys.append(key)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Sequential(OrderedDict((k, getattr(self, k)) for k in self.layer_keys[index]))
        return getattr(self, self.layer_keys[index])

    def __len__(self) -> int:
        return len(self.layer_keys)

    def __iter__(self):
        return (getattr(self, k) for k in self.layer_keys)

    def forward(self, inp: Any) -> Any:
        """Through every layer in turn."""
        for layer in list(self):  # all are read before the first is called: traced graphs show it
            inp = layer(inp)
        return inp
