"""Tensor: a value with a shape, a dtype and a device.

Operators and most methods are attached by the op records (`megengine.ops`); this file holds storage and conversion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from megengine import device as devices
from megengine.core import _engine, absent, hooks, late
from megengine.core.calls import called
from megengine.core.dtype import DType, QuantizedDType, as_dtype, bfloat16, storage_of
from megengine.core.effectless import warn_once
from megengine.core.errors import (
    ArgumentError,
    DTypeError,
    IndexOutOfRangeError,
    MegEngineError,
    MissingNameError,
    OptionError,
    ShapeError,
    brief,
    nearest,
)
from megengine.core.exports import exported
from megengine.core.notebook import html_text
from megengine.core.spec import TensorSpec, interned
from megengine.core.text import counted
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.placing import copied, host, placed

_INT32 = np.iinfo(np.int32)


if TYPE_CHECKING:
    from megengine.tensor_methods import TensorMethods as _Fields  # a stub: what the op records attach
else:
    _Fields = _engine.TensorBase  # native, so that native code reads and makes tensors without Python


class DeferredValueError(MegEngineError, RuntimeError):
    """The value of a tensor that has only a spec was read."""


def _storage_from(value: Any, dtype: DType | None) -> tuple[np.ndarray, DType]:
    """A fresh array and its dtype; without a dtype float64 becomes float32 and int64 int32 where every value fits."""
    if isinstance(value, Tensor):
        array, dtype = host(value._storage()), value._dtype if dtype is None else dtype
    else:
        try:
            array = np.asarray(value)
        except ValueError as exc:
            raise DTypeError(f"tensor: {exc}; expected numbers in a rectangular nesting") from exc
    if array.dtype == object or (array.dtype.kind in "USOMmV" and array.dtype.name != "bfloat16"):
        kind = "text" if array.dtype.kind in "US" else str(array.dtype)
        raise DTypeError(f"tensor: cannot hold {brief(value)}, which is {kind}; expected numbers or booleans")
    if dtype is None:
        dtype = array.dtype
        if dtype == np.float64:
            dtype = np.dtype(np.float32)
        elif dtype == np.int64 and (array.size == 0 or (array.min() >= _INT32.min and array.max() <= _INT32.max)):
            dtype = np.dtype(np.int32)
    elif array.dtype.kind in "iu" and array.size and not isinstance(value, Tensor):
        _refuse_unfit(array, dtype, is_array=isinstance(value, np.ndarray))
    return np.array(array, storage_of(dtype), order="K", copy=True), dtype


def _value_on(device: str, value: Any, dtype: DType | None) -> tuple[Any, DType]:
    """The storage of a new tensor on a device and its dtype; what lies on a GPU and stays as it is is copied there."""
    if isinstance(value, Tensor) and dtype in (None, value._dtype):
        storage = value._storage()
        if type(storage) is DeviceArray:
            return copied(storage, device), value._dtype
    array, dtype = _storage_from(value, dtype)
    return placed(array, device), dtype


def _refuse_unfit(array: np.ndarray, dtype: DType, *, is_array: bool) -> None:
    """Raise for integers outside a quantized type, or numbers outside an integer type; arrays wrap as in `astype`."""
    if isinstance(dtype, QuantizedDType):
        low, high = dtype.qmin, dtype.qmax
    elif dtype.kind in "iu" and not is_array:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    else:
        return
    for extreme in (array.min(), array.max()):
        if not low <= extreme <= high:
            raise DTypeError(f"tensor: {extreme} does not fit {dtype}; expected integers in [{low}, {high}]")


def _called(kind: type) -> str:
    """How users make a tensor of a kind."""
    return "tensor" if kind is Tensor else kind.__name__


class Tensor(_Fields):
    """A tensor; `tensor([[1.0, 2.0]])` makes one.

    Tensors are values, never views: indexing and reshaping give new values, `numpy()` is read-only. Quantized dtypes
    carry scale and zero point. Raises DTypeError and ShapeError for what cannot be held.
    """

    __array_priority__ = 1000
    # Fields of the native base: _value, _spec, _dtype, _device, _thunk. Attributes of few tensors are on the class.
    grad: Tensor | None = None
    name: str = ""
    _qparams: Any = None

    if TYPE_CHECKING:  # fields of the native base
        _value: Any  # the array, None while it is deferred
        _spec: TensorSpec | None
        _dtype: DType
        _device: str
        _thunk: Callable[[], Any] | None

    def __init__(
        self,
        data: Any,
        dtype: Any = None,
        device: str | None = None,
        is_const: bool = False,
        no_cache: bool = False,
        name: str | None = None,
        format: str = "default",
    ) -> None:
        if not isinstance(format, str) or format not in ("default", "nchw", "nhwc"):
            known = ("default", "nchw", "nhwc")
            hint = nearest(format, known) if isinstance(format, str) else ""
            raise OptionError(f"{_called(type(self))}: format is {brief(format)}; expected one of {known}{hint}")
        if format != "default":
            warn_once(f"{_called(type(self))}(format=...)", "memory layouts are chosen where a plan is made")
        try:
            watcher = hooks.active.get()
            built = None if watcher is None else watcher.built(self, data, dtype, device)
            if built is None:
                inherited = data._device if isinstance(data, Tensor) else devices.default_device()
                self._device = inherited if device is None else devices.normalize(device)
                self._value, self._dtype = _value_on(self._device, data, None if dtype is None else as_dtype(dtype))
                self._spec = None
            else:
                self._value, self._dtype, self._device = built._value, built._dtype, built._device
                self._spec, self._thunk = built._spec, built._thunk
        except MegEngineError as exc:
            exc.add_note(f"while calling {called(_called(type(self)), (data,), {'dtype': dtype, 'device': device})}")
            raise
        if name is not None:
            if not isinstance(name, str):
                raise ArgumentError(f"{_called(type(self))}: name is {brief(name)}; expected a string")
            self.name = name

    @classmethod
    def _wrap(cls, value: Any, dtype: DType | None = None, device: str | None = None) -> Tensor:
        """Take over storage without a copy, except of values that lie elsewhere; they stay where no device is named."""
        self = cls.__new__(cls)
        place = device or (value.runtime.name if type(value) is DeviceArray else "cpu0")
        self._value = placed(value, place)
        self._dtype = value.dtype if dtype is None else dtype
        self._device = place
        self._spec = None
        return self

    @classmethod
    def _of_spec(cls, value: Any, spec: TensorSpec) -> Tensor:
        """Take over storage whose spec is known; None if there is none yet."""
        self = Tensor.__new__(Tensor)
        self._value = None if value is None else placed(value, spec.device)
        self._spec = spec
        self._dtype = spec.dtype
        self._device = spec.device
        return self

    @classmethod
    def _deferred(cls, spec: TensorSpec, thunk: Callable[[], Any] | None = None) -> Tensor:
        """A tensor whose value is computed by `thunk` when it is read; without one, reading is an error."""
        self = Tensor._of_spec(None, spec)
        self._thunk = thunk
        return self

    def _storage(self) -> Any:
        """The array: NumPy's on the processor, a DeviceArray on a GPU."""
        if self._value is None:
            if self._thunk is None:
                raise DeferredValueError(
                    f"the value of {self._spec} is not known while a graph is being recorded; "
                    "expected shapes only; trace with real inputs, or compute this outside the recorded function"
                )
            self._value = self._thunk()
            self._thunk = None
        return self._value

    def _reset(self, other: Any) -> None:
        """Take over another tensor's value: in-place operators and `Parameter` updates.

        Arrays and numbers become a tensor of the dtype and on the device that this one has.
        """
        if not isinstance(other, Tensor):
            other = Tensor(other, self.dtype, self.device)
        if (watcher := hooks.active.get()) is not None:
            watcher.rebind(self, other)
        self._value, self._dtype, self._device = other._value, other._dtype, other._device
        self._spec, self._thunk = other._spec, other._thunk

    def _in_words(self) -> str:
        """The text of an argument in errors; does not read the value."""
        return f"tensor {self.dtype}{self.spec.shape}"

    @property
    def spec(self) -> TensorSpec:
        """Shape, dtype and device in one hashable value."""
        if self._spec is None:
            self._spec = interned(self._value.shape, self._dtype, self._device)
        return self._spec

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes. While a model is traced, its code gets them as a tensor, which follows the inputs."""
        watcher = hooks.active.get()
        if watcher is not None:
            seen = watcher.shape(self)
            if seen is not None:
                return seen
        return self._value.shape if self._value is not None else self.spec.shape

    @property
    def _tuple_shape(self) -> tuple[int, ...]:
        """Lengths of the axes as integers, also while a model is traced. MegEngine's name."""
        return self.spec.shape

    def _read(self, what: str) -> np.ndarray:
        """The values in main memory, for Python code that reads them; a tracer is notified."""
        watcher = hooks.active.get()
        if watcher is not None:
            watcher.value(self, what)
        return host(self._storage())

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self._dtype

    @property
    def device(self) -> devices.CompNode:
        """The device, equal to all its names and written as MegEngine writes it."""
        return devices.comp_node(self._device)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """Number of elements. While a model is traced, its code gets it as a tensor, as it gets the shape."""
        watcher = hooks.active.get()
        shape = None if watcher is None else watcher.shape(self)
        return self.spec.size if shape is None else shape.prod()

    @property
    def T(self) -> Tensor:  # noqa: N802
        """The tensor with its axes reversed."""
        return self.transpose()

    @property
    def format(self) -> str:
        """Memory format: always "default", layouts are chosen where a plan is made."""
        return "default"

    @property
    def requires_grad(self) -> bool:
        """Not an attribute, as in MegEngine: tensors are attached to a GradManager."""
        raise MissingNameError("requires_grad is reserved; attach the tensor to a GradManager instead")

    @requires_grad.setter
    def requires_grad(self, value: Any) -> None:
        raise MissingNameError("requires_grad is reserved; attach the tensor to a GradManager instead")

    @property
    def qparams(self) -> Any:
        """How the tensor is quantized: `QParams` without a scale at first, which may be updated."""
        if self._qparams is None:
            qparams: Any = late.part("megengine.quantization.ranges", "qparams")
            self._qparams = qparams.create_qparams()
        return self._qparams

    @qparams.setter
    def qparams(self, value: Any) -> None:
        self._qparams = value

    def set_value(self, value: Any) -> None:
        """Take another value, of any shape: numbers and arrays get this tensor's dtype, a tensor keeps its own."""
        try:
            new = Tensor(value, None if isinstance(value, Tensor) else self._dtype, self._device)
        except MegEngineError as exc:
            exc.add_note("while calling set_value")
            raise
        self._reset(new)

    def reset_zero(self) -> None:
        """Take the value zero everywhere."""
        self._reset(exported("megengine.functional.tensor", "zeros_like")(self))

    def numel(self) -> int:
        """Number of elements, as `size`."""
        return self.size

    def numpy(self) -> np.ndarray:
        """The value as a read-only array; of a quantized tensor, the stored integers."""
        view = self._read("numpy()").view()
        view.flags.writeable = False
        return view

    def item(self, *index: int) -> Any:
        """The single element (or the one at `index`, in the flattened tensor or per axis) as a Python number.

        Raises ValueError when there is not exactly one and no index, IndexError for one out of range.
        """
        if not index and self.spec.size != 1:
            have = counted(self.spec.size, "element")
            raise ShapeError(f"item(): a tensor of shape {self.spec.shape} has {have}; expected one, or an index")
        try:
            return self._read("item()").item(*index)
        except IndexError as exc:
            raise IndexOutOfRangeError(f"item(): {exc}; the shape is {self.spec.shape}") from None
        except (OverflowError, TypeError, ValueError) as exc:
            raise ArgumentError(f"item(): index {brief(index)} for shape {self.spec.shape}; expected integers") from exc

    def tolist(self) -> Any:
        """Nested Python numbers."""
        return self._read("tolist()").tolist()

    def _sizes(self) -> Any:
        """Nested formulas of the elements, if they are lengths that values tell and have no value yet; else None."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self._read("numpy()")
        try:
            return np.array(array, dtype) if copy or dtype is not None else self.numpy()
        except (TypeError, ValueError) as exc:
            raise DTypeError(f"__array__: dtype is {brief(dtype)}: {exc}") from None

    def __array_wrap__(self, array: np.ndarray, context: Any = None, return_scalar: bool = False) -> Tensor:
        return Tensor(array)

    def __dlpack__(self, stream: Any = None, **kwargs: Any) -> Any:
        storage = self._storage()
        if type(storage) is DeviceArray:
            if storage.size == 1:  # a number that other tensors share; who gets it may write
                storage = storage.runtime.duplicate(storage)
            return storage.runtime.cupy_array(storage).__dlpack__(stream=stream, **kwargs)
        if stream is not None:
            raise BufferError(
                f"__dlpack__: stream is {brief(stream)}; expected None, since the tensor is in main memory"
            )
        if self._dtype == bfloat16:
            raise DTypeError("bfloat16 cannot be given to other packages by DLPack; use .astype('float32') first")
        return self._read("__dlpack__()").copy().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number, _ = self.device.physical_locator
        return (2, number) if kind == "gpu" else (1, 0)

    def __len__(self) -> int:
        if not self.spec.shape:
            raise DTypeError("len() of a tensor without axes; expected at least one")
        if (watcher := hooks.active.get()) is not None:
            watcher.length(self)
        return self.spec.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        if self.spec.size != 1:
            raise ShapeError(f"truth value of a tensor of shape {self.spec.shape} is ambiguous; use .any() or .all()")
        return bool(self._read(hooks.TRUTH).item())

    def _real(self) -> Any:
        if np.dtype(storage_of(self._dtype)).kind == "c":
            raise DTypeError(f"a tensor of {self._dtype} is no real number; take its .real() or .imag() part")
        return self.item()

    def __int__(self) -> int:
        return int(self._real())

    def __float__(self) -> float:
        return float(self._real())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __trunc__(self) -> int:
        return int(self._real())

    def __contains__(self, value: Any) -> bool:
        try:
            wanted = np.asarray(value)
            np.broadcast_shapes(self.spec.shape, wanted.shape)
        except ValueError:
            raise ShapeError(f"__contains__: {brief(value)} does not broadcast to shape {self.spec.shape}") from None
        return bool((self._read("the search for a value") == wanted).any())

    def __index__(self) -> int:
        if np.dtype(storage_of(self._dtype)).kind not in "iub":
            raise DTypeError(f"a tensor of {self._dtype} cannot be an index; expected integers")
        return int(self.item())

    __hash__ = object.__hash__  # by identity: operators compare values

    def __copy__(self) -> Tensor:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict) -> Tensor:
        copied = type(self)(self)
        copied.name, copied._qparams = self.name, self._qparams
        memo[id(self)] = copied
        return copied

    def __getnewargs__(self) -> tuple:
        """Arguments that make the tensor again: elements (of a quantized one, its integers), dtype and device."""
        return host(self._storage()), self._dtype, self._device

    def __reduce__(self) -> tuple:
        quantized = self._dtype if isinstance(self._dtype, QuantizedDType) else None
        return _rebuild, (type(self), self._read("pickling"), quantized, self._device)

    def __repr__(self) -> str:
        kind = type(self).__name__
        if self._value is None and self._thunk is None:
            return f"{kind}(<{self.spec}>, device={self.device})"
        dtype = "" if self._dtype == np.float32 else f", dtype={self._dtype}"
        with np.printoptions(precision=4):  # of arrays; a single number is shown in full
            values = str(host(self._storage()))
        return f"{kind}({values}{dtype}, device={self.device})"

    def _repr_html_(self) -> str:
        """What notebooks show."""
        title = f"{type(self).__name__} {self.spec}"
        known = self._value is not None or self._thunk is not None
        return html_text(str(host(self._storage())) if known else "not computed yet", title)


for _name in absent.TENSOR_WORDS:
    setattr(Tensor, _name, absent.Absent(_name, absent.TENSOR_WORDS))


class Parameter(Tensor):
    """A tensor that a module owns and an optimizer updates."""


def _rebuild(kind: type[Tensor], array: np.ndarray, quantized: QuantizedDType | None, device: str) -> Tensor:
    return kind(array, dtype=array.dtype if quantized is None else quantized, device=device)


def tensor(
    data: Any,
    dtype: Any = None,
    device: str | None = None,
    is_const: bool = False,
    no_cache: bool = False,
    name: str | None = None,
    format: str = "default",
) -> Tensor:
    """Make a tensor from numbers, nested sequences, an array or a tensor; the data are copied.

    Without `dtype`, float64 becomes float32 and int64 becomes int32 where every value fits.
    """
    return Tensor(data, dtype, device, is_const, no_cache, name, format)
