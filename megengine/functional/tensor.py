"""Functions of shape and creation; derived from the op records."""

from functools import partial

from megengine import ops  # noqa: F401  (declares them)
from megengine.core.exports import exported, exports
from megengine.functional.helpers import (  # noqa: F401  (MegEngine has these here too)
    broadcast_cpp,
    expand_dims_cpp,
    get_device,
    split_cpp,
    squeeze_cpp,
)

__getattr__ = partial(exported, __name__)  # what was declared later
globals().update(exports(__name__))
__all__ = sorted(exports(__name__))
