"""All op classes by name, as MegEngine's `megengine.core.ops.builtin` has them."""

from __future__ import annotations

from megengine.compat import convolutions, elementwise, indexing, layers, refused, shapes, vision  # noqa: F401
from megengine.compat.opdef import CLASSES, declare_all

declare_all()
__all__ = sorted(CLASSES)
