"""Functions of neural networks; derived from the op records."""

from megengine import ops  # noqa: F401  (declares them)
from megengine.core.exports import face
from megengine.functional import helpers as _helpers
from megengine.functional import loss as _loss
from megengine.functional import math as _math
from megengine.functional import vision as _vision

# MegEngine has these here too.
globals().update({name: getattr(_home, name) for _home in (_loss, _vision) for name in _home.__all__})
normalize = _math.normalize  # pyright: ignore[reportAttributeAccessIssue]
_HELPERS = """Const adaptive_pool2d_cpp dtype_promotion expand_dhw expand_hw layerPixelShuffle_traceable
make_shape_tuple pixel_shuffle_cpp"""
globals().update({name: getattr(_helpers, name) for name in _HELPERS.split()})
face(globals())
