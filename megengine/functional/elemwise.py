"""Functions of elementwise; derived from the op records."""

from megengine import ops  # noqa: F401  (declares them)
from megengine.dispatch import exports

globals().update(exports(__name__))
__all__ = sorted(exports(__name__))
