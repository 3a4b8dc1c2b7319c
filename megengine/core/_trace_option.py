"""MegEngine's path of settings of `jit.trace`."""

from megengine.utils.network import set_symbolic_shape, use_symbolic_shape


def use_xla_backend() -> bool:
    """False: there is no XLA."""
    return False


def set_use_xla_backend(option: bool) -> bool:
    """False, what it was: there is no XLA."""
    return False


__all__ = ["set_symbolic_shape", "set_use_xla_backend", "use_symbolic_shape", "use_xla_backend"]
