"""Functions of reductions and matrix products; derived from the op records."""

from megengine import ops  # noqa: F401  (declares them)
from megengine.core.exports import face

face(globals())
