"""Functions of shape and creation; derived from the op records."""

from megengine import ops  # noqa: F401  (declares them)
from megengine.core.exports import face
from megengine.functional.helpers import broadcast_cpp, expand_dims_cpp, get_device, split_cpp, squeeze_cpp  # noqa: F401  (MegEngine has these here too)

face(globals())
