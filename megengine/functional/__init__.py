"""Every public function, derived from the op records."""

from megengine.functional import elemwise, loss, math, nn, tensor

for _module in (elemwise, loss, math, nn, tensor):
    globals().update({name: getattr(_module, name) for name in _module.__all__})
__all__ = sorted({name for module in (elemwise, loss, math, nn, tensor) for name in module.__all__})
del _module
