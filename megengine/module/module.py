"""Module: parameters, buffers, children and a forward function."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from megengine import device as devices
from megengine.core import _engine, absent, hooks
from megengine.core.calls import shown
from megengine.core.dtype import is_quantized, storage_of
from megengine.core.errors import (
    ArgumentError,
    MissingMethodError,
    MissingNameError,
    OptionError,
    ShapeError,
    StateDictError,
    nearest,
)
from megengine.core.hook_handler import HookHandler
from megengine.core.text import one_line
from megengine.dispatch.refusal import constructor, explains, own
from megengine.logger import get_logger
from megengine.module import paths
from megengine.module.location import located
from megengine.module.settings import is_handled
from megengine.tensor import Parameter, Tensor


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Entries of a list, tuple or dict (by the text of its keys, which may be anything)."""
    if isinstance(value, (list, tuple)):
        yield from ((str(i), v) for i, v in enumerate(value))
    elif isinstance(value, dict):
        yield from sorted(((str(k), v) for k, v in value.items()), key=lambda item: item[0])


def _walk(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every Module and Tensor reachable from an attribute through containers, with its path."""
    if isinstance(value, (Module, Tensor)):
        yield prefix, value
        return
    for name, item in _items(value):
        yield from _walk(f"{prefix}.{name}", item)


def _access_structure(obj: Any, key: str, callback: Callable[[Any, Any, Any], Any] | None = None) -> Any:
    """The value at a dotted path of attributes, entries of lists and of dicts.

    With a callback its result for (container, key in it, value). Raises MissingNameError.
    """
    parent, at = None, obj
    index: Any = None
    for part in key.split("."):
        parent = at
        try:
            index = int(part) if isinstance(parent, (list, tuple)) else part
            at = getattr(parent, part) if isinstance(parent, Module) else parent[index]
        except (AttributeError, IndexError, KeyError, ValueError, TypeError) as exc:
            text = f"{type(obj).__name__} has nothing at {key!r}: {part!r} is missing in a {type(parent).__name__}"
            raise MissingNameError(text) from exc
    return at if callback is None else callback(parent, index, at)


def _expand_structure(prefix: str, obj: Any) -> list[tuple[str, Any]]:
    """Path and value of every module and tensor in an attribute, through lists and dicts."""
    return list(_walk(prefix, obj))


def _put(parent: Any, key: Any, value: Any) -> None:
    if isinstance(parent, Module):
        setattr(parent, key, value)
    else:
        parent[key] = value


_OF_ALL = frozenset({"name", "training", "quantize_disabled"})  # settings of every module; no shape depends on them
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
# entries of MegEngine's state of a module that are not attributes here
_BOOKKEEPING = frozenset({"_modules", "_name", "_short_name", "_m_dump_modulestate"})


def _head(prefix: str | None) -> str:
    return f"{prefix}." if prefix else ""


def _named(entries: Iterable[tuple], with_parent: bool) -> Iterator[tuple]:
    return ((name, value, parent) if with_parent else (name, value) for name, value, parent in entries)


def _unnamed(entries: Iterable[tuple]) -> Iterator[Any]:
    return (entry[1] if len(entry) == 2 else entry[1:] for entry in entries)


if TYPE_CHECKING:
    from typing import ParamSpec, Protocol, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R", covariant=True)

    class _HasForward(Protocol[P, R]):
        def forward(self, *inputs: P.args, **kwargs: P.kwargs) -> R: ...

    _Reads = object
else:
    _Reads = _engine.WatchedReads  # native: a layer reads a dozen of its attributes at every call


class Module(_Reads):
    """Base of all layers: subclass it, set parameters and children as attributes, define `forward`.

    Lists, tuples and dicts of modules count as children. State dict keys are a module's own in
    alphabetical order, then those of its children.
    """

    __slots__ = ("__dict__", "__weakref__", "_place")  # `paths.keep_in` takes the last name away: users may have it

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if own(cls) and "__init__" in cls.__dict__:
            cls.__init__ = constructor(cls.__init__)

    @constructor
    def __init__(self, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise ArgumentError(f"{type(self).__name__}: name is {shown(name)}; expected a string")
        self.name = name
        self.training = True
        self.quantize_disabled = False
        self._forward_pre_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._forward_hooks: OrderedDict[int, Callable] = OrderedDict()

    def __setattr__(self, name: str, value: Any) -> None:
        if not is_handled(self, name, value, _OF_ALL, Module):
            if isinstance(value, (Module, list, tuple, dict)):
                paths.set_child(self, name, value, Module)
            else:
                object.__setattr__(self, name, value)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The computation of the module."""
        added = [n for cls in type(self).__mro__[: type(self).__mro__.index(Module)] for n in cls.__dict__]
        hint = nearest("forward", added)
        raise MissingMethodError(f"{type(self).__name__} has no forward; define it in the subclass{hint}")

    def _call(self, *inputs: Any, **kwargs: Any) -> Any:
        watcher = hooks.active.get()
        if watcher is None:
            try:
                return self._run(inputs, kwargs)
            except Exception as exc:
                failed = located(self, exc, inputs, kwargs)
                if failed is exc:
                    raise
                raise failed from exc
        return watcher.module(self, inputs, kwargs, lambda: self._run(inputs, kwargs))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        @property
        def __call__(self: _HasForward[P, R]) -> Callable[P, R]: ...  # arguments and result are those of forward
    else:
        __call__ = _call

    def _run(self, inputs: tuple, kwargs: dict) -> Any:
        if not (self._forward_pre_hooks or self._forward_hooks):
            return self.forward(*inputs, **kwargs)
        for hook in list(self._forward_pre_hooks.values()):
            changed = hook(self, inputs)
            if changed is not None:
                inputs = changed if isinstance(changed, tuple) else (changed,)
        outputs = self.forward(*inputs, **kwargs)
        for hook in list(self._forward_hooks.values()):
            changed = hook(self, inputs, outputs)
            if changed is not None:
                outputs = changed
        return outputs

    def register_forward_pre_hook(self, hook: Callable) -> HookHandler:
        """Call `hook(module, inputs)` before forward; a result other than None replaces the inputs."""
        return HookHandler(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable) -> HookHandler:
        """Call `hook(module, inputs, outputs)` after forward; a result other than None replaces the outputs."""
        return HookHandler(self._forward_hooks, hook)

    # ------------------------------------------------------------ iteration

    def _attributes(self, order: Callable[..., Iterable[str]] = sorted) -> Iterator[tuple[str, Any]]:
        own = object.__getattribute__(self, "__dict__")
        for name in order(own):
            if name not in _HOOKS:
                yield from _walk(name, own[name])

    def _entries(self, prefix: str, recursive: bool, seen: set[int]) -> Iterator[tuple[str, Any, Module]]:
        """(path, module or tensor, owner) in alphabetical order, depth first, each object once."""
        entered: list[tuple[str, Module, Iterator[tuple[str, Any]]]] = [
            (prefix, self, self._attributes())
        ]  # no recursion: modules may nest deeper than Python's calls
        while entered:
            head, owner, attributes = entered[-1]
            for name, value in attributes:
                if id(value) in seen:
                    continue
                seen.add(id(value))
                yield head + name, value, owner
                if recursive and isinstance(value, Module):
                    entered.append((f"{head}{name}.", value, value._attributes()))
                    break
            else:
                entered.pop()

    def _flatten(
        self,
        *,
        recursive: bool = True,
        with_key: bool = False,
        with_parent: bool = False,
        prefix: str | None = None,
        predicate: Callable[[Any], bool] = lambda _: True,
        seen: set[int] | None = None,
    ) -> Iterator[Any]:
        """Modules and tensors below, each once, by MegEngine's inside name: `named_modules` and others give them."""
        for key, value, parent in self._entries(_head(prefix), recursive, {id(self)} if seen is None else seen):
            if predicate(value):
                parts = (*((key,) if with_key else ()), value, *((parent,) if with_parent else ()))
                yield parts if len(parts) > 1 else value

    def named_children(self, *, prefix: str | None = None, with_parent: bool = False) -> Iterator[tuple[str, Module]]:
        """Direct children (also those in containers) with their names; with_parent adds the module itself."""
        entries = self._entries(_head(prefix), False, set())
        return _named((e for e in entries if isinstance(e[1], Module)), with_parent)

    def children(self, **kwargs: Any) -> Iterator[Module]:
        """Direct children."""
        return _unnamed(self.named_children(**kwargs))

    def named_modules(self, prefix: str | None = None, *, with_parent: bool = False) -> Iterator[tuple[str, Module]]:
        """The module and all below it, each once, with paths."""
        yield from _named([(prefix or "", self, None)], with_parent)
        entries = self._entries(_head(prefix), True, {id(self)})
        yield from _named((e for e in entries if isinstance(e[1], Module)), with_parent)

    def modules(self, **kwargs: Any) -> Iterator[Module]:
        """The module and all below it, each once."""
        return _unnamed(self.named_modules(**kwargs))

    def _tensors(self, prefix: str | None, recursive: bool) -> Iterator[tuple[str, Tensor, Module]]:
        entries = self._entries(_head(prefix), recursive, {id(self)})
        return (e for e in entries if isinstance(e[1], Tensor))

    def named_tensors(
        self, prefix: str | None = None, recursive: bool = True, *, with_parent: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers with their paths, in alphabetical order, each once."""
        return _named(self._tensors(prefix, recursive), with_parent)

    def tensors(self, recursive: bool = True, **kwargs: Any) -> Iterator[Tensor]:
        """Parameters and buffers."""
        return _unnamed(self.named_tensors(recursive=recursive, **kwargs))

    def named_parameters(
        self, prefix: str | None = None, recursive: bool = True, *, with_parent: bool = False
    ) -> Iterator[tuple[str, Parameter]]:
        """Parameters with their paths, in alphabetical order, each once."""
        entries = (e for e in self._tensors(prefix, recursive) if isinstance(e[1], Parameter))
        return _named(entries, with_parent)

    def parameters(self, recursive: bool = True, **kwargs: Any) -> Iterator[Parameter]:
        """Parameters, each once."""
        return _unnamed(self.named_parameters(recursive=recursive, **kwargs))

    def named_buffers(
        self, prefix: str | None = None, recursive: bool = True, *, with_parent: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Tensors that are not parameters, with their paths."""
        entries = (e for e in self._tensors(prefix, recursive) if not isinstance(e[1], Parameter))
        return _named(entries, with_parent)

    def buffers(self, recursive: bool = True, **kwargs: Any) -> Iterator[Tensor]:
        """Tensors that are not parameters."""
        return _unnamed(self.named_buffers(recursive=recursive, **kwargs))

    # ------------------------------------------------------------ modes

    def apply(self, fn: Callable[[Module], Any]) -> None:
        """Call `fn` on the module and all below it."""
        for module in list(self.modules()):
            fn(module)

    def train(self, mode: bool = True, recursive: bool = True) -> Module:
        """Training mode (or evaluation with mode=False) for the module and, if recursive, all below it."""
        for module in self.modules() if recursive else (self,):
            module.training = mode
        return self

    def eval(self) -> Module:
        """Evaluation mode."""
        return self.train(False)

    def to(self, device: str) -> Module:
        """Move parameters, buffers and constants of the module and all below it to a device ("gpu0"), in place.

        Optimizers and gradient managers keep their parameters. Raises DeviceError for a device that cannot be used.
        """
        place = devices.normalize(device)
        for module in self.modules():
            module._move(place)
        return self

    def _move(self, device: str) -> None:
        for tensor in self.tensors(recursive=False):
            if tensor.device != device:
                tensor._reset(type(tensor)(tensor, device=device))

    def disable_quantize(self, value: bool = True) -> None:
        """Keep the module and all below it out of quantization."""
        for module in self.modules():
            module.quantize_disabled = value

    def zero_grad(self) -> None:
        """Set the gradients that there are to zero; `Optimizer.clear_grad` forgets them."""
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.reset_zero()

    def replace_param(self, params: Mapping[int, Parameter], start_pos: int, seen: set[int] | None = None) -> int:
        """Put other parameters in the places `start_pos`, ... of `named_parameters()`; places without one stay.

        `seen` holds ids of what is passed over, and gets those of what was found. Returns the number of places.
        MegEngine calls it deprecated; `load_state_dict` gives new values by name.

        Raises:
            ShapeError: a parameter has another shape than the one in its place; nothing is replaced.
        """
        if not isinstance(params, Mapping) or not isinstance(start_pos, int):
            raise ArgumentError(
                f"replace_param: got params={shown(params)}, start_pos={shown(start_pos)}; "
                "expected parameters by place, and the place of the first"
            )
        seen = {id(self)} if seen is None else seen
        found = [(path, p) for path, p, _ in self._entries("", True, seen) if isinstance(p, Parameter)]
        new = [(path, old, params[at]) for at, (path, old) in enumerate(found, start_pos) if at in params]
        for path, old, p in new:
            if not isinstance(p, Parameter):
                raise ArgumentError(f"replace_param: for {path} got {shown(p)}; expected a Parameter")
            if p.shape != old.shape:
                raise ShapeError(f"replace_param: for {path} got a shape of {p.shape}; expected {old.shape}")
        for path, _, p in new:
            _access_structure(self, path, lambda parent, key, _, p=p: _put(parent, key, p))
        return len(found)

    # ------------------------------------------------------------ state

    def __getstate__(self) -> dict[str, Any]:
        own = dict(object.__getattribute__(self, "__dict__"))
        containers = [k for k, v in own.items() if isinstance(v, (Module, list, tuple, dict))]
        return {"_modules": containers, **own, **paths.to_state(self)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        Module.__init__(self)
        own = object.__getattribute__(self, "__dict__")
        own.update((k, v) for k, v in state.items() if k not in _BOOKKEEPING)
        paths.from_state(self, state.get("_name"), state.get("_short_name"))
        for name, value in own.items():
            if isinstance(value, (Module, list, tuple, dict)):
                paths.note(self, name, value, Module)

    def _state(self, prefix: str) -> Iterator[tuple[str, Tensor, Module]]:
        """Entries of a state dict: a module's own tensors first, then its children's, each alphabetical."""
        todo: list[Iterator[tuple[str, Module]]] = [iter([(prefix, self)])]
        around: dict[int, None] = {}  # modules that are entered: one that holds itself is not entered again
        while todo:
            for head, module in todo[-1]:
                if id(module) in around:
                    continue
                own = [(name, value) for name, value, _ in module._entries("", False, set())]
                yield from ((head + name, value, module) for name, value in own if isinstance(value, Tensor))
                todo.append(iter([(f"{head}{name}.", value) for name, value in own if isinstance(value, Module)]))
                around[id(module)] = None
                break
            else:
                todo.pop()
                if around:
                    around.popitem()

    def state_dict(self, rst: Any = None, prefix: str = "", keep_var: bool = False) -> OrderedDict[str, Any]:
        """Path -> array (or the tensor itself with keep_var) of parameters and buffers."""
        out = OrderedDict() if rst is None else rst
        for name, value, owner in self._state(prefix):
            out[name] = value if keep_var else owner._saved(value)
        return out

    def _saved(self, tensor: Tensor) -> np.ndarray:
        """The array that stands for one of the module's own tensors in a state dict."""
        return np.array(tensor.numpy())

    @explains
    def load_state_dict(self, state_dict: Mapping[str, Any] | Callable[..., Any], strict: bool = True) -> None:
        """Take values from a state dict. With strict, missing and unknown keys are errors, else warnings; wrong shapes
        always are (vectors stand for (1,C,1,1) and LayerNorm's shapes). Quantized tensors take stored integers, too.
        A callable is called for each tensor: `state_dict(name, tensor)` returns its value. None counts as missing.

        Raises:
            StateDictError: missing or unknown keys; nothing was changed.
            ShapeError: a value of another shape; nothing was changed.
        """
        tensors = self.state_dict(keep_var=True)
        given = {k: state_dict(k, t) for k, t in tensors.items()} if callable(state_dict) else state_dict
        if not isinstance(given, Mapping):
            raise OptionError(f"load_state_dict: got a {type(state_dict).__name__}; expected a dict or a callable")
        state = {k: v for k, v in given.items() if v is not None}
        self._compare_keys(tensors.keys(), state.keys(), strict)
        owners = {name: owner for name, _, owner in self._state("")}
        values = {k: owners.get(k, self)._as_loaded(k, tensors[k], state[k]) for k in tensors.keys() & state.keys()}
        for name, value in values.items():
            tensors[name]._reset(value)

    def _compare_keys(self, ours: Iterable[str], theirs: Iterable[str], strict: bool) -> None:
        missing, unknown = self._required(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
        if not missing and not unknown:
            return
        hint = nearest(unknown[0], missing) if unknown else ""
        text = f"load_state_dict of {type(self).__name__}: missing {missing[:5]}, unknown {unknown[:5]}{hint}"
        if strict:
            raise StateDictError(f"{text}; pass strict=False to take what fits")
        get_logger(__name__).warning(text)

    def _required(self, missing: set[str]) -> list[str]:
        """Missing keys that are errors, sorted: all but those of children that MegEngine's modules do not have."""
        optional = tuple(
            f"{path}.{child}.".lstrip(".")
            for path, module in (self.named_modules() if missing else ())
            for child in type(module)._not_in_megengine()
        )
        return sorted(key for key in missing if not key.startswith(optional))

    @classmethod
    def _not_in_megengine(cls) -> tuple[str, ...]:
        """Children that its state dicts may lack."""
        return ()

    def _as_loaded(self, name: str, have: Tensor, new: Any) -> Tensor:
        if not isinstance(new, Tensor):
            if (array := np.asarray(new)).dtype.kind in "OSUMm":
                raise ArgumentError(f"load_state_dict: {name} is {shown(new)}; expected numbers of shape {have.shape}")
            new = Tensor(array, dtype=array.dtype)
        if new.shape != have.shape:
            if (1, *new.shape, *[1] * (have.ndim - 2)) != have.shape and new.shape != self._saved(have).shape:
                raise ShapeError(f"load_state_dict: {name} has shape {new.shape}; expected {have.shape}")
            new = new.reshape(have.shape)
        if is_quantized(have.dtype) and new.dtype == storage_of(have.dtype):  # stored integers, of the scale it has
            return Tensor._wrap(new._storage(), have.dtype, new.device)
        same = new.dtype == have.dtype or (is_quantized(new.dtype) and is_quantized(have.dtype))  # brings its scale
        return new.detach() if same else new.astype(have.dtype)

    # ------------------------------------------------------------ printing

    def _module_info_string(self) -> str:
        return ""

    def __repr__(self) -> str:
        return self._tree(repr)

    def _tree(self, shown: Callable[[Module], str]) -> str:
        entries = ((n, v) for n, v in self._attributes(list) if isinstance(v, Module))
        lines = [f"({one_line(name)}): " + shown(child).replace("\n", "\n  ") for name, child in entries]
        kind, info = one_line(type(self).__name__), one_line(self._module_info_string())
        if not lines:
            return f"{kind}({info})"
        return "\n  ".join([f"{kind}(", *([info] if info else ()), *lines]) + "\n)"


def _watched(module: Module, name: str, value: Any) -> Any:
    """The value of an attribute for its reader, while a watcher (a tracer) is active."""
    watcher = hooks.active.get()
    if watcher is None or name.startswith("__") or not isinstance(value, (Module, Tensor, list, tuple, dict)):
        return value
    if isinstance(getattr(type(module), name, None), property):
        return value  # the watcher saw the attributes that the property read
    return watcher.attribute(module, name, value)


def _missing(module: Module, name: str) -> Any:
    """Called for names that do not exist only: the error says what to do."""
    if hasattr(type(module), name):
        return object.__getattribute__(module, name)  # a property failed: raise its own error again
    if name in _HOOKS or name == "training":
        raise MissingNameError(f"{type(module).__name__}.__init__ did not call super().__init__() before this")
    raise absent.attribute(module, name, absent.MODULE_WORDS)


_engine.watch_reads(hooks.active, _watched, _missing)
paths.keep_in(Module)
