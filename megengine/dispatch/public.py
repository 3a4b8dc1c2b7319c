"""`@public`: the mark of a function that traces and files know by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from megengine.core import _engine, hooks
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import OptionError
from megengine.core.exports import export, withdraw
from megengine.dispatch.apply import active_interposers, interpose, no_interposers
from megengine.dispatch.notes import Notes, without_value
from megengine.dispatch.refusal import failure
from megengine.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class PublicFunction:
    """A public function: where it is found, its signature, and the names under which Tensor has it."""

    home: str
    name: str
    function: Callable[..., Any]
    signature: inspect.Signature
    methods: tuple[str, ...] = ()
    is_method: bool = False
    random: bool = False  # two calls with the same arguments differ
    in_place: bool = False  # a method after which the tensor has the result as its value
    by_spec: bool = False  # the ops it applies follow from the specs of its tensors and its other arguments
    recorded_as: str = ""  # the method of Tensor as a class that MegEngine records in its place

    @property
    def qualified(self) -> str:
        """Home and name, as files store it."""
        return f"{self.home}.{self.name}"


class Exported(Protocol):
    """A public function in the form that users call: watched, and with its record."""

    __public__: PublicFunction

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        ...


public_functions: dict[str, PublicFunction] = {}
in_place_methods: set[str] = set()


def _named(record: PublicFunction, exc: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception:
    return failure(record.name, record.function, exc, args, kwargs, record.signature)


def watched_function(record: PublicFunction) -> Exported:
    """The exported form of the function: a tracer records its calls, except those made by other public functions."""
    function = record.function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            have = record.signature.parameters  # NumPy passes dtype=None and out=None, as in np.prod(tensor)
            kwargs = {k: v for k, v in kwargs.items() if v is not None or k in have or k not in ("dtype", "out")}
        watcher = hooks.active.get()
        if watcher is None:
            try:
                return function(*args, **kwargs)
            except Exception as exc:
                raise _named(record, exc, args, kwargs)  # noqa: B904  (the cause is set where there is one)

        def run() -> Any:
            token = hooks.active.set(None)  # not a `with`: this is the hot path of tracing
            try:
                return function(*args, **kwargs)
            except Exception as exc:
                raise _named(record, exc, args, kwargs)  # noqa: B904
            finally:
                hooks.active.reset(token)

        return watcher.function(record, args, kwargs, run)

    watched = cast(Exported, functools.wraps(function)(_repeating(record, call)) if record.by_spec else call)
    watched.__public__ = record
    if record.by_spec:  # a native object; `inspect` and debuggers treat it as a function if it has these
        for name in ("__code__", "__defaults__", "__kwdefaults__", "__globals__"):
            setattr(watched, name, getattr(inspect.unwrap(function), name))
    return watched


def _assigning(call: Callable[..., Any]) -> Callable[..., Any]:
    """The method that replaces the value of the tensor by the result of `call`, of any shape and dtype."""

    @functools.wraps(call)
    def assign(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        new = call(self, *args, **kwargs)
        if not isinstance(self, Tensor):  # a node of a graph, which has no value
            return new
        for interposer in active_interposers():
            interposer.rebind(self, new)
        self._reset(new)
        return self

    return assign


def _repeating(record: PublicFunction, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; its ops are recorded at the second of several equal calls and then repeated natively.

    They are recorded on tensors without values, so a function that reads a value is called each time.
    """

    def learn(*args: Any, **kwargs: Any) -> tuple | None:
        arguments = list(map(without_value, (*args, *kwargs.values())))
        notes = Notes(arguments)
        try:
            with no_interposers(), interpose(notes):
                options = dict(zip(kwargs, arguments[len(args) :], strict=True))
                out = record.function(*arguments[: len(args)], **options)
        except Exception:  # it reads a value or fails: the function is called each time
            return None
        results = {id(t) for t in out} if type(out) is tuple else {id(out)}
        return notes.recipe(out) if results and results <= notes.result_ids else None

    def fail(exc: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise _named(record, exc, args, kwargs) if isinstance(exc, Exception) else exc

    return _engine.PublicCall(call, learn, fail)


def _with_rule(function: Callable[P, R], rule: Callable[..., Any]) -> Callable[P, R]:
    """The function; for calls with a quantized tensor the rule is tried first."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if any(isinstance(v, Tensor) and isinstance(v.dtype, QuantizedDType) for v in (*args, *kwargs.values())):
            bound = inspect.signature(function).bind(*args, **kwargs)
            result = rule(function, *bound.args, **bound.kwargs)
            if result is not NotImplemented:
                return result
        return function(*args, **kwargs)

    return call


def public(
    *,
    home: str,
    methods: tuple[str, ...] = (),
    in_place: tuple[str, ...] = (),
    random: bool = False,
    by_spec: bool = False,
    recorded_as: str = "",
    quantized: Callable[..., Any] | None = None,
) -> Callable[[F], F]:
    """Declare a public function of module `home`; `methods` are names under which Tensor gets it too.

    `in_place` are names of methods that replace the value of the tensor by the result: `x += 1`, `x[0] = 1`.
    `random` marks a function that draws anew at each call: passes never merge two calls of it.
    `by_spec` promises that the function has no side effects, and that the ops it applies and the results it returns
    depend only on the specs of its tensors and on its other arguments. Equal calls repeat the ops without Python.
    A function that reads values is called each time.
    `recorded_as` is the method of the class Tensor that MegEngine's graphs and files name in its place.
    `quantized` is a rule for calls with quantized tensors (`megengine.ops.quantized_calls`).

    Tracing records a call of it as one expression, and not the calls inside it.
    """

    def declare(function: F) -> F:
        signature = inspect.signature(function)
        run = function if quantized is None else _with_rule(function, quantized)
        names = (*methods, *in_place)
        name = function.__name__
        record = PublicFunction(home, name, run, signature, names, False, random, False, by_spec, recorded_as)
        if record.qualified in public_functions:
            raise OptionError(f"{record.qualified} is declared twice; choose another name")
        public_functions[record.qualified] = record
        for name in names:
            traits: dict[str, Any] = {"is_method": True, "in_place": name in in_place, "by_spec": by_spec}
            method = PublicFunction("megengine.tensor.Tensor", name, run, signature, **traits)
            call = watched_function(method)
            setattr(Tensor, name, _assigning(call) if method.in_place else call)
        in_place_methods.update(in_place)
        return cast(F, export(home, record.name, watched_function(record)))  # takes and gives what the function does

    return declare


def retract(qualified: str) -> None:
    """Remove a public function and its Tensor methods: for tests that add one at run time."""
    record = public_functions.pop(qualified)
    withdraw(record.home, record.name)
    for name in record.methods:
        delattr(Tensor, name)
