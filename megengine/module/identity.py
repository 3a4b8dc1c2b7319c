"""The layer that does nothing."""

from __future__ import annotations

from typing import Any

from megengine.module.module import Module


class Identity(Module):
    """The input itself."""

    def forward(self, x: Any) -> Any:
        """Any value."""
        return x
