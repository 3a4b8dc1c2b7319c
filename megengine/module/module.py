"""Module: parameters, buffers, children and a forward function."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from megengine.core import hooks
from megengine.core.errors import OptionError, ShapeError, nearest
from megengine.tensor import Parameter, Tensor


def _children_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Entries of a list, tuple or dict of modules or tensors."""
    if isinstance(value, (list, tuple)):
        yield from ((str(i), v) for i, v in enumerate(value))
    elif isinstance(value, dict):
        yield from ((str(k), v) for k, v in value.items())


def _walk(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every Module and Tensor reachable from an attribute through containers, with its path."""
    if isinstance(value, (Module, Tensor)):
        yield prefix, value
        return
    for name, item in _children_of(value):
        yield from _walk(f"{prefix}.{name}", item)


class HookHandle:
    """Takes a hook away again."""

    def __init__(self, table: dict[int, Callable], key: int) -> None:
        self._table, self._key = table, key

    def remove(self) -> None:
        """Remove the hook; doing it twice is harmless."""
        self._table.pop(self._key, None)


class Module:
    """Base of all layers: subclass it, set parameters and children as attributes, define `forward`.

    Lists, tuples and dicts of modules count as children. State dict keys are a module's own in
    alphabetical order, then those of its children.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.training = True
        self.quantize_disabled = False
        self._forward_pre_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._forward_hooks: OrderedDict[int, Callable] = OrderedDict()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The computation of the module."""
        raise NotImplementedError(f"{type(self).__name__} has no forward; define it in the subclass")

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        watcher = hooks.active.get()
        if watcher is None or name.startswith("__") or not isinstance(value, (Module, Tensor, list, tuple, dict)):
            return value
        return watcher.attribute(self, name, value)

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        watcher = hooks.active.get()
        if watcher is None:
            return self._run(inputs, kwargs)
        return watcher.module(self, inputs, kwargs, lambda: self._run(inputs, kwargs))

    def _run(self, inputs: tuple, kwargs: dict) -> Any:
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

    def register_forward_pre_hook(self, hook: Callable) -> HookHandle:
        """Call `hook(module, inputs)` before forward; what it returns replaces the inputs."""
        return self._register(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable) -> HookHandle:
        """Call `hook(module, inputs, outputs)` after forward; what it returns replaces the outputs."""
        return self._register(self._forward_hooks, hook)

    @staticmethod
    def _register(table: OrderedDict[int, Callable], hook: Callable) -> HookHandle:
        key = max(table, default=-1) + 1
        table[key] = hook
        return HookHandle(table, key)

    # ------------------------------------------------------------ iteration

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        own = object.__getattribute__(self, "__dict__")
        for name in sorted(own):
            if name not in ("_forward_hooks", "_forward_pre_hooks"):
                yield from _walk(name, own[name])

    def named_children(self, **_: Any) -> Iterator[tuple[str, Module]]:
        """Direct children (also those in containers) with their names."""
        for name, value in self._attributes():
            if isinstance(value, Module):
                yield name, value

    def children(self, **_: Any) -> Iterator[Module]:
        """Direct children."""
        return (m for _, m in self.named_children())

    def named_modules(self, prefix: str | None = None, _seen: set[int] | None = None) -> Iterator[tuple[str, Module]]:
        """The module and all below it, each once, with paths."""
        seen = set() if _seen is None else _seen
        if id(self) in seen:
            return
        seen.add(id(self))
        yield prefix or "", self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name, seen)

    def modules(self) -> Iterator[Module]:
        """The module and all below it, each once."""
        return (m for _, m in self.named_modules())

    def named_tensors(self, prefix: str | None = None, recursive: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers with their paths: a module's own first, then its children's, each alphabetical."""
        return ((name, t) for name, t, _ in self._tensors(f"{prefix}." if prefix else "", recursive, set()))

    def _tensors(self, prefix: str, recursive: bool, stack: set[int]) -> Iterator[tuple[str, Tensor, Module]]:
        if id(self) in stack:
            return
        stack = {*stack, id(self)}
        own = list(self._attributes())
        yield from ((prefix + name, value, self) for name, value in own if isinstance(value, Tensor))
        for name, value in own:
            if recursive and isinstance(value, Module):
                yield from value._tensors(f"{prefix}{name}.", True, stack)

    def tensors(self, recursive: bool = True) -> Iterator[Tensor]:
        """Parameters and buffers."""
        return (t for _, t in self.named_tensors(recursive=recursive))

    def named_parameters(self, prefix: str | None = None, recursive: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Parameters with their paths, each once."""
        seen: set[int] = set()
        for name, value in self.named_tensors(prefix, recursive):
            if isinstance(value, Parameter) and id(value) not in seen:
                seen.add(id(value))
                yield name, value

    def parameters(self, recursive: bool = True) -> Iterator[Parameter]:
        """Parameters, each once."""
        return (p for _, p in self.named_parameters(recursive=recursive))

    def named_buffers(self, prefix: str | None = None, recursive: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Tensors that are not parameters, with their paths."""
        return ((n, t) for n, t in self.named_tensors(prefix, recursive) if not isinstance(t, Parameter))

    def buffers(self, recursive: bool = True) -> Iterator[Tensor]:
        """Tensors that are not parameters."""
        return (t for _, t in self.named_buffers(recursive=recursive))

    # ------------------------------------------------------------ modes

    def apply(self, fn: Callable[[Module], Any]) -> None:
        """Call `fn` on the module and all below it."""
        for module in list(self.modules()):
            fn(module)

    def train(self, mode: bool = True) -> Module:
        """Training mode (or evaluation with mode=False) for the module and all below it."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Evaluation mode."""
        return self.train(False)

    def disable_quantize(self, value: bool = True) -> None:
        """Keep the module and all below it out of quantization."""
        for module in self.modules():
            module.quantize_disabled = value

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for parameter in self.parameters():
            parameter.grad = None

    # ------------------------------------------------------------ state

    def state_dict(self, rst: Any = None, prefix: str = "", keep_var: bool = False) -> OrderedDict[str, Any]:
        """Path -> array (or the tensor itself with keep_var) of parameters and buffers."""
        out = OrderedDict() if rst is None else rst
        for name, value, owner in self._tensors(prefix, True, set()):
            out[name] = value if keep_var else owner._saved(value)
        return out

    def _saved(self, tensor: Tensor) -> np.ndarray:
        """The array that stands for one of the module's own tensors in a state dict."""
        return np.array(tensor.numpy())

    def load_state_dict(self, state_dict: Mapping[str, Any] | Callable[..., Any], strict: bool = True) -> None:
        """Take values from a state dict. With strict, missing and unknown keys are errors; wrong shapes always are
        (a vector of C may stand for (1,C,1,1)).

        A callable is asked for each tensor: `state_dict(name, tensor)` returns its value or None.
        """
        tensors = dict(self.named_tensors())
        if callable(state_dict):
            state = {k: v for k, t in tensors.items() if (v := state_dict(k, t)) is not None}
        else:
            state = dict(state_dict)
        missing, unknown = sorted(tensors.keys() - state.keys()), sorted(state.keys() - tensors.keys())
        if strict and (missing or unknown):
            hint = nearest(unknown[0], missing) if unknown else ""
            raise OptionError(
                f"load_state_dict of {type(self).__name__}: missing {missing[:5]}, unknown {unknown[:5]}{hint}; "
                "pass strict=False to take what fits"
            )
        values = {k: self._checked(k, tensors[k], state[k]) for k in tensors.keys() & state.keys()}
        for name, value in values.items():
            tensors[name]._reset(value)

    @staticmethod
    def _checked(name: str, have: Tensor, new: Any) -> Tensor:
        new = new if isinstance(new, Tensor) else Tensor(new, dtype=np.asarray(new).dtype)
        if new.shape != have.shape:
            if len(new.shape) != 1 or have.shape != (1, new.shape[0], *[1] * (len(have.shape) - 2)):
                raise ShapeError(f"load_state_dict: {name} has shape {new.shape}; expected {have.shape}")
            new = new.reshape(have.shape)  # type: ignore[attr-defined]
        return new.detach() if new.dtype == have.dtype else new.astype(have.dtype)  # type: ignore[attr-defined]

    # ------------------------------------------------------------ printing

    def _module_info_string(self) -> str:
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self.named_children()]
        head = f"{type(self).__name__}({self._module_info_string()}"
        return head + ("\n  " + "\n  ".join(lines) + "\n)" if lines else ")")
