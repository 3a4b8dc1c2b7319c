"""Op classes as MegEngine has them, and `apply`, which runs one on tensors.

A class is a record of options: `Reduce(mode="SUM", axis=1)`. It is declared by a function of the op and its tensors
(`op_class`), which computes it with public functions, so gradients, graphs and files need nothing else. Graphs hold an
applied op as the call of a function named after it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import numbers
import types
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from megengine.core.dtype import as_dtype
from megengine.core.errors import ArgumentError, OptionError, ShapeError, brief, nearest
from megengine.core.text import counted
from megengine.dispatch import opdefs
from megengine.dispatch.public import Exported
from megengine.tensor import Tensor

LARGEST = 2**31 - 1  # an axis or a bound that was not given
CLASSES: dict[str, type[OpDef]] = {}


class Choice(enum.StrEnum):
    """One of several words, in any case of letters; equal to the word itself."""

    @classmethod
    def _missing_(cls, value: object) -> Choice | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}.{self.name}"

    __str__ = __repr__
    __hash__ = str.__hash__


def choice(name: str, words: str) -> Any:
    """A class of choices, named as MegEngine prints it. As an option it stands for its first word."""
    return Choice(name.rpartition(".")[2], [(w, w) for w in words.split()], qualname=name)


def word_of(option: str) -> str:
    """The word of an option that is a choice, as plain text."""
    return str(option.value) if isinstance(option, Choice) else option


class OpDef:
    """An op with its options; equal to another one of the same class and options."""

    scope: ClassVar[str] = ""
    modes: ClassVar[Sequence[str]] = ()  # of a class whose ops are named after their mode: what the modes are
    run: Callable[..., Any]
    _defaults: ClassVar[dict[str, Any]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "scope" and name not in self._defaults:
            raise OptionError(f"{type(self).__name__}: no option {name!r}{nearest(name, self._defaults)}")
        object.__setattr__(self, name, str(value) if name == "scope" else _checked(type(self), name, value))

    def __getstate__(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in self._defaults}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # devices and limits of memory mean nothing here
        options = {name: value for name, value in state.items() if name in self._defaults and name != "comp_node"}
        for name, value in {**self._defaults, **options}.items():
            setattr(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__getstate__() == self.__getstate__()

    def __hash__(self) -> int:
        return hash((type(self), repr(self.__getstate__())))

    def __repr__(self) -> str:
        return _plain(vars(self)["mode"]) if self.modes else type(self).__name__


def op_class(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: the op class that is named after a function `f(op, *tensors)`, which computes it.

    `options` are names and defaults. Classes of choices among them are attributes of the class: `Reduce.Mode`.
    """
    return lambda function: declare(function.__name__, function.__doc__, function, options)


def op_like(kind: Any, name: str, doc: str) -> Any:
    """An op class of another name, with the options and the function of `kind`."""
    return declare(name, doc, kind.run, kind._defaults)


def refused_op(name: str, doc: str, why: str, /, **options: Any) -> Any:
    """An op class that can be made. Applying it raises OptionError with the reason, and what to use instead."""

    def run(op: OpDef, *inputs: Tensor) -> Any:
        raise OptionError(f"{op!r}: {why}")

    return declare(name, doc, run, options)


def declare(name: str, doc: str | None, run: Callable[..., Any], options: dict[str, Any]) -> type[OpDef]:
    """Make an op class, and enter it: `run(op, *tensors)` computes it."""
    defaults = {n: next(iter(v)) if isinstance(v, enum.EnumMeta) else v for n, v in options.items()}
    choices = {type(v).__name__: type(v) for v in defaults.values() if isinstance(v, Choice)}
    names = {"__doc__": doc, "__module__": run.__module__, "run": run, "_defaults": defaults, **choices, **defaults}
    names["__annotations__"] = dict.fromkeys(defaults, Any)
    CLASSES[name] = dataclasses.dataclass(eq=False, repr=False)(type(name, (OpDef,), names))
    return CLASSES[name]


PyOpBase = refused_op(
    "PyOpBase",
    "Base of ops that are written in Python; nothing derives from it here.",
    "write a megengine.autodiff.Function with forward and backward",
)


def _checked(kind: type[OpDef], name: str, value: Any) -> Any:
    default = kind._defaults[name]
    what = f"{kind.__name__}: {name} is {brief(value)}"
    if name in ("dtype", "output_dtypes"):
        dtype = None if value is None else as_dtype(value)
        # without the byte order that a file names
        return dtype.newbyteorder("=") if isinstance(dtype, np.dtype) and dtype.kind in "biufc" else dtype
    if isinstance(default, Choice):
        word = value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value
        try:
            return type(default)(word)
        except ValueError:
            words = list(type(default).__members__)
            hint = nearest(str(value).upper(), words)
            raise OptionError(f"{what}; expected one of {', '.join(words)}{hint}") from None
    if isinstance(default, tuple):
        if not isinstance(value, (tuple, list)):
            raise OptionError(f"{what}; expected a list")
        return list(value)
    number = {bool: (bool, np.bool_), int: numbers.Integral, float: numbers.Real}.get(type(default))
    if number is not None and not isinstance(value, number):
        raise OptionError(f"{what}; expected {'an integer' if type(default) is int else f'a {type(default).__name__}'}")
    return type(default)(value) if number is not None else str(value)


def _plain(value: Any) -> Any:
    if not isinstance(value, Choice):
        return value
    return (value.value,) if type(value).__name__ == "Strategy" else value.value


def apply(op: OpDef, *inputs: Any) -> tuple[Any, ...]:
    """The results of an op on tensors, always as a tuple; numbers and arrays among the inputs become tensors.

    Raises:
        ArgumentError: `op` is no op, or it takes another number of tensors.

    Example:
        >>> from megengine.core.ops.builtin import Elemwise
        >>> apply(Elemwise("ADD"), Tensor([1.0]), 2)[0].item()
        3.0
    """
    if not isinstance(op, OpDef):
        if hasattr(op, "formula"):  # a graph of operators
            return op.run(*inputs)
        raise ArgumentError(
            f"apply: op is {brief(op)}; expected an op such as megengine.core.ops.builtin.Elemwise('ADD')"
        )
    out = function_of(op)(*map(as_tensor, inputs), **_options(op))
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def as_tensor(value: Any) -> Any:
    """A number or an array as a tensor; tensors and nodes of graphs are returned unchanged."""
    return Tensor(value) if isinstance(value, (bool, numbers.Number, np.ndarray, np.generic, list, tuple)) else value


def _options(op: OpDef) -> dict[str, Any]:
    """The options as plain values, those with their default left out."""
    options = {}
    for name, default in op._defaults.items():
        value = _plain(getattr(op, name))
        value = tuple(value) if isinstance(value, list) else value
        if value != _plain(default) and not (name == "mode" and op.modes):
            options[name] = value
    return options


def function_of(op: OpDef) -> Exported:
    """The function that graphs call for an op."""
    return _function(type(op), repr(op) if op.modes else None)


@functools.cache
def _function(kind: type[OpDef], mode: str | None) -> Exported:
    fixed = {} if mode is None else {"mode": mode}

    def call(*inputs: Tensor, **options: Any) -> Any:
        op = kind(**fixed, **options)
        _check_arity(op, len(inputs))
        return op.run(*inputs)

    inputs = inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_plain(default))
        for name, default in kind._defaults.items()
        if name not in fixed
    ]
    # a function of its own, which `inspect` sees with the options of the class
    function = types.FunctionType(call.__code__, call.__globals__, mode or kind.__name__, None, call.__closure__)
    function.__signature__ = inspect.Signature([inputs, *options])
    home = opdefs.HOME if mode is None else f"{opdefs.PREFIX}{kind.__name__}"
    return opdefs.declare(home, mode or kind.__name__, function, state=lambda values: _stored(kind(**fixed, **values)))


def _stored(op: OpDef) -> dict[str, Any]:
    """The state of an op in MegEngine's files."""
    state = op.__getstate__()
    return {**state, "workspace_limit": 2**64 - 1} if "strategy" in state else state


def _check_arity(op: OpDef, count: int) -> None:
    parameters = inspect.signature(op.run).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    needed = sum(p.default is p.empty for p in parameters)
    if not needed <= count <= len(parameters):
        names = ", ".join(p.name if p.default is p.empty else f"[{p.name}]" for p in parameters)
        raise ArgumentError(f"{op!r}: got {counted(count, 'tensor')}; expected {names or 'none'}")


def integers(what: str, tensor: Tensor) -> list[int]:
    """The values of a tensor of lengths or positions. Raises ShapeError for other values."""
    array = np.asarray(tensor.numpy())
    if array.ndim > 1 or array.dtype.kind not in "iu":
        raise ShapeError(f"{what}: got {tensor.spec}; expected a flat tensor of integers")
    return [int(n) for n in array.reshape(-1)]


def _call_of(kind: type[OpDef], state: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name of the function and options of the call that an op's state in a file stands for."""
    op = kind.__new__(kind)
    op.__setstate__(state)
    record = function_of(op).__public__
    bound = record.signature.bind(**_options(op))
    bound.apply_defaults()
    return record.qualified, bound.kwargs


def declare_all() -> None:
    """Enter all classes and their functions, so that graphs and files find them by name."""
    for name, kind in CLASSES.items():
        opdefs.declare_class(name, functools.partial(_call_of, kind))
        for mode in kind.modes or (None,):
            _function(kind, mode)
