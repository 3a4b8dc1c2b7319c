"""Functions of losses; derived from the op records."""

from functools import partial

from megengine import ops  # noqa: F401  (declares them)
from megengine.core.exports import exported, exports

__getattr__ = partial(exported, __name__)  # what was declared later
globals().update(exports(__name__))
__all__ = sorted(exports(__name__))
