"""Functions of elementwise; derived from the op records."""

from functools import partial

from megengine import ops  # noqa: F401  (declares them)
from megengine.core.exports import exported, exports

__getattr__ = partial(exported, __name__)  # what was declared later
# MegEngine has these here too.
_nn = exports("megengine.functional.nn")
globals().update({name: _nn[name] for name in ("hsigmoid", "hswish", "relu", "relu6", "sigmoid")})
globals().update(exports(__name__))
__all__ = sorted(exports(__name__))
