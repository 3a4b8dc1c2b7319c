"""The path of the module in which a call failed, as in `named_modules`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megengine.core.errors import MegEngineError
from megengine.core.text import one_line
from megengine.dispatch.refusal import FOREIGN, explained, own, without_self

_KEY = "_megengine_module"  # in the exception's own attributes: where it is so far


@dataclass(slots=True)
class _Place:
    """The module that failed, the outermost module so far that it was found in, its path there, and the note."""

    inner: Any
    outer: Any
    path: str
    note: str


def located(module: Any, exc: Exception, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Exception:
    """The error to raise where `module(*inputs, **kwargs)` raised `exc`, with a note of the module's path.

    Each module on the way out rewrites the path from its own position, so the path from the outermost one remains.
    An error of NumPy or Python in one of our own layers becomes an error that shows the call; errors of users' code
    are kept.
    """
    if _KEY not in exc.__dict__:
        if isinstance(exc, FOREIGN) and not isinstance(exc, MegEngineError) and _ours(module, exc):
            forward = type(module).forward
            exc = explained(type(module).__name__, forward, exc, inputs, kwargs, without_self(forward))
        exc.__dict__[_KEY] = _Place(module, module, "", one_line(f"in module {_text(module)}"))
        exc.add_note(exc.__dict__[_KEY].note)
        return exc
    place = exc.__dict__[_KEY]
    path = _path(module, place)
    if path and place.note in exc.__notes__:
        note = one_line(f"in module {path}, {_text(place.inner)}, of {type(module).__name__}")
        exc.__notes__[exc.__notes__.index(place.note)] = note
        exc.__dict__[_KEY] = _Place(place.inner, module, path, note)
    return exc


def _ours(module: Any, exc: Exception) -> bool:
    """Whether a layer of ours failed, or could not even be called; hooks are users' code."""
    frame = exc.__traceback__.tb_next.tb_next if exc.__traceback__ and exc.__traceback__.tb_next else None
    inside = frame is None or str(frame.tb_frame.f_globals.get("__name__")).startswith("megengine.")
    return own(type(module)) and inside


def _text(module: Any) -> str:
    return f"{type(module).__name__}({module._module_info_string()})"


def _path(root: Any, place: _Place) -> str:
    """Empty if the module that failed is not found below `root`: it may be kept where no module looks."""
    if root is place.inner:
        return ""
    for name, child in root.named_children():  # mostly it is called by what holds it
        if child is place.outer:
            return f"{name}.{place.path}" if place.path else name
    return next((name for name, m in root.named_modules() if m is place.inner), "")
