"""Where in a network a call failed: the path of the module, as `named_modules` gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megengine.core.errors import MegEngineError
from megengine.dispatch.refusal import FOREIGN, explained, own, without_self

_KEY = "_megengine_module"  # in the exception's own attributes: (innermost module, the note about it)


def located(module: Any, exc: Exception, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Exception:
    """The error to raise where `module(*inputs, **kwargs)` ended in `exc`, with a note that tells the module's path.

    Each module on the way out writes the path anew as seen from itself, so the outermost has the last word.
    What our own layers could not do with an argument becomes an error that shows the call; errors of users' code
    stay what they are.
    """
    if _KEY not in exc.__dict__:
        if isinstance(exc, FOREIGN) and not isinstance(exc, MegEngineError) and _ours(module, exc):
            forward = type(module).forward
            exc = explained(type(module).__name__, forward, exc, inputs, kwargs, without_self(forward))
        exc.__dict__[_KEY] = module, _note(module, module)
        exc.add_note(exc.__dict__[_KEY][1])
        return exc
    inner, old = exc.__dict__[_KEY]
    new = _note(module, inner)
    if new and old in exc.__notes__:
        exc.__notes__[exc.__notes__.index(old)] = new
        exc.__dict__[_KEY] = inner, new
    return exc


def _ours(module: Any, exc: Exception) -> bool:
    """Whether a layer of ours failed, or could not even be called; hooks are users' code."""
    called = exc.__traceback__.tb_next.tb_next if exc.__traceback__ and exc.__traceback__.tb_next else None
    inside = called is None or str(called.tb_frame.f_globals.get("__name__")).startswith("megengine.")
    return own(type(module)) and inside


def _note(root: Any, inner: Any) -> str:
    """Empty if `inner` is not found below `root`: it may be kept where no module looks."""
    text = f"{type(inner).__name__}({inner._module_info_string()})"
    if root is inner:
        return f"in module {text}"
    path = next((name for name, m in root.named_modules() if m is inner), "")
    return path and f"in module {path}, {text}, of {type(root).__name__}"
