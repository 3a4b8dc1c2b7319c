"""User functions that bring calls of `.tm` files up to date (loaders): their tables, and their arguments.

A loader gets the call as the file has it, and changes it in place: `set_args_kwargs`, `set_arg`, another `func`,
`method` or `opdef_state`, attributes of the layer (`expr.inputs[0].owner`). Its result is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megengine.core.errors import FileFormatError, GraphError, MegEngineError
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.editing.rewiring import with_argument
from megengine.traced_module.ir.expr import Call, CallFunction, CallMethod, Expr
from megengine.traced_module.ir.functions import flatten_arguments, normalized, qualified_name
from megengine.traced_module.ir.node import Node

Loader = Callable[[Any], Any]
_functions: dict[str, Loader] = {}  # by module and name
_methods: dict[str, Loader] = {}
_modules: dict[str, Loader] = {}
_ops: dict[str, Loader] = {}


# ---------------------------------------------------------------- registering


def register_functional_loader(*funcs: tuple[str, str] | Callable[..., Any]) -> Callable[[Loader], Loader]:
    """Declare the loader for calls of these functions in `.tm` files; each as (module, name) in the file.

    The loader gets a `StoredFunction`. For a function that no longer exists it must set another `func`.

    Raises GraphError if a function has a loader already, or is neither a function nor such a pair.

    Example:
        >>> @register_functional_loader(("mylib", "scale"))
        ... def scale_got_a_bias(expr):
        ...     expr.set_args_kwargs(*expr.args, bias=0)
    """
    return _registering(_functions, [_full_name("register_functional_loader", f) for f in funcs])


def register_tensor_method_loader(*methods: str) -> Callable[[Loader], Loader]:
    """Declare the loader for calls of these methods of tensors; it gets a `StoredMethod`.

    Raises GraphError if a method has a loader already, or is no text.
    """
    for name in methods:
        if not isinstance(name, str):
            raise GraphError(
                f"register_tensor_method_loader: got {name!r}; expected the name of a method, as 'reshape'"
            )
    return _registering(_methods, methods)


def register_module_loader(*module_types: tuple[str, str] | type) -> Callable[[Loader], Loader]:
    """Declare the loader for layers of these classes and their calls; each class as (module, name) or itself.

    It gets a `StoredMethod` for every call of such a layer. Raises GraphError as `register_functional_loader`.
    """
    return _registering(_modules, [_full_name("register_module_loader", kind) for kind in module_types])


def register_opdef_loader(*opdefs: type | str) -> Callable[[Loader], Loader]:
    """Declare the loader for ops of these classes (of `megengine.core.ops.builtin`); it gets a `StoredOp`.

    Raises GraphError if a class has a loader already, or is no class.
    """
    for kind in opdefs:
        if not isinstance(kind, (type, str)):
            raise GraphError(f"register_opdef_loader: got {kind!r}; expected a class of ops, as builtin.Elemwise")
    return _registering(_ops, [kind if isinstance(kind, str) else kind.__name__ for kind in opdefs])


def _full_name(what: str, target: Any) -> str:
    if isinstance(target, tuple) and len(target) == 2 and all(isinstance(part, str) for part in target):
        return ".".join(target)
    if callable(target) and hasattr(target, "__qualname__"):
        return qualified_name(target)
    raise GraphError(f"{what}: got {target!r}; expected (module, name) as files have them, or what they name")


def _registering(table: dict[str, Loader], names: Sequence[str]) -> Callable[[Loader], Loader]:
    def register(loader: Loader) -> Loader:
        for name in names:
            if name in table and _place(table[name]) != _place(loader):  # a notebook runs its cells again
                raise GraphError(f"{name} has a loader already: {table[name]!r}; one loader brings it up to date")
        table.update(dict.fromkeys(names, loader))
        return loader

    return register


def _place(loader: Loader) -> tuple[Any, Any]:
    return getattr(loader, "__module__", None), getattr(loader, "__qualname__", loader)


# ---------------------------------------------------------------- arguments of loaders


class _Stored:
    """Changes of a call that no graph holds yet. `version` is the version of MegEngine that wrote the file."""

    version: str | None = None

    @property
    def const_val(self: Any) -> list[tuple[int, Any]]:
        """Constants among the arguments: (index of the leaf, value); it can be set."""
        return list(self._const_val)

    @const_val.setter
    def const_val(self: Any, new: Sequence[tuple[int, Any]]) -> None:
        self._const_val = tuple(new)

    def set_args_kwargs(self: Any, *args: Any, **kwargs: Any) -> None:
        """Call with other arguments: nodes of the call, and constants. Raises TypeError as a wrong call."""
        args, kwargs = normalized(self.signature, args, kwargs)
        inputs, arguments = flatten_arguments(args, kwargs, lambda v: v if isinstance(v, Node) else None)
        if any(isinstance(v, Tensor) for _, v in arguments[1]):
            raise GraphError(f"set_args_kwargs: {self!r} gets a tensor; expected nodes that it has, and constants")
        self._inputs, (self._arg_def, self._const_val) = tuple(inputs), arguments

    def set_arg(self: Any, name: str | int, val: Any) -> None:
        """Replace one argument, by the name of its parameter or its place among the positional ones."""
        args, kwargs = with_argument(self, name, val)
        self.set_args_kwargs(*args, **kwargs)


class StoredFunction(_Stored, CallFunction):
    """The call of a function, as a file has it."""

    @property
    def func(self) -> Any:
        """The function, or (module, name) of an unknown one; it can be set in either form."""
        try:
            return super().func
        except GraphError:
            home, _, name = self._func.rpartition(".")
            return home, name

    @func.setter
    def func(self, new: Any) -> None:
        self._func = _full_name("func", new)


class StoredMethod(_Stored, CallMethod):
    """The call of a method of a tensor, or of a layer (`method` is "__call__"), as a file has it."""

    @property
    def method(self) -> str:
        """Name of the method; it can be set."""
        return self._method

    @method.setter
    def method(self, new: str) -> None:
        self._method = new


class StoredOp:
    """An op, as a file has it: the nodes that it is applied to, and its fields in `opdef_state`, a dict."""

    def __init__(self, name: str, state: dict[str, Any], inputs: Sequence[Node], version: str | None) -> None:
        self.opdef = name
        self.opdef_state = state
        self.inputs = tuple(inputs)
        self.version = version

    def __repr__(self) -> str:
        return f"{self.opdef}({', '.join(n.name for n in self.inputs)})"


# ---------------------------------------------------------------- loading


def loaded(call: Call, qualified: str, version: str | None) -> Call:
    """A call that is being read, after its loader; the same call if it has none.

    `qualified` names the function in the file. Raises FileFormatError with the error of the loader.
    """
    stored: Any
    if isinstance(call, CallFunction):
        name, loader, stored = qualified, _functions.get(qualified), StoredFunction
    elif isinstance(call, CallMethod) and call.method == "__call__":
        kind = type(call.inputs[0].owner)
        name = f"{kind.__module__}.{kind.__qualname__}"
        loader, stored = _modules.get(name) if issubclass(kind, Module) else None, StoredMethod
    elif isinstance(call, CallMethod):
        name, loader, stored = call.method, _methods.get(call.method), StoredMethod
    else:
        return call
    if loader is None:
        return call
    changed = _with_class(call, stored)
    changed.version = version
    _run(loader, changed, name)
    return _with_class(changed, type(call))


def _with_class(call: Call, kind: type[Call]) -> Any:
    changed = object.__new__(kind)
    for name in (*Expr.__slots__, *kind._own):
        setattr(changed, name, getattr(call, name))
    for node in changed.outputs:
        node._expr = changed
    return changed


def loaded_op(name: str, state: dict[str, Any], inputs: Sequence[Node], version: str | None) -> dict[str, Any]:
    """The fields of an op after the loader of its class; the same if it has none."""
    if name not in _ops:
        return state
    stored = StoredOp(name, dict(state), inputs, version)
    _run(_ops[name], stored, name)
    return stored.opdef_state


def _run(loader: Loader, stored: Any, name: str) -> None:
    try:
        loader(stored)
    except MegEngineError as error:
        error.add_note(f"while the loader of {name} changed {stored!r}")
        raise
    except Exception as error:
        raise FileFormatError(f"the loader of {name} raised {type(error).__name__}: {error}") from error
