"""Elementwise functions; derived from the op records."""

from megengine import ops  # noqa: F401  (declares them)
from megengine.core.exports import exports, face

_nn = exports("megengine.functional.nn")  # MegEngine has these here too
globals().update({name: _nn[name] for name in ("hsigmoid", "hswish", "relu", "relu6", "sigmoid")})
face(globals())
