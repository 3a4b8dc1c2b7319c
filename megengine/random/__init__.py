"""Random tensors from one process-wide state, `seed(value)` starts it anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from megengine.core.errors import OptionError
from megengine.tensor import Tensor

_state = [np.random.default_rng()]


def seed(value: int) -> None:
    """Start the process-wide generator from `value`."""
    _state[0] = np.random.default_rng(value)


def generator() -> np.random.Generator:
    """The process-wide NumPy generator."""
    return _state[0]


def _shape(size: Iterable[int] | int | None) -> tuple[int, ...]:
    if size is None:
        return (1,)
    return (size,) if isinstance(size, int) else tuple(int(n) for n in size)


def uniform(low: float = 0, high: float = 1, size: Iterable[int] | int | None = None) -> Tensor:
    """float32 of shape `size` ((1,) without), uniform in [low, high)."""
    if low > high:
        raise OptionError(f"uniform: low={low} is above high={high}")
    return Tensor(generator().random(_shape(size), np.float32) * (high - low) + low, dtype=np.float32)


def normal(mean: float = 0, std: float = 1, size: Iterable[int] | int | None = None) -> Tensor:
    """float32 of shape `size` ((1,) without), normal with this mean and standard deviation."""
    if std < 0:
        raise OptionError(f"normal: std={std}; expected at least 0")
    return Tensor(generator().standard_normal(_shape(size), np.float32) * std + mean, dtype=np.float32)


def _parameter(value: Any) -> np.ndarray:
    return np.asarray(value.numpy() if isinstance(value, Tensor) else value, np.float64)


def _sized(*parameters: np.ndarray, size: Iterable[int] | int | None) -> tuple[int, ...]:
    """MegEngine puts `size` in front of the shape of the parameters."""
    shape = np.broadcast_shapes(*(p.shape for p in parameters))
    return (*(() if size is None else _shape(size)), *shape) or (1,)


def gamma(shape: Any, scale: Any = 1, size: Iterable[int] | int | None = None) -> Tensor:
    """Gamma distribution; float32 of shape `size` + the parameters' shape."""
    k, theta = _parameter(shape), _parameter(scale)
    return Tensor(generator().gamma(k, theta, _sized(k, theta, size=size)), dtype=np.float32)


def beta(alpha: Any, beta: Any, size: Iterable[int] | int | None = None) -> Tensor:
    """Beta distribution; float32 of shape `size` + the parameters' shape."""
    a, b = _parameter(alpha), _parameter(beta)
    return Tensor(generator().beta(a, b, _sized(a, b, size=size)), dtype=np.float32)


def poisson(lam: Any, size: Iterable[int] | int | None = None) -> Tensor:
    """Poisson distribution; float32 of shape `size` + the parameter's shape."""
    rate = _parameter(lam)
    return Tensor(generator().poisson(rate, _sized(rate, size=size)), dtype=np.float32)


def permutation(n: int | Tensor, *, dtype: str = "int32") -> Tensor:
    """A random order of 0..n-1, or of a tensor's rows."""
    if isinstance(n, Tensor):
        return Tensor(generator().permutation(n.numpy(), axis=0), dtype=n.dtype)
    return Tensor(generator().permutation(n), dtype=dtype)


def shuffle(inp: Tensor) -> None:
    """Put a tensor's rows in random order, in place."""
    inp._reset(permutation(inp))
