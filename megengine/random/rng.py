"""Random number generators: the process-wide one, and `RNG` objects with own states."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from megengine import device as devices
from megengine.core import _engine, hooks
from megengine.core.calls import shown
from megengine.core.dtype import as_dtype, storage_of
from megengine.core.errors import ArgumentError, DTypeError, GraphError, OptionError, ShapeError
from megengine.core.limits import refuse_oversized
from megengine.dispatch.apply import active_interposers, apply
from megengine.dispatch.public import public
from megengine.dispatch.refusal import checked, constructor, explains
from megengine.kernels import cuda, filling
from megengine.kernels.cuda.placing import on_gpu
from megengine.tensor import Tensor

Size = Iterable[int] | int | None


def _is_length(n: Any) -> bool:
    if isinstance(n, Tensor):
        return n.size == 1
    return isinstance(n, numbers.Integral) or (isinstance(n, float) and n.is_integer())


def _shape(op: str, size: Size) -> tuple[int, ...]:
    if size is None:
        return (1,)
    if type(size) is tuple and {*map(type, size)} <= {int} and min(size, default=0) >= 0:  # the usual: no conversion
        refuse_oversized(op, size, 4)
        return size
    lengths = size.tolist() if isinstance(size, (Tensor, np.ndarray)) else size
    items = tuple(lengths) if isinstance(lengths, Iterable) and not isinstance(lengths, str) else (lengths,)
    if not all(map(_is_length, items)):
        raise ArgumentError(f"{op}: size is {shown(size)}; expected an integer or several")
    shape = tuple(int(n) for n in items)
    if any(n < 0 for n in shape):
        raise ShapeError(f"{op}: size is {size}; expected lengths of at least 0")
    refuse_oversized(op, shape, 4)
    return shape


def _parameter(op: str, name: str, value: Any, *, positive: bool) -> np.ndarray:
    try:
        array = np.asarray(value.numpy() if isinstance(value, Tensor) else value, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"{op}: {name} is {shown(value)}; expected numbers") from None
    if array.size and (array.min() < 0 or (positive and array.min() == 0) or not np.isfinite(array).all()):
        bound = "above 0" if positive else "of at least 0"
        raise OptionError(f"{op}: {name} holds {array.min()}; expected finite numbers {bound}")
    return array


def _sized(op: str, *parameters: np.ndarray, size: Size) -> tuple[int, ...]:
    """MegEngine puts `size` in front of the shape of the parameters."""
    shape = np.broadcast_shapes(*(p.shape for p in parameters))
    return (*(() if size is None else _shape(op, size)), *shape) or (1,)


_LARGE = 1 << 15  # elements from which on a counter-based stream is filled natively


_ADVICE = (
    "graphs have no generators of their own and draw from the process-wide one (megengine.random) at each run; "
    "pass the numbers as an input where they must be those of the generator"
)


def _refuse_in_ops() -> None:
    for interposer in active_interposers():
        if not interposer.holds_draws:
            remedy = "call eval() on the model (Dropout), or pass them as inputs"
            raise GraphError(f"a call draws random values, which graphs of ops do not hold: {remedy}")


def _drawn(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a generator; while a model is traced, a call of the function of that name is recorded instead."""

    @functools.wraps(method)
    def call(self: RNG, *args: Any, **kwargs: Any) -> Any:
        _refuse_in_ops()
        watcher = hooks.active.get()
        if watcher is None or self is _default:
            return method(self, *args, **kwargs)
        result = globals()[method.__name__](*args, **kwargs)
        watcher.value(result, "the state of an RNG object", _ADVICE)
        return result

    return call


class RNG:
    """A generator of random tensors with a state of its own.

    Two objects with one seed give the same numbers; without a seed they start from the operating system's entropy.

    >>> RNG(seed=1).uniform().item() == RNG(seed=1).uniform().item()
    True
    """

    @constructor
    def __init__(self, seed: int | None = None, device: str | None = None) -> None:
        self._device = None if device is None else devices.normalize(device)
        self.seed(seed)

    @explains
    def seed(self, value: int | None) -> None:
        """Start anew from `value`."""
        if value is not None and (not isinstance(value, numbers.Integral) or value < 0):
            raise ArgumentError(f"seed: got {value!r}; expected an integer of at least 0")
        self._seed, self._held = value, {}

    @property
    def generator(self) -> np.random.Generator:
        """NumPy's generator, made when it is first asked for: its package takes long to import."""
        generator = self._held.get("generator")
        if generator is None:  # several threads may get here: all use the first generator
            generator = self._held.setdefault("generator", np.random.default_rng(self._seed))
        return generator

    def _wrapped(self, array: Any, dtype: Any = np.float32) -> Tensor:
        """A tensor of a new array, which is not copied."""
        device = devices.default_device() if self._device is None else self._device
        return _engine.wrap(np.asarray(array, dtype), None, device)

    def _key(self) -> int:
        """64 bits from the state: the key of a stream of its own."""
        return int(self.generator.integers(1 << 64, dtype=np.uint64))

    def draw(
        self, shape: tuple[int, ...], *, normal: bool, scale: float = 1.0, shift: float = 0.0, device: str = "cpu0"
    ) -> Any:
        """float32 array of x * scale + shift: x standard normal, or uniform in [0, 1).

        Large arrays are a stream of their own, whose key is drawn from the state; every device gives the same numbers.
        On a GPU they are a DeviceArray.
        """
        if math.prod(shape) >= _LARGE:
            if on_gpu(device):
                made = cuda.random.random_array
                return made(self._key, shape, normal=normal, scale=scale, shift=shift, device=device)
            return filling.random_array(self._key(), shape, normal=normal, scale=scale, shift=shift)
        if on_gpu(device):
            return cuda.random.drawn(functools.partial(self._few, shape, normal, scale, shift), device)
        return self._few(shape, normal, scale, shift)

    def _few(self, shape: tuple[int, ...], normal: bool, scale: float, shift: float) -> np.ndarray:
        """`draw` of few numbers in main memory, from the state itself."""
        method = self.generator.standard_normal if normal else self.generator.random
        out = method(shape, np.float32)
        if scale != 1:
            out *= scale
        if shift != 0:
            out += shift
        return out

    def _tensor(self, shape: tuple[int, ...], **distribution: Any) -> Tensor:
        device = devices.default_device() if self._device is None else self._device
        array = self.draw(shape, device=device, **distribution)
        return Tensor._wrap(array, None, device) if on_gpu(device) else _engine.wrap(array, None, device)

    @_drawn
    @explains
    def uniform(self, low: float = 0, high: float = 1, size: Size = None) -> Tensor:
        """float32 of shape `size` ((1,) without), uniform in [low, high)."""
        if low > high:
            raise OptionError(f"uniform: low={low} is above high={high}")
        return self._tensor(_shape("uniform", size), normal=False, scale=high - low, shift=low)

    @_drawn
    @explains
    def normal(self, mean: float = 0, std: float = 1, size: Size = None) -> Tensor:
        """float32 of shape `size` ((1,) without), normal with this mean and standard deviation."""
        if std < 0:
            raise OptionError(f"normal: std={std}; expected at least 0")
        return self._tensor(_shape("normal", size), normal=True, scale=std, shift=mean)

    @_drawn
    @explains
    def gamma(self, shape: Any, scale: Any = 1, size: Size = None) -> Tensor:
        """Gamma distribution; float32 of shape `size` + the parameters' shape."""
        k, theta = (_parameter("gamma", n, v, positive=True) for n, v in (("shape", shape), ("scale", scale)))
        return self._wrapped(self.generator.gamma(k, theta, _sized("gamma", k, theta, size=size)))

    @_drawn
    @explains
    def beta(self, alpha: Any, beta: Any, size: Size = None) -> Tensor:
        """Beta distribution; float32 of shape `size` + the parameters' shape."""
        a, b = (_parameter("beta", n, v, positive=True) for n, v in (("alpha", alpha), ("beta", beta)))
        return self._wrapped(self.generator.beta(a, b, _sized("beta", a, b, size=size)))

    @_drawn
    @explains
    def poisson(self, lam: Any, size: Size = None) -> Tensor:
        """Poisson distribution; float32 of shape `size` + the parameter's shape."""
        rate = _parameter("poisson", "lam", lam, positive=False)
        return self._wrapped(self.generator.poisson(rate, _sized("poisson", rate, size=size)))

    @_drawn
    @explains
    def permutation(self, n: int | Tensor, *, dtype: Any = "int32") -> Tensor:
        """A random order of 0..n-1 as `dtype`, or of a tensor's rows."""
        kind = storage_of(as_dtype(dtype))
        if isinstance(n, Tensor):
            if not n.ndim:
                raise ShapeError("permutation: n is a tensor without axes; expected rows to permute")
            rows = self.generator.permutation(len(n))
            if on_gpu(n.spec.device):
                return apply("index", n, Tensor._wrap(rows, None, n.spec.device), pattern=("i",))
            return Tensor._wrap(n.numpy()[rows], n.dtype, n.device)
        if not isinstance(n, numbers.Integral) or n < 0:
            raise OptionError(f"permutation: n is {n!r}; expected a tensor or an integer of at least 0")
        largest = np.iinfo(kind).max if kind.kind in "iu" else math.inf
        if n - 1 > largest:
            raise DTypeError(f"permutation: {n - 1} does not fit into {kind}; choose a wider dtype")
        refuse_oversized("permutation", (int(n),), 8)
        return self._wrapped(self.generator.permutation(int(n)), kind)

    @explains
    def shuffle(self, inp: Tensor) -> None:
        """Put a tensor's rows in random order, in place."""
        if not isinstance(inp, Tensor):
            raise DTypeError(f"shuffle: inp is a {type(inp).__name__}; expected a Tensor")
        inp._reset(self.permutation(inp))


_default = RNG()
HOME = "megengine.random"  # traced graphs hold calls of these functions: every run draws anew
_public = public(home=HOME, random=True)
uniform, normal, gamma = _public(_default.uniform), _public(_default.normal), _public(_default.gamma)
beta, poisson, permutation = _public(_default.beta), _public(_default.poisson), _public(_default.permutation)
shuffle = _default.shuffle


@checked
def seed(seed: int) -> None:
    """Start the process-wide generator from `seed`."""
    _default.seed(seed)


def draw(shape: tuple[int, ...], *, normal: bool, scale: float = 1.0, shift: float = 0.0, device: str = "cpu0") -> Any:
    """`RNG.draw` of the process-wide state."""
    return _default.draw(shape, normal=normal, scale=scale, shift=shift, device=device)


def draw_factors(shape: tuple[int, ...], dtype: np.dtype, *, zeros: float, device: str) -> Any:
    """An array of a float dtype in which a share `zeros` is 0 and the rest 1 / (1 - zeros).

    They come from the process-wide state; every device gives the same numbers.
    """
    _refuse_in_ops()
    factor = np.float32(1 / (1 - zeros))
    large = math.prod(shape) >= _LARGE
    if large and on_gpu(device):
        return cuda.random.random_factors(_default._key, shape, dtype, least=zeros, factor=float(factor), device=device)

    def made() -> np.ndarray:
        drawn = draw(shape, normal=False) if large else _default.generator.random(shape)
        return np.asarray((drawn >= zeros) * factor, dtype)

    return cuda.random.drawn(made, device) if on_gpu(device) else made()


def generator() -> np.random.Generator:
    """The process-wide NumPy generator."""
    _refuse_in_ops()
    return _default.generator
